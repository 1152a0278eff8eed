"""Store interface: the operations that every back end implements.

Paths are decoded and relative to the store's root, with ``/`` between segments and none at either end. Methods raise
only errors of :mod:`lazydelta.errors`.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import os
import stat
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeAlias

import msgspec

from lazydelta.errors import DataFileError, ObjectNotFoundError, StorageError, StreamClosedError
from lazydelta.runtime.threads import ClosesItself
from lazydelta.storage.faults import Attempt, translate
from lazydelta.storage.location import Location, Settings, decode_path, is_plain, judge, within

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa
    from obstore import GetOptions

    from lazydelta.storage.bridge import Pending

__all__ = [
    "READ_AHEAD",
    "ByteStream",
    "Hides",
    "IoCounters",
    "ObjectInfo",
    "ObjectWalk",
    "Parts",
    "Request",
    "Store",
    "coalesced",
    "cut_out",
    "get_options",
    "is_hidden",
    "observe",
    "walk_folder",
]


# Request counters and observers.
#
# Every request of every store passes through :func:`announce` exactly once, before it is made. So tests can verify
# claims such as "opening a table lists from the checkpoint only" by counting, and can inject faults at one place for
# all back ends.


class Request(msgspec.Struct, frozen=True):
    """A request about to be made. ``verb`` is GET, HEAD, LIST, PUT or DELETE."""

    verb: str
    path: str
    start: int | None = None
    length: int | None = None
    root: str = ""


class IoCounters:
    """Thread-safe totals of requests and bytes. One object per scan, or by default per store.

    Retries inside the HTTP client are not counted. ``lists`` counts pages, whose size the store determines.
    """

    __slots__ = ("_lock", "bytes_read", "bytes_written", "deletes", "gets", "lists", "puts", "requests", "stopped")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.requests = 0
        self.lists = 0
        self.gets = 0
        self.puts = 0
        self.deletes = 0
        self.bytes_read = 0
        self.bytes_written = 0
        self.stopped = False

    def stop(self) -> None:
        """Reject all further requests counted here, because their scan has ended."""
        self.stopped = True

    def count(self, verb: str) -> None:
        """Add one request of this verb."""
        with self._lock:
            self.requests += 1
            if verb == "GET":
                self.gets += 1
            elif verb == "LIST":
                self.lists += 1
            elif verb == "PUT":
                self.puts += 1
            elif verb == "DELETE":
                self.deletes += 1

    def count_bytes(self, *, read: int = 0, written: int = 0) -> None:
        """Add bytes transferred over the network or from disk."""
        with self._lock:
            self.bytes_read += read
            self.bytes_written += written

    def snapshot(self) -> dict[str, int]:
        """Return a consistent snapshot of all totals."""
        with self._lock:
            return {name: getattr(self, name) for name in self.__slots__ if name not in {"_lock", "stopped"}}

    def __repr__(self) -> str:
        return f"IoCounters({', '.join(f'{name}={value}' for name, value in sorted(self.snapshot().items()))})"

    def __getstate__(self) -> dict[str, int]:
        return self.snapshot()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._lock = threading.Lock()
        self.stopped = False
        for name, value in state.items():
            setattr(self, name, value)


_hooks: tuple[Callable[[Request], None], ...] = ()
_hooks_lock = threading.Lock()


@contextmanager
def observe(hook: Callable[[Request], None]) -> Iterator[None]:
    """Call ``hook`` before every request of any store in this process. If it raises, the request fails."""
    global _hooks  # noqa: PLW0603 - one process-wide list is the point: scans create their own stores
    with _hooks_lock:
        _hooks = (*_hooks, hook)
    try:
        yield
    finally:
        with _hooks_lock:
            kept = list(_hooks)
            kept.remove(hook)
            _hooks = tuple(kept)


def announce(counters: IoCounters, request: Request) -> None:
    """Count a request and call the observers, which may raise. Raise if the scan has ended."""
    if counters.stopped:
        raise StreamClosedError("The scan was closed", path=request.path)
    counters.count(request.verb)
    if _hooks:
        for hook in _hooks:
            hook(request)


# Byte ranges: merged into requests, and cut out of the responses.


def get_options(start: int, length: int | None, if_match: str | None) -> GetOptions:
    """Return the client options for one read."""
    options: GetOptions = {}
    if length is not None:
        options["range"] = (start, start + length)
    elif start:
        options["range"] = {"offset": start}
    if if_match is not None:
        options["if_match"] = if_match
    return options


def coalesced(ranges: Sequence[tuple[int, int]], gap: int) -> list[tuple[int, int]]:
    """Return the requests that cover ``ranges``. Small gaps are read too, if that is cheaper than a round trip."""
    runs: list[list[int]] = []
    for start, length in sorted(item for item in ranges if item[1] > 0):
        if runs and start <= runs[-1][1] + gap:
            runs[-1][1] = max(runs[-1][1], start + length)
        else:
            runs.append([start, start + length])
    return [(start, end - start) for start, end in runs]


def cut_out(ranges: Sequence[tuple[int, int]], runs: Sequence[tuple[int, int]], blocks: Sequence[bytes]) -> list[bytes]:
    """Cut the requested ranges out of the blocks that were read."""
    if list(ranges) == list(runs):
        return list(blocks)
    parts = []
    for start, length in ranges:
        index = next((i for i, (at, size) in enumerate(runs) if at <= start < at + size), None)
        if index is None or length == 0:
            parts.append(b"")
        else:
            offset = start - runs[index][0]
            parts.append(blocks[index][offset : offset + length])
    return parts


# Sequential reads that can be stopped at any time.


class ByteStream(ClosesItself):
    """An iterator of chunks. ``close()``, also at the end of a ``with`` block, aborts the request in flight.

    Chunks have at least the requested size, except the last. After ``close()`` the stream is at its end.
    """

    def __iter__(self) -> Self:
        return self

    @abstractmethod
    def __next__(self) -> bytes:
        """Return the next chunk."""

    @abstractmethod
    def close(self) -> None:
        """Stop at once. Repeated calls do nothing."""

    def __del__(self) -> None:
        self.close()


# ``ObjectWalk``: a stream of all objects below a store's root, used to find unreferenced files.
#
# The caller may delete what a walk yields, so it never leaves the root: symbolic links are neither followed nor
# yielded. A log may refer to a file of the same folder through a link, so the targets of links are reported.


Hides: TypeAlias = Callable[[str], bool]
"""Called with the path of a folder or object. Returns whether the walk skips it and everything below."""


class ObjectWalk:
    """An iterator over objects. Its lists are complete only once it is exhausted.

    ``linked`` holds the paths below the root that symbolic links point to, ``empty`` the empty folders, each with its
    modification time (epoch milliseconds). Object stores have neither. ``folders`` holds the folders that a walk of a
    single level has found but not entered.
    """

    def __init__(self, objects: Iterator[ObjectInfo] | None = None) -> None:
        self.linked: list[str] = []
        self.empty: list[tuple[str, int]] = []
        self.folders: list[str] = []
        self._objects: Iterator[ObjectInfo] = iter(()) if objects is None else objects

    def over(self, objects: Iterator[ObjectInfo]) -> ObjectWalk:
        """Return this walk over ``objects``, which fill its lists as they are consumed."""
        self._objects = objects
        return self

    def __iter__(self) -> Iterator[ObjectInfo]:
        return self._objects


def is_hidden(path: str, hides: Hides) -> str | None:
    """Return the first hidden folder or object on the way to ``path``, or None."""
    end = -1
    while True:
        end = path.find("/", end + 1)
        so_far = path if end < 0 else path[:end]
        if hides(so_far):
            return so_far
        if end < 0:
            return None


def walk_folder(
    root: str,
    hides: Hides,
    info_of: Callable[[str, os.stat_result], ObjectInfo],
    walk: ObjectWalk,
    *,
    below: str = "",
    deep: bool = True,
) -> Iterator[ObjectInfo]:
    """Yield the files below a folder of a file system, or below ``below`` in it, folder by folder, unordered."""
    real = os.path.realpath(root)
    waiting, enters = [below], True
    while waiting and enters:
        folder, enters = waiting.pop(), deep
        place = f"{root}/{folder}" if folder else root
        count = 0
        try:
            changed = os.stat(place).st_mtime_ns // 1_000_000  # noqa: PTH116
            with os.scandir(place) as entries:
                for entry in entries:
                    count += 1
                    path = f"{folder}/{entry.name}" if folder else entry.name
                    if not _is_text(entry.name) or hides(path):
                        continue
                    if entry.is_symlink():
                        _note_link(real, entry.path, walk)
                    elif entry.is_dir(follow_symlinks=False):
                        waiting.append(path)
                    else:
                        # Skip a file that was deleted after the folder was read.
                        with contextlib.suppress(FileNotFoundError):
                            found = entry.stat(follow_symlinks=False)
                            if stat.S_ISREG(found.st_mode):
                                yield info_of(path, found)
        except (FileNotFoundError, NotADirectoryError):
            continue  # deleted or replaced after it was listed
        if count == 0 and folder:
            walk.empty.append((folder, changed))
    walk.folders += waiting


def _is_text(name: str) -> bool:
    # A log names files by strings. A name that is not valid Unicode comes from another program.
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _note_link(real_root: str, link: str, walk: ObjectWalk) -> None:
    target = os.path.realpath(link)
    if target == real_root or target.startswith(f"{real_root}/"):
        walk.linked.append(target[len(real_root) + 1 :])


READ_AHEAD = 4 << 20
# `list` is a method of stores, so annotations inside the classes cannot use list[bytes].
Parts: TypeAlias = list[bytes]


class ObjectInfo(msgspec.Struct, frozen=True):
    """An object: path relative to the store's root, size in bytes, modification time in epoch milliseconds."""

    path: str
    size: int
    last_modified: int
    etag: str | None


