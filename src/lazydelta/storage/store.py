"""The seam: what every store can do, in the words the rest of the package uses.

Paths are decoded, relative to the store's root, with ``/`` between segments and none at the ends. Every method
raises errors of :mod:`lazydelta.errors` only.
"""

from __future__ import annotations

import copy
import hashlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import msgspec

from lazydelta.errors import DataFileError, ObjectNotFoundError, StorageError
from lazydelta.storage.counters import IoCounters, Request, announce
from lazydelta.storage.elsewhere import judge
from lazydelta.storage.faults import Attempt, translate
from lazydelta.storage.location import Location
from lazydelta.storage.logged import decode_path, is_plain, within
from lazydelta.storage.settings import Settings
from lazydelta.storage.walk import Hides, Walk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa

    from lazydelta.storage.bridge import Pending
    from lazydelta.storage.byte_stream import ByteStream

__all__ = ["READ_AHEAD", "ObjectInfo", "Parts", "Store"]

READ_AHEAD = 4 << 20
# `list` is a method of stores, so annotations inside the classes cannot say list[bytes].
Parts: TypeAlias = list[bytes]


class ObjectInfo(msgspec.Struct, frozen=True):
    """One object: path relative to the store's root, size in bytes, modification time in epoch milliseconds."""

    path: str
    size: int
    last_modified: int
    etag: str | None


