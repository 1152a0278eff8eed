"""`KeptFiles`: the files that a version within the retention references.

It is a set of paths below the root, stored as 16-byte hashes that spill to disk if there are many. A false positive
costs some space; a missing entry costs data. A path to an external location, or one that cannot be resolved, therefore
protects every path below the root with the same ending: an account name, a mount or a link may be another spelling of
this folder. Paths that differ only in case or Unicode normalization protect each other: on file systems that fold
them (macOS, Windows, some mounts) ``p=A/x`` and ``p=a/x`` are one file, listed under either name.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, TypeAlias
from urllib.parse import unquote

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lazydelta.errors import LazyDeltaError, ObjectNotFoundError
from lazydelta.log.checkpoint.columns import corrupt_if_unreadable, has_column, read_batches
from lazydelta.log.checkpoint.reader import CheckpointReader
from lazydelta.log.commits import read_actions
from lazydelta.log.keys import RemoveSet, hash_bytes
from lazydelta.log.replay import ReverseCommitReader
from lazydelta.log.segment import commits_in_order, list_commits
from lazydelta.protocol.actions import DeletionVector, LogLine, Metadata, Remove
from lazydelta.protocol.deletion_vectors import vector_path
from lazydelta.protocol.file_names import LOG, FileKind, LogFile
from lazydelta.protocol.properties import Key
from lazydelta.protocol.schema import TableSchema
from lazydelta.protocol.values import folder_prefix
from lazydelta.runtime import compute as pc
from lazydelta.runtime.arrays import string_array, typed_scalar
from lazydelta.runtime.threads import in_parallel
from lazydelta.scan.request import ScanRequest, ScanStrategy
from lazydelta.sidecar.handle import Snapshot
from lazydelta.storage import TEMPORARY, ObjectInfo, ObjectWalk, Store, folded, is_plain

__all__ = [
    "KeptFiles",
    "Listed",
    "Lister",
    "ListingJob",
    "Orphan",
    "Orphans",
    "TableNames",
    "in_one_walk",
    "keep_active",
    "keep_committed",
    "keep_removed",
    "removed_files",
]


class KeptFiles:
    """The data files and deletion vectors that must be kept."""

    def __init__(self, store: Store, memory_limit: int) -> None:
        self._store = store
        self._places = RemoveSet(memory_limit)

    def __len__(self) -> int:
        return len(self._places)

    def keep(self, path: pa.Array, deletion_vector: pa.Array | None = None) -> None:
        """Keep files, given by their paths in the log, and the files of their deletion vectors."""
        logged: list[str] = path.to_pylist()
        self.keep_paths(logged)
        if deletion_vector is not None and deletion_vector.null_count < len(deletion_vector):
            vectors = zip(deletion_vector.to_pylist(), logged, strict=True)
            self.keep_vectors((msgspec.convert(each, DeletionVector), file) for each, file in vectors if each)

    def keep_paths(self, logged: Iterable[str]) -> None:
        """Keep files, given by their paths in the log."""
        places: list[str] = []
        for each in logged:
            if is_plain(each):
                places.append(each)
            else:
                places += self._places_of(each)
        self._add(places)

    def keep_vectors(self, vectors: Iterable[tuple[DeletionVector, str]]) -> None:
        """Keep the files of deletion vectors, each paired with its data file."""
        named: list[str] = []
        logged: list[str] = []
        for vector, file in vectors:
            if vector.storage_type == "p":
                logged.append(vector.path_or_inline_dv)
            elif vector.storage_type != "i":
                named.append(vector_path(vector, file))
        self._add(named)
        self.keep_paths(logged)

    def has(self, places: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Return a mask of the decoded paths below the root that must be kept."""
        return self._places.contains(hash_bytes(string_array([folded(each) for each in places])))

    def close(self) -> None:
        """Release memory and temporary files."""
        self._places.close()

    def _add(self, places: Sequence[str]) -> None:
        if places:
            self._places.add_hashes(hash_bytes(string_array([folded(each) for each in places])))

    def _places_of(self, logged: str) -> set[str]:
        # Also keep the raw path: some writers do not encode paths, so a percent sign may be literal.
        found = {logged}
        try:
            store, path = self._store.locate(logged)
        except LazyDeltaError:
            return found | _endings(unquote(logged))
        return found | ({path} if store is self._store else _endings(path))