class Store(ABC):
    """A folder of a file system or object store. Cheap to copy, safe to share between threads."""

    def __init__(self, location: Location, settings: Settings, counters: IoCounters | None = None) -> None:
        self._location = location
        self._settings = settings
        self._elsewhere: dict[tuple[Location, Location | None], Store] = {}
        self.counters = counters if counters is not None else IoCounters()
        self.uri = location.uri
        self._plain = location.plain.rstrip("/")

    @cached_property
    def identity(self) -> str:
        """Return the identity of this store in a shared cache: its location, and the options that opened it.

        The options are part of it because other credentials may not have the same read access.
        """
        options = repr(sorted(self._settings.options.items()))
        return f"{self.uri}#{hashlib.sha256(options.encode()).hexdigest()}"

    @property
    def is_remote(self) -> bool:
        """Return whether a request costs a round trip, so that speculative prefetching pays off."""
        return self._location.kind not in {"local", "memory"}

    @property
    def reads_directly(self) -> bool:
        """Return whether objects are files that Arrow can read directly (see ``open_direct``)."""
        return False

    @property
    def pins_what_is_open(self) -> bool:
        """Return whether an open input keeps reading the object that it opened, even if another replaces it."""
        return self._location.kind == "local"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.uri!r})"

    def __reduce__(self) -> tuple[Callable[[Location, Settings], Store], tuple[Location, Settings]]:
        # Connections and counters are not pickled: the other process opens its own. Nor are credentials, unless this
        # store is set to carry them.
        return (self._settings.opener, (self._location, self._settings.to_ship()))

    def carrying_credentials(self) -> Store:
        """Return the same store with its credentials included in pickles, for a process that may have them.

        Anyone who can read such a pickle can use the credentials. Pickles of other stores contain none.
        """
        twin = copy.copy(self)
        twin._settings = self._settings.carried()  # noqa: SLF001 - a copy of the same class
        return twin

    def with_limits(self, *, retries: int, request_timeout: float) -> Store:
        """Return a store for the same location with these retries and this timeout, over its own connections."""
        if (retries, request_timeout) == (self._settings.retries, self._settings.request_timeout):
            return self
        settings = self._settings.limited(retries=retries, request_timeout=request_timeout)
        return settings.opener(self._location, settings)

    def with_counters(self, counters: IoCounters) -> Store:
        """Return the same store over the same connections, with the scan's own counters."""
        twin = copy.copy(self)
        twin.counters = counters
        twin._elsewhere = {}  # noqa: SLF001 - a copy of the same class
        return twin

    def __copy__(self) -> Store:
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return twin

    def __deepcopy__(self, memo: dict[int, Any]) -> Store:
        return self.__copy__()

    # --- reading

    @abstractmethod
    def list(self, folder: str, *, after: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects directly in ``folder`` whose name is greater than ``after``, sorted by name.

        Pages are fetched as needed; dropping the iterator stops the listing. A folder that does not exist is empty.
        Object stores list recursively, so a caller that knows the last name it needs should stop there. Sub-folders
        that fill a whole page are skipped.
        """

    def folders(self, folder: str) -> Sequence[str]:
        """Return the names of the folders directly in ``folder``, sorted, without links to folders.

        A folder that does not exist has none. In object stores folders exist only as part of object names. The contents
        of the folders are not listed.
        """
        walk = self.walk(lambda _: False, below=folder.strip("/"), deep=False)
        for _ in walk:
            pass  # skip the files; the folders between them are collected
        return sorted(path.rpartition("/")[2] for path in walk.folders)

    @abstractmethod
    def walk(self, hides: Hides, *, below: str = "", deep: bool = True) -> ObjectWalk:
        """Return all objects below the root, unordered, except those that ``hides`` skips. Pages are fetched as needed.

        ``below`` limits the walk to one folder. A walk that is not ``deep`` enters no folder below it and reports them
        instead. Object stores return one level in one response, so use this for folders with few files. Names that
        could lead out of the root are skipped. Temporary files of local writers are included.
        """

    def leftovers(self, folder: str) -> Iterator[ObjectInfo]:  # noqa: ARG002 - for stores that have some
        """Yield the temporary files in ``folder``, which listings hide: their writer is active or was killed."""
        return iter(())

    @abstractmethod
    def fetch(
        self, path: str, *, start: int = 0, length: int | None = None, if_match: str | None = None
    ) -> Pending[bytes]:
        """Start reading an object or a range of it, cut at the object's end. Starting past the end is an error."""

    def get(self, path: str, *, start: int = 0, length: int | None = None, if_match: str | None = None) -> bytes:
        """Read an object or a range of it, and wait for the result."""
        return self.fetch(path, start=start, length=length, if_match=if_match).result()

    @abstractmethod
    def fetch_ranges(
        self, path: str, ranges: Sequence[tuple[int, int]], *, if_match: str | None = None, coalesce: int = 64 << 10
    ) -> Pending[Parts]:
        """Start reading several (start, length) ranges in parallel. Gaps of up to ``coalesce`` bytes are read too."""

    @abstractmethod
    def stream(self, path: str, *, chunk_size: int = 1 << 20, start: int = 0) -> ByteStream:
        """Read an object sequentially in chunks, with at most one chunk prefetched."""

    @abstractmethod
    def head(self, path: str) -> ObjectInfo:
        """Return an object's metadata without reading the object."""

    def exists(self, path: str) -> bool:
        """Return whether the object exists."""
        try:
            self.head(path)
        except ObjectNotFoundError:
            return False
        return True

    @abstractmethod
    def open_input(
        self, path: str, *, size: int, if_match: str | None = None, read_ahead: int = READ_AHEAD
    ) -> pa.NativeFile:
        """Open an object of known size for random access by PyArrow. Closing it stops its requests."""

    def open_direct(self, path: str, *, start: int, length: int) -> pa.NativeFile | None:  # noqa: ARG002 - for files
        """Open an object that Arrow reads directly, without Python; None if reading takes requests.

        These reads are not counted automatically. The caller announces them first: the first read with this call, later
        ones with ``note_read``.
        """
        return None

    def note_read(self, path: str, start: int, length: int) -> None:
        """Announce and count a read that Arrow is about to make directly."""
        self._announce("GET", path, start, length)
        self.counters.count_bytes(read=length)

    # --- writing

    @abstractmethod
    def put(self, path: str, data: bytes, *, if_match: str | None = None) -> None:
        """Write a whole object. With ``if_match``, only replace the object with this etag."""

    @abstractmethod
    def put_if_absent(self, path: str, data: bytes) -> None:
        """Write an object that must not exist yet. Of several concurrent writers, exactly one succeeds.

        The client retries a request whose response was lost, and may then find its own object. A caller that needs to
        know compares the stored object with what it wrote.
        """

    @abstractmethod
    def put_stream(self, path: str, chunks: Iterable[bytes]) -> int:
        """Write an object of unknown size, visible only when complete. Return its size.

        An error in ``chunks`` is raised unchanged, and nothing becomes visible. S3 then keeps the uploaded parts until
        the bucket's lifecycle rule for incomplete uploads removes them.
        """

    @abstractmethod
    def delete(self, path: str, *, missing_ok: bool = True) -> None:
        """Delete an object."""

    def delete_empty_folder(self, folder: str) -> bool:  # noqa: ARG002 - for stores that have folders
        """Delete a folder below the root if it is empty. Return whether it was deleted."""
        return False

    # --- logged paths

    def locate(self, logged_path: str) -> tuple[Store, str]:
        """Resolve the logged path of a data file to a store and the decoded path in it.

        Raises for paths that leave the root, ``file:`` paths in a table that is not on a local disk, and locations that
        the store's credentials are not meant for, unless the settings allow them with their own credentials.
        """
        if is_plain(logged_path):
            return self, logged_path
        scheme, path = decode_path(logged_path)
        if scheme == "":
            return self, path
        if scheme == "/":
            if "=" in path.partition("/")[0] and within(self._location.root, path) is None:
                # A partition folder after a leading slash: some writers, such as deltalake, mean the table root.
                return self, path
            return self._at(self._location.at(""), path)
        if scheme == "file" and self._location.kind != "local":
            message = f"the log of {self.uri} names a file of this machine: {logged_path!r}"
            raise DataFileError(message, path=logged_path, hint="the table was copied, or its log is malicious")
        place = judge(logged_path, self._location, self._settings, self._elsewhere)
        if place.allowed is None:
            return self._at(place.container, place.key)
        return self._reach(place.container, place.allowed.settings, place.allowed.location), place.key

    def _at(self, container: Location, key: str) -> tuple[Store, str]:
        """Return the store for ``key`` in a container of the same account: this store if the key is below its root."""
        if container.container == self._location.container:
            inside = within(self._location.root, key)
            if inside is not None:
                return self, inside
            container = self._location.at("")
        return self._reach(container, self._settings, None), key

    def _reach(self, container: Location, settings: Settings, prefix: Location | None) -> Store:
        known = self._elsewhere.get((container, prefix))
        if known is None:
            known = settings.opener(container, settings).with_counters(self.counters)
            self._elsewhere[container, prefix] = known
        return known

    def uri_of(self, logged_path: str) -> str:
        """Return the resolved, decoded location of a data file: an absolute path for local tables, otherwise a URI."""
        if is_plain(logged_path):
            return self.place(logged_path)
        store, path = self.locate(logged_path)
        return store.place(path)

    def place(self, path: str) -> str:
        """Return the readable full location of a decoded path, in the form of ``uri_of``."""
        return f"{self._plain}/{path}"

    # --- for the back ends

    def _key(self, path: str) -> str:
        """Return the container key of a path. A path that could leave the root never reaches the back end."""
        if (".." in path and ".." in path.split("/")) or "\0" in path:
            message = f"{path!r} is not a path below {self.uri}"
            raise StorageError(message, path=path)
        root = self._location.root
        path = path.strip("/")
        return f"{root}/{path}" if root and path else root or path

    def _announce(self, verb: str, path: str, start: int | None = None, length: int | None = None) -> None:
        announce(self.counters, Request(verb, path, start, length, self.uri))

    def _fault(self, error: BaseException, verb: str, path: str) -> BaseException:
        """Return the lazydelta error for an error of ``verb`` on ``path``."""
        return translate(error, Attempt(verb, self.place(path), path, self._settings.secrets))

    def _not_a_range(self, path: str, start: int, length: int | None) -> NoReturn:
        message = f"bytes from {start}" + ("" if length is None else f", {length} of them,") + f" of {path!r}: no range"
        raise StorageError(message, path=path, hint="start and length must not be negative")
