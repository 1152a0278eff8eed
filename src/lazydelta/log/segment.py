"""``LogSegment``: the log files that make up one version, found by listing."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from itertools import pairwise

import msgspec

from lazydelta.errors import CorruptLogError, MissingCommitError, OptionError, TableNotFoundError, VersionNotFoundError
from lazydelta.log.hint import CheckpointHint
from lazydelta.protocol.file_names import LOG, MAX_VERSION, FileKind, LogFile, commit_name, first_name, parse_log_file
from lazydelta.storage import ObjectInfo, Store

__all__ = [
    "Checkpoint",
    "LogSegment",
    "LogTailCommit",
    "available_versions",
    "checkpoints_from",
    "commits_in_order",
    "earliest_commit",
    "list_backward",
    "list_commits",
    "list_from",
    "list_from_hint",
    "load_segment",
    "log_tail_files",
    "on_older_checkpoint",
]


logger = logging.getLogger(__name__)

WINDOW = 1000
_BACKOFF = (0.05, 0.2, 0.8)


class Checkpoint(msgspec.Struct, frozen=True):
    """A complete checkpoint: all parts of one write, in order."""

    version: int
    files: tuple[LogFile, ...]


class LogSegment(msgspec.Struct, frozen=True):
    """The files that a version is read from.

    ``commits`` is the tail: contiguous, ascending, from just above the checkpoint (or from 0) to ``version``.
    ``checkpoint_commit`` is the commit of the checkpoint's own version, kept for its in-commit timestamp. ``checksum``
    is the newest one that is neither newer than ``version`` nor older than the checkpoint. ``base_bytes`` is the size
    of the checkpoint according to listing and hint.
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
        """Return C, or -1 if there is no checkpoint and the log starts at version 0."""
        return -1 if self.checkpoint is None else self.checkpoint.version

    def tail(self, without: Container[str] = ()) -> list[LogFile]:
        """Return the files that hold the tail's actions, ascending, with compactions in place of their ranges."""
        return self.cover(self.base_version + 1, self.version, without)

    def is_newest(self, store: Store) -> bool:
        """Return whether a listing of the log has this version with the same files, and none after it."""
        known = [each for each in (*self.commits[-1:], self.checkpoint_commit, self.checksum) if each is not None]
        if self.checkpoint is not None:
            known += self.checkpoint.files
        expected = {file.info for file in known if file.version == self.version}
        listed = set()
        for file in list_from(store, self.version):
            if file.info not in expected:
                return False
            listed.add(file.info)
        return listed == expected

    def cover(self, first: int, last: int, without: Container[str] = ()) -> list[LogFile]:
        """Return the files that hold exactly the actions of these versions; ``without`` lists paths to avoid."""
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
    """Log files grouped by kind while a listing is streamed."""

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
    # Parts with different part counts come from different writes and never mix. All complete groups of a version are
    # equivalent. Parquet is preferred to JSON because it allows projection, then the fewest requests win.
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
    """List every log file of versions ``start`` to ``end``, ascending; requests no pages past the end."""
    for info in store.list(LOG, after=first_name(start)):
        name = info.path.rpartition("/")[2]
        if name[:1].isdigit() and name > first_name(end) + "~":
            return
        if name[:1] > "9":  # names sort by bytes: _last_checkpoint, folders and other files come after the versions
            return
        file = parse_log_file(info)
        if file is not None and start <= file.version <= end:
            yield file


def list_commits(store: Store, start: int, end: int = MAX_VERSION) -> Iterator[LogFile]:
    """List the published commits of versions ``start`` to ``end``, ascending."""
    return (file for file in list_from(store, start, end) if file.kind is FileKind.COMMIT)


def earliest_commit(store: Store) -> int | None:
    """Return the version of the first commit that the log still has; None if it has none."""
    first = next(list_commits(store, 0), None)
    return None if first is None else first.version


def commits_in_order(
    store: Store,
    first: int,
    last: int | None = None,
    ratified: Iterable[LogFile] = (),
    *,
    before: list[LogFile] | None = None,
) -> Iterator[LogFile]:
    """Yield the commits ``first`` to ``last``, or all that exist; the log is listed lazily.

    This is the only way to follow the commits since a version: it never skips one. If a commit is missing although a
    later commit or a checkpoint proves that its version existed, it raises an error, which names the earliest version
    if the log was cleaned up. ``ratified`` are commits known to a catalog, which take precedence over listed ones.
    ``before`` receives what the same listing has of the version before ``first``: its commit and checkpoints.
    """
    known = {file.version: file for file in ratified}
    end = MAX_VERSION if last is None else last
    expected, newest = first, -1
    for listed in list_from(store, first if before is None else max(first - 1, 0), end):
        if listed.kind not in {FileKind.COMMIT, FileKind.CHECKPOINT}:
            continue
        if before is not None and listed.version < first:
            before.append(listed)
            continue
        newest = max(newest, listed.version)
        while expected < listed.version:
            if expected not in known:
                raise _not_there(store, expected, newest)
            yield known[expected]
            expected += 1
        if listed.kind is FileKind.COMMIT:
            yield known.get(expected, listed)
            expected += 1
    while expected in known and expected <= end:
        yield known[expected]
        expected += 1
    newest = newest if last is None else last
    if expected <= newest:
        raise _not_there(store, expected, newest)


