"""Ctrl-C at any line from the start of a commit to the end of the call: no committed file is missing, no row is lost.

Every way to write is followed once, which tells the lines that it executes. Then it is done again for each of them on a
fresh copy of its table, and the line raises. The rows that deltalake reads afterwards are those before or those after;
where the call returned, those after.
"""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

import lazydelta
from lazydelta import DeltaTable, sidecar
from lazydelta.errors import LazyDeltaError
from lazydelta.maintenance import after_commit
from lazydelta.maintenance import optimize as optimizing
from lazydelta.maintenance.optimize import optimize
from lazydelta.protocol.actions import Txn
from lazydelta.sidecar.building.publish import Publication
from lazydelta.sidecar.handle import TableHandle
from lazydelta.spark import source as spark_source
from lazydelta.storage import open_store
from lazydelta.write.checkpoint import distributed
from lazydelta.write.checkpoint import writer as checkpoint_writer
from lazydelta.write.job import WriteJob
from lazydelta.write.options import WriteOptions
from lazydelta.write.transaction import Transaction
from tests.oracle.replay import replay
from tests.sidecar.conftest import set_sizes
from tests.sidecar.test_spread_build import _spread
from tests.support.interrupts import Line, Lines, from_start_of
from tests.write.test_spread_checkpoint import in_turn

Rows = list[tuple[int, str]]
_COMMIT = (Transaction, "commit")
_PACKING = (optimizing._Optimize, "_stage")  # just before the compaction commits
_MANIFEST = (Publication, "put_manifest")
_PUT = ("storage/local.py", "storage/atomic_files.py")
_STAGED, _OPTIMIZE = "storage/staged_files.py", "maintenance/optimize.py"
_SIDECAR = ("sidecar/building/publish.py", "sidecar/building/distributed.py")
_ERRORS = (KeyboardInterrupt, MemoryError, OSError)


def _rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "p": ["ab"[each % 2] for each in ids]})


def _table(root: Path, commits: int = 3, properties: Mapping[str, str] | None = None) -> None:
    for number in range(commits):
        ids = range(4 * number, 4 * number + 4)
        lazydelta.write_arrow(root, _rows(*ids), partition_by=["p"], properties=properties, maintain=False)


def _read(root: Path) -> Rows:
    """Return the rows as deltalake reads them, which misses no file that is not there."""
    found = deltalake.DeltaTable(root).to_pyarrow_table()
    return sorted(zip(found.column("id").to_pylist(), found.column("p").to_pylist(), strict=True))


# An interrupted call may leave a temporary file to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

# --- the ways to write


@dataclass(frozen=True)
class Writer:
    """A way to write: to which table, how, from where on it is followed, and what another writer does there.

    ``owners`` are modules that know which files are not committed yet, where this is the way that tries all of them.
    """

    act: Callable[[Path], Any]
    prepare: Callable[[Path], None] = _table
    start: tuple[Any, str] = _COMMIT
    rival: Callable[[Path], None] | None = None
    check: Callable[[Path], None] | None = None
    read: Callable[[Path], Rows] = _read
    owners: tuple[str, ...] = ()


def _with_orphan(root: Path) -> None:
    _table(root)
    DeltaTable(root).delete("id = 1")
    orphan = root / "p=a" / "orphan.parquet"
    orphan.write_bytes(b"left")
    for file in (orphan, *root.glob("p=*/part-*")):
        os.utime(file, (1, 1))


def _with_vectors(root: Path) -> None:
    _table(root, properties={"delta.enableDeletionVectors": "true"})


def _without_deleted(root: Path) -> Rows:
    """Return the rows as deltalake's engine reads them, which knows deletion vectors."""
    found = pa.table(deltalake.DeltaTable(root).scan(columns=["id", "p"]).read_all())
    return sorted(zip(found.column("id").to_pylist(), found.column("p").to_pylist(), strict=True))


def _with_changes(root: Path) -> None:
    _table(root, properties={"delta.enableChangeDataFeed": "true"})


def _about_to_be_packed(root: Path) -> None:
    _table(root, 5, {"delta.autoOptimize.autoCompact": "true"})


def _about_to_be_maintained(root: Path) -> None:
    _table(root, 4, {"delta.checkpointInterval": "2", "delta.logRetentionDuration": "interval 0 hours"})
    for commit in (root / "_delta_log").glob("*.json"):
        os.utime(commit, (1e9, 1e9))


