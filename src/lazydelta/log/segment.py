"""``LogSegment``: the files of the log that make up one version, and how they are found by listing."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Sequence

import msgspec

from lazydelta.errors import CorruptLogError, MissingCommitError, TableNotFoundError, VersionNotFoundError
from lazydelta.log.hint import CheckpointHint
from lazydelta.log.names import LOG, MAX_VERSION, FileKind, LogFile, first_name, parse_log_file
from lazydelta.storage import Store

__all__ = [
    "Checkpoint",
    "LogSegment",
    "available_versions",
    "checkpoints_from",
    "list_backward",
    "list_commits",
    "list_from",
    "list_from_hint",
    "load_segment",
]

logger = logging.getLogger(__name__)

WINDOW = 1000
_BACKOFF = (0.05, 0.2, 0.8)


class Checkpoint(msgspec.Struct, frozen=True):
    """A complete checkpoint: all parts of one writing, in order."""

    version: int
    files: tuple[LogFile, ...]


class LogSegment(msgspec.Struct, frozen=True):
    """What a version is read from.

    ``commits`` is the tail: contiguous, ascending, from just above the checkpoint (or from 0) to ``version``.
    ``checkpoint_commit`` is the commit of the checkpoint's own version, kept for its in-commit timestamp.
    ``checksum`` is the newest one that is neither newer than ``version`` nor older than the checkpoint.
    ``base_bytes`` is the size of the checkpoint as far as listing and hint tell.
    """

    version: int
    commits: tuple[LogFile, ...] = ()
    checkpoint: Checkpoint | None = None
    compactions: tuple[LogFile, ...] = ()
    checkpoint_commit: LogFile | None = None
    checksum: LogFile | None = None
    published_version: int | None = None
    base_bytes: int = 0

    @property
    def base_version(self) -> int:
        """Return C, or -1 where there is no checkpoint and version 0 is the floor."""
        return -1 if self.checkpoint is None else self.checkpoint.version

    def tail(self, without: Container[str] = ()) -> list[LogFile]:
        """Return the files that hold the tail's actions, ascending, with compactions in place of their ranges."""
        return self.cover(self.base_version + 1, self.version, without)

    def cover(self, first: int, last: int, without: Container[str] = ()) -> list[LogFile]:
        """Return the files that hold the actions of some versions, and of no others; ``without`` are paths to avoid."""
        longest: dict[int, LogFile] = {}
        for compaction in self.compactions:
            known = longest.get(compaction.version)
            if compaction.end > last or compaction.path in without:
                continue
            if known is None or compaction.end > known.end:
                longest[compaction.version] = compaction
        files: list[LogFile] = []
        covered = first - 1
        for commit in self.commits:
            if not covered < commit.version <= last:
                continue
            file = longest.get(commit.version, commit)
            files.append(file)
            covered = file.end
        return files


class _Listing(msgspec.Struct):
    """Log files sorted into kinds while a listing streams by."""

    commits: dict[int, LogFile] = msgspec.field(default_factory=dict)
    compactions: list[LogFile] = msgspec.field(default_factory=list)
    checkpoint_files: dict[int, list[LogFile]] = msgspec.field(default_factory=lambda: defaultdict(list))
    checksums: dict[int, LogFile] = msgspec.field(default_factory=dict)

    def add(self, file: LogFile) -> None:
        size = file.info.size
        match file.kind:
            case FileKind.COMMIT | FileKind.STAGED_COMMIT:
                self.commits[file.version] = file
            case FileKind.CHECKSUM:
                if size == 0:
                    logger.warning("%s is empty", file.path)
                self.checksums[file.version] = file
            case FileKind.COMPACTION | FileKind.CHECKPOINT if size == 0:
                logger.warning("%s is empty and is skipped", file.path)
            case FileKind.COMPACTION:
                self.compactions.append(file)
            case FileKind.CHECKPOINT:
                self.checkpoint_files[file.version].append(file)

    def extend(self, files: Iterable[LogFile]) -> _Listing:
        for file in files:
            self.add(file)
        return self

    def newest_checkpoint(self, end: int) -> Checkpoint | None:
        """Return the newest complete checkpoint that is not newer than ``end``."""
        for version in sorted(self.checkpoint_files, reverse=True):
            if version <= end and (files := _complete_group(self.checkpoint_files[version])):
                return Checkpoint(version, files)
        return None


