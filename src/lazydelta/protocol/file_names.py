"""Classify the files in ``_delta_log`` by name."""

from __future__ import annotations

import enum
import re

import msgspec

from lazydelta.storage import ObjectInfo

__all__ = ["LOG", "MAX_VERSION", "FileKind", "LogFile", "checksum_name", "commit_name", "first_name", "parse_log_file"]

LOG = "_delta_log"
MAX_VERSION = 2**63 - 1

_UUID = r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"
_NAME = re.compile(
    r"(?P<version>\d{20})\."
    r"(?:(?P<commit>json)"
    r"|(?P<checksum>crc)"
    r"|(?P<end>\d{20})\.compacted\.json"
    r"|checkpoint\.parquet"
    r"|checkpoint\.(?P<part>\d{10})\.(?P<parts>\d{10})\.parquet"
    rf"|checkpoint\.(?P<unique>{_UUID})\.(?:parquet|json))",
)
_STAGED = rf"(?P<version>\d{{20}})\.{_UUID}\.json"


class FileKind(enum.Enum):
    """The kinds of log files that lazydelta handles."""

    COMMIT = "commit"
    STAGED_COMMIT = "staged commit"
    COMPACTION = "compacted commits"
    CHECKPOINT = "checkpoint"
    CHECKSUM = "checksum"
    SPAN = "delta sidecar"  # in a separate folder; no listing of the log contains it


class LogFile(msgspec.Struct, frozen=True):
    """A file of the log: for a compaction ``version`` to ``end``, for a checkpoint part ``part`` of ``parts``."""

    kind: FileKind
    version: int
    info: ObjectInfo
    end: int
    part: int = 1
    parts: int = 1

    @property
    def path(self) -> str:
        """Return the path relative to the table's root."""
        return self.info.path

    @property
    def is_json(self) -> bool:
        """Return whether the file holds lines of JSON actions."""
        return self.info.path.endswith(".json")


def commit_name(version: int) -> str:
    """Return the name of the published commit ``version``."""
    return f"{version:020}.json"


def checksum_name(version: int) -> str:
    """Return the name of the checksum of ``version``."""
    return f"{version:020}.crc"


def first_name(version: int) -> str:
    """Return a name that sorts before every file of ``version`` and after all files of the previous version."""
    return f"{version:020}"


def parse_log_file(info: ObjectInfo) -> LogFile | None:
    """Classify an object of the log; None if it is not a known log file."""
    folder, _, name = info.path.rpartition("/")
    if name.startswith("."):
        return None
    if folder.endswith("/_staged_commits"):
        staged = re.fullmatch(_STAGED, name)
        if staged is None or int(staged["version"]) > MAX_VERSION:
            return None
        version = int(staged["version"])
        return LogFile(FileKind.STAGED_COMMIT, version, info, version)
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    version = int(match["version"])
    if version > MAX_VERSION:
        return None
    if match["commit"]:
        return LogFile(FileKind.COMMIT, version, info, version)
    if match["checksum"]:
        return LogFile(FileKind.CHECKSUM, version, info, version)
    if match["end"]:
        end = int(match["end"])
        return LogFile(FileKind.COMPACTION, version, info, end) if version < end <= MAX_VERSION else None
    if match["part"]:
        part, parts = int(match["part"]), int(match["parts"])
        if not 1 <= part <= parts:
            return None
        return LogFile(FileKind.CHECKPOINT, version, info, version, part, parts)
    return LogFile(FileKind.CHECKPOINT, version, info, version)
