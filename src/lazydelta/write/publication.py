"""Publish a commit at a version that is part of the table.

Put-if-absent alone does not guarantee that: after the log was checkpointed and cleaned up, the name of an earlier
version is free again, and no reader looks at it. So the log is listed before the put (``conflicts.commits_since``)
and after it. A freed name implies a checkpoint at that version or later. Without one, the commit is part of the
table. Otherwise the contents of the checkpoint decide.
"""

from __future__ import annotations

import io
import logging
import time
from collections.abc import Collection, Iterable, Iterator
from urllib.parse import unquote

import msgspec

from lazydelta.errors import (
    AccessDeniedError,
    LogError,
    ObjectNotFoundError,
    StorageError,
)
from lazydelta.log.checkpoint.columns import has_column, read_batches
from lazydelta.log.checkpoint.reader import CheckpointReader
from lazydelta.log.commits import decode_actions, read_actions
from lazydelta.log.segment import checkpoints_from
from lazydelta.protocol.actions import DeletionVector, LogLine, Remove
from lazydelta.protocol.file_names import LOG, MAX_VERSION, commit_name
from lazydelta.storage import Store

__all__ = ["commit_path", "is_part_of_table", "is_published", "publish", "take_back"]

logger = logging.getLogger(__name__)

_PAUSES = (0.1, 0.4)
# The id is at the beginning of the first line, and unique to this commit.
_BYTES_WITH_ID = 256


def commit_path(version: int) -> str:
    """Return the path of a version's commit."""
    return f"{LOG}/{commit_name(version)}"


def publish(store: Store, version: int, data: bytes, txn_id: str) -> bool:
    """Write the commit of ``version``. Return whether it is ours, or False if another writer's commit is there.

    A failed request may have succeeded, or may still be in flight. Writing the same bytes under the same name again is
    harmless. The content of the object decides.
    """
    path = commit_path(version)
    for pause in (*_PAUSES, None):
        is_absent = False
        try:
            store.put_if_absent(path, data)
        except AccessDeniedError:
            raise
        except StorageError as error:
            failure = error
        else:
            return True
        try:
            return txn_id.encode() in bytes(store.get(path, length=_BYTES_WITH_ID))
        except ObjectNotFoundError:
            is_absent = True
        except StorageError as error:
            logger.warning("version %d may have been committed, and looking at it failed: %s", version, error)
        if pause is None:
            break
        time.sleep(pause)
    # A full disk has answered: nothing is in flight.
    failure.is_full = failure.is_full and is_absent
    if failure.is_full:
        failure.hint = "nothing was committed; free some space"
        raise failure
    failure.hint = (
        f"whether version {version} was committed is not known: keep its data files, and look for {txn_id} in {path}"
    )
    raise failure


def is_published(store: Store, version: int, txn_id: str) -> bool | None:
    """Return whether the commit of ``version`` belongs to this transaction.

    Return None if that is unknown: the store does not answer, or the commit does not exist and may be in flight.
    """
    try:
        return txn_id.encode() in bytes(store.get(commit_path(version), length=_BYTES_WITH_ID))
    except StorageError:
        return None


def is_part_of_table(store: Store, version: int, data: bytes) -> bool:
    """Return whether a commit that was just put is part of the table. ``data`` is its content."""
    failure: LogError | StorageError
    for pause in (*_PAUSES, None):
        try:
            _, checkpoints = checkpoints_from(store, version, MAX_VERSION)
            # The checkpoint closest to the commit: later ones may lack files that were removed again.
            reflected = not checkpoints or _is_reflected(CheckpointReader(store, checkpoints[-1]), data)
            if reflected:
                return True
            if reflected is None:  # as for the records of a VACUUM
                return version == 0 or store.exists(commit_path(version - 1))
            # A cleanup that freed this version also freed the previous one. If that one exists, later commits may have
            # undone this commit, and deleting it would leave a gap in the log: the result is then unknown.
            if version == 0 or not store.exists(commit_path(version - 1)):
                return False
            failure = StorageError(f"A checkpoint above version {version} does not have what that version did")
        except (LogError, StorageError) as error:  # a checkpoint may be replaced or cleaned up concurrently
            failure = error
        if pause is not None:
            time.sleep(pause)
    failure.hint = (
        f"version {version} was put, and whether it is part of the table is not known: keep its data files, and see "
        f"whether a checkpoint above {version} was written at the same time"
    )
    raise failure


