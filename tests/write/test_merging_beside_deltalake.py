"""MERGE beside deltalake's: the same builder calls give the same rows, metrics and record in the history."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import deltalake
import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings

import lazydelta

SCHEMA = pa.schema([("id", pa.int64()), ("x", pa.string()), ("n", pa.int32())])
# How many files are read is each one's own: ours leaves out those that can hold no match.
_COUNTS = ("source_rows", "target_rows_inserted", "target_rows_updated", "target_rows_deleted")
_row = st.tuples(st.none() | st.integers(0, 6), st.sampled_from([None, "a", "b"]), st.none() | st.integers(-2, 3))
_rows = st.lists(_row, max_size=6)
_BOTH = [None, "s.n > 0", "t.n<=s.n", "t.x IS NULL", "s.x = 'a' OR t.x = 'b'"]
_calls = st.lists(
    st.one_of(
        st.tuples(st.just("when_matched_update_all"), st.just(()), st.sampled_from(_BOTH)),
        st.tuples(st.just("when_matched_update"), st.just(({"x": "s.x", "n": "t.n + 1"},)), st.sampled_from(_BOTH)),
        st.tuples(st.just("when_matched_delete"), st.just(()), st.sampled_from(_BOTH)),
        st.tuples(st.just("when_not_matched_insert_all"), st.just(()), st.sampled_from([None, "s.n > 0"])),
        st.tuples(
            st.just("when_not_matched_insert"),
            st.just(({"id": "s.id", "x": "upper(s.x)"},)),
            st.sampled_from([None, "s.x IS NOT NULL"]),
        ),
        st.tuples(
            st.just("when_not_matched_by_source_update"),
            st.just(({"x": "'gone'"},)),
            st.sampled_from([None, "t.n >= 1"]),
        ),
        st.tuples(st.just("when_not_matched_by_source_delete"), st.just(()), st.sampled_from([None, "t.x = 'a'"])),
    ),
    min_size=1,
    max_size=4,
)


def _table(rows: list[tuple[Any, ...]]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA)


def _outcome(module: Any, root: Path, files: list[Any], source: pa.Table, calls: list[Any]) -> Any:
    """Return rows, counts and whether there is a new version; or None if the merge is refused."""
    for rows in files:
        deltalake.write_deltalake(root, _table(rows), mode="append")
    before = deltalake.DeltaTable(root).version()
    merger = module.DeltaTable(root).merge(source, "t.id = s.id", "s", "t")
    for name, arguments, predicate in calls:
        merger = getattr(merger, name)(*arguments, predicate=predicate)
    try:
        metrics = merger.execute()
    except deltalake.exceptions.DeltaError as error:
        assert "duplicate relevant WHEN MATCHED" in str(error)  # noqa: PT017 - one refusal is expected, on both sides
        return None
    except lazydelta.errors.WriteError as error:
        assert "duplicate relevant WHEN MATCHED" in str(error)  # noqa: PT017 - as above
        return None
    after = deltalake.DeltaTable(root)
    rows = sorted(map(repr, after.to_pyarrow_table().to_pylist()))
    return rows, {each: metrics[f"num_{each}"] for each in _COUNTS}, after.version() > before


def _check(files: list[Any], source: list[Any], calls: list[Any]) -> None:
    # deltalake copies a row once for each row of the source that it matches and that no clause takes.
    takes_every_match = any(name.startswith("when_matched") and condition is None for name, _, condition in calls)
    assume(takes_every_match or len({key for key, *_ in source}) == len(source))
    with tempfile.TemporaryDirectory() as folder:
        theirs, ours = (
            _outcome(module, Path(folder) / module.__name__, files, _table(source), calls)
            for module in (deltalake, lazydelta)
        )
    assert ours == theirs


_merges = given(st.lists(st.lists(_row, min_size=1, max_size=5), min_size=1, max_size=2), _rows, _calls)
test_a_merge_is_that_of_deltalake = settings(max_examples=15, deadline=None)(_merges(_check))
test_many_merges_are_those_of_deltalake = pytest.mark.slow(settings(max_examples=1000, deadline=None)(_merges(_check)))


def test_the_history_records_a_merge_as_deltalake_does(tmp_path: Path) -> None:
    told = []
    for module in (deltalake, lazydelta):
        root = tmp_path / module.__name__
        deltalake.write_deltalake(root, _table([(1, "a", 1), (2, "b", 2)]))
        merger = module.DeltaTable(root).merge(_table([(2, "c", 5), (3, "d", 6)]), "t.id=s.id", "s", "t")
        merger.when_matched_delete("s.n=1").when_matched_update_all("s.n>2").when_not_matched_insert_all().execute()
        recorded = deltalake.DeltaTable(root).history(1)[0]["operationParameters"]
        names = ("mergePredicate", "matchedPredicates", "notMatchedPredicates", "notMatchedBySourcePredicates")
        told.append([recorded["mergePredicate"], *(json.loads(recorded[each]) for each in names[1:])])
    assert told[0] == told[1]
