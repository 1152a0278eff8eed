"""The digest of rows is the same for the same rows in any order, and another for others."""

from __future__ import annotations

import datetime as dt
import random
import subprocess
import sys
from collections.abc import Sequence
from decimal import Decimal
from itertools import combinations, product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lazydelta.write.batch_record import BatchDigest

_POINT = pa.struct([("x", pa.int64()), ("y", pa.float64())])
_TIMESTAMP = dt.datetime(2026, 2, 10, tzinfo=dt.UTC)

# Values of a type that are all different, null among them.
VALUES: dict[pa.DataType, list[Any]] = {
    pa.bool_(): [None, False, True],
    pa.int8(): [None, -1, 0, 1, 127],
    pa.int32(): [None, -1, 0, 1, 2**31 - 1],
    pa.int64(): [None, -1, 0, 1, 256, 2**63 - 1],
    pa.float32(): [None, 0.0, -0.0, 0.5, float("nan"), float("inf")],
    pa.float64(): [None, 0.0, -0.0, 0.5, 1e300, float("nan"), float("-inf")],
    pa.decimal128(38, 2): [None, Decimal("0.00"), Decimal("0.01"), Decimal("-0.01"), Decimal(10) ** 30, Decimal(2**64)],
    pa.date32(): [None, dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date(2026, 2, 10)],
    pa.timestamp("us", "UTC"): [None, _TIMESTAMP, _TIMESTAMP + dt.timedelta(microseconds=1)],
    pa.timestamp("us"): [None, dt.datetime(2026, 2, 10), dt.datetime(2026, 2, 11)],  # noqa: DTZ001 - it has no zone
    pa.string(): [None, "", "a", "b", "ab", "a\0", "a" * 8, "a" * 9, "é" * 300, "x" * 4000, "x" * 4001],
    pa.large_string(): [None, "", "a", "b"],
    pa.binary(): [None, b"", b"\0", b"\0\0", bytes(600), bytes(601)],
    pa.list_(pa.int64()): [None, [], [None], [0], [1, 2], [2, 1], [1, 2, None], [1, None, 2]],
    pa.list_(pa.list_(pa.string())): [None, [], [[]], [None], [["a"], ["b"]], [["a", "b"]], [["b"], ["a"]]],
    pa.map_(pa.string(), pa.int64()): [
        None,
        [],
        [("a", 1)],
        [("a", None)],
        [("a", 0)],
        [("b", 1)],
        [("a", 1), ("b", 2)],
    ],
    _POINT: [None, {}, {"x": 1, "y": 2.0}, {"x": 2, "y": 1.0}, {"x": 1, "y": None}, {"x": None, "y": 1.0}],
    pa.null(): [None],
}
KINDS = pytest.mark.parametrize("kind", VALUES, ids=str)


def digest(*batches: pa.RecordBatch) -> int:
    found = BatchDigest()
    for each in batches:
        found.add(each)
    return found.value


@KINDS
def test_every_value_of_a_type_is_told_from_every_other(kind: pa.DataType) -> None:
    values = VALUES[kind]
    found = [digest(pa.record_batch({"v": pa.array([each], kind)})) for each in values]
    assert len(set(found)) == len(values)
    # Also two rows from two others, and the same value twice from once.
    pairs = [digest(pa.record_batch({"v": pa.array(each, kind)})) for each in combinations([*values, *values], 2)]
    assert len(set(pairs)) == len({tuple(sorted(map(repr, each))) for each in combinations([*values, *values], 2)})


@KINDS
def test_order_and_batches_and_slices_change_nothing(kind: pa.DataType) -> None:
    rng = random.Random(str(kind))
    values = rng.choices(VALUES[kind], k=50)
    order = rng.sample(range(50), 50)
    rows = pa.record_batch({"v": pa.array(values, kind), "n": pa.array(range(50), pa.int64())})
    shuffled = pa.record_batch(
        {"n": pa.array(order, pa.int64()), "v": pa.array([values[each] for each in order], kind)}
    )
    assert digest(rows) == digest(shuffled) == digest(*(rows.slice(first, 7) for first in range(0, 50, 7)))
    # The same values, one step on among the rows.
    turned = pa.record_batch({"v": pa.array(values[1:] + values[:1], kind), "n": rows["n"]})
    assert (digest(turned) == digest(rows)) == (len(set(map(repr, values))) == 1)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (range(-20, 20), pa.int64()),
        ([each * 2**40 for each in range(40)], pa.int64()),
        ([each / 2 for each in range(-20, 20)], pa.float64()),
        ([2.0**each for each in range(40)], pa.float32()),
        ([f"{each:08}" for each in range(40)], pa.string()),
        (["x" * each for each in range(40)], pa.string()),
        ([[each, each + 1] for each in range(40)], pa.list_(pa.int64())),
        ([Decimal(each) for each in range(40)], pa.decimal128(38, 0)),
    ],
    ids=str,
)
def test_rows_of_regular_values_do_not_collide(values: Sequence[Any], kind: pa.DataType) -> None:
    """Nearly all bits of such values are alike, and sums of them meet often."""
    pairs = list(product(values, repeat=2))
    columns = [pa.array(list(each), kind) for each in zip(*pairs, strict=True)]
    rows = pa.record_batch({"a": columns[0], "b": columns[1]})
    assert len({digest(rows.slice(index, 1)) for index in range(len(pairs))}) == len(pairs)


def test_columns_are_known_by_name_without_case_and_nulls_add_nothing() -> None:
    one = pa.record_batch({"a": pa.array([1, 2]), "b": pa.array([3, 4])})
    assert digest(one) == digest(pa.record_batch({"B": one["b"], "A": one["a"], "c": pa.nulls(2)}))
    assert digest(one) != digest(pa.record_batch({"a": one["b"], "b": one["a"]}))
    assert digest(pa.record_batch({"a": pa.nulls(1)})) != digest(pa.record_batch({"a": pa.nulls(2)}))


def test_texts_of_any_arrow_type_and_every_nan_are_alike() -> None:
    texts = pa.array(["a", "b", "a"])
    alike = [texts, texts.cast(pa.large_string()), texts.dictionary_encode(), texts.cast(pa.string_view())]
    assert len({digest(pa.record_batch({"v": each})) for each in alike}) == 1
    odd = pa.array(np.array([0x7FF8000000000001], np.uint64).view(np.float64))
    assert digest(pa.record_batch({"v": odd})) == digest(pa.record_batch({"v": pa.array([float("nan")])}))


def test_the_digest_is_the_same_in_every_process_and_stays_what_it_was() -> None:
    code = (
        "import pyarrow as pa; from lazydelta.write.batch_record import BatchDigest; found = BatchDigest();"
        "found.add(pa.record_batch({'id': [1, 2], 'text': ['a', None]})); print(BatchDigest.text([found.value, 1]))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    rows = pa.record_batch({"id": pa.array([1, 2]), "text": pa.array(["a", None])})
    # It is compared with what commits of earlier versions of this package say.
    assert found.stdout.strip() == BatchDigest.text([digest(rows), 1]) == "13d1c7069c70d3f0"
