"""Random histories of a table, with several writers and kills at counted requests, against DuckDB as the oracle.

An operation is alone, or another writer commits just before it does, or it is killed before some request. The rows are
then those before or after it; what was acknowledged is there. All readers read the last version alike, and the change
feed from the first version on amounts to it.
"""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest

import lazydelta
from lazydelta import DeltaTable
from lazydelta.errors import CommitConflictError
from lazydelta.write import publication, transaction
from tests.support.delta_spark import DeltaSpark
from tests.write.history_work import SCHEMA, Killable, Operation, applied, do, is_blind_append, operation
from tests.write.peers import DeltaRs, DuckDb, Polars

if TYPE_CHECKING:
    from lazydelta.storage import Store

HISTORIES, PER_TEST = 2000, 50
_MOST_REQUESTS = 25
Row = tuple[tuple[str, Any], ...]
Readers = tuple[DeltaRs | DuckDb | Polars, ...]


@pytest.fixture(scope="module")
def killable() -> Iterator[Killable]:
    with Killable() as found:
        yield found


@pytest.fixture(scope="module")
def readers() -> Iterator[Readers]:
    duck = DuckDb()
    yield DeltaRs(), Polars(), duck
    duck.close()


def _rows(table: pa.Table) -> Counter[Row]:
    return Counter(tuple(sorted(row.items())) for row in table.to_pylist())