def _complete_group(files: Sequence[LogFile]) -> tuple[LogFile, ...] | None:
    # Parts of different part counts come from different writings and never mix. All complete groups of a version
    # are equivalent; Parquet is preferred to JSON because it can be projected, then the fewest requests win.
    groups: dict[int, dict[int, LogFile]] = defaultdict(dict)
    singles: list[LogFile] = []
    for file in files:
        if file.parts == 1:
            singles.append(file)
        else:
            groups[file.parts][file.part] = file
    if singles:
        return (min(singles, key=lambda file: (file.is_json, len(file.path), file.path)),)
    for count in sorted(groups):
        if len(groups[count]) == count:
            return tuple(groups[count][part] for part in sorted(groups[count]))
    return None


def list_from(store: Store, start: int, end: int = MAX_VERSION) -> Iterator[LogFile]:
    """List every log file of versions ``start`` to ``end``, ascending; stops asking for pages past the end."""
    for info in store.list(LOG, after=first_name(start)):
        name = info.path.rpartition("/")[2]
        if name[:1].isdigit() and name > first_name(end) + "~":
            return
        if name[:1] > "9":  # names sort by bytes: behind the versions come _last_checkpoint, folders and strangers
            return
        file = parse_log_file(info)
        if file is not None and start <= file.version <= end:
            yield file


def list_commits(store: Store, start: int, end: int = MAX_VERSION) -> Iterator[LogFile]:
    """List the published commits of versions ``start`` to ``end``, ascending."""
    return (file for file in list_from(store, start, end) if file.kind is FileKind.COMMIT)


def list_from_hint(store: Store, hint: CheckpointHint, end: int = MAX_VERSION) -> _Listing | None:
    """List from the checkpoint that the hint names; None if no complete checkpoint is found from there on."""
    listing = _Listing().extend(list_from(store, hint.version, end))
    if listing.newest_checkpoint(end) is None:
        logger.warning("the hint names checkpoint %d, which is not there; listing the log instead", hint.version)
        return None
    return listing


def checkpoints_from(store: Store, first: int, last: int) -> tuple[dict[int, LogFile], list[Checkpoint]]:
    """List the commits of some versions and their complete checkpoints, the newest first."""
    listing = _Listing().extend(list_from(store, first, last))
    groups = {version: _complete_group(files) for version, files in listing.checkpoint_files.items()}
    found = [Checkpoint(version, files) for version, files in groups.items() if files]
    return listing.commits, sorted(found, key=lambda each: each.version, reverse=True)


def list_backward(store: Store, end: int, *, window: int = WINDOW, known: bool = False) -> _Listing:
    """List windows of versions down from ``end`` until one of them completes a checkpoint, or version 0."""
    listing = _Listing()
    upper = end
    while upper >= 0:
        lower = max(0, upper - window + 1)
        listing.extend(list_from(store, lower, upper))
        if listing.newest_checkpoint(end) is not None:
            break
        if upper == end and not known and end not in listing.commits and end not in listing.checkpoint_files:
            break  # the version is not there: going down would cost a listing for every window below it
        upper = lower - 1
    return listing


def load_segment(
    store: Store,
    *,
    version: int | None = None,
    hint: CheckpointHint | None = None,
    log_tail: Sequence[LogFile] = (),
    window: int = WINDOW,
    sleep: Callable[[float], None] = time.sleep,
) -> LogSegment:
    """Find the files of ``version`` (or of the newest version).

    A gap between commits may be an eventually consistent listing, so it is looked at again before it is an error.
    """
    end = _end_version(version, log_tail)
    for pause in (*_BACKOFF, None):
        known = bool(log_tail) and log_tail[0].version <= end <= log_tail[-1].version
        listing = _list(store, end, bounded=version is not None, hint=hint, window=window, known=known)
        try:
            return _assemble(store, listing, version, log_tail, hint)
        except MissingCommitError:
            if pause is None:
                raise
            sleep(pause)
    raise AssertionError  # the last round returns or raises


def _end_version(version: int | None, log_tail: Sequence[LogFile]) -> int:
    if version is not None:
        return version
    return log_tail[-1].version if log_tail else MAX_VERSION


def _list(store: Store, end: int, *, bounded: bool, hint: CheckpointHint | None, window: int, known: bool) -> _Listing:
    if hint is not None and hint.version <= end:
        listing = list_from_hint(store, hint, end)
        if listing is not None:
            return listing
    if bounded:
        return list_backward(store, end, window=window, known=known)
    return _Listing().extend(list_from(store, 0, end))


