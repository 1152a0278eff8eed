"""``ReverseCommitReader``: the commits since the checkpoint, newest first, fetched in parallel.

How many are on their way at once decides how many round trips a long tail takes, and how many requests are in vain when
the consumer stops. So it begins with ten and goes on with one more for each commit that was taken, which doubles it in
every round; whoever is going to read all of them anyway begins with many. Beyond ten, what is on its way is bounded in
bytes too. A number that was asked for is kept to.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import msgspec

from lazydelta.errors import MissingCommitError, ObjectNotFoundError, StorageError
from lazydelta.log.actions import LogLine
from lazydelta.log.commit_cache import CommitCache
from lazydelta.log.commits import CHUNK_SIZE, decode_actions, read_actions
from lazydelta.log.names import LogFile
from lazydelta.log.tail_spans import SpanRows
from lazydelta.storage import Pending, Store

__all__ = ["LEAST_PARALLELISM", "MOST_PARALLELISM", "ReverseCommitReader", "TailCommit", "is_small"]

LEAST_PARALLELISM = 10
MOST_PARALLELISM = 192
_BYTES_UNDER_WAY = 8 << 20


class TailCommit(msgspec.Struct, frozen=True):
    """A commit (or compaction) whose actions are decoded as they are pulled.

    Of a span of commits that lies ready elsewhere, ``rows`` are the actions about files and ``actions`` all others.
    """

    file: LogFile
    actions: Iterator[list[LogLine]]
    rows: Iterator[SpanRows] | None = None


class ReverseCommitReader:
    """Yields the given log files from the last to the first.

    At most ``parallelism`` requests are in flight or waiting to be consumed (None: see above), and none is started
    before the consumer asks: whoever stops after the newest commit has paid for one round. Commits larger than a chunk
    are streamed when their turn comes, so memory is bounded whatever the commits' sizes. ``whole`` says that all of
    them will be wanted.
    """

    def __init__(
        self,
        store: Store,
        files: Sequence[LogFile],
        *,
        parallelism: int | None = None,
        cache: CommitCache | None = None,
        whole: bool = False,
    ) -> None:
        self._store = store
        self._waiting = deque(reversed(files))
        self._started: deque[tuple[LogFile, Pending[bytes] | bytes | None]] = deque()
        self._least = LEAST_PARALLELISM if parallelism is None else parallelism
        self._most = MOST_PARALLELISM if parallelism is None else parallelism
        self._width = self._most if whole else self._least
        self._under_way = 0
        self._cache = cache

    def __iter__(self) -> Iterator[TailCommit]:
        try:
            while self._waiting or self._started:
                while self._waiting and self._has_room(self._waiting[0]):
                    self._start(self._waiting.popleft())
                file, fetched = self._started.popleft()
                self._under_way -= _held(file)
                self._width = min(self._width + 1, self._most)
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

    def _has_room(self, file: LogFile) -> bool:
        count = len(self._started)
        return count < self._least or (count < self._width and self._under_way + _held(file) <= _BYTES_UNDER_WAY)

    def _start(self, file: LogFile) -> None:
        self._under_way += _held(file)
        fetched: Pending[bytes] | bytes | None = None
        if is_small(file):
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


def is_small(file: LogFile) -> bool:
    """Tell whether a commit is fetched whole, and so may be fetched early."""
    return 0 <= file.info.size <= CHUNK_SIZE


def _held(file: LogFile) -> int:
    return file.info.size if is_small(file) else 0
