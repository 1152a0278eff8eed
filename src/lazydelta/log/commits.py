"""JSON actions, read in chunks: a commit of a million adds is never held in memory as a whole."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from threading import Lock

import msgspec

from lazydelta.errors import CorruptLogError, MissingCommitError, ObjectNotFoundError, StorageError
from lazydelta.protocol.actions import LogLine
from lazydelta.protocol.file_names import FileKind, LogFile
from lazydelta.runtime.cache import ByteLru
from lazydelta.storage import ObjectInfo, Pending, Store

__all__ = ["CHUNK_SIZE", "CommitCache", "Prefetch", "decode_actions", "decode_whole", "read_actions"]


CHUNK_SIZE = 1 << 20
# No valid action comes near this size. Without a bound, a file without line ends would be read into memory whole.
_MAX_LINE = 256 << 20

_OF_FILES = (b'{"add":', b'{"remove":')

_decoder = msgspec.json.Decoder(LogLine)


def read_actions(store: Store, file: LogFile, *, files: bool = True) -> Iterator[list[LogLine]]:
    """Yield the actions of a JSON log file in lists of about one chunk; small files take a single request.

    Without ``files``, lines of larger files that add or remove a data file are skipped undecoded.
    """
    try:
        if 0 <= file.info.size <= CHUNK_SIZE:
            # A commit never changes. A checkpoint may be replaced, and is read more than once.
            etag = file.info.etag if file.kind is FileKind.CHECKPOINT else None
            yield from decode_whole(bytes(store.get(file.path, if_match=etag)), file.path, file.version)
            return
        stream = store.stream(file.path, chunk_size=CHUNK_SIZE)
        try:
            yield from decode_actions(_not_empty(stream, file), file.path, file.version, files=files)
        finally:
            stream.close()
    except ObjectNotFoundError as error:
        message = f"{file.path} was listed and is gone: the log was cleaned up or the table replaced meanwhile"
        raise MissingCommitError(message, path=file.path, version=file.version, hint="open the table again") from error
    except StorageError as error:
        error.version = file.version
        raise


def _not_empty(chunks: Iterable[bytes], file: LogFile) -> Iterator[bytes]:
    empty = True
    for chunk in chunks:
        empty = empty and not chunk
        yield chunk
    if empty:
        raise CorruptLogError(f"{file.path} is an empty commit", path=file.path, version=file.version)


def decode_actions(chunks: Iterable[bytes], path: str, version: int, *, files: bool = True) -> Iterator[list[LogLine]]:
    """Decode chunks of a JSON log file; raise an error that names the file and the line if a line is invalid.

    Without ``files``, lines that add or remove a data file are skipped undecoded.
    """
    line_number = 1
    pieces: list[bytes] = []
    held = 0
    for chunk in chunks:
        data = bytes(chunk)
        cut = data.rfind(b"\n") + 1
        if cut == 0:
            pieces.append(data)
            held += len(data)
            if held > _MAX_LINE:
                message = f"{path} has a line of more than {_MAX_LINE} bytes at line {line_number}"
                raise CorruptLogError(message, path=path, version=version)
            continue
        lines = b"".join([*pieces, memoryview(data)[:cut]])
        yield _decode(lines, path, version, line_number, files=files)
        line_number += lines.count(b"\n")
        pieces = [data[cut:]]
        held = len(data) - cut
    rest = b"".join(pieces)
    if rest.strip():
        yield _decode(rest, path, version, line_number, files=files)


def decode_whole(data: bytes, path: str, version: int) -> Iterator[list[LogLine]]:
    """Decode a JSON log file that is held whole as one list, whether or not its last line has an end."""
    if data.strip():
        yield _decode(data, path, version, 1)


def _decode(lines: bytes, path: str, version: int, first_line: int, *, files: bool = True) -> list[LogLine]:
    try:
        if not files:
            # A line holds one action.
            others = [line for line in lines.split(b"\n") if not line.startswith(_OF_FILES)]
            return _decoder.decode_lines(b"\n".join(others))
        return _decoder.decode_lines(lines)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        number, error = _first_bad_line(lines, first_line)
        message = f"{path} cannot be decoded at line {number}: {error}"
        hint = "the file is damaged or was not written by a Delta writer"
        raise CorruptLogError(message, path=path, version=version, hint=hint) from error


def _first_bad_line(lines: bytes, first_line: int) -> tuple[int, Exception]:
    for number, line in enumerate(lines.split(b"\n"), first_line):
        if not line.strip():
            continue
        try:
            _decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            return number, error
    return first_line, ValueError("the lines decode one by one but not together")


# ``Prefetch``: objects requested before it is known whether they exist or are needed.


class Prefetch:
    """Pending requests and their answers, by path; thread-safe.

    After the hint is read, the commits and checksums after the checkpoint and the objects next to it are requested
    together with the listing, which saves a round trip. A missing object is a cheap miss, and an unneeded request is
    cancelled. An answer stays here until it is stored in another cache.
    """

    def __init__(self) -> None:
        self._requests: dict[str, Pending[bytes]] = {}
        self._lock = Lock()

    def __contains__(self, path: str) -> bool:
        return path in self._requests

    def request(self, store: Store, paths: Iterable[str]) -> None:
        """Request objects that may exist, except those already requested."""
        for path in paths:
            with self._lock:
                if path not in self._requests:
                    self._requests[path] = store.fetch(path)

    def keep_only(self, paths: Container[str]) -> None:
        """Cancel the requests for all other paths."""
        with self._lock:
            unwanted = [path for path in self._requests if path not in paths]
            dropped = [self._requests.pop(path) for path in unwanted]
        for request in dropped:
            request.cancel()

    def read(self, path: str) -> bytes | None:
        """Return the bytes of an object, waiting for them; None means the caller must request it."""
        with self._lock:
            request = self._requests.get(path)
        if request is None:
            return None
        try:
            return request.result()
        except StorageError:
            # The object did not exist yet, or the request failed: the caller's own request decides.
            self.drop(path)
            return None

    def drop(self, path: str) -> bool:
        """Drop an answer, and return whether there was one."""
        with self._lock:
            return self._requests.pop(path, None) is not None


# ``CommitCache``: small log objects that were read already or are being fetched.
#
# Opening a table and scanning it read the same commits. A bound in bytes limits the memory that a long tail takes. If
# the listing gives etags, entries are shared by all tables of the process: the same name and etag is the same object.


_LIMIT = 8 << 20


class CommitCache:
    """The bytes of log objects by path for one snapshot, on top of the cache of the process.

    The first entries stay, because every reader starts with the newest commits. Evicting the oldest entries would, at
    the end of a long tail, have dropped exactly the ones that the next reader needs first. ``prefetch`` holds the
    prefetched objects. ``others`` holds the actions that are not on files, of commits that are too large to keep.
    ``sound`` holds the object info of large compactions that were found valid, ``rejected`` the paths of invalid ones.
    """

    def __init__(
        self,
        identity: object = None,
        shared: ByteLru | None = None,
        limit: int = _LIMIT,
        *,
        prefetch: Prefetch | None = None,
    ) -> None:
        self._identity = identity
        self._shared = shared
        self._own: dict[str, bytes] = {}
        self._left = limit
        self._lock = Lock()
        self.prefetch = Prefetch() if prefetch is None else prefetch
        self.sound: dict[str, ObjectInfo] = {}
        self.others: dict[ObjectInfo, list[LogLine]] = {}
        self.rejected: set[str] = set()

    def get(self, path: str, etag: str | None = None) -> bytes | None:
        """Return the bytes of an object if they are cached or being fetched; None means the caller must request it."""
        found = self.known(path, etag)
        if found is None and (found := self.prefetch.read(path)) is not None:
            self.put(path, found, etag)
        return found

    def known(self, path: str, etag: str | None = None) -> bytes | None:
        """Return the bytes of an object that was read before."""
        found = self._own.get(path)
        if found is None and etag is not None and self._shared is not None:
            found = self._shared.get((self._identity, path, etag))
        return found

    def put(self, path: str, data: bytes, etag: str | None = None) -> None:
        """Store the bytes of an object while there is room."""
        with self._lock:
            if path not in self._own and len(data) <= self._left:
                self._own[path] = data
                self._left -= len(data)
        self.prefetch.drop(path)
        if etag is not None and self._shared is not None:
            self._shared.put((self._identity, path, etag), data, len(data))
