"""Delta-Spark's MERGE, DELETE with deletion vectors and OPTIMIZE race ours on one table: nothing is lost or doubled.

The ledger is a model of its own: it applies what each signed commit was asked to do, in the order of the versions.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lazydelta
from lazydelta import CommitProperties, DeltaTable
from lazydelta.errors import CommitConflictError
from lazydelta.storage import open_store
from tests.support.delta_spark import DeltaSpark, RefusedError
from tests.write.commits import commit_lines, versions
from tests.write.peers import DeltaRs, duckdb_peer

pytestmark = [pytest.mark.xdist_group("other sparks"), pytest.mark.timeout(1200)]

SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("p", pa.int64())])
PARTITIONS, IDS = 3, 36
KINDS = ("merge", "delete", "optimize")
_LONGEST_PAUSE = 0.5
_PATIENCE = 2
_MOST_ATTEMPTS = 60
Rows = dict[int, int]


@dataclass(frozen=True)
class Deed:
    """What a commit is asked to do, to rows of one partition: ``id % PARTITIONS`` is the partition of a row."""

    signature: str
    kind: str
    partition: int
    rows: tuple[tuple[int, int], ...]

    @classmethod
    def random(cls, dice: random.Random, signature: str, kind: str) -> Deed:
        """Choose a few rows of a partition, and new values for them."""
        partition = dice.randrange(PARTITIONS)
        ids = dice.sample(range(partition, IDS, PARTITIONS), dice.randint(1, 4))
        return cls(signature, kind, partition, tuple((each, dice.randrange(1_000_000)) for each in ids))

    def applied(self, rows: Rows) -> Rows:
        """Return the rows after it."""
        if self.kind == "merge":
            return {**rows, **dict(self.rows)}
        gone = {number for number, _ in self.rows} if self.kind == "delete" else set()
        return {number: value for number, value in rows.items() if number not in gone}


@dataclass
class Ledger:
    """What each side asked for and was told, and between which versions."""

    root: Path
    told: dict[str, tuple[Deed, int, int]] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    errors: list[BaseException] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = open_store(self.root)

    def do(self, deed: Deed, side: Callable[[Path, Deed], None]) -> bool:
        """Let a side do a deed, and return whether it was acknowledged."""
        since = versions(self.store)[-1]
        try:
            side(self.root, deed)
        except RefusedError:
            self.refused.add(deed.signature)
            return False
        self.told[deed.signature] = (deed, since, versions(self.store)[-1])
        return True

    def states(self, first: int, rows: Rows) -> dict[int, Rows]:
        """Return the rows that each version from ``first`` on must have, and compare the log with what was told."""
        found, signed = {first: rows}, Counter[str]()
        for version in [each for each in versions(self.store) if each > first]:
            info = next(line["commitInfo"] for line in commit_lines(self.store, version) if "commitInfo" in line)
            signature = str(info.get("userMetadata") or info.get("signature"))
            signed[signature] += 1
            assert signature in self.told, f"version {version} is of {signature!r}, which was not acknowledged"
            found[version] = self.told[signature][0].applied(found[version - 1])
        assert not self.refused & signed.keys()
        for signature, (deed, since, until) in self.told.items():
            if deed.kind != "optimize":  # which is one commit for each group of files
                assert signed[signature] <= 1
            if not signed[signature]:  # nothing to do: then there was a version at which that is true
                assert any(deed.applied(found[each]) == found[each] for each in range(max(since, first), until + 1))
        return found


def _with_spark(spark: DeltaSpark) -> Callable[[Path, Deed], None]:
    def do(root: Path, deed: Deed) -> None:
        table, ids = f"delta.`{root}`", ", ".join(str(number) for number, _ in deed.rows)
        rows = ", ".join(f"({number}L, {value}L, {deed.partition}L)" for number, value in deed.rows)
        statements = {
            "merge": f"MERGE INTO {table} t USING (SELECT * FROM VALUES {rows} AS v(id, n, p)) s "
            f"ON t.p = {deed.partition} AND t.id = s.id "
            "WHEN MATCHED THEN UPDATE SET n = s.n WHEN NOT MATCHED THEN INSERT *",
            "delete": f"DELETE FROM {table} WHERE p = {deed.partition} AND id IN ({ids})",
            "optimize": f"OPTIMIZE {table} WHERE p = {deed.partition}",
        }
        spark.commit(deed.signature, statements[deed.kind])

    return do


def _ours(root: Path, deed: Deed) -> None:
    table, noted = DeltaTable(root), CommitProperties(custom_metadata={"signature": deed.signature})
    try:
        if deed.kind == "merge":
            rows = [{"id": number, "n": value, "p": deed.partition} for number, value in deed.rows]
            condition = f"t.p = {deed.partition} AND t.id = s.id"
            merger = table.merge(pa.Table.from_pylist(rows, SCHEMA), condition, "s", "t", commit_properties=noted)
            merger.when_matched_update({"n": "s.n"}).when_not_matched_insert_all().execute()
        elif deed.kind == "delete":
            ids = ", ".join(str(number) for number, _ in deed.rows)
            table.delete(f"p = {deed.partition} AND id IN ({ids})", commit_properties=noted)
        else:
            table.optimize.compact([("p", "=", deed.partition)], commit_properties=noted)
    except CommitConflictError as error:
        raise RefusedError from error


class _Race:
    """Spark's deeds are counted and repeated until they are done; ours go on meanwhile, and wait where Spark loses."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._is_over, self._may_go_on = ledger, threading.Event(), threading.Event()
        self._may_go_on.set()

    def run(self, spark: Callable[[Path, Deed], None], rounds: int) -> None:
        threads = [
            threading.Thread(target=self._guarded, args=(lambda name=name, kinds=kinds: self._go_on(name, kinds),))
            for name, kinds in (("rows", ("merge", "delete")), ("files", ("optimize",)))
        ]
        for each in threads:
            each.start()
        self._guarded(lambda: self._count(spark, rounds))
        self._is_over.set()
        for each in threads:
            each.join()
        assert self._ledger.errors == []

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self._ledger.errors.append(error)
            self._is_over.set()

    def _count(self, spark: Callable[[Path, Deed], None], rounds: int) -> None:
        dice = random.Random(1)
        for number in range(rounds * len(KINDS)):
            for attempt in range(_MOST_ATTEMPTS):
                if attempt == _PATIENCE:
                    self._may_go_on.clear()
                signature = f"spark-{number}-{attempt}"
                if self._ledger.do(Deed.random(dice, signature, KINDS[number % len(KINDS)]), spark):
                    break
            else:
                raise AssertionError("Spark is refused while no other writer is at work")
            self._may_go_on.set()

    def _go_on(self, name: str, kinds: tuple[str, ...]) -> None:
        dice, number = random.Random(name), 0
        while not self._is_over.is_set():
            self._may_go_on.wait(1)
            if self._may_go_on.is_set():
                self._ledger.do(Deed.random(dice, f"ours-{name}-{number}", dice.choice(kinds)), _ours)
                number += 1
                time.sleep(dice.uniform(0, _LONGEST_PAUSE))


