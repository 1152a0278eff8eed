"""Commits that a catalog vouches for: a contiguous run that ends at the newest version."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from lazydelta.errors import OptionError
from lazydelta.log.names import LOG, FileKind, LogFile, parse_log_file
from lazydelta.storage import ObjectInfo

__all__ = ["LogTailCommit", "log_tail_files"]

UNKNOWN_SIZE = -1


class LogTailCommit(msgspec.Struct, frozen=True):
    """A commit as a catalog names it: its file, and size and time (epoch ms) where the catalog knows them.

    ``path`` is relative to the table's root (``_delta_log/_staged_commits/….json``) or to ``_delta_log``.
    """

    path: str
    size: int = UNKNOWN_SIZE
    timestamp: int = 0


def log_tail_files(commits: Sequence[LogTailCommit | str]) -> tuple[LogFile, ...]:
    """Check a log tail and return it as log files, ascending."""
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