def _assemble(
    store: Store,
    listing: _Listing,
    version: int | None,
    log_tail: Sequence[LogFile],
    hint: CheckpointHint | None,
) -> LogSegment:
    published = max(listing.commits, default=None)
    if log_tail:
        # The catalog's word counts from its first commit on, whatever was published meanwhile.
        first = log_tail[0].version
        listing.commits = {v: file for v, file in listing.commits.items() if v < first}
        listing.commits.update({file.version: file for file in log_tail if version is None or file.version <= version})
    newest = max(listing.commits, default=-1)
    checkpoint = listing.newest_checkpoint(MAX_VERSION if version is None else version)
    if checkpoint is not None:
        newest = max(newest, checkpoint.version)
    if newest < 0:
        raise _nothing_found(store, version)
    if version is not None and newest != version:
        raise _version_not_found(store, version, log_tail)
    base = -1 if checkpoint is None else checkpoint.version
    commits = tuple(listing.commits[v] for v in sorted(listing.commits) if base < v <= newest)
    if version is not None and checkpoint is None and commits[0].version > 0:
        # Commits that no checkpoint supports any more: what is left of a cleanup. The answer is the range there is.
        found = available_versions(store)
        if found is not None and version < found[0]:
            raise _version_not_found(store, version, log_tail)
    _check_contiguous(store, commits, base, newest)
    for empty in (each for each in commits if each.info.size == 0):
        message = f"{empty.path} is an empty commit"
        advice = "a writer crashed or the store lost its content; restore the file from a backup"
        raise CorruptLogError(message, path=empty.path, version=empty.version, hint=advice)
    checksums = [v for v in listing.checksums if base <= v <= newest]
    return LogSegment(
        version=newest,
        commits=commits,
        checkpoint=checkpoint,
        compactions=tuple(each for each in listing.compactions if each.version > base and each.end <= newest),
        checkpoint_commit=listing.commits.get(base),
        checksum=listing.checksums[max(checksums)] if checksums else None,
        published_version=published,
        base_bytes=_base_bytes(checkpoint, hint),
    )


def _base_bytes(checkpoint: Checkpoint | None, hint: CheckpointHint | None) -> int:
    if checkpoint is None:
        return 0
    listed = sum(file.info.size for file in checkpoint.files)
    # The main file of a V2 checkpoint is small; only the hint counts the sidecars in.
    hinted = hint.size_in_bytes if hint is not None and hint.version == checkpoint.version else None
    return max(listed, hinted or 0)


def _check_contiguous(store: Store, commits: tuple[LogFile, ...], base: int, newest: int) -> None:
    expected = base + 1
    for commit in commits:
        if commit.version != expected:
            break
        expected += 1
    if expected > newest:
        return
    if base < 0 and expected == 0 and commits:
        message = f"The log of {store.uri} begins at version {commits[0].version} and has no complete checkpoint"
        hint = "older commits were cleaned up while the checkpoint is missing or incomplete; restore it from a backup"
    else:
        message = f"Commit {expected} is missing from the log of {store.uri}, though version {newest} is there"
        hint = "wait for the store's listing to settle and try again, or restore the commit from a backup"
    raise MissingCommitError(message, path=f"{LOG}/{first_name(expected)}.json", version=expected, hint=hint)


def _nothing_found(store: Store, version: int | None) -> Exception:
    if next(list_from(store, 0), None) is not None and version is not None:
        return _version_not_found(store, version)
    message = f"There is no Delta table at {store.uri}: {LOG} holds no commit and no checkpoint"
    return TableNotFoundError(message, path=store.uri, hint="check the URI, and that the credentials may list it")


def available_versions(store: Store) -> tuple[int, int] | None:
    """Return the first and last version that can be read, by listing the whole log; None if there is none."""
    listing = _Listing().extend(list_from(store, 0))
    complete = [v for v, files in listing.checkpoint_files.items() if _complete_group(files)]
    newest = max([*listing.commits, *complete], default=None)
    if newest is None:
        return None
    earliest = newest
    while earliest - 1 in listing.commits or (earliest - 1) in complete:
        earliest -= 1
    floors = [v for v in (*complete, 0 if 0 in listing.commits else None) if v is not None and v >= earliest]
    return (min(floors), newest) if floors else (newest, newest)


def _version_not_found(store: Store, version: int, log_tail: Sequence[LogFile] = ()) -> VersionNotFoundError:
    found = available_versions(store)
    if found is None:
        message = f"Version {version} of {store.uri} cannot be read: its log holds no version at all"
        return VersionNotFoundError(message, version=version, path=store.uri)
    earliest, latest = found
    if log_tail:
        latest = log_tail[-1].version
    why = "does not exist yet" if version > latest else "was cleaned up"
    message = f"Version {version} of {store.uri} {why}"
    return VersionNotFoundError(
        message,
        earliest=earliest,
        latest=latest,
        version=version,
        path=store.uri,
        hint=f"versions {earliest} to {latest} can be read",
    )