def _checkpointed(root: Path) -> None:
    _table(root)
    DeltaTable(root).create_checkpoint(sidecar=False)


def _with_sidecar(root: Path) -> None:
    _checkpointed(root)
    sidecar.build(root)
    lazydelta.write_arrow(root, _rows(50, 51), maintain=False)
    DeltaTable(root).create_checkpoint(sidecar=False)


def _spread_checkpoint(root: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint_writer, "_GROUP_SHARE", 1 << 40)
        write = distributed.write_checkpoint_in_parts
        write(open_store(root), in_turn, unit_rows=2, memory_budget=1 << 20)


def _two_checkpoints(root: Path) -> None:
    _table(root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint_writer, "_LEAST_BATCH_ROWS", 1)
        checkpoint_writer.write_checkpoint(open_store(root), memory_budget=6)  # every batch is a row group
    lazydelta.write_arrow(root, _rows(50, 51), maintain=False)


_SCHEMA = StructType([StructField("id", LongType()), StructField("p", StringType())])


def _job(root: Path) -> WriteJob:
    return WriteJob.prepare(str(root), spark_source.arrow_schema(_SCHEMA), WriteOptions(maintain=False))


def _spark_batch(root: Path) -> None:
    """Commit as Spark does: with a job out of a pickle, and with a call of ``abort`` where that raised."""
    writer = spark_source._BatchWriter(_job(root))
    messages: list[Any] = [writer.write(iter(_rows(50 + number).to_batches())) for number in range(2)]
    try:
        writer.commit(messages)
    except BaseException:
        writer.abort(messages)
        raise


def _spark_stream(root: Path) -> None:
    source = spark_source.LazyDeltaSource({"path": str(root), "maintain": "false"})
    writer = spark_source._StreamWriter(source, _SCHEMA, overwrite=False)
    job, txn = _job(root), Txn(app_id="query", version=0)
    job = replace(job, options=replace(job.options, target_file_size=1))  # files of each task's own
    results = [job.of_batch(txn).write(_rows(at).to_batches(), at, run_again=True) for at in (50, 51)]
    messages: list[Any] = [spark_source._Message(each, job, txn) for each in results]
    try:
        writer.commit(messages, 0)
    except BaseException:
        writer.abort(messages, 0)
        raise


def _sidecar_is_whole(root: Path) -> None:
    """See that a manifest, where there is one, names parts that are there."""
    expected = sorted(path for path, _ in replay(root / "_delta_log").files)
    assert sorted(file.path for file in DeltaTable(root).files()) == expected
    if list((root / "_delta_log" / "_sidecars").glob("v*.manifest.json")):
        assert sidecar.verify(root).problems == []


def _table_is_free(root: Path) -> None:
    """See that no run of maintenance is taken to be under way, which later ones would wait for."""
    assert after_commit._tables.waiting == {}


def _rival_append(root: Path) -> None:
    deltalake.write_deltalake(root, _rows(70), mode="append", partition_by=["p"])


def _rival_delete(root: Path) -> None:
    deltalake.DeltaTable(root).delete("id = 2")


def _merged(root: Path) -> None:
    merger = DeltaTable(root).merge(_rows(1, 6, 60), "t.id = s.id", "s", "t")
    merger.when_matched_delete("s.id = 1").when_matched_update(
        {"id": "t.id + 90"}
    ).when_not_matched_insert_all().execute()


def _rewritten_twice(root: Path) -> None:
    """Commit each bin by itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optimizing, "_COMMIT_FILES", 1)
        optimize(TableHandle.open(root))


def _with_deleted(root: Path) -> None:
    _with_vectors(root)
    DeltaTable(root).delete("id = 1 or id = 6")


def _with_rows_deleted(root: Path) -> None:
    _table(root)
    DeltaTable(root).delete("id < 7")


def _with_lost_file(root: Path) -> None:
    _table(root)
    next(root.glob("p=a/part-*")).unlink()


def _found_files(root: Path) -> Rows:
    """Return what is left of a table whose files may be missing: rows of the files that are there."""
    found = [row for uri in deltalake.DeltaTable(root).file_uris() if Path(uri).exists() for row in _rows_of(uri)]
    return sorted(found)


def _rows_of(uri: str) -> Rows:
    return [(each, Path(uri).parent.name) for each in pq.read_table(uri, partitioning=None)["id"].to_pylist()]


def _plain_parquet(root: Path) -> None:
    for number in range(3):
        (root / f"p={number}").mkdir(parents=True)
        pq.write_table(_rows(number).select(["id"]), root / f"p={number}" / "f.parquet")


def _converted(root: Path) -> Rows:
    """Return the rows of a table, or those of the files where there is none yet."""
    if deltalake.DeltaTable.is_deltatable(str(root)):
        return _read(root)
    return sorted((each, uri.parent.name[-1]) for uri in root.rglob("*.parquet") for each, _ in _rows_of(str(uri)))


def _described(root: Path) -> Rows:
    """Return the rows with the table's columns, name and constraints behind them."""
    table = deltalake.DeltaTable(root)
    metadata = table.metadata()
    return [*_read(root), (0, f"{table.schema().to_json()} {metadata.name} {sorted(metadata.configuration.items())}")]


