"""What a commit means to whoever follows the table: its new files in the order of the log, and what may not be passed.

Files that were only moved (``dataChange`` false, as by OPTIMIZE) are no news. A file that gets another deletion vector
is removed and added again, so it counts as both: a change.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from lazydelta.errors import CorruptLogError, StreamStoppedError
from lazydelta.log.actions import Add, LogLine, Metadata, Protocol
from lazydelta.log.file_batch import FileBatch
from lazydelta.log.names import LogFile
from lazydelta.stream_source.stream_options import StreamOptions

__all__ = ["CommitNews", "read_news"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CommitNews:
    """A commit as a whole, and the files ``first`` and on of those that it added, as many as were asked for."""

    version: int
    first: int
    files: FileBatch
    added: int
    removed: int
    removed_path: str | None
    metadata: Metadata | None
    protocol: Protocol | None

    @property
    def is_last(self) -> bool:
        """Tell whether no file comes after these."""
        return self.first + len(self.files) >= self.added

    def admits(self, options: StreamOptions, uri: str) -> bool:
        """Tell whether the files are handed out; a commit that somebody has to decide on is an error."""
        if not self.removed:
            return True
        if options.skip_change_commits:
            return False
        if options.ignore_changes or (options.ignore_deletes and not self.added):
            return True
        what = "deletes rows" if not self.added else "changes rows"
        message = f"Version {self.version} of {uri} {what}: it removes {self.removed_path}"
        more = f" and {self.removed - 1} more" if self.removed > 1 else ""
        hint = (
            "a stream has no word for that. skipChangeCommits=true passes over such commits, ignoreChanges=true hands "
            "out rewritten files again"
        )
        if not self.added:
            hint += ", ignoreDeletes=true passes over commits that only delete"
        raise StreamStoppedError(f"{message}{more}", path=self.removed_path, version=self.version, hint=hint)


def read_news(file: LogFile, actions: Iterable[list[LogLine]], first: int, count: int) -> CommitNews:
    """Read a commit to its end, as its last line may be what matters, and keep ``count`` files from ``first`` on."""
    kept: list[Add] = []
    added = removed = 0
    removed_path: str | None = None
    metadata: Metadata | None = None
    protocol: Protocol | None = None
    for lines in actions:
        for line in lines:
            if line.add is not None:
                if line.add.data_change:
                    if first <= added < first + count:
                        kept.append(line.add)
                    added += 1
            elif line.remove is not None:
                if line.remove.data_change:
                    removed += 1
                    removed_path = removed_path or line.remove.path
            elif line.has("meta_data"):
                metadata = _decoded(line.meta_data, Metadata, file)
            elif line.has("protocol"):
                protocol = _decoded(line.protocol, Protocol, file)
    files = FileBatch.from_adds(kept)
    return CommitNews(file.version, first, files, added, removed, removed_path, metadata, protocol)


def _decoded(raw: msgspec.Raw, kind: type[T], file: LogFile) -> T:
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.MsgspecError as error:
        message = f"{file.path} has a {kind.__name__.lower()} action that makes no sense: {error}"
        raise CorruptLogError(message, path=file.path, version=file.version) from error
