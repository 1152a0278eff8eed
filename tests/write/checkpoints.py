"""What the tests of checkpoints share: logs with nothing but commits, and checkpoints read by plain pyarrow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from tests.oracle.replay import commit_name

if TYPE_CHECKING:
    from pathlib import Path

    from tests.oracle.random_log import RandomLog
    from tests.oracle.replay import Json

NOW = 1_700_000_000_000
DAY = 86_400_000


def rows(table: Path, version: int, action: str) -> list[Json]:
    """Return the actions of a kind in a checkpoint, read by plain pyarrow."""
    file = table / "_delta_log" / f"{version:020d}.checkpoint.parquet"
    column = pq.read_table(file).column(action)
    return [row for row in column.to_pylist(maps_as_pydicts="strict") if row is not None]


def only_checkpoint(table: Path, version: int) -> None:
    """Delete everything of the log that a reader does not need beside the checkpoint and later commits."""
    log = table / "_delta_log"
    for file in log.iterdir():
        name = file.name
        if not file.is_file():
            continue
        if name == "_last_checkpoint" or (name[:20].isdigit() and int(name[:20]) <= version):
            if name != f"{version:020d}.checkpoint.parquet":
                file.unlink()
        elif "compacted" in name:
            file.unlink()


def commits_only(log: RandomLog) -> None:
    """Make the visible log the whole history, without any checkpoint, hint or compaction."""
    for file in log.log.iterdir():
        if file.is_file():
            file.unlink()
    for version in range(log.latest + 1):
        (log.log / commit_name(version)).write_bytes((log.history / commit_name(version)).read_bytes())


def tombstone(path: str, deleted: int | None, **more: Any) -> Json:
    """Return a remove action with its timestamp."""
    action: Json = {"path": path, "dataChange": True, **more}
    return {"remove": action if deleted is None else action | {"deletionTimestamp": deleted}}
