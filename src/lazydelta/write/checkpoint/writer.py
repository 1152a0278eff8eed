"""Writer of a V1 checkpoint: one Parquet file, streamed from the previous checkpoint and the tail.

Row groups are encoded one at a time and streamed to the store. Neither the table nor the file is ever held in memory or
on local disk. The store makes the object visible only when it is complete, so a killed writer leaves nothing that a
reader could see.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pyarrow.parquet as pq

from lazydelta.errors import ObjectChangedError, ObjectExistsError, ObjectNotFoundError
from lazydelta.log.checkpoint.columns import corrupt_if_unreadable
from lazydelta.log.checkpoint.reader import CURABLE, MAX_REPLACEMENTS, CheckpointReader, CheckpointResult, too_often
from lazydelta.log.checksum.writer import start_checksums
from lazydelta.log.hint import HINT_PATH, CheckpointHint, hint_checksum, parse_hint
from lazydelta.log.segment import Checkpoint, list_from
from lazydelta.log.snapshot import LogSnapshot, open_snapshot
from lazydelta.protocol.features import check_copyable
from lazydelta.protocol.file_names import LOG, FileKind, LogFile
from lazydelta.protocol.properties import TableProperties
from lazydelta.storage import Store
from lazydelta.write.checkpoint.rows import AlreadyThereError, CheckpointFile, CheckpointLayout
from lazydelta.write.checkpoint.state import CheckpointState, ReconciledRows

__all__ = [
    "MEMORY_BUDGET",
    "Progress",
    "existing",
    "state_of",
    "write_checkpoint",
    "write_last_checkpoint",
]


Progress = Callable[[int, int | None], None]
"""Called with the number of files done so far and, if known, the total."""

MEMORY_BUDGET = 256 << 20
# Rows are in memory as read, as collected, and as Parquet pages. The collected rows may use one share of the budget.
_GROUP_SHARE = 6
_KEYS_SHARE = 4
_ROW_BYTES = 4_096
_LEAST_BATCH_ROWS, _MOST_BATCH_ROWS = 1_024, 16_384


def write_checkpoint(
    store: Store,
    version: int | None = None,
    *,
    enough: int | None = None,
    memory_budget: int = MEMORY_BUDGET,
    progress: Progress | None = None,
    now: int | None = None,
    known: LogSnapshot | None = None,
) -> CheckpointResult:
    """Write the checkpoint of the newest version, or of ``version``, unless one exists.

    A checkpoint at version ``enough`` or later suffices. ``now`` (epoch milliseconds) is the reference time for the
    table's tombstone retention. If the version has no checksum, one is written from the file counts. ``known`` is a
    snapshot of the table, whose large commits are not read again.
    """
    snapshot = open_snapshot(store, version=version, known=known)
    for _ in range(MAX_REPLACEMENTS):
        try:
            return _written(store, snapshot, enough, memory_budget, progress, now)
        except CURABLE as error:
            # Another writer may have replaced the previous checkpoint, from which this one is built.
            snapshot = snapshot.with_current_checkpoint(error)
    raise too_often(snapshot.segment)


def _written(
    store: Store,
    snapshot: LogSnapshot,
    enough: int | None,
    memory_budget: int,
    progress: Progress | None,
    now: int | None,
) -> CheckpointResult:
    checkpoint = snapshot.segment.checkpoint
    if checkpoint is not None and checkpoint.version >= (snapshot.version if enough is None else enough):
        return existing(store, checkpoint)
    check_copyable(snapshot.protocol, path=store.uri)
    state = state_of(snapshot, memory_budget, int(time.time() * 1000) if now is None else now)
    path = f"{LOG}/{snapshot.version:020}.checkpoint.parquet"

    def advanced() -> None:
        if progress is not None:
            progress(state.rows.num_adds, None)

    writing = CheckpointFile(state.rows.layout, path, snapshot.version, memory_budget // _GROUP_SHARE)
    try:
        size_in_bytes = store.put_stream(path, writing.chunks(store, state.batches(), advanced))
    except AlreadyThereError:
        found = LogFile(FileKind.CHECKPOINT, snapshot.version, store.head(path), snapshot.version)
        return existing(store, Checkpoint(snapshot.version, (found,)))
    start_checksums(snapshot, num_files=state.rows.num_adds, size=state.rows.size_of_adds)
    return CheckpointResult(
        action="written",
        version=snapshot.version,
        path=path,
        size_in_bytes=size_in_bytes,
        size=writing.rows,
        num_of_add_files=state.rows.num_adds,
    )


def state_of(snapshot: LogSnapshot, memory_budget: int, now: int) -> CheckpointState:
    """Return the checkpoint contents of a version, given the table properties at ``now`` (epoch milliseconds)."""
    properties = TableProperties.of(snapshot.metadata)
    forgotten = properties.transaction_retention
    rows = memory_budget // _GROUP_SHARE // _ROW_BYTES
    return CheckpointState(
        snapshot,
        ReconciledRows(CheckpointLayout.of(snapshot), _before(now, properties.deleted_file_retention)),
        seen_after=None if forgotten is None else _before(now, forgotten),
        batch_rows=min(max(rows, _LEAST_BATCH_ROWS), _MOST_BATCH_ROWS),
        key_memory=max(1, memory_budget // _KEYS_SHARE),
        memory_budget=memory_budget,
    )


def _before(now: int, retention: timedelta) -> int:
    return max(0, now - retention // timedelta(milliseconds=1))


def existing(store: Store, checkpoint: Checkpoint) -> CheckpointResult:
    """Describe an existing checkpoint based on its footers. An unreadable one raises an error that names it."""
    first = checkpoint.files[0]
    is_v1 = not first.is_json and (first.parts > 1 or first.path.endswith(".checkpoint.parquet"))
    if is_v1 and len(checkpoint.files) == 1:
        is_v1 = next(CheckpointReader(store, checkpoint).actions("sidecar"), None) is None
    counts = [_counts(store, file) for file in checkpoint.files] if is_v1 else []
    adds = [files for _, files in counts]
    return CheckpointResult(
        action="already-there",
        version=checkpoint.version,
        path=first.path,
        size_in_bytes=sum(file.info.size for file in checkpoint.files),
        size=sum(rows for rows, _ in counts) if is_v1 else None,
        num_of_add_files=None if not is_v1 or None in adds else sum(each or 0 for each in adds),
        parts=len(checkpoint.files) if len(checkpoint.files) > 1 else None,
        is_v1=is_v1,
    )


def _counts(store: Store, file: LogFile) -> tuple[int, int | None]:
    """Return the number of actions and of files in a part, based on the null count of ``add.path``."""
    with corrupt_if_unreadable(file), store.open_input(file.path, size=file.info.size) as source:
        metadata = pq.ParquetFile(source).metadata
    rows = metadata.num_rows
    nulls = 0
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        columns = (group.column(position) for position in range(group.num_columns))
        path = next((column for column in columns if column.path_in_schema == "add.path"), None)
        if path is None or not path.is_stats_set or not path.statistics.has_null_count:
            return rows, None
        nulls += path.statistics.null_count
    return rows, rows - nulls


# Advance ``_last_checkpoint``, and never move it back.


logger = logging.getLogger(__name__)

_ATTEMPTS = 5


def write_last_checkpoint(store: Store, checkpoint: CheckpointResult) -> bool:
    """Point the hint at a checkpoint; return False if it already points at that one or a newer one.

    For a checkpoint that is not V1, the hint is left to its writer. A hint that does not parse, or names a newer
    checkpoint that does not exist, is replaced. Losing a race to a newer hint counts as success.
    """
    if not checkpoint.is_v1 or checkpoint.size is None:
        return False
    data = _encode_hint(checkpoint)
    for _ in range(_ATTEMPTS):
        try:
            current = _read(store)
            if current is not None and _is_ahead(store, current[1], checkpoint.version):
                return False
            if current is None:
                store.put_if_absent(HINT_PATH, data)
            else:
                store.put(HINT_PATH, data, if_match=current[0])
        except (ObjectExistsError, ObjectChangedError, ObjectNotFoundError):
            continue  # another writer replaced it meanwhile: read it again
        return True
    logger.warning("%s of %s is being written by too many at once; it stays as it is", HINT_PATH, store.uri)
    return False


def _encode_hint(checkpoint: CheckpointResult) -> bytes:
    content: dict[str, Any] = {
        "version": checkpoint.version,
        "size": checkpoint.size,
        "parts": checkpoint.parts,
        "sizeInBytes": checkpoint.size_in_bytes,
        "numOfAddFiles": checkpoint.num_of_add_files,
    }
    content = {name: value for name, value in content.items() if value is not None}
    content["checksum"] = hint_checksum(content)
    return json.dumps(content, separators=(",", ":")).encode()


def _read(store: Store) -> tuple[str | None, CheckpointHint | None] | None:
    """Return the etag and content of the current hint (content None if invalid), or None if there is no hint."""
    try:
        info = store.head(HINT_PATH)
        data = store.get(HINT_PATH, if_match=info.etag) if info.size else b""
    except ObjectNotFoundError:
        return None
    try:
        return info.etag, parse_hint(bytes(data))
    except ValueError:
        return info.etag, None


def _is_ahead(store: Store, hint: CheckpointHint | None, version: int) -> bool:
    if hint is None or hint.version < version:
        return False
    # The log may have been rewound or copied in part: a hint to a missing checkpoint must not stay forever.
    found = list_from(store, hint.version, hint.version)
    return hint.version == version or any(file.kind is FileKind.CHECKPOINT and file.info.size for file in found)