def _rows(found: list[dict[str, Any]]) -> list[tuple[int, int]]:
    """Return rows sorted, so that one that is there twice shows."""
    assert all(row["p"] == row["id"] % PARTITIONS for row in found)
    return sorted((row["id"], row["n"]) for row in found)


@pytest.mark.parametrize(("turns", "rounds"), [(1, 1), pytest.param(6, 60, marks=pytest.mark.slow)])
def test_changes_of_spark_and_ours_are_all_there_and_none_twice(
    delta_spark: DeltaSpark, tmp_path: Path, turns: int, rounds: int
) -> None:
    place, spark = f"delta.`{tmp_path}`", _with_spark(delta_spark)
    delta_spark.sql(
        f"CREATE TABLE {place} (id BIGINT, n BIGINT, p BIGINT) USING delta PARTITIONED BY (p) "
        "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    )
    start = dict.fromkeys(range(0, IDS, 2), 0)
    for each in range(2):
        some = [{"id": number, "n": 0, "p": number % PARTITIONS} for number in list(start)[each::2]]
        lazydelta.write_arrow(tmp_path, pa.Table.from_pylist(some, SCHEMA))
    ledger, first = Ledger(tmp_path), DeltaTable(tmp_path).version()

    dice = random.Random(0)
    for turn in range(turns):
        for kind in KINDS:
            for name, side in (("spark", spark), ("ours", _ours)):
                assert ledger.do(Deed.random(dice, f"turn-{turn}-{kind}-{name}", kind), side), (turn, kind, name)
    _Race(ledger).run(spark, rounds)

    states = ledger.states(first, start)
    last = max(states)
    for version, rows in states.items():
        table = DeltaTable(tmp_path, version=version, options={"checksum": "error"})
        assert _rows(table.to_pyarrow_table().to_pylist()) == sorted(rows.items()), version
    for version in {last, first + 2 * len(KINDS) * turns, *random.Random(2).sample(sorted(states), 2)}:
        found = delta_spark.sql(f"SELECT * FROM {place} VERSION AS OF {version}")
        assert _rows(found) == sorted(states[version].items()), version
    assert _rows(DeltaRs().rows(tmp_path).to_pylist()) == sorted(states[last].items())
    with duckdb_peer() as duck:
        assert _rows(duck.rows(tmp_path).to_pylist()) == sorted(states[last].items())
    assert delta_spark.validate(tmp_path) == last
    done = Counter((deed.signature.partition("-")[0], deed.kind) for deed, _, _ in ledger.told.values())
    assert all(done["spark", kind] == rounds for kind in KINDS)
