"""Delta-Spark, deltalake and lazydelta write to one table at once for a while: no commit is lost, none comes twice.

Every commit is signed, so that the log tells whose it is. What was acknowledged must be in the log and what was refused
must not, no writer may remove a file that another already removed, and all readers must find what the log amounts to.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest
from deltalake import CommitProperties
from deltalake.exceptions import CommitFailedError, DeltaError

import lazydelta
from lazydelta.errors import CommitConflictError
from lazydelta.maintenance.background import BackgroundMaintenance
from lazydelta.sidecar.handle import TableHandle
from lazydelta.write.transaction import Transaction
from tests.support.delta_spark import DeltaSpark, RefusedError
from tests.write.commits import SCHEMA, commit_lines, new_table, put_file, rows, versions

if TYPE_CHECKING:
    from lazydelta.storage import Store

pytestmark = [pytest.mark.xdist_group("other sparks"), pytest.mark.timeout(900)]

SPARK_TURNS = 40
REMOVES = 0.4
_LONGEST_PAUSE = 0.3


@dataclass(frozen=True)
class Deed:
    """A planned commit: add the row ``number`` in its own partition, or remove another commit's partition."""

    number: int
    removes: str | None = None

    @property
    def signature(self) -> str:
        """Return what the commit is known by."""
        return f"deed-{self.number}"

    @property
    def partition(self) -> str:
        """Return the partition of the row."""
        return f"p{self.number}"


class UnknownError(Exception):
    """A writer failed, and does not say whether its commit was made."""


@dataclass
class Witness:
    """What the writers did and were told."""

    store: Store
    acknowledged: list[Deed] = field(default_factory=list)
    refused: list[Deed] = field(default_factory=list)
    unknown: list[Deed] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)

    def work(self, first: int, do: Callable[[Deed], None], goes_on: Callable[[int], bool], pause: float) -> None:
        """Let one writer do deeds while it may."""
        dice = random.Random(first)
        turn = 0
        try:
            while goes_on(turn) and not self.errors:
                deed = Deed(first + turn, self._victim(dice) if dice.random() < REMOVES else None)
                turn += 1
                try:
                    do(deed)
                except RefusedError:
                    self.refused.append(deed)
                except UnknownError:
                    self.unknown.append(deed)
                else:
                    self.acknowledged.append(deed)
                time.sleep(dice.uniform(0, pause))
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            self.errors.append(error)

    def _victim(self, dice: random.Random) -> str | None:
        """Choose a partition of the last few, so that two writers choose the same one at times."""
        added = [deed.partition for deed in self.acknowledged[-12:] if deed.removes is None]
        return dice.choice(added) if added else None

    def judge(self) -> list[int]:
        """Replay the log, compare it with what the writers were told, and return the rows that must be there."""
        found = versions(self.store)
        assert found == list(range(len(found)))
        signed: dict[str, int] = {}
        active: dict[str, str] = {}
        for version in found:
            lines = commit_lines(self.store, version)
            signature = _signature(lines)
            if version:
                assert signature not in signed
                signed[signature] = version
            for removed in (line["remove"]["path"] for line in lines if "remove" in line):
                assert removed in active, f"version {version} removes what is not there"
                del active[removed]
            for added in (line["add"] for line in lines if "add" in line):
                assert added["path"] not in active
                active[added["path"]] = added["partitionValues"]["p"]
        assert not {deed.signature for deed in self.refused}.intersection(signed)
        left = set(active.values())
        for deed in self.acknowledged:
            # Who removes what another one has just removed has nothing to commit.
            assert deed.signature in signed or (deed.removes is not None and deed.removes not in left)
        assert set(signed) <= {deed.signature for deed in (*self.acknowledged, *self.unknown)}
        return sorted(int(partition[1:]) for partition in left)


def _signature(lines: list[dict[str, Any]]) -> str:
    info: dict[str, Any] = next(line["commitInfo"] for line in lines if "commitInfo" in line)
    parameters = info.get("operationParameters") or {}
    return str(info.get("userMetadata") or info.get("signature") or parameters.get("signature"))


