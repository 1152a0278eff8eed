"""Time travel: resolve timestamps to versions, and read the commit history."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import Any

from lazydelta.errors import CorruptLogError, OptionError, TableNotFoundError, VersionNotFoundError
from lazydelta.log.commits import decode_actions, read_actions
from lazydelta.log.segment import LogSegment, available_versions, list_commits
from lazydelta.protocol.actions import Metadata
from lazydelta.protocol.file_names import LogFile
from lazydelta.protocol.properties import Key, is_true
from lazydelta.storage import Store

__all__ = ["commit_info", "history", "in_commit_since", "milliseconds", "version_at"]

_FIRST_LINE_BYTES = 64 << 10
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def milliseconds(timestamp: str | datetime) -> int:
    """Return a timestamp as epoch milliseconds. Strings are ISO 8601; without a time zone they are UTC."""
    if isinstance(timestamp, str):
        text = timestamp.strip()
        try:
            timestamp = datetime.fromisoformat(text)
        except ValueError:
            message = f"{timestamp!r} is not an ISO 8601 timestamp"
            hint = (
                f"for a version, give the number: {int(text)}"
                if text.isdecimal()
                else "write it like 2026-02-10T14:00:00Z"
            )
            raise OptionError(message, hint=hint) from None
    if timestamp.tzinfo is None:
        timestamp = timestamp.replace(tzinfo=UTC)
    return (timestamp - _EPOCH) // timedelta(milliseconds=1)


def version_at(store: Store, metadata: Metadata, timestamp: int, *, log_tail: Sequence[LogFile] = ()) -> int:
    """Return the newest version committed at or before ``timestamp`` (epoch milliseconds).

    ``metadata`` belongs to the newest version. It says from which version on commits carry in-commit timestamps.
    """
    known = available_versions(store)
    if known is None:
        message = f"There is no Delta table at {store.uri}"
        raise TableNotFoundError(message, path=store.uri)
    earliest = known[0]
    commits = {file.version: file for file in list_commits(store, earliest)}
    commits.update({file.version: file for file in log_tail})
    versions = sorted(commits)
    if not versions:
        message = f"No commit of {store.uri} is left, so a timestamp cannot be resolved to a version"
        raise VersionNotFoundError(message, path=store.uri, earliest=earliest, latest=known[1])
    since = in_commit_since(metadata)
    first_stamped = next((index for index, v in enumerate(versions) if since is not None and v >= since), len(versions))
    # In-commit timestamps are monotonic by contract, so the newer part is searched by bisection.
    found = _search([commits[v] for v in versions[first_stamped:]], store, timestamp)
    if found is None:
        found = _by_modification_time([commits[v] for v in versions[:first_stamped]], timestamp)
    if found is None:
        oldest = datetime.fromtimestamp(_timestamp(store, commits[versions[0]], since) / 1000, UTC)
        asked = datetime.fromtimestamp(timestamp / 1000, UTC)
        message = f"No version of {store.uri} is as old as {asked.isoformat()}"
        hint = f"the oldest that can be read is version {versions[0]} of {oldest.isoformat()}"
        raise VersionNotFoundError(message, path=store.uri, earliest=earliest, latest=versions[-1], hint=hint)
    return found


def commit_info(store: Store, file: LogFile) -> dict[str, Any]:
    """Return a commit's ``commitInfo``, or an empty dict if it has none; usually only the first line is fetched."""
    head = (
        bytes(store.get(file.path, length=_FIRST_LINE_BYTES))
        if file.info.size > _FIRST_LINE_BYTES
        else bytes(store.get(file.path))
    )
    first, newline, _ = head.partition(b"\n")
    if newline or len(head) == file.info.size:
        lines = next(decode_actions([first], file.path, file.version), [])
        if lines and lines[0].commit_info is not None:
            return lines[0].commit_info
    whole = len(head) >= file.info.size
    for lines in decode_actions([head], file.path, file.version) if whole else read_actions(store, file):
        for line in lines:
            if line.commit_info is not None:
                return line.commit_info
    return {}


def history(
    store: Store,
    segment: LogSegment,
    metadata: Metadata,
    limit: int | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the provenance of the versions up to the segment's, newest first, as far back as commits exist.

    ``progress`` is called with the number of versions read so far and their total.
    """
    since = in_commit_since(metadata)
    known = {file.version: file for file in segment.commits}
    if segment.checkpoint_commit is not None:
        known[segment.checkpoint_commit.version] = segment.checkpoint_commit
    below = min(known, default=segment.version + 1)
    if limit is None or limit > len(known):
        known.update({file.version: file for file in list_commits(store, 0, below - 1)} if below else {})
    # A commit below a gap is a remnant of log cleanup: its version cannot be read, and it may be a stray file.
    versions = list(takewhile(known.__contains__, range(max(known, default=-1), -1, -1)[:limit]))
    for number, version in enumerate(versions):
        if progress is not None:
            progress(number, len(versions))
        info = dict(commit_info(store, known[version]))
        if since is not None and version >= since and isinstance(info.get("inCommitTimestamp"), int):
            info["timestamp"] = info["inCommitTimestamp"]
        info.setdefault("timestamp", known[version].info.last_modified)
        info["version"] = version
        yield info


def in_commit_since(metadata: Metadata) -> int | None:
    """Return the version from which on commits have in-commit timestamps; None if they do not."""
    if not is_true(metadata, Key.IN_COMMIT_TIMESTAMPS):
        return None
    since = metadata.property(Key.IN_COMMIT_SINCE_VERSION, "0")
    try:
        return int(since or 0)
    except ValueError:
        message = f"The table property {Key.IN_COMMIT_SINCE_VERSION} is {since!r}, which is not a version"
        raise CorruptLogError(message, path="metaData") from None


def _timestamp(store: Store, file: LogFile, since: int | None) -> int:
    if since is None or file.version < since:
        return file.info.last_modified
    stamp = commit_info(store, file).get("inCommitTimestamp")
    if not isinstance(stamp, int):
        message = f"{file.path} should have an in-commit timestamp but has none"
        raise CorruptLogError(message, path=file.path, version=file.version)
    return stamp


def _search(files: Sequence[LogFile], store: Store, timestamp: int) -> int | None:
    low, high = 0, len(files)  # files[:low] are at or before the timestamp, files[high:] after it
    while low < high:
        middle = (low + high) // 2
        if _timestamp(store, files[middle], 0) <= timestamp:
            low = middle + 1
        else:
            high = middle
    return files[low - 1].version if low else None


def _by_modification_time(files: Sequence[LogFile], timestamp: int) -> int | None:
    # Clocks of writers and stores disagree: a commit counts as at least one millisecond newer than its predecessor.
    found: int | None = None
    previous: int | None = None
    for file in files:
        stamp = file.info.last_modified
        if previous is not None and stamp <= previous:
            stamp = previous + 1
        if stamp > timestamp:
            break
        found, previous = file.version, stamp
    return found
