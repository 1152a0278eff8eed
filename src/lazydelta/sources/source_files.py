"""The files of an ingestion: which there are, of what format, and how the work on them is cut.

A source is a folder, one file, or a pattern for names in one folder. Names that begin with ``_`` or ``.`` are left
out, as everywhere in this world, and so are empty files; folders within the folder are not looked into.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from fnmatch import translate
from functools import cached_property
from urllib.parse import unquote

from lazydelta.errors import OptionError
from lazydelta.sources.parquet import sizes_of_groups
from lazydelta.storage import CarriedOptions, Store, open_store, refuse_half_uri, shipped_options
from lazydelta.storage.location import split_scheme

__all__ = ["FORMATS", "Source", "SourceFile", "Unit", "tasks_of"]

FORMATS = ("json", "csv", "parquet")
_SUFFIXES = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}
_GZIP = ".gz"
_OTHER_CODECS = (".bz2", ".zst", ".lz4", ".xz", ".snappy", ".zip")
_WILD = re.compile(r"[*?\[]")
# A task is to be worth its start, and to be little enough to be done again if it fails.
_LEAST_BYTES, _MOST_BYTES = 4 << 20, 1 << 30
# Text that is compressed takes the time of what it becomes.
_GZIP_FACTOR = 8
_PARALLEL_FOOTERS = 16


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file: its path in the source's folder and its size."""

    path: str
    size: int

    @property
    def is_gzip(self) -> bool:
        """Tell whether its text is compressed, as its name says."""
        return self.path.lower().endswith(_GZIP)


@dataclass(frozen=True, slots=True)
class Unit:
    """What one task reads at a stretch: a file, or the row groups from the first number up to the second."""

    file: SourceFile
    groups: tuple[int, int] | None = None
    weight: int = 0


@dataclass(frozen=True)
class Source:
    """A folder with the names in it that are meant."""

    folder: str = field(repr=False)
    pattern: str | None = None
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def parse(cls, source: str | os.PathLike[str], storage_options: Mapping[str, str] | None = None) -> Source:
        """Tell a folder from a file and a pattern; the folder is looked at for that."""
        text = os.fspath(source)
        options = dict(storage_options or {})
        is_uri = split_scheme(text) is not None
        if not is_uri:
            refuse_half_uri(source)
            text = os.path.abspath(text)  # noqa: PTH100 - tasks may run elsewhere; links stay
        place, mark, query = text.partition("?") if text.startswith("http") else (text, "", "")
        above, _, last = place.rstrip("/").rpartition("/")
        folder = f"{above or '/'}{mark}{query}"
        name = unquote(last) if is_uri else last
        whole = cls(text, None, options)
        if not name or whole.exists():
            return whole
        parent = cls(folder, _literal(name), options)
        if parent.store.exists(name):
            return parent
        return cls(folder, name, options) if _WILD.search(name) else whole

    @cached_property
    def store(self) -> Store:
        """The folder."""
        return open_store(self.folder, self.storage_options)

    @property
    def shown(self) -> str:
        """What is meant, for people."""
        return self.store.place(self.pattern or "").rstrip("/")

    def __getstate__(self) -> dict[str, object]:
        # A store that was opened before a fork must not be used after it.
        kept = {name: value for name, value in self.__dict__.items() if name != "store"}
        if isinstance(self.storage_options, CarriedOptions):
            return kept
        # A signature in the URI is one of the options, only written elsewhere.
        place, mark, signature = self.folder.partition("?") if self.folder.startswith("http") else (self.folder, "", "")
        options = dict(self.storage_options) | ({"sas_key": signature} if mark else {})
        return kept | {"folder": place, "storage_options": shipped_options(options)}

    def carrying_credentials(self) -> Source:
        """Return the same source, whose pickles hold its credentials: for tasks that read it elsewhere."""
        return replace(self, storage_options=CarriedOptions(self.storage_options))

    def exists(self) -> bool:
        """Tell whether there is such a folder; in an object store, one that has objects."""
        if not self.store.is_remote and self.store.uri.startswith("file:"):
            return os.path.isdir(self.store.place(""))  # noqa: PTH112 - an empty folder is one, too
        return next(iter(self.store.list("")), None) is not None

    def takes(self, name: str) -> bool:
        """Tell whether a file of this name is meant."""
        if name.startswith(("_", ".")):
            return False
        return self.pattern is None or re.fullmatch(translate(self.pattern), name) is not None

    def files(self) -> list[SourceFile]:
        """Return the files that there are, in the order of their names."""
        found = [
            SourceFile(each.path, each.size) for each in self.store.list("") if self.takes(each.path) and each.size
        ]
        if not found:
            self.check()
        return found

    def check(self) -> None:
        """Refuse a source that does not exist."""
        if self.exists():
            return
        hint = "name a folder, a file, or a pattern such as folder/*.json"
        if _WILD.search(self.folder):
            hint = "only the last part of the path may be a pattern"
        raise OptionError(f"There is no {self.shown}", path=self.shown, hint=hint)

    def format_of(self, files: Sequence[SourceFile], given: str | None = None) -> str:
        """Return the format of the files: the one given, or what all their names say."""
        if given is not None:
            if given not in FORMATS:
                raise OptionError(f"format={given!r} makes no sense", hint=f"say one of {', '.join(FORMATS)}")
            found = given
        else:
            said = {_format(each.path) for each in files}
            if len(said) != 1 or None in said:
                what = "has no files yet" if not files else "has files of other or several formats, by their names"
                message = f"The format of {self.shown} cannot be told: it {what}"
                raise OptionError(message, path=self.shown, hint=f"say which it is: {', '.join(FORMATS)}")
            found = str(said.pop())
        if found != "parquet":
            other = next((each.path for each in files if each.path.lower().endswith(_OTHER_CODECS)), None)
            if other is not None:
                message = f"{self.store.place(other)} is compressed in a way that is not understood here"
                raise OptionError(message, path=other, hint="compress it with gzip, or not at all")
        return found