class History:
    """One table, and the rows that each of its versions must have."""

    def __init__(self, root: Path, seed: int, killable: Killable) -> None:
        self.root, self._killable = root, killable
        self.dice = random.Random(seed)
        self._oracle = duckdb.connect()
        self.has_feed = self.dice.random() < 0.7
        self._hard_vacuum = not self.has_feed
        properties = {"delta.checkpointInterval": "3"}
        if self.has_feed:
            properties["delta.enableChangeDataFeed"] = "true"
        if self.dice.random() < 0.5:
            properties["delta.enableDeletionVectors"] = "true"
        partition_by = ["p"] if self.dice.random() < 0.5 else []
        lazydelta.create_table(root, SCHEMA, partition_by=partition_by, properties=properties)
        self.states: dict[int, pa.Table] = {0: SCHEMA.empty_table()}
        self._vacuumed = False
        self.done: list[Any] = []

    @property
    def rows(self) -> pa.Table:
        """Return the rows of the newest version."""
        return self.states[max(self.states)]

    def step(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Do one operation, in one of the ways, and compare what the table has then."""
        one, way = self._operation(), self.dice.choice(["alone", "alone", "raced", "killed"])
        self.done.append((way, one))
        if way == "killed":
            at = self.dice.randint(1, _MOST_REQUESTS)
            self.done.append(at)
            is_done = self._killable.do(self.root, one, at)
            self._settle([self._after(self.rows, one)], may_be_unchanged=not is_done)
        elif way == "raced" and one["kind"] not in {"checkpoint", "vacuum"}:
            self._race(one, monkeypatch)
        else:
            do(self.root, one)
            self._settle([self._after(self.rows, one)])
        if one["kind"] == "vacuum" and self._hard_vacuum:
            self._vacuumed = True

    def _operation(self) -> Operation:
        versions = [max(self.states)] if self._vacuumed else list(self.states)
        columns = [name for name in self._latest_columns() if name not in SCHEMA.names]
        return operation(self.dice, versions, columns, hard_vacuum=self._hard_vacuum)

    def _latest_columns(self) -> list[str]:
        names: set[str] = set()
        for each in self.states.values():
            names |= set(each.schema.names)
        return sorted(names)

    def _after(self, rows: pa.Table, one: Operation) -> pa.Table:
        return applied(self._oracle, self.states, rows, one)

    def _race(self, one: Operation, monkeypatch: pytest.MonkeyPatch) -> None:
        other = self._operation()
        while other["kind"] in {"vacuum", "add_column"}:  # files that nothing names yet; the same column twice
            other = self._operation()
        self.done.append(other)
        before, publish, waiting = self.rows, publication.publish, [other]

        def beaten(store: Store, version: int, data: bytes, txn_id: str) -> bool:
            if waiting:
                do(self.root, waiting.pop())
                self._settle([self._after(before, other)])
            return publish(store, version, data, txn_id)

        is_refused = False
        with monkeypatch.context() as patched:
            patched.setattr(transaction, "publish", beaten)
            try:
                do(self.root, one)
            except CommitConflictError:
                is_refused = True
        now = self.rows
        expected = [now] if is_refused else [self._after(now, one)]
        if not waiting and not is_refused and is_blind_append(other):
            expected.append(self._after(self._after(before, one), other))
        self._settle(expected)

    def _settle(self, expected: list[pa.Table], *, may_be_unchanged: bool = False) -> None:
        """Compare the newest version, and note its rows and those of the versions since the last one known."""
        table = DeltaTable(self.root)
        found = table.to_pyarrow_table()
        if may_be_unchanged:
            expected = [*expected, self.rows]
        assert _rows(found) in [_rows(each) for each in expected], self.done
        for version in range(max(self.states) + 1, table.version()):
            self.states[version] = DeltaTable(self.root, version=version).to_pyarrow_table()
        self.states[table.version()] = found

    def check_readers(self, readers: Readers) -> None:
        """Compare the last version, an older one and the change feed as other readers read them."""
        expected = _rows(self.rows)
        for reader in readers:
            assert _rows(reader.rows(self.root)) == expected, (type(reader).__name__, self.done)
        if self._vacuumed:
            return
        version = self.dice.choice(list(self.states))
        older = DeltaTable(self.root, version=version).to_pyarrow_table()
        assert _rows(older) == _rows(self.states[version]), self.done
        if self.has_feed:
            feed = pa.table(DeltaTable(self.root).load_cdf(starting_version=0))
            assert _amount(feed, self.rows.schema.names) == _rows(self.rows), self.done


def _amount(feed: pa.Table, names: list[str]) -> Counter[Row]:
    """Return the rows that changes amount to."""
    signs = {"insert": 1, "update_postimage": 1, "delete": -1, "update_preimage": -1}
    found: Counter[Row] = Counter()
    for row in feed.to_pylist():
        key = tuple(sorted((name, row.get(name)) for name in names))
        found[key] += signs[row["_change_type"]]
    return Counter({key: count for key, count in found.items() if count})


def _history(root: Path, seed: int, killable: Killable, readers: Readers, monkeypatch: pytest.MonkeyPatch) -> History:
    history = History(root, seed, killable)
    for _ in range(history.dice.randint(3, 6)):
        history.step(monkeypatch)
    history.check_readers(readers)
    return history


@pytest.mark.parametrize(
    "first",
    [pytest.param(first, marks=pytest.mark.slow) if first else first for first in range(0, HISTORIES, PER_TEST)],
)
def test_histories_are_what_duckdb_makes_of_them(
    first: int, tmp_path: Path, killable: Killable, readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(first, first + (PER_TEST if first else 6)):
        _history(tmp_path / str(seed), seed, killable, readers, monkeypatch)


@pytest.mark.slow
@pytest.mark.xdist_group("other sparks")
def test_delta_spark_reads_histories_alike(
    delta_spark: DeltaSpark, tmp_path: Path, killable: Killable, readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    histories = [_history(tmp_path / str(seed), seed, killable, readers, monkeypatch) for seed in range(PER_TEST)]
    rows = ((seed, f"to_json(struct(*)) AS row FROM delta.`{each.root}`") for seed, each in enumerate(histories))
    # One query for all tables: a plan and a job for each would take most of the time.
    answer = delta_spark.sql(" UNION ALL ".join(f"SELECT {seed} AS seed, {rest}" for seed, rest in rows))
    found: dict[int, Counter[Row]] = defaultdict(Counter)
    for each in answer:
        found[each["seed"]][tuple(sorted(json.loads(each["row"]).items()))] += 1
    for seed, history in enumerate(histories):
        shown: Counter[Row] = Counter()
        for row, count in _rows(history.rows).items():
            shown[tuple(pair for pair in row if pair[1] is not None)] += count  # JSON leaves nulls out
        assert found[seed] == shown, history.done
