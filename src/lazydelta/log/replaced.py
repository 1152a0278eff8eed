"""A checkpoint that another one has replaced since it was listed.

Writers replace checkpoints: deltalake writes one over another of the same version, with the same files in another
order and of another size. A table that was pinned before knows the old one by size and etag, and fails to read it. The
new one is as good, and so is any newer one up to the pinned version, because the tail masks what it has in common with
it. Only a checkpoint that is still the one that was listed, and cannot be read, is broken.

A log whose commits were replaced is another log, of which nothing may be mixed with what is known already.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import msgspec

from lazydelta.errors import (
    AccessDeniedError,
    CorruptLogError,
    LazyDeltaError,
    MissingCommitError,
    ObjectChangedError,
    ObjectNotFoundError,
    StorageError,
    StorageTimeoutError,
)
from lazydelta.log.actions import LogLine
from lazydelta.log.checkpoint.checkpoint_reader import CheckpointReader
from lazydelta.log.names import FileKind, LogFile
from lazydelta.log.segment import Checkpoint, LogSegment, checkpoints_from
from lazydelta.storage import ObjectInfo, Store

__all__ = [
    "CURABLE",
    "MAX_REPLACEMENTS",
    "checkpoint_actions",
    "current_checkpoint",
    "current_sidecar",
    "is_curable",
    "too_often",
]

logger = logging.getLogger(__name__)

CURABLE = (CorruptLogError, MissingCommitError, StorageError)
"""What reading a checkpoint may raise if it was replaced; ``is_curable`` tells more."""
MAX_REPLACEMENTS = 5


def is_curable(error: Exception) -> bool:
    """Tell whether an error may come from a checkpoint that is not the one that was listed."""
    return isinstance(error, CURABLE) and not isinstance(error, AccessDeniedError | StorageTimeoutError)


def current_checkpoint(store: Store, segment: LogSegment, known: Checkpoint, error: LazyDeltaError) -> Checkpoint:
    """List again, and return what stands in for a checkpoint that could not be read; else raise ``error``."""
    try:
        commits, found = checkpoints_from(store, known.version, segment.version)
    except LazyDeltaError:
        raise error from None
    _check_commits(segment, commits)
    same = next((each for each in found if each.version == known.version), None)
    newer = next((each for each in found if each.version > known.version), None)
    if same is not None and not _is_untouched(known, same):
        chosen = same
    elif newer is not None:
        chosen = newer
    elif same is not None and isinstance(error, ObjectChangedError) and any(each.info.etag for each in known.files):
        # Nothing changed, and the store says it did: its etags (weak ones, for instance) are none to ask by.
        return _without_etags(same)
    else:
        raise error
    logger.warning("the checkpoint %d was replaced; going on with %s", known.version, chosen.files[0].path)
    return chosen


def current_sidecar(store: Store, path: str, known: ObjectInfo | None) -> ObjectInfo | None:
    """Return what a V2 checkpoint's sidecar is by now; None if it is gone, or as it was known to be."""
    try:
        found = store.head(path)
    except ObjectNotFoundError:
        return None
    return None if found == known else found


def _is_untouched(known: Checkpoint, found: Checkpoint) -> bool:
    if len(known.files) != len(found.files):
        return False
    pairs = zip((each.info for each in known.files), (each.info for each in found.files), strict=True)
    return all(before in (now, msgspec.structs.replace(now, etag=None)) for before, now in pairs)


def _without_etags(checkpoint: Checkpoint) -> Checkpoint:
    files = tuple(
        msgspec.structs.replace(file, info=msgspec.structs.replace(file.info, etag=None)) for file in checkpoint.files
    )
    return Checkpoint(checkpoint.version, files)


def checkpoint_actions(store: Store, segment: LogSegment, *names: str) -> Iterator[LogLine]:
    """Yield actions of the checkpoint that are not files; some may come again if it is replaced meanwhile."""
    checkpoint = segment.checkpoint
    for _ in range(MAX_REPLACEMENTS):
        if checkpoint is None:
            return
        try:
            yield from CheckpointReader(store, checkpoint).actions(*names)
        except CURABLE as error:
            if not is_curable(error):
                raise
            checkpoint = current_checkpoint(store, segment, checkpoint, error)
        else:
            return
    raise too_often(segment)


def too_often(segment: LogSegment) -> ObjectChangedError:
    """Return the error for a checkpoint that changes whenever it is read."""
    message = f"The checkpoint {segment.base_version} is replaced faster than it can be read"
    hint = "see who writes checkpoints of this table again and again, and try later"
    return ObjectChangedError(message, version=segment.base_version, hint=hint)


def _check_commits(segment: LogSegment, listed: dict[int, LogFile]) -> None:
    known = [*segment.commits, *([] if segment.checkpoint_commit is None else [segment.checkpoint_commit])]
    for commit in known:
        now = listed.get(commit.version)
        if now is None or commit.kind is not FileKind.COMMIT or now.info == commit.info:
            continue
        message = f"{commit.path} was replaced since the table was opened: the log is another one"
        raise MissingCommitError(message, path=commit.path, version=commit.version, hint="open the table again")
