"""Where a generated table goes: straight into a local folder, or through a temporary file to an object store."""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from lazydelta.errors import OptionError, StorageError
from lazydelta.handle import TableHandle
from lazydelta.storage import Store
from lazydelta.storage.location import parse_location
from lazydelta.storage.storage_options import normalise

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from os import PathLike

__all__ = ["Destination", "open_destination"]

_CHUNK = 8 << 20
_LOG = "_delta_log"


class Destination(ABC):
    """The log folder of a table that does not exist yet."""

    def __init__(self, store: Store) -> None:
        self.store = store
        if next(store.list(_LOG), None) is not None:
            raise OptionError(f"There is a table at {store.uri} already", hint="name a folder that does not exist")

    @abstractmethod
    def write(self, name: str, chunks: Iterable[bytes]) -> None:
        """Write an object of the log."""

    @abstractmethod
    def write_file(self, name: str, file: Path) -> None:
        """Put a local file in its place in the log; the file may be gone afterwards."""

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """Lend a folder for files that are made before they are put in place."""
        with _as_storage_error(), tempfile.TemporaryDirectory(prefix="lazydelta-make-table-") as folder:
            yield Path(folder)


class _Folder(Destination):
    """A local folder. A generated table needs none of the store's durability, which costs a flush for each object."""

    def __init__(self, store: Store, root: Path) -> None:
        super().__init__(store)
        self._log = root / _LOG
        with _as_storage_error():
            self._log.mkdir(parents=True, exist_ok=True)

    def write(self, name: str, chunks: Iterable[bytes]) -> None:
        with _as_storage_error(), self._place(name).open("wb") as out:
            out.writelines(chunks)

    def write_file(self, name: str, file: Path) -> None:
        with _as_storage_error():
            file.rename(self._place(name))

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        # On the same file system, so that a rename suffices; readers skip names that begin with a dot.
        with _as_storage_error(), tempfile.TemporaryDirectory(prefix=".making-", dir=self._log) as folder:
            yield Path(folder)

    def _place(self, name: str) -> Path:
        place = self._log / name
        place.parent.mkdir(exist_ok=True)
        return place


class _Remote(Destination):
    def write(self, name: str, chunks: Iterable[bytes]) -> None:
        self.store.put_stream(f"{_LOG}/{name}", chunks)

    def write_file(self, name: str, file: Path) -> None:
        self.write(name, _chunks(file))


def _chunks(file: Path) -> Iterator[bytes]:
    with file.open("rb") as source:
        while chunk := source.read(_CHUNK):
            yield chunk


@contextmanager
def _as_storage_error() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        message = f"Cannot write the table: {error}"
        raise StorageError(
            message, path=error.filename, hint="is there space, and may this user write here?"
        ) from error


def open_destination(uri: str | PathLike[str], storage_options: Mapping[str, str] | None) -> Destination:
    """Open the place for a new table; one that has a log is refused."""
    location, _ = parse_location(uri, normalise(storage_options))
    store = TableHandle.open(uri, storage_options).store
    return _Folder(store, Path(location.plain)) if location.kind == "local" else _Remote(store)
