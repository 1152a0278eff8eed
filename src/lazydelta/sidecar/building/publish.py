"""Publishing a sidecar: parts first, then the manifest, whose write makes the sidecar visible."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain, islice

import msgspec
import pyarrow as pa

from lazydelta.errors import ObjectChangedError, ObjectExistsError, ObjectNotFoundError, StorageError
from lazydelta.log.segment import Checkpoint
from lazydelta.log.snapshot import LogSnapshot
from lazydelta.protocol.actions import DomainMetadata, Txn
from lazydelta.runtime.threads import in_parallel
from lazydelta.sidecar.building.plan import SidecarPlan
from lazydelta.sidecar.format.columns import (
    FORMAT_VERSION,
    LATER_FORMAT,
    leaves_path,
    manifest_path,
    part_path,
    sidecar_path,
)
from lazydelta.sidecar.format.leaves import (
    EveryPart,
    every_part,
    files_of,
    leaves_over,
    pack_groups,
    range_types,
    unpack_groups,
)
from lazydelta.sidecar.format.manifest import (
    CheckpointFile,
    Manifest,
    ManifestIndex,
    ManifestLeaves,
    ManifestPart,
    ManifestRowGroup,
    SidecarError,
    are_in_place,
    prove,
    record,
)
from lazydelta.sidecar.format.part_file import (
    SidecarState,
    WrittenPart,
    encode_overview,
    encode_part,
    encode_tiers,
    part_footer,
)
from lazydelta.sidecar.reading.discovery import check_single, read_single, shared_cache
from lazydelta.storage import Store
from lazydelta.storage.staged_files import StagedFiles

__all__ = ["BuildResult", "PartsGoneError", "Publication", "PublishedPart", "load_manifest", "result_of", "schema_hash"]

logger = logging.getLogger(__name__)

PublishedPart = tuple[ManifestPart, bytes]
"""A part with its packed row groups; these are empty if only the part's footer has them."""

PARTS_IN_ROOT = 256 << 10
"""Maximum bytes of part descriptions in a manifest; larger ones go to leaves."""

_MAX_ATTEMPTS = 5


class PartsGoneError(SidecarError):
    """Raised if another process drops the sidecar during publication: some parts and the manifest are deleted."""


class BuildResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a build or refresh; ``action`` is built, refreshed, manifest-added or already-valid.

    ``reason`` says why a refresh fell back to a full build, or why a build replaced an existing sidecar.
    """

    action: str
    version: int
    num_files: int
    num_parts: int
    size_bytes: int
    reused_parts: int = 0
    reason: str | None = None


def load_manifest(store: Store, snapshot: LogSnapshot, checkpoint: Checkpoint) -> EveryPart | None:
    """Return the manifest of a checkpoint if it is valid and all its parts exist; otherwise None."""
    try:
        data = store.get(manifest_path(checkpoint.version))
    except ObjectNotFoundError:
        return None
    return _valid(data, store, snapshot, checkpoint)


def _valid(data: bytes, store: Store, snapshot: LogSnapshot, checkpoint: Checkpoint) -> EveryPart | None:
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
    """Return the result of an action, with the current state of the sidecar."""
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
    """Writer of one sidecar.

    ``transactions`` and ``domains`` are the state at the checkpoint if the caller knows it; otherwise the whole
    checkpoint has to be read for them. ``replaces`` is the digest of a manifest to be replaced although it is valid
    itself, because its files are damaged.
    """

    store: Store
    snapshot: LogSnapshot
    checkpoint: Checkpoint
    plan: SidecarPlan
    transactions: Sequence[Txn] | None = None
    domains: Sequence[DomainMetadata] | None = None
    replaces: str | None = None
    _mirrored: tuple[CheckpointFile, ...] | None = None
    _files: StagedFiles = field(init=False)
    _may_be_there: bool = False
    _parts_written: int = 0
    _build_id: str = field(default_factory=lambda: str(uuid.uuid4()))

    def __post_init__(self) -> None:
        """Tie the written files to this publication: they are deleted only if its manifest is ruled out."""
        self._files = StagedFiles(self.store)
        self._files.offer_to(self)

    def begin(self) -> None:
        """Record the checkpoint before it is read: a replacement in the meantime is a different one."""
        self._checkpoint()

    def publish(
        self, pieces: Iterator[pa.Table | PublishedPart], *, encoders: int, action: str = "built"
    ) -> BuildResult:
        """Write a part for every table, then the manifest over new and given parts, in order.

        Compression takes longest, so several ``encoders`` run in parallel, each holding one part.
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
                self._state()  # compute it before threads need it
                pieces = chain(first, pieces)
                with closing(in_parallel(self._encoded, pieces, threads=encoders, stop=_nothing)) as encoded:
                    for part in encoded:
                        reused += not isinstance(part, WrittenPart)
                        parts.append(self._put(part) if isinstance(part, WrittenPart) else part)
        except BaseException:
            self._files.discard()
            raise
        return self.put_manifest(parts, action=action, reused=reused)

    def put_manifest(self, parts: Sequence[PublishedPart], *, action: str, reused: int = 0) -> BuildResult:
        """Write the manifest, which makes the sidecar visible.

        A concurrent ``drop`` can delete parts that were already written or were to be reused. The check for this runs
        after the manifest is written: any later drop also deletes the manifest.
        """
        described = [part for part, _ in parts]
        manifest = self.manifest_over(parts)
        data = manifest.encode()
        shared_cache.forget_manifest(self.store.identity, self.checkpoint)
        self._may_be_there = True
        other = self._commit(data)
        if other is None:
            needed = files_of(described, manifest.leaves) | self._put_overview(described)
            if not are_in_place(self.store, needed):
                self._withdraw(data)
                message = f"parts of the sidecar of version {self.checkpoint.version} were dropped while it was built"
                raise PartsGoneError(message)
            return result_of(manifest, len(described), action, reused=reused)
        # Another builder was faster, and no manifest refers to the files of this build.
        self._may_be_there = False
        self._files.discard(path for path in self._files.paths if path not in other.files)
        return result_of(other.index, len(other.parts), "already-valid")

    def is_ruled_out(self) -> bool:
        """Return whether it is certain that no manifest of this build exists or will exist.

        A pending write can still replace another manifest, so the current manifest does not rule it out.
        """
        return not self._may_be_there

    def _commit(self, data: bytes) -> EveryPart | None:
        """Write the manifest unless a valid one exists; otherwise return the existing one."""
        path = manifest_path(self.checkpoint.version)
        for _ in range(_MAX_ATTEMPTS):
            with contextlib.suppress(ObjectExistsError):
                _undisturbed(lambda: self.store.put_if_absent(path, data))
                return None
            try:
                etag = self.store.head(path).etag
                there = self.store.get(path, if_match=etag)
                if there == data:
                    return None  # ours: the response to the first request was lost, and the client retried
                valid = _valid(there, self.store, self.snapshot, self.checkpoint)
                if valid is not None and valid.index.sha256 != self.replaces:
                    return valid
                self.store.put(path, data, if_match=etag)
            except (ObjectNotFoundError, ObjectChangedError):
                continue  # another process is deleting or replacing it: look again
            return None
        message = f"{path} changes faster than it can be replaced"
        hint = "find out what else builds sidecars of this table, and try again"
        raise ObjectChangedError(message, path=path, version=self.checkpoint.version, hint=hint)

    def _withdraw(self, data: bytes) -> None:
        """Delete our manifest and files; readers that have the manifest fall back to the checkpoint."""
        path = manifest_path(self.checkpoint.version)
        with contextlib.suppress(ObjectNotFoundError):
            if self.store.get(path) == data:
                self.store.delete(path)
        self._may_be_there = False
        self._files.discard()

    def manifest_over(self, parts: Sequence[PublishedPart]) -> Manifest:
        """Return the manifest over parts, in order; many parts are described in leaves, which are written here."""
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

    def _put_overview(self, parts: Sequence[ManifestPart]) -> dict[str, int]:
        """List the parts in the footer of a file of their own, which serves readers if the manifest is lost.

        Only the builder whose manifest counts writes it. Return the file with its size, if it was written.
        """
        path = sidecar_path(self.checkpoint.version)
        if any(part.file == path for part in parts):
            return {}
        state = msgspec.structs.replace(self.sealed(), columns=(self.plan.index or self.plan.layout).columns)
        data = encode_overview(parts, state, self.plan.layout.arrow_schema(self.plan.schema))
        try:
            try:
                self._put_new(path, data)
            except ObjectExistsError:
                etag = self.store.head(path).etag
                if self._is_sidecar(path, parts):
                    return {}
                self.store.put(path, data, if_match=etag)
        except StorageError as error:
            logger.warning("%s is not written, so the sidecar needs its manifest: %s", path, error)
            return {}
        self._files.stage([path])
        return {path: len(data)}

    def _is_sidecar(self, path: str, parts: Sequence[ManifestPart]) -> bool:
        """Return whether a file is a whole sidecar of this checkpoint, or lists the same parts."""
        try:
            part, footer = read_single(self.store, path)
            check_single(footer, part, self.snapshot, self.checkpoint)
        except SidecarError:
            return False
        return not footer.state.parts or footer.state.parts == tuple(parts)

    def _put_leaves(self, parts: Sequence[PublishedPart]) -> ManifestLeaves:
        """Describe many parts in a separate file; row groups are unpacked leaf by leaf."""

        def groups_of(number: int) -> Sequence[ManifestRowGroup]:
            part, packed = parts[number]
            # The earlier manifest had no room for row groups, and this one has leaves: read the footers.
            return unpack_groups(packed) if packed else part_footer(self.store, part).row_groups()

        path = leaves_path(self.checkpoint.version, self._build_id)
        made = list(leaves_over([part for part, _ in parts], groups_of, range_types(self.plan.schema)))
        data = b"".join(each for _, each in made)
        self._files.stage([path])
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
        """The id in the names of this build's parts, unique to the build."""
        return self._build_id

    def sealed(self, num_files: int = -1) -> SidecarState:
        """Return the sidecar-wide metadata of a file; parts written by other processes carry the same."""
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
            self._files.stage([path])
            self._put_over(path, data)
        return part, pack_groups(written.row_groups)

    def _put_over(self, path: str, data: bytes) -> None:
        _undisturbed(lambda: self.store.put(path, data))


def _all_groups(parts: Sequence[PublishedPart]) -> tuple[ManifestRowGroup, ...]:
    """Return the numbered row groups of all parts; none if those of a part are unknown."""
    if not all(packed or not part.num_row_groups for part, packed in parts):
        return ()
    return tuple(
        msgspec.structs.replace(group, part=number)
        for number, (_, packed) in enumerate(parts)
        for group in (unpack_groups(packed) if packed else ())
    )


def _nothing() -> None:
    """Do nothing: encoders never block."""


def _undisturbed(write: Callable[[], None]) -> None:
    """Write an object, with retries: on a local disk, a ``drop`` can delete the temporary file before its rename."""
    for _ in range(_MAX_ATTEMPTS):
        with contextlib.suppress(ObjectNotFoundError):
            write()
            return
    message = "what is written of the sidecar is dropped before it has its name"
    raise PartsGoneError(message)


def schema_hash(snapshot: LogSnapshot) -> str:
    """Return the digest of the schema at the checkpoint."""
    return hashlib.sha256(snapshot.metadata.schema_string.encode()).hexdigest()