def _not_there(store: Store, version: int, later: int) -> VersionNotFoundError | MissingCommitError:
    earliest = earliest_commit(store)
    if earliest is None or earliest > version:
        message = f"The commit of version {version} of {store.uri} was cleaned up, so its changes are unknown"
        hint = "no commit is left: start at the newest version"
        if earliest is not None:
            hint = f"the earliest that is left is {earliest}; what came before it is in the files of that version"
        return VersionNotFoundError(
            message, path=store.uri, version=version, earliest=earliest, latest=later, hint=hint
        )
    message = f"Commit {version} is missing from the log of {store.uri}, though version {later} is there"
    hint = "wait for the store's listing to settle and try again, or restore the commit from a backup"
    return MissingCommitError(message, path=f"{LOG}/{commit_name(version)}", version=version, hint=hint)


def list_from_hint(store: Store, hint: CheckpointHint, end: int = MAX_VERSION) -> _Listing | None:
    """List from the checkpoint that the hint names; None if there is no complete checkpoint from there on."""
    listing = _Listing().extend(list_from(store, hint.version, end))
    if listing.newest_checkpoint(end) is None:
        logger.warning("the hint names checkpoint %d, which is not there; listing the log instead", hint.version)
        return None
    return listing


def checkpoints_from(store: Store, first: int, last: int) -> tuple[dict[int, LogFile], list[Checkpoint]]:
    """List the commits of a range of versions and its complete checkpoints, newest first."""
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
            break  # the version does not exist: going down would cost a listing for every window below it
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

    A gap between commits may be caused by an eventually consistent listing, so it is listed again before it is an
    error.
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
        # The catalog's commits take precedence from its first one on, whatever was published meanwhile.
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
        # These commits have no checkpoint any more, they are remnants of log cleanup. Report the available range.
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


def on_older_checkpoint(store: Store, segment: LogSegment, version: int) -> LogSegment | None:
    """Return the table at the segment's checkpoint, on the older checkpoint of ``version`` and the commits since.

    Return None unless all of these are in the log: together they say the same as the newer checkpoint.
    """
    newer = segment.base_version
    listing = _Listing().extend(list_from(store, version, newer))
    files = _complete_group(listing.checkpoint_files.get(version, ()))
    commits = tuple(listing.commits[each] for each in range(version + 1, newer + 1) if each in listing.commits)
    known = segment.checkpoint_commit
    is_another_log = known is not None and (not commits or commits[-1].info != known.info)
    if not files or len(commits) != newer - version or any(each.info.size == 0 for each in commits) or is_another_log:
        return None
    checkpoint = Checkpoint(version, files)
    return LogSegment(
        version=newer,
        commits=commits,
        checkpoint=checkpoint,
        compactions=tuple(each for each in listing.compactions if each.version > version and each.end <= newer),
        checkpoint_commit=listing.commits.get(version),
        base_bytes=_base_bytes(checkpoint, None),
    )


def _base_bytes(checkpoint: Checkpoint | None, hint: CheckpointHint | None) -> int:
    if checkpoint is None:
        return 0
    listed = sum(file.info.size for file in checkpoint.files)
    # The main file of a V2 checkpoint is small; only the hint includes the size of the sidecars.
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
    raise MissingCommitError(message, path=f"{LOG}/{commit_name(expected)}", version=expected, hint=hint)


def _nothing_found(store: Store, version: int | None) -> Exception:
    if next(list_from(store, 0), None) is not None and version is not None:
        return _version_not_found(store, version)
    message = f"There is no Delta table at {store.uri}: {LOG} holds no commit and no checkpoint"
    hint = "check the URI, and that the credentials may list it"
    if store.uri.rstrip("/").endswith(f"/{LOG}"):
        hint = "the table is the folder that contains _delta_log"
    return TableNotFoundError(message, path=store.uri, hint=hint)


def available_versions(store: Store) -> tuple[int, int] | None:
    """Return the first and last readable version by listing the whole log; None if there is none."""
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
        message = f"Version {version} of {store.uri} cannot be read: its log contains no version"
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


# Commits provided by a catalog: a contiguous run that ends at the newest version.


UNKNOWN_SIZE = -1


class LogTailCommit(msgspec.Struct, frozen=True):
    """A commit as a catalog names it: its file, with size and time (epoch ms) if the catalog knows them.

    ``path`` is relative to the table's root (``_delta_log/_staged_commits/….json``) or to ``_delta_log``.
    """

    path: str
    size: int = UNKNOWN_SIZE
    timestamp: int = 0


def log_tail_files(commits: Sequence[LogTailCommit | str]) -> tuple[LogFile, ...]:
    """Validate a log tail and return it as log files, ascending."""
    files = tuple(_file(each if isinstance(each, LogTailCommit) else LogTailCommit(each)) for each in commits)
    for before, after in pairwise(files):
        if after.version != before.version + 1:
            message = f"The log tail jumps from version {before.version} to {after.version}"
            hint = "it must be a contiguous, ascending run of commits that ends at the newest version"
            raise OptionError(message, path=after.path, hint=hint)
    return files


def _file(commit: LogTailCommit) -> LogFile:
    path = commit.path.lstrip("/")
    if not path.startswith(f"{LOG}/"):
        path = f"{LOG}/{path}"
    file = parse_log_file(ObjectInfo(path, commit.size, commit.timestamp, None))
    if (
        file is None
        or path.rpartition("/")[0] not in {LOG, f"{LOG}/_staged_commits"}
        or file.kind not in {FileKind.COMMIT, FileKind.STAGED_COMMIT}
    ):
        message = f"{commit.path!r} in the log tail is not a commit"
        hint = "name files like _delta_log/_staged_commits/<20 digits>.<uuid>.json or _delta_log/<20 digits>.json"
        raise OptionError(message, path=commit.path, hint=hint)
    return file