def take_back(store: Store, version: int) -> None:
    """Delete our own commit, which a checkpoint shows not to be part of the table."""
    try:
        store.delete(commit_path(version))
    except StorageError as error:
        error.hint = (
            f"version {version} was put below a newer checkpoint, so it is not part of the table, and could not be "
            f"deleted: delete {commit_path(version)}; its data files are kept, and VACUUM deletes them"
        )
        raise


def _is_reflected(reader: CheckpointReader, data: bytes) -> bool | None:
    """Return whether a checkpoint at the same or a later version reflects a commit. One action represents all.

    Return None for a commit that changes nothing that a checkpoint holds.

    Other writers may have removed the same files, and a file that is restored has left a tombstone before. What tells
    them apart is the time of the removal.
    """
    info = next((line.commit_info for line in _lines(data) if line.commit_info is not None), {})
    gone = {line.remove.path: line.remove for line in _lines(data) if line.remove is not None}
    added = [line.add.path for line in _lines(data) if line.add is not None]
    new = next((path for path in added if path not in gone), None)
    if new is not None:
        since = info.get("timestamp", 0) if info.get("operation") == "RESTORE" else 0
        return _holds(_active(reader), new) or any((at or 0) >= since for at in _removals(reader, {new}).values())
    if added:  # with another deletion vector
        return not _holds_key(reader, gone[added[0]])
    if gone:
        paths = {unquote(path) for path in gone}
        if any(unquote(each) in paths for batch in _active(reader) for each in batch):
            return False
        times = {unquote(path): remove.deletion_timestamp for path, remove in gone.items()}
        return all(at is None or at == times[path] for path, at in _removals(reader, paths).items())
    for line in _lines(data):
        if line.txn is not None:
            app, number = line.txn.app_id, line.txn.version
            known = [each.txn for each in reader.actions("txn") if each.txn is not None]
            return any(each.app_id == app and each.version >= number for each in known)
        if line.has("meta_data"):
            return any(_same(each.meta_data, line.meta_data) for each in reader.actions("metaData"))
    return None


def _lines(data: bytes) -> Iterator[LogLine]:
    for line in io.BytesIO(data):
        for lines in decode_actions([line], "the commit", -1):
            yield from lines


def _same(one: bytes, other: bytes) -> bool:
    return bool(msgspec.json.decode(one) == msgspec.json.decode(other))


def _active(reader: CheckpointReader) -> Iterator[list[str]]:
    return (batch.path.to_pylist() for batch in reader.files())


def _removals(reader: CheckpointReader, paths: Collection[str]) -> dict[str, int | None]:
    """Return when files were removed, by decoded path: those of ``paths`` that the checkpoint has tombstones of."""
    wanted, found = set(map(unquote, paths)), dict[str, int | None]()
    for part in reader.parts():
        if part.is_json:
            for lines in read_actions(reader.store, part):
                removes = (line.remove for line in lines if line.remove is not None)
                found |= {unquote(each.path): each.deletion_timestamp for each in removes}
        else:
            with reader.open(part) as parquet:
                if has_column(parquet, "remove"):
                    columns = ["remove.path", "remove.deletionTimestamp"]
                    for batch in read_batches(parquet, part, columns, reader.batch_size):
                        rows = batch.column("remove")
                        kept = rows.filter(rows.is_valid()).to_pylist()
                        found |= {unquote(each["path"]): each.get("deletionTimestamp") for each in kept}
        found = {path: at for path, at in found.items() if path in wanted}
    return found


def _holds(batches: Iterable[list[str]], path: str) -> bool:
    wanted = unquote(path)
    return any(unquote(each) == wanted for paths in batches for each in paths)


def _holds_key(reader: CheckpointReader, remove: Remove) -> bool:
    """Return whether a removed file is active with the deletion vector that it had."""
    wanted, vector = unquote(remove.path), remove.deletion_vector
    for batch in reader.files():
        vectors = [None] * len(batch) if batch.deletion_vector is None else batch.deletion_vector.to_pylist()
        for path, logged in zip(batch.path.to_pylist(), vectors, strict=True):
            if unquote(path) == wanted:
                found = None if logged is None else msgspec.convert(logged, DeletionVector)
                return (found and found.unique_id) == (vector and vector.unique_id)
    return False