WRITERS = {
    "append": Writer(
        lambda root: lazydelta.write_arrow(root, _rows(50, 51)),
        owners=("write/job.py", "write/file_commit.py", "write/transaction.py", "write/publication.py", *_PUT),
    ),
    "append behind a rival": Writer(lambda root: lazydelta.write_arrow(root, _rows(50, 51)), rival=_rival_append),
    "create": Writer(lambda root: lazydelta.write_arrow(root / "new", _rows(50))),
    "overwrite": Writer(lambda root: lazydelta.write_arrow(root, _rows(50, 51), mode="overwrite")),
    "overwrite rows": Writer(
        lambda root: lazydelta.write_arrow(root, _rows(1, 3), mode="overwrite", overwrite_where="id < 5"),
        _with_changes,
    ),
    "delete": Writer(lambda root: DeltaTable(root).delete("id = 1 or id = 6")),
    "delete with change data": Writer(lambda root: DeltaTable(root).delete("id = 1 or id = 6"), _with_changes),
    "delete by a vector": Writer(
        lambda root: DeltaTable(root).delete("id = 1 or id = 6"), _with_vectors, read=_without_deleted
    ),
    "delete beside a rival": Writer(lambda root: DeltaTable(root).delete("id = 0"), rival=_rival_delete),
    "update": Writer(lambda root: DeltaTable(root).update({"id": "90"}, predicate="id = 1")),
    "merge": Writer(_merged, _with_changes),
    "optimize": Writer(lambda root: DeltaTable(root).optimize.compact(), owners=(_OPTIMIZE, _STAGED)),
    "optimize in two commits": Writer(_rewritten_twice),
    "optimize beside a rival": Writer(
        lambda root: DeltaTable(root).optimize.compact(), rival=_rival_delete, owners=(_OPTIMIZE, _STAGED)
    ),
    "append that compacts": Writer(
        lambda root: lazydelta.write_arrow(root, _rows(50, 51)), _about_to_be_packed, _PACKING
    ),
    "append that maintains": Writer(
        lambda root: lazydelta.write_arrow(root, _rows(50, 51)),
        _about_to_be_maintained,
        (after_commit._OneAtATime, "do"),
        check=_table_is_free,
        owners=("maintenance/after_commit.py",),
    ),
    "vacuum": Writer(lambda root: DeltaTable(root).vacuum(0, False, False), _with_orphan),  # noqa: FBT003
    "checkpoint": Writer(
        lambda root: DeltaTable(root).create_checkpoint(sidecar=False),
        start=(checkpoint_writer, "_written"),
        owners=("write/checkpoint/writer.py", "write/checkpoint/writer.py", *_PUT),
    ),
    "checkpoint in parts": Writer(_spread_checkpoint, _two_checkpoints, start=(distributed._Spread, "_reserved")),
    "sidecar": Writer(sidecar.build, _checkpointed, _MANIFEST, check=_sidecar_is_whole),
    "sidecar refresh": Writer(sidecar.refresh, _with_sidecar, _MANIFEST, check=_sidecar_is_whole),
    "sidecar by tasks": Writer(
        lambda root: sidecar.build(root, maker=_spread(unit_rows=2)),
        _checkpointed,
        _MANIFEST,
        check=_sidecar_is_whole,
        owners=_SIDECAR,
    ),
    "restore": Writer(lambda root: DeltaTable(root).restore(1)),
    "restore what was deleted": Writer(lambda root: DeltaTable(root).restore(2), _with_rows_deleted),
    "z-order": Writer(lambda root: DeltaTable(root).optimize.z_order(["id"])),
    "purge": Writer(lambda root: DeltaTable(root).optimize.purge(), _with_deleted, read=_without_deleted),
    "repair": Writer(lambda root: DeltaTable(root).repair(), _with_lost_file, read=_found_files),
    "convert": Writer(
        lambda root: lazydelta.convert_to_deltalake(
            root, partition_by=pa.schema([("p", pa.string())]), partition_strategy="hive"
        ),
        _plain_parquet,
        read=_converted,
    ),
    "add a column": Writer(
        lambda root: DeltaTable(root).alter.add_columns([lazydelta.Field("x", "long")]), read=_described
    ),
    "add a constraint": Writer(lambda root: DeltaTable(root).alter.add_constraint({"c": "id >= 0"}), read=_described),
    "spark batch": Writer(_spark_batch),
    "spark stream": Writer(_spark_stream),
}