class Store(ABC):
    """A folder of a file system or object store; cheap to copy, safe to share between threads."""

    def __init__(self, location: Location, settings: Settings, counters: IoCounters | None = None) -> None:
        self._location = location
        self._settings = settings
        self._elsewhere: dict[tuple[Location, Location | None], Store] = {}
        self.counters = counters if counters is not None else IoCounters()
        self.uri = location.uri
        self._plain = location.plain.rstrip("/")

    @property
    def identity(self) -> str:
        """Return what tells this store from others in a shared cache: its place, and the options that opened it.

        Options count because whoever may read with one set of credentials may not with another.
        """
        options = repr(sorted(self._settings.options.items()))
        return f"{self.uri}#{hashlib.sha256(options.encode()).hexdigest()}"

    @property
    def is_remote(self) -> bool:
        """Tell whether a request costs a round trip, so that asking early for what may be there pays."""
        return self._location.kind not in {"local", "memory"}

    @property
    def reads_directly(self) -> bool:
        """Tell whether objects are files that Arrow can read by itself (see ``open_direct``)."""
        return False

    @property
    def pins_what_is_open(self) -> bool:
        """Tell whether an input that is open goes on reading the object that it opened, though another replaces it."""
        return self._location.kind == "local"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.uri!r})"

    def __reduce__(self) -> tuple[Callable[[Location, Settings], Store], tuple[Location, Settings]]:
        # Connections and counters stay behind: the other process opens its own. Credentials do so, too, unless this
        # store was told to carry them.
        return (self._settings.opener, (self._location, self._settings.to_ship()))

    def carrying_credentials(self) -> Store:
        """Return the same store, whose pickles hold its credentials: for a process that may have them.

        Whoever can read such a pickle can use them. Pickles of other stores hold none.
        """
        twin = copy.copy(self)
        twin._settings = self._settings.carried()  # noqa: SLF001 - a twin of this very class
        return twin

    def with_limits(self, *, retries: int, request_timeout: float) -> Store:
        """Return a store of the same place that asks so often and waits so long, over connections of its own."""
        if (retries, request_timeout) == (self._settings.retries, self._settings.request_timeout):
            return self
        settings = self._settings.limited(retries=retries, request_timeout=request_timeout)
        return settings.opener(self._location, settings)

    def with_counters(self, counters: IoCounters) -> Store:
        """Return the same store over the same connections with a scan's own counters."""
        twin = copy.copy(self)
        twin.counters = counters
        twin._elsewhere = {}  # noqa: SLF001 - a twin of this very class
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

        Pages are fetched as they are needed; dropping the iterator stops the listing. A folder that does not exist
        is empty. Object stores list recursively, so a caller who knows where the names it wants end should stop
        there; whole sub-folders that fill a page are jumped over.
        """

    def folders(self, folder: str) -> Sequence[str]:
        """Return the names of the folders directly in ``folder``, sorted; links to folders are not among them.

        A folder that does not exist has none. Object stores have no folders but in the names of their objects; what is
        in the folders is not listed.
        """
        walk = self.walk(lambda _: False, below=folder.strip("/"), deep=False)
        for _ in walk:
            pass  # files are not asked for; the folders between them are
        return sorted(path.rpartition("/")[2] for path in walk.folders)

    @abstractmethod
    def walk(self, hides: Hides, *, below: str = "", deep: bool = True) -> Walk:
        """Return every object below the root, in no order, but for what ``hides`` passes by; pages as they are needed.

        Of a folder only, if ``below`` names one. A walk that is not ``deep`` enters no folder below it and tells which
        there are; object stores show one level in one answer, so that it is for folders of few files.
        Names that could lead out of the root are left out. Temporary files of local writers are among the objects.
        """

    def leftovers(self, folder: str) -> Iterator[ObjectInfo]:  # noqa: ARG002 - for stores that have some
        """Yield temporary files in ``folder``, which no listing shows: a writer is at work on them, or was killed."""
        return iter(())

    @abstractmethod
    def fetch(
        self, path: str, *, start: int = 0, length: int | None = None, if_match: str | None = None
    ) -> Pending[bytes]:
        """Start reading an object, or a range of it (cut at the object's end; past the end is an error)."""

    def get(self, path: str, *, start: int = 0, length: int | None = None, if_match: str | None = None) -> bytes:
        """Read an object or a range of it and wait."""
        return self.fetch(path, start=start, length=length, if_match=if_match).result()

    @abstractmethod
    def fetch_ranges(
        self, path: str, ranges: Sequence[tuple[int, int]], *, if_match: str | None = None, coalesce: int = 64 << 10
    ) -> Pending[Parts]:
        """Start reading several (start, length) ranges in parallel; gaps up to ``coalesce`` bytes are read over."""

    @abstractmethod
    def stream(self, path: str, *, chunk_size: int = 1 << 20, start: int = 0) -> ByteStream:
        """Read an object from front to back in chunks, at most one of them ahead of the caller."""

    @abstractmethod
    def head(self, path: str) -> ObjectInfo:
        """Return what is known of an object without reading it."""

    def exists(self, path: str) -> bool:
        """Tell whether there is such an object."""
        try:
            self.head(path)
        except ObjectNotFoundError:
            return False
        return True

    @abstractmethod
    def open_input(
        self, path: str, *, size: int, if_match: str | None = None, read_ahead: int = READ_AHEAD
    ) -> pa.NativeFile:
        """Open an object of known size for random access by pyarrow; closing it stops its requests."""

    def open_direct(self, path: str, *, start: int, length: int) -> pa.NativeFile | None:  # noqa: ARG002 - for files
        """Open an object that Arrow reads by itself, without Python in between; None where reading takes requests.

        Its reads pass nobody who counts them: who makes them says so before, the first one here, the others with
        ``note_read``.
        """
        return None

    def note_read(self, path: str, start: int, length: int) -> None:
        """Announce and count a read that Arrow is about to make by itself."""
        self._announce("GET", path, start, length)
        self.counters.count_bytes(read=length)

    # --- writing

    @abstractmethod
    def put(self, path: str, data: bytes, *, if_match: str | None = None) -> None:
        """Write an object whole; with ``if_match`` only over the object that has this etag."""

    @abstractmethod
    def put_if_absent(self, path: str, data: bytes) -> None:
        """Write an object that must not exist yet; of several racing writers one wins, atomically.

        A request whose answer was lost is tried again by the client and may then find its own object: a caller to
        whom it matters compares what is there with what it wrote.
        """

    @abstractmethod
    def put_stream(self, path: str, chunks: Iterable[bytes]) -> int:
        """Write an object of unknown size, visible only when complete; return its size.

        What ``chunks`` raises leaves as it is, and nothing becomes visible. S3 then keeps the parts of the upload
        until the bucket's rule for incomplete uploads removes them.
        """

    @abstractmethod
    def delete(self, path: str, *, missing_ok: bool = True) -> None:
        """Delete an object."""

    def delete_empty_folder(self, folder: str) -> bool:  # noqa: ARG002 - for stores that have folders
        """Delete a folder below the root if it is empty, and tell whether it was."""
        return False

    # --- paths of the log

    def locate(self, logged_path: str) -> tuple[Store, str]:
        """Resolve a data file's path as logged to a store and the decoded path in it.

        Refused are paths that leave the root, ``file:`` paths in a table that is not on a local disk, and places that
        this store's credentials were not given for, unless the settings allow them with credentials of their own.
        """
        if is_plain(logged_path):
            return self, logged_path
        scheme, path = decode_path(logged_path)
        if scheme == "":
            return self, path
        if scheme == "/":
            return self._at(self._location.at(""), path)
        if scheme == "file" and self._location.kind != "local":
            message = f"the log of {self.uri} names a file of this machine: {logged_path!r}"
            raise DataFileError(message, path=logged_path, hint="the table was copied, or its log is hostile")
        place = judge(logged_path, self._location, self._settings, self._elsewhere)
        if place.allowed is None:
            return self._at(place.container, place.key)
        return self._reach(place.container, place.allowed.settings, place.allowed.location), place.key

    def _at(self, container: Location, key: str) -> tuple[Store, str]:
        """Return the store for ``key`` of a container of our own account: this one if the key is below its root."""
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
        """Return the resolved, decoded place of a data file: a plain absolute path for local tables, else a URI."""
        if is_plain(logged_path):
            return self.place(logged_path)
        store, path = self.locate(logged_path)
        return store.place(path)

    def place(self, path: str) -> str:
        """Return the readable full place of a decoded path, as ``uri_of`` writes it."""
        return f"{self._plain}/{path}"

    # --- for the back ends

    def _key(self, path: str) -> str:
        """Return the container's key for a path; one that could leave the root never reaches the back end."""
        if (".." in path and ".." in path.split("/")) or "\0" in path:
            message = f"{path!r} is not a path below {self.uri}"
            raise StorageError(message, path=path)
        root = self._location.root
        path = path.strip("/")
        return f"{root}/{path}" if root and path else root or path

    def _announce(self, verb: str, path: str, start: int | None = None, length: int | None = None) -> None:
        announce(self.counters, Request(verb, path, start, length, self.uri))

    def _fault(self, error: BaseException, verb: str, path: str) -> BaseException:
        """Return our error for whatever ``verb`` raised on ``path``."""
        return translate(error, Attempt(verb, self.place(path), path, self._settings.secrets))

    def _not_a_range(self, path: str, start: int, length: int | None) -> NoReturn:
        message = f"bytes from {start}" + ("" if length is None else f", {length} of them,") + f" of {path!r}: no range"
        raise StorageError(message, path=path, hint="start and length must not be negative")