def _with_lazydelta(store: Store, maintenance: BackgroundMaintenance) -> Callable[[Deed], None]:
    def do(deed: Deed) -> None:
        parameters = {"signature": deed.signature}
        with Transaction.begin(TableHandle.of(store), operation="WRITE", parameters=parameters) as transaction:
            if deed.removes is None:
                transaction.add(put_file(store, [deed.number], deed.partition))
            else:
                transaction.remove_partitions([("p", "=", deed.removes)])
            try:
                result = transaction.commit(max_attempts=60)
            except CommitConflictError as error:
                raise RefusedError from error
        maintenance.offer(result.version, result.metadata)

    return do


def _with_deltalake(store: Store) -> Callable[[Deed], None]:
    def do(deed: Deed) -> None:
        signed = CommitProperties(custom_metadata={"signature": deed.signature}, max_commit_retries=60)
        try:
            if deed.removes is None:
                row = pa.table({"id": [deed.number], "p": [deed.partition]}, schema=SCHEMA)
                deltalake.write_deltalake(store.uri, row, mode="append", commit_properties=signed)
            else:
                deltalake.DeltaTable(store.uri).delete(f"p = '{deed.removes}'", commit_properties=signed)
        except CommitFailedError as error:
            raise RefusedError from error
        except DeltaError as error:
            # It lists a folder in which a commit and its checksum appear meanwhile, and takes the second for an error
            # because it missed the first.
            if "CRC file version" not in str(error):
                raise
            raise UnknownError from error

    return do


def _with_spark(spark: DeltaSpark, store: Store) -> Callable[[Deed], None]:
    table = f"delta.`{store.uri}`"

    def do(deed: Deed) -> None:
        if deed.removes is None:
            spark.commit(deed.signature, f"INSERT INTO {table} SELECT {deed.number}L, '{deed.partition}'")
        else:
            spark.commit(deed.signature, f"DELETE FROM {table} WHERE p = '{deed.removes}'")

    return do


@pytest.mark.slow
def test_three_kinds_of_writers_append_and_remove_for_a_while_and_lose_nothing(
    delta_spark: DeltaSpark, tmp_path: Path
) -> None:
    store = new_table(tmp_path / "table")
    witness = Witness(store)
    over = threading.Event()
    with BackgroundMaintenance(TableHandle.of(store)) as maintenance:
        deeds = {1_000: _with_lazydelta(store, maintenance), 2_000: _with_deltalake(store)}
        threads = [
            threading.Thread(target=witness.work, args=(first, do, lambda _: not over.is_set(), _LONGEST_PAUSE))
            for first, do in deeds.items()
        ]
        for thread in threads:
            thread.start()
        witness.work(3_000, _with_spark(delta_spark, store), lambda turn: turn < SPARK_TURNS, 0.0)
        over.set()
        for thread in threads:
            thread.join()
    assert witness.errors == []
    assert maintenance.status.last_error is None
    assert len(witness.unknown) <= len(witness.acknowledged) // 20
    expected = witness.judge()
    for first in (1_000, 2_000, 3_000):
        done = [deed for deed in witness.acknowledged if deed.number // 1_000 == first // 1_000]
        assert any(deed.removes for deed in done)
        assert sum(deed.removes is None for deed in done) >= SPARK_TURNS // 4
    assert rows(store) == expected
    # The scan compares its totals with the newest checksum of any writer.
    strict = lazydelta.DeltaTable(store.uri, options={"checksum": "error"})
    assert len(strict.files().collect()) == len(expected)
    theirs = deltalake.DeltaTable(store.uri).to_pyarrow_table().column("id").to_pylist()
    assert sorted(theirs) == expected
    assert sorted(row["id"] for row in delta_spark.sql(f"SELECT id FROM delta.`{store.uri}`")) == expected
    # One more commit of ours has a checksum upon whatever all of them left.
    with Transaction.begin(TableHandle.of(store), operation="WRITE", parameters={"signature": "last"}) as transaction:
        assert transaction.commit().has_checksum
    assert delta_spark.validate(store.uri) == versions(store)[-1]
