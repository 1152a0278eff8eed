"""MERGE, DELETE and OPTIMIZE of Delta-Spark and ours race on one table with deletion vectors; identity columns of both.

Every operation adds to a number or takes a row away, so that what was acknowledged gives the rows, whatever the order.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from lazydelta import DeltaTable, create_table, write_arrow
from lazydelta.errors import CommitConflictError
from lazydelta.schema import Field, PrimitiveType, Schema
from tests.support.delta_spark import DeltaSpark

pytestmark = [pytest.mark.xdist_group("other sparks"), pytest.mark.timeout(900)]

SECONDS = 120
COUNTED, VICTIMS = 20, 400
_OURS, _SPARKS = 1, 1_000_000


@dataclass
class Writer:
    """One writer: what it is to do, and what of it was acknowledged."""

    seed: int
    merge: Callable[[list[int]], object]
    delete: Callable[[int], object]
    optimize: Callable[[], object]
    is_refused: Callable[[BaseException], bool]
    merged: Counter[int] = field(default_factory=Counter)
    deleted: set[int] = field(default_factory=set)
    done: Counter[str] = field(default_factory=Counter)
    error: BaseException | None = None

    @property
    def has_done_all(self) -> bool:
        """Return whether each kind of operation succeeded."""
        return all(self.done[kind] for kind in ("merge", "delete", "optimize"))

    def work(self, goes_on: Callable[[], bool]) -> None:
        """Do random operations while they may go on."""
        dice = random.Random(self.seed)
        while goes_on() and self.error is None:
            kind = dice.choice(["merge", "merge", "merge", "delete", "delete", "optimize"])
            ids, victim = dice.sample(range(COUNTED), 3), dice.randrange(1000, 1000 + VICTIMS)
            try:
                if kind == "merge":
                    self.merge(ids)
                    self.merged.update(ids)
                elif kind == "delete":
                    self.delete(victim)
                    self.deleted.add(victim)
                else:
                    self.optimize()
                self.done[kind] += 1
            except BaseException as error:  # noqa: BLE001 - looked at by the test
                if self.is_refused(error):
                    self.done["refused"] += 1
                else:
                    self.error = error


def _ours(root: Path) -> Writer:
    def merge(ids: list[int]) -> None:
        merger = DeltaTable(root).merge(pa.table({"id": ids}), "s.id = t.id", "s", "t")
        merger = merger.when_matched_update({"n": f"t.n + {_OURS}"})
        merger.when_not_matched_insert({"id": "s.id", "n": str(_OURS)}).execute()

    def optimize() -> None:
        DeltaTable(root).optimize.compact()

    return Writer(
        seed=1,
        merge=merge,
        delete=lambda victim: DeltaTable(root).delete(f"id = {victim}"),
        optimize=optimize,
        is_refused=lambda error: isinstance(error, CommitConflictError),
    )


def _sparks(spark: DeltaSpark, root: Path) -> Writer:
    place = f"delta.`{root}`"

    def merge(ids: list[int]) -> None:
        source = " UNION ALL ".join(f"SELECT {each}L AS id" for each in ids)
        spark.sql(
            f"MERGE INTO {place} t USING ({source}) s ON s.id = t.id "
            f"WHEN MATCHED THEN UPDATE SET n = t.n + {_SPARKS} "
            f"WHEN NOT MATCHED THEN INSERT (id, n) VALUES (s.id, {_SPARKS})"
        )

    return Writer(
        seed=2,
        merge=merge,
        delete=lambda victim: spark.sql(f"DELETE FROM {place} WHERE id = {victim}"),
        optimize=lambda: spark.sql(f"OPTIMIZE {place}"),
        is_refused=lambda error: "CONCURRENT" in str(error).upper(),
    )


@pytest.mark.slow
def test_changes_of_both_race_and_none_is_lost(delta_spark: DeltaSpark, tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("n", pa.int64())])
    create_table(tmp_path, schema, properties={"delta.enableDeletionVectors": "true"})
    victims = range(1000, 1000 + VICTIMS)
    for first in victims[::40]:
        write_arrow(tmp_path, pa.table({"id": range(first, first + 40), "n": [0] * 40}, schema))
    ours, sparks = _ours(tmp_path), _sparks(delta_spark, tmp_path)
    begun = time.monotonic()

    def goes_on() -> bool:
        passed = time.monotonic() - begun
        return passed < SECONDS or (passed < 5 * SECONDS and not (ours.has_done_all and sparks.has_done_all))

    thread = threading.Thread(target=ours.work, args=(goes_on,))
    thread.start()
    sparks.work(goes_on)
    thread.join()
    assert (ours.error, sparks.error) == (None, None)
    for each in (ours, sparks):
        assert each.has_done_all, each.done
    expected = {each: _OURS * ours.merged[each] + _SPARKS * sparks.merged[each] for each in range(COUNTED)}
    expected = {key: value for key, value in expected.items() if value}
    expected |= dict.fromkeys(set(victims) - ours.deleted - sparks.deleted, 0)
    found = DeltaTable(tmp_path).to_pyarrow_table().to_pylist()
    assert sorted((row["id"], row["n"]) for row in found) == sorted(expected.items()), (ours.done, sparks.done)
    by_spark = delta_spark.sql(f"SELECT id, n FROM delta.`{tmp_path}`")
    assert sorted((row["id"], row["n"]) for row in by_spark) == sorted(expected.items())
    theirs = deltalake.DeltaTable(tmp_path).to_pyarrow_table().to_pylist()
    assert sorted((row["id"], row["n"]) for row in theirs) == sorted(expected.items())


def test_delta_spark_goes_on_with_the_identity_column_that_we_wrote(delta_spark: DeltaSpark, tmp_path: Path) -> None:
    notes = {"delta.identity.start": 5, "delta.identity.step": 5, "delta.identity.allowExplicitInsert": False}
    number = Field("number", PrimitiveType("long"), metadata=notes)
    create_table(tmp_path, Schema([Field("id", PrimitiveType("long")), number]))
    write_arrow(tmp_path, pa.table({"id": [1, 2]}))
    place = f"delta.`{tmp_path}`"
    delta_spark.sql(f"INSERT INTO {place} (id) VALUES (3)")
    write_arrow(tmp_path, pa.table({"id": [4]}))
    delta_spark.sql(f"INSERT INTO {place} (id) VALUES (5)")
    rows = delta_spark.sql(f"SELECT id, number FROM {place} ORDER BY id")
    numbers = [row["number"] for row in rows]
    assert numbers[:2] == [5, 10]
    assert all(each % 5 == 0 for each in numbers)
    assert numbers == sorted(set(numbers))
    assert DeltaTable(tmp_path).to_pyarrow_table().sort_by("id")["number"].to_pylist() == numbers