class Trial:
    """One way to write, done again and again on copies of its table."""

    def __init__(self, name: str, folder: Path, patch: pytest.MonkeyPatch) -> None:
        set_sizes(patch, 2, 1)  # so that a sidecar has several parts
        self._writer, self._folder, self._patch, self._count = WRITERS[name], folder, patch, 0
        self._template = folder / "template"
        self._writer.prepare(self._template)
        untouched = self._copy()
        if self._writer.rival is not None:
            self._writer.rival(untouched)
        self.run(Lines())  # what is done once in a process is done
        self.lines, root, _ = self.run(Lines())
        self._after = self._writer.read(root)
        self._allowed = [self._writer.read(untouched), self._after]

    def _copy(self) -> Path:
        self._count += 1
        root = self._folder / str(self._count)
        shutil.copytree(self._template, root)
        return root

    def run(self, lines: Lines) -> tuple[Lines, Path, bool]:
        """Do it on a copy of the table; tell where, and whether the call returned."""
        root, rival, has_returned = self._copy(), self._writer.rival, False
        first = None if rival is None else lambda: rival(root)
        with suppress(*_ERRORS, LazyDeltaError), from_start_of(self._patch, *self._writer.start, lines, first):
            self._writer.act(root)
            has_returned = True
        lines.release()
        return lines, root, has_returned

    def wrong_after(self, chosen: Collection[Line], error: type[BaseException]) -> list[str]:
        """Raise an error at each line in turn; return what is wrong with the table then."""
        missed, found = 0, []
        for line in chosen:
            lines, root, has_returned = self.run(Lines(line, error()))
            missed += not lines.has_raised  # a line that not every call executes, such as one that fills a cache
            try:
                rows = self._writer.read(root)
                if self._writer.check is not None:
                    self._writer.check(root)
            except Exception as failure:  # noqa: BLE001 - whatever a reader says of it
                found.append(f"{line}: {type(failure).__name__}: {failure}")
            else:
                wanted = [self._after] if has_returned else self._allowed
                found += [] if rows in wanted else [f"{line}: {rows}"]
            shutil.rmtree(root)
        gc.collect()
        assert 2 * missed <= len(chosen), "most lines are executed in every call"
        return found

    def sample(self) -> list[Line]:
        """Return the lines behind the commit in the functions that asked for it, and some of the owners of files."""
        owners, callers = self._writer.owners, self.lines.of_callers
        some = [each for each in self.lines.seen if each not in callers and each[0] in owners][::3]
        return [each for each in self.lines.seen if each in callers or each in some]


@pytest.mark.parametrize("name", WRITERS)
def test_an_interrupt_behind_the_commit_loses_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = Trial(name, tmp_path, monkeypatch)
    chosen = trial.sample()
    assert chosen
    assert trial.wrong_after(chosen, KeyboardInterrupt) == []


@pytest.mark.parametrize("error", [MemoryError, OSError])
@pytest.mark.parametrize("name", ["delete", "append that compacts"])
@pytest.mark.each_value
def test_another_error_behind_the_commit_loses_nothing(
    name: str, error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = Trial(name, tmp_path, monkeypatch)
    assert trial.wrong_after(trial.sample(), error) == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("error", _ERRORS)
@pytest.mark.parametrize("name", WRITERS)
def test_an_error_at_any_line_loses_nothing(
    name: str, error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = Trial(name, tmp_path, monkeypatch)
    assert trial.wrong_after(trial.lines.seen, error) == []
