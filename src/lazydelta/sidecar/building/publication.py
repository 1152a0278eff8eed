"""Making a sidecar visible: parts first, then the manifest, which is the moment at which it exists."""

from __future__ import annotations

import contextlib
import hashlib
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain, islice

import msgspec
import pyarrow as pa

from lazydelta.errors import LazyDeltaError, ObjectChangedError, ObjectExistsError, ObjectNotFoundError
from lazydelta.execution import in_parallel
from lazydelta.log.actions import DomainMetadata, Txn
from lazydelta.log.segment import Checkpoint
from lazydelta.log.snapshot import Snapshot
from lazydelta.sidecar.building.leaf_writer import leaves_over, range_types
from lazydelta.sidecar.building.planning import SidecarPlan
from lazydelta.sidecar.layout.folder import are_in_place
from lazydelta.sidecar.layout.leaves import EveryPart, every_part, files_of, pack_groups, unpack_groups
from lazydelta.sidecar.layout.manifest import (
    CheckpointFile,
    Manifest,
    ManifestIndex,
    ManifestLeaves,
    ManifestPart,
    ManifestRowGroup,
    SidecarError,
)
from lazydelta.sidecar.layout.mirrored import prove, record
from lazydelta.sidecar.layout.part_file import SidecarState, WrittenPart, encode_part, part_footer
from lazydelta.sidecar.layout.sidecar_columns import (
    FORMAT_VERSION,
    LATER_FORMAT,
    leaves_path,
    manifest_path,
    part_path,
    sidecar_path,
)
from lazydelta.sidecar.layout.tiers import encode_tiers
from lazydelta.sidecar.reading.sidecar_cache import shared_cache
from lazydelta.storage import Store

__all__ = ["BuildResult", "PartsGoneError", "Publication", "PublishedPart", "load_manifest", "result_of", "schema_hash"]

PublishedPart = tuple[ManifestPart, bytes]
"""A part with its row groups, packed; none are given where a long manifest leaves them to the part's footer."""

PARTS_IN_ROOT = 256 << 10
"""As many bytes a manifest may have of its parts: more than these are described in leaves."""

_MAX_ATTEMPTS = 5


class PartsGoneError(SidecarError):
    """Somebody dropped the sidecar while it was published: parts of it are gone, and so is its manifest."""


class BuildResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a build or refresh did; ``action`` is built, refreshed, manifest-added or already-valid.

    ``reason`` says why a refresh had to build everything, or why a build replaced what was there.
    """

    action: str
    version: int
    num_files: int
    num_parts: int
    size_bytes: int
    reused_parts: int = 0
    reason: str | None = None


def load_manifest(store: Store, snapshot: Snapshot, checkpoint: Checkpoint) -> EveryPart | None:
    """Return the valid manifest of a checkpoint, whose parts are all in place; None if there is none."""
    try:
        data = store.get(manifest_path(checkpoint.version))
    except ObjectNotFoundError:
        return None
    return _valid(data, store, snapshot, checkpoint)


def _valid(data: bytes, store: Store, snapshot: Snapshot, checkpoint: Checkpoint) -> EveryPart | None:
    try:
        manifest = ManifestIndex.decode(data)
        manifest.check(table_id=snapshot.metadata.id, checkpoint=checkpoint)
        manifest.check_numbers()
        prove(store, manifest.checkpoint, [each.info for each in checkpoint.files])
        found = every_part(store, manifest)
        found.check()
    except (SidecarError, ObjectNotFoundError):
        return None
    return found if are_in_place(store, found.files) else None


def result_of(manifest: ManifestIndex | Manifest, num_parts: int, action: str, *, reused: int = 0) -> BuildResult:
    """Say what was done and what there is now."""
    return BuildResult(
        action=action,
        version=manifest.version,
        num_files=manifest.num_files,
        num_parts=num_parts,
        size_bytes=manifest.sidecar_size_bytes,
        reused_parts=reused,
    )


@dataclass(slots=True)
class Publication:
    """Writes one sidecar.

    ``transactions`` and ``domains`` are the state at the checkpoint where the caller knows it already; to find out
    means reading the checkpoint from end to end. ``replaces`` is the digest of a manifest that is to give way although
    it is valid in itself: the files that it refers to are damaged.
    """

    store: Store
    snapshot: Snapshot
    checkpoint: Checkpoint
    plan: SidecarPlan
    transactions: Sequence[Txn] | None = None
    domains: Sequence[DomainMetadata] | None = None
    replaces: str | None = None
    _mirrored: tuple[CheckpointFile, ...] | None = None
    _written: list[str] = field(default_factory=list)
    _parts_written: int = 0
    _build_id: str = field(default_factory=lambda: str(uuid.uuid4()))

    def begin(self) -> None:
        """Note the checkpoint as it is before it is read: what replaces it meanwhile is another one."""
        self._checkpoint()

    def publish(
        self, pieces: Iterator[pa.Table | PublishedPart], *, encoders: int, action: str = "built"
    ) -> BuildResult:
        """Write a part for every table, then the manifest over them and the parts given as they are, in order.

        Compressing takes longest of all, so that several ``encoders`` do it, each of which holds a part.
        """
        self.begin()
        parts: list[PublishedPart] = []
        reused = 0
        try:
            first = list(islice(pieces, 2))
            if not first or (len(first) == 1 and isinstance(first[0], pa.Table)):
                empty = self.plan.layout.arrow_schema(self.plan.schema).empty_table()
                parts.append(self._put_single(first[0] if first else empty))
            else:
                self._state()  # before threads ask for it
                pieces = chain(first, pieces)
                with closing(in_parallel(self._encoded, pieces, threads=encoders, stop=_nothing)) as encoded:
                    for part in encoded:
                        reused += not isinstance(part, WrittenPart)
                        parts.append(self._put(part) if isinstance(part, WrittenPart) else part)
        except BaseException:
            self._discard()
            raise
        return self.put_manifest(parts, action=action, reused=reused)

    def put_manifest(self, parts: Sequence[PublishedPart], *, action: str, reused: int = 0) -> BuildResult:
        """Write the manifest: the moment at which the sidecar exists.

        A ``drop`` may have taken parts away that were written before, or that were to be used again. It is looked for
        after the manifest is there: whatever is dropped from then on, the manifest is dropped with it.
        """
        described = [part for part, _ in parts]
        manifest = self.manifest_over(parts)
        data = manifest.encode()
        shared_cache.forget_manifest(self.store.identity, self.checkpoint)
        other = self._commit(data)
        if other is None:
            if not are_in_place(self.store, files_of(described, manifest.leaves)):
                self._withdraw(data)
                message = f"parts of the sidecar of version {self.checkpoint.version} were dropped while it was built"
                raise PartsGoneError(message)
            return result_of(manifest, len(described), action, reused=reused)
        # Another builder was faster. Nobody refers to what we wrote.
        self._discard(keep=other.files)
        return result_of(other.index, len(other.parts), "already-valid")

    def _commit(self, data: bytes) -> EveryPart | None:
        """Put the manifest where there is no valid one; else return that one."""
        path = manifest_path(self.checkpoint.version)
        for _ in range(_MAX_ATTEMPTS):
            with contextlib.suppress(ObjectExistsError):
                _undisturbed(lambda: self.store.put_if_absent(path, data))
                return None
            try:
                etag = self.store.head(path).etag
                there = self.store.get(path, if_match=etag)
                if there == data:
                    return None  # ours: the answer to our first request was lost and the client asked again
                valid = _valid(there, self.store, self.snapshot, self.checkpoint)
                if valid is not None and valid.index.sha256 != self.replaces:
                    return valid
                self.store.put(path, data, if_match=etag)
            except (ObjectNotFoundError, ObjectChangedError):
                continue  # somebody else deletes or replaces it at this moment: look again
            return None
        message = f"{path} changes faster than it can be replaced"
        hint = "see who else builds sidecars of this table, and try again"
        raise ObjectChangedError(message, path=path, version=self.checkpoint.version, hint=hint)

    def _withdraw(self, data: bytes) -> None:
        """Take back our manifest, and what else we wrote; readers that meet it meanwhile go on from the checkpoint."""
        path = manifest_path(self.checkpoint.version)
        with contextlib.suppress(ObjectNotFoundError):
            if self.store.get(path) == data:
                self.store.delete(path)
        self._discard()

    def manifest_over(self, parts: Sequence[PublishedPart]) -> Manifest:
        """Describe parts, in order; many of them in leaves, which are written here."""
        described = tuple(part for part, _ in parts)
        is_large = sum(len(msgspec.json.encode(part)) for part in described) > PARTS_IN_ROOT
        leaves = self._put_leaves(parts) if is_large else None
        transactions, domains = self._state()
        return Manifest(
            format_version=FORMAT_VERSION if leaves is None and self.plan.index is None else LATER_FORMAT,
            version=self.checkpoint.version,
            table_id=self.snapshot.metadata.id,
            schema_hash=schema_hash(self.snapshot),
            sidecar_file=parts[0][0].file if parts else "",
            sidecar_size_bytes=sum(size for part in described for size in part.files.values()),
            num_files=sum(part.num_rows for part, _ in parts),
            num_row_groups=sum(part.num_row_groups for part in described),
            sort=self.plan.layout.sort,
            columns=(self.plan.index or self.plan.layout).columns,
            protocol=self.snapshot.protocol,
            meta_data=self.snapshot.metadata,
            txn=tuple(transactions),
            domain_metadata=tuple(domains),
            checkpoint=self._checkpoint(),
            parts=described if leaves is None else (),
            leaves=leaves,
            row_groups=_all_groups(parts) if leaves is None else (),
        )

    def _put_leaves(self, parts: Sequence[PublishedPart]) -> ManifestLeaves:
        """Describe many parts apart from the manifest; row groups are unpacked leaf by leaf."""

        def groups_of(number: int) -> Sequence[ManifestRowGroup]:
            part, packed = parts[number]
            # A manifest that had no room for them is followed by one with leaves: the footers know, once more.
            return unpack_groups(packed) if packed else part_footer(self.store, part).row_groups()

        path = leaves_path(self.checkpoint.version, self._build_id)
        made = list(leaves_over([part for part, _ in parts], groups_of, range_types(self.plan.schema)))
        data = b"".join(each for _, each in made)
        self._written.append(path)
        self._put_over(path, data)
        return ManifestLeaves(file=path, size=len(data), leaves=tuple(leaf for leaf, _ in made))

    def _checkpoint(self) -> tuple[CheckpointFile, ...]:
        if self._mirrored is None:
            self._mirrored = record(self.store, [each.info for each in self.checkpoint.files])
        return self._mirrored

    def _state(self) -> tuple[Sequence[Txn], Sequence[DomainMetadata]]:
        if self.transactions is None:
            self.transactions = self.snapshot.transactions()
        if self.domains is None:
            self.domains = self.snapshot.domains()
        return self.transactions, self.domains

    @property
    def build_id(self) -> str:
        """What the names of this build's parts have in common, and no other build's."""
        return self._build_id

    def sealed(self, num_files: int = -1) -> SidecarState:
        """Return what a file of the sidecar says about the whole: parts written elsewhere say the same."""
        transactions, domains = self._state()
        state = {
            "protocol": self.snapshot.protocol,
            "metaData": self.snapshot.metadata,
            "txn": transactions,
            "domainMetadata": domains,
            "checkpoint": self._checkpoint(),
        }
        return SidecarState(
            table_id=self.snapshot.metadata.id,
            version=self.checkpoint.version,
            schema_hash=schema_hash(self.snapshot),
            columns=self.plan.layout.columns,
            sort=self.plan.layout.sort,
            num_files=num_files,
            state=msgspec.Raw(msgspec.json.encode(state)),
        )

    def _encode(self, table: pa.Table, num_files: int) -> WrittenPart:
        state, indexed, index = self.sealed(num_files), self.plan.indexed, self.plan.index
        return encode_part(table, state, indexed) if index is None else encode_tiers(table, state, indexed, index)

    def _encoded(self, piece: pa.Table | PublishedPart) -> WrittenPart | PublishedPart:
        return self._encode(piece, -1) if isinstance(piece, pa.Table) else piece

    def _put_single(self, table: pa.Table) -> PublishedPart:
        written = self._encode(table, table.num_rows)
        part, files = written.named(sidecar_path(self.checkpoint.version))
        done: list[str] = []
        try:
            for path, data in files.items():
                self._put_new(path, data)
                done.append(path)
        except ObjectExistsError:
            for path in done:
                self.store.delete(path)
            return self._put(written)
        return part, pack_groups(written.row_groups)

    def _put_new(self, path: str, data: bytes) -> None:
        _undisturbed(lambda: self.store.put_if_absent(path, data))

    def _put(self, written: WrittenPart) -> PublishedPart:
        self._parts_written += 1
        part, files = written.named(part_path(self.checkpoint.version, self._build_id, self._parts_written))
        for path, data in files.items():
            self._written.append(path)
            self._put_over(path, data)
        return part, pack_groups(written.row_groups)

    def _put_over(self, path: str, data: bytes) -> None:
        _undisturbed(lambda: self.store.put(path, data))

    def _discard(self, keep: Iterable[str] = ()) -> None:
        """Remove the parts of this build, whose names nobody else has; `clean` removes what we fail to."""
        with contextlib.suppress(LazyDeltaError):
            for path in self._written:
                if path not in keep:
                    self.store.delete(path)


def _all_groups(parts: Sequence[PublishedPart]) -> tuple[ManifestRowGroup, ...]:
    """Return the row groups of all parts, numbered; none where those of a part are not known."""
    if not all(packed or not part.num_row_groups for part, packed in parts):
        return ()
    return tuple(
        msgspec.structs.replace(group, part=number)
        for number, (_, packed) in enumerate(parts)
        for group in (unpack_groups(packed) if packed else ())
    )


def _nothing() -> None:
    """Nothing needs to be told to stop: who encodes waits for nobody."""


def _undisturbed(write: Callable[[], None]) -> None:
    """Write an object; on a local disk a ``drop`` may remove the temporary file that was about to become it."""
    for _ in range(_MAX_ATTEMPTS):
        with contextlib.suppress(ObjectNotFoundError):
            write()
            return
    message = "what is written of the sidecar is dropped before it has its name"
    raise PartsGoneError(message)


def schema_hash(snapshot: Snapshot) -> str:
    """Return the digest of the schema at the checkpoint."""
    return hashlib.sha256(snapshot.metadata.schema_string.encode()).hexdigest()
