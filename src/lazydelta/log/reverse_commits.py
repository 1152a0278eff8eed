"""``ReverseCommitReader``: the commits since the checkpoint, newest first, fetched in parallel."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lazydelta.errors import MissingCommitError, ObjectNotFoundError, StorageError
from lazydelta.log.actions import LogLine
from lazydelta.log.commit_cache import CommitCache
from lazydelta.log.commits import CHUNK_SIZE, decode_actions, read_actions
from lazydelta.log.names import LogFile
from lazydelta.storage import Pending, Store

__all__ = ["ReverseCommitReader", "TailCommit"]


@dataclass(frozen=True, slots=True)
class TailCommit:
    """A commit (or compaction) whose actions are decoded as they are pulled."""

    file: LogFile
    actions: Iterator[list[LogLine]]


class ReverseCommitReader:
    """Yields the given log files from the last to the first.

    At most ``parallelism`` requests are in flight or waiting to be consumed, and none is started before the consumer
    asks: whoever stops after the newest commit has paid for one round. Commits larger than a chunk are streamed when
    their turn comes, so memory is bounded by ``parallelism`` chunks whatever the commits' sizes.
    """

    def __init__(
        self, store: Store, files: Sequence[LogFile], *, parallelism: int = 10, cache: CommitCache | None = None
    ) -> None:
        self._store = store
        self._waiting = deque(reversed(files))
        self._started: deque[tuple[LogFile, Pending[bytes] | bytes | None]] = deque()
        self._parallelism = parallelism
        self._cache = cache

    def __iter__(self) -> Iterator[TailCommit]:
        try:
            while self._waiting or self._started:
                while self._waiting and len(self._started) < self._parallelism:
                    self._start(self._waiting.popleft())
                file, fetched = self._started.popleft()
                yield TailCommit(file, self._decode(file, fetched))
        finally:
            self.close()

    def close(self) -> None:
        """Cancel the requests that are still in flight."""
        self._waiting.clear()
        while self._started:
            _, fetched = self._started.popleft()
            if fetched is not None and not isinstance(fetched, bytes):
                fetched.cancel()

    def _start(self, file: LogFile) -> None:
        fetched: Pending[bytes] | bytes | None = None
        if 0 <= file.info.size <= CHUNK_SIZE:
            fetched = self._cache.get(file.path, file.info.etag) if self._cache is not None else None
            if fetched is None:
                fetched = self._store.fetch(file.path)
        self._started.append((file, fetched))

    def _decode(self, file: LogFile, fetched: Pending[bytes] | bytes | None) -> Iterator[list[LogLine]]:
        if fetched is None:
            yield from read_actions(self._store, file)
            return
        if not isinstance(fetched, bytes):
            try:
                fetched = bytes(fetched.result())
            except ObjectNotFoundError as error:
                message = f"{file.path} was listed and is gone: the log was cleaned up or the table replaced meanwhile"
                hint = "open the table again"
                raise MissingCommitError(message, path=file.path, version=file.version, hint=hint) from error
            except StorageError as error:
                error.version = file.version
                raise
            if self._cache is not None:
                self._cache.put(file.path, fetched, file.info.etag)
        yield from decode_actions([fetched], file.path, file.version)