def _literal(name: str) -> str:
    return re.sub(r"([*?\[])", r"[\1]", name)


def _format(path: str) -> str | None:
    name = path.lower().removesuffix(_GZIP)
    return _SUFFIXES.get(os.path.splitext(name)[1])  # noqa: PTH122 - a name, not a path


def tasks_of(source: Source, files: Sequence[SourceFile], file_format: str, parallelism: int) -> list[list[Unit]]:
    """Share the files out to tasks: as many as can run at once, or more if there is very much to do.

    Files stay in their order, so that a task has files that are near each other, by name and most likely by time: it
    then writes fewer data files.
    """
    is_text = file_format != "parquet"
    weights = [each.size * (_GZIP_FACTOR if is_text and each.is_gzip else 1) for each in files]
    total = sum(weights)
    share = min(_MOST_BYTES, max(_LEAST_BYTES, -(-total // max(parallelism, 1))))
    units = [Unit(file, None, weight) for file, weight in zip(files, weights, strict=True)]
    if not is_text:
        units = _cut(source.store, units, share)
    count = max(1, -(-total // share))
    tasks: list[list[Unit]] = [[] for _ in range(count)]
    done = 0
    for unit in units:
        # Where its middle lies decides.
        tasks[min(count - 1, (2 * done + unit.weight) * count // (2 * total))].append(unit)
        done += unit.weight
    return [each for each in tasks if each]


def _cut(store: Store, units: Sequence[Unit], share: int) -> list[Unit]:
    """Cut files that are large for a task between row groups."""

    def cut(unit: Unit) -> Iterable[Unit]:
        if unit.weight <= share // 4:
            return [unit]
        sizes = sizes_of_groups(store, unit.file.path, unit.file.size)
        pieces: list[Unit] = []
        first = weight = 0
        for index, size in enumerate(sizes):
            weight += size
            if weight >= share // 8 or index == len(sizes) - 1:
                pieces.append(Unit(unit.file, (first, index + 1), weight))
                first, weight = index + 1, 0
        return pieces

    return [piece for pieces in _in_parallel(cut, units) for piece in pieces]


def _in_parallel(work: Callable[[Unit], Iterable[Unit]], units: Sequence[Unit]) -> list[Iterable[Unit]]:
    with ThreadPoolExecutor(_PARALLEL_FOOTERS, thread_name_prefix="lazydelta-footers") as pool:
        return list(pool.map(work, units))