def _endings(path: str) -> set[str]:
    segments = [each for each in path.split("/") if each not in {"", ".", ".."}]
    return {"/".join(segments[start:]) for start in range(len(segments))}


# ``Orphans``: the unreferenced files found in the listing, spilled to disk if there are many.


_IN_MEMORY = 8 << 20
_BATCH = 1000


class Orphan(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A file that may be deleted: its path below the root, and its size."""

    path: str
    size: int


class Orphans:
    """A memory-efficient list of files with a count and a total size."""

    def __init__(self) -> None:
        self._spool = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY, prefix="lazydelta-vacuum-")  # noqa: SIM115
        self.count = 0
        self.size = 0

    def add(self, path: str, size: int) -> None:
        """Append a file."""
        self._spool.write(msgspec.json.encode((path, size)) + b"\n")
        self.count += 1
        self.size += size

    def batches(self) -> Iterator[list[Orphan]]:
        """Yield the files in batches of a thousand."""
        self._spool.seek(0)
        decoder = msgspec.json.Decoder(Orphan)
        while lines := list(islice(self._spool, _BATCH)):
            yield [decoder.decode(line) for line in lines]

    def close(self) -> None:
        """Release memory and the temporary file."""
        self._spool.close()


# Files that the log references within the retention: active files, recently removed files, and deletion vectors.
#
# They are read from the checkpoint and the commits, not from a sidecar, and compared with the version checksum if there
# is one: a file missed here is deleted.


def keep_active(snapshot: Snapshot, kept: KeptFiles) -> int:
    """Keep the files of a version, and return their number. Raise if the version checksum disagrees."""
    exact = snapshot.with_settings(sidecar_enabled=False, checksum="error")
    count = 0
    for batch in exact.scan(ScanRequest(strategy=ScanStrategy.FORWARD)).batches():
        kept.keep(batch.path, batch.deletion_vector)
        count += len(batch)
    return count


def keep_removed(snapshot: Snapshot, cutoff: int, kept: KeptFiles) -> None:
    """Keep the files that were removed at ``cutoff`` (epoch milliseconds) or later.

    Checkpoints keep tombstones for as long as the table property says, by the clock of the writer that removed the
    file. The requested retention may be longer, and that clock may have been behind. Therefore the commits that the
    store dates after ``cutoff`` are read as well, as far as the log still has them.
    """
    for commit in snapshot.tail():
        for lines in commit.actions:
            _keep_young(lines, commit.file, cutoff, kept)
    checkpoint = snapshot.segment.checkpoint
    if checkpoint is None:
        return
    _keep_tombstones(CheckpointReader(snapshot.store, checkpoint), cutoff, kept)
    older = [each for each in list_commits(snapshot.store, 0, checkpoint.version) if _is_young(each, cutoff)]
    for commit in ReverseCommitReader(snapshot.store, older):
        for lines in commit.actions:
            _keep_young(lines, commit.file, cutoff, kept)


def keep_committed(snapshot: Snapshot, kept: KeptFiles) -> None:
    """Keep all files added or removed by commits after the snapshot. Raise if one of the commits is missing."""
    later = list(commits_in_order(snapshot.store, snapshot.version + 1))
    for commit in ReverseCommitReader(snapshot.store, later):
        for lines in commit.actions:
            files = [action for line in lines if (action := line.add or line.remove) is not None]
            kept.keep_paths(each.path for each in files)
            kept.keep_vectors((each.deletion_vector, each.path) for each in files if each.deletion_vector is not None)
            kept.keep_paths(_change_files(lines))


def _change_files(lines: Iterable[LogLine]) -> Iterator[str]:
    for line in lines:
        path = None if line.cdc is None else line.cdc.get("path")
        if isinstance(path, str):
            yield path


def _is_young(file: LogFile, cutoff: int) -> bool:
    return file.info.last_modified >= cutoff


def _keep_young(lines: Iterable[LogLine], file: LogFile, cutoff: int, kept: KeptFiles) -> None:
    # A removal is at least as recent as its commit, whatever the writer's clock says. Checkpoints are written later.
    stored = file.info.last_modified
    least = 0 if file.kind is FileKind.CHECKPOINT else stored

    def is_young(remove: Remove) -> bool:
        return max(stored if remove.deletion_timestamp is None else remove.deletion_timestamp, least) >= cutoff

    young = [line.remove for line in lines if line.remove is not None and is_young(line.remove)]
    kept.keep_paths(each.path for each in young)
    kept.keep_vectors((each.deletion_vector, each.path) for each in young if each.deletion_vector is not None)


def _keep_tombstones(reader: CheckpointReader, cutoff: int, kept: KeptFiles) -> None:
    for part in reader.parts():
        if part.is_json:
            for lines in read_actions(reader.store, part):
                _keep_young(lines, part, cutoff, kept)
            continue
        for removes in _stored(reader, part, ("path", "deletionTimestamp", "deletionVector")):
            with corrupt_if_unreadable(part):
                young = _young(removes, cutoff)
                kept.keep_paths(each["path"] for each in young)
                kept.keep_vectors(_vectors(young))


def _stored(reader: CheckpointReader, part: LogFile, fields: tuple[str, ...]) -> Iterator[pa.StructArray]:
    """Yield the tombstones of a Parquet file of a checkpoint."""
    with reader.open(part) as parquet:
        if not has_column(parquet, "remove"):
            return
        with corrupt_if_unreadable(part):
            stored = {each.name for each in parquet.schema_arrow.field("remove").type}
        columns = [f"remove.{name}" for name in fields if name in stored]
        for batch in read_batches(parquet, part, columns, reader.batch_size):
            removes = batch.column("remove")
            yield removes.filter(removes.is_valid())


def _young(removes: pa.StructArray, cutoff: int) -> list[dict[str, Any]]:
    """Return the tombstones at or after the cutoff. One without a timestamp counts as expired, as in every engine."""
    if removes.type.get_field_index("deletionTimestamp") < 0:
        return []
    deleted = pc.struct_field(removes, "deletionTimestamp").cast(pa.int64())
    # A comparison with null gives null, which the filter drops.
    found: list[dict[str, Any]] = removes.filter(
        pc.greater_equal(deleted, typed_scalar(cutoff, pa.int64()))
    ).to_pylist()
    return found


def _vectors(removes: Iterable[dict[str, Any]]) -> Iterator[tuple[DeletionVector, str]]:
    for each in removes:
        vector = each.get("deletionVector")
        # Some writers store a struct of nulls in every row. Only a storage type makes it a deletion vector.
        if vector is not None and vector.get("storageType") is not None:
            known = {key: value for key, value in vector.items() if value is not None}
            yield msgspec.convert(known, DeletionVector), each["path"]


# ``TableNames``: the names below a table's root that belong to the table. All others are hidden from VACUUM.
#
# Delta's rule: names that begin with ``.`` or ``_`` do not belong to the table, except partition folders
# (``_event_hour=…``), change data and indexes. With Iceberg compatibility the folder ``metadata`` belongs to Iceberg.
# Temporary files of killed lazydelta writers are included, although they begin with a dot.


_OURS = ("_delta_index", "_change_data", TEMPORARY)
_ICEBERG = "metadata"


class TableNames:
    """Decides which paths a walk skips. ``nested`` collects the folders that contain the log of another table."""

    def __init__(self, metadata: Metadata) -> None:
        schema = TableSchema.parse(metadata.schema_string, partition_columns=metadata.partition_columns)
        columns = {*metadata.partition_columns, *schema.physical_partition_columns}
        self._visible = (*_OURS, *(f"{name}=" for name in columns), *(folder_prefix(name) for name in columns))
        self._serves_iceberg = _serves_iceberg(metadata)
        self.nested: set[str] = set()

    def hides(self, path: str) -> bool:
        """Return whether a file or folder, with everything below it, does not belong to the table."""
        folder, _, name = path.rpartition("/")
        if name == LOG:
            if folder:
                self.nested.add(folder)
            return True
        if name == _ICEBERG and self._serves_iceberg:
            return True
        return name.startswith((".", "_")) and not name.startswith(self._visible)


def _serves_iceberg(metadata: Metadata) -> bool:
    properties = {key.lower(): value or "" for key, value in (metadata.configuration or {}).items()}
    compatible = any(key.startswith(Key.ICEBERG_COMPAT.lower()) for key in properties)
    return compatible or "iceberg" in properties.get(Key.UNIVERSAL_FORMATS.lower(), "").lower()


# The listing of a VACUUM: the files below the table's root, by one walk or by one walk per folder.
#
# The job is serializable data. ``folders`` descends from the root until there are enough folders to distribute, and
# lists the files above them. ``below`` lists one folder. Together they list exactly what one walk of the root lists.


_LISTED_AT_ONCE = 1000
_HEADS = 16


class Listed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A page of a listing: ``count`` files, of which ``old`` are older than the cutoff.

    ``linked`` and ``nested`` are folders that VACUUM skips, because a link points there or because they have their own
    log. ``empty`` are folders that have been empty since before the cutoff.
    """

    count: int
    old: tuple[Orphan, ...]
    linked: tuple[str, ...] = ()
    nested: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ListingJob:
    """A listing of the files that may be deleted: those older than ``cutoff`` (epoch milliseconds).

    ``levels`` is the depth of the partition folders, ``kept`` the number of files that the log references.
    """

    store: Store
    names: TableNames
    cutoff: int
    levels: int
    kept: int

    def carrying_credentials(self) -> ListingJob:
        """Return a copy whose pickle includes the credentials of its store."""
        return replace(self, store=self.store.carrying_credentials())

    def below(self, folder: str = "") -> Iterator[Listed]:
        """List everything below a folder. Linked, nested and empty folders are reported last."""
        yield from self._listed(self.store.walk(self.names.hides, below=folder))

    def folders(self, enough: int) -> tuple[list[str], list[Listed]]:
        """Return folders to list separately, ``enough`` of them if possible, and the files outside these folders.

        Without partition columns the only folder is the root: a single listing covers all files.
        """
        found, above = [""], list[Listed]()
        for _ in range(self.levels):
            if len(found) >= enough:
                break
            entered, found = found, []
            for folder in entered:
                walk = self.store.walk(self.names.hides, below=folder, deep=False)
                above += self._listed(walk)
                found += walk.folders
        return found, above

    def _listed(self, walk: ObjectWalk) -> Iterator[Listed]:
        objects = iter(walk)
        while page := list(islice(objects, _LISTED_AT_ONCE)):
            old = tuple(Orphan(each.path, each.size) for each in page if each.last_modified < self.cutoff)
            yield Listed(len(page), old)
        # These are complete only after the walk has finished.
        empty = tuple(folder for folder, changed in walk.empty if changed < self.cutoff)
        yield Listed(0, (), tuple(walk.linked), tuple(sorted(self.names.nested)), empty)


Lister: TypeAlias = Callable[[ListingJob], Iterator[Listed]]
"""Lists all files of a job, in any order. Failures are raised, because no file may be missed."""


def removed_files(snapshot: Snapshot) -> Lister:
    """Return a lister of the files that the log names as removed, which lists no folder."""

    def look(store: Store, path: str) -> ObjectInfo | None:
        try:
            return store.head(path)
        except ObjectNotFoundError:
            return None

    def lister(job: ListingJob) -> Iterator[Listed]:
        removed = iter(_removed(snapshot))
        while page := list(islice(removed, _LISTED_AT_ONCE)):
            places = (job.store.locate(each) for each in page)
            own = [path for store, path in places if store is job.store and not job.names.hides(path)]
            looked = in_parallel(
                partial(look, job.store), own, threads=_HEADS, stop=lambda: None, name="lazydelta-vacuum"
            )
            with closing(looked) as found:
                there = [each for each in found if each is not None]
            old = tuple(Orphan(each.path, each.size) for each in there if each.last_modified < job.cutoff)
            yield Listed(len(page), old)

    return lister


def _removed(snapshot: Snapshot) -> Iterator[str]:
    for commit in snapshot.tail():
        for lines in commit.actions:
            yield from (line.remove.path for line in lines if line.remove is not None)
    if snapshot.segment.checkpoint is None:
        return
    reader = CheckpointReader(snapshot.store, snapshot.segment.checkpoint)
    for part in reader.parts():
        if part.is_json:
            for lines in read_actions(reader.store, part):
                yield from (line.remove.path for line in lines if line.remove is not None)
        else:
            for removes in _stored(reader, part, ("path",)):
                yield from pc.struct_field(removes, "path").to_pylist()


def in_one_walk(job: ListingJob) -> Iterator[Listed]:
    """List in this process, page by page."""
    return job.below()
