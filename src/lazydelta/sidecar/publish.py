"""Making a sidecar visible: parts first, then the manifest, which is the moment at which it exists."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator, Sequence

import msgspec
import pyarrow as pa

from lazydelta.errors import ObjectExistsError, ObjectNotFoundError
from lazydelta.log.segment import Checkpoint
from lazydelta.log.snapshot import Snapshot
from lazydelta.sidecar.format import FORMAT_VERSION, manifest_path, part_path, sidecar_path
from lazydelta.sidecar.manifest import Manifest, ManifestPart, ManifestRowGroup, SidecarError, checkpoint_files
from lazydelta.sidecar.part_file import SidecarState, WrittenPart, encode_part
from lazydelta.sidecar.planning import SidecarPlan
from lazydelta.storage import Store

__all__ = ["BuildResult", "PublishedPart", "load_manifest", "publish", "put_manifest", "put_part", "sidecar_state"]

PublishedPart = tuple[ManifestPart, Sequence[ManifestRowGroup]]


class BuildResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a build or refresh did; ``action`` is built, refreshed, manifest-added or already-valid."""

    action: str
    version: int
    num_files: int
    num_parts: int
    size_bytes: int
    reused_parts: int = 0


def load_manifest(store: Store, snapshot: Snapshot, checkpoint: Checkpoint) -> Manifest | None:
    """Return the valid manifest of a checkpoint, whose parts are all in place; None if there is none."""
    try:
        manifest = Manifest.decode(store.get(manifest_path(checkpoint.version)))
        manifest.check(table_id=snapshot.metadata.id, checkpoint=checkpoint)
        for part in manifest.parts:
            if store.head(part.file).size != part.size:
                return None
    except (ObjectNotFoundError, SidecarError):
        return None
    return manifest


def publish(
    store: Store,
    snapshot: Snapshot,
    checkpoint: Checkpoint,
    plan: SidecarPlan,
    tables: Iterator[pa.Table],
    *,
    kept: Sequence[PublishedPart] = (),
) -> BuildResult:
    """Write parts for ``tables``, then the manifest over them and the ``kept`` parts, in the order of their keys."""
    build_id = str(uuid.uuid4())
    state = sidecar_state(snapshot, checkpoint, plan)
    written: list[PublishedPart] = []
    pending: pa.Table | None = None
    for number, table in enumerate(tables, 1):
        if pending is not None:
            written.append(
                put_part(
                    store, encode_part(pending, state, plan.indexed), part_path(state.version, build_id, number - 1)
                )
            )
        pending = table
    only = not written and not kept
    if pending is None and only:
        pending = plan.layout.arrow_schema(plan.schema).empty_table()
    if pending is not None:
        last = encode_part(
            pending, msgspec.structs.replace(state, num_files=pending.num_rows if only else -1), plan.indexed
        )
        target = part_path(state.version, build_id, len(written) + 1)
        written.append(
            _put_single(store, last, sidecar_path(state.version), target) if only else put_part(store, last, target)
        )
    return put_manifest(store, snapshot, checkpoint, plan, [*kept, *written], reused=len(kept))


def put_manifest(
    store: Store,
    snapshot: Snapshot,
    checkpoint: Checkpoint,
    plan: SidecarPlan,
    parts: Sequence[PublishedPart],
    *,
    reused: int = 0,
) -> BuildResult:
    """Write the manifest: the moment at which the sidecar exists."""
    ordered = list(parts)
    groups = [
        msgspec.structs.replace(group, part=number) for number, (_, found) in enumerate(ordered) for group in found
    ]
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        version=checkpoint.version,
        table_id=snapshot.metadata.id,
        schema_hash=schema_hash(snapshot),
        sidecar_file=ordered[0][0].file if ordered else "",
        sidecar_size_bytes=sum(part.size for part, _ in ordered),
        num_files=sum(part.num_rows for part, _ in ordered),
        num_row_groups=len(groups),
        sort=plan.layout.sort,
        columns=plan.layout.columns,
        protocol=snapshot.protocol,
        meta_data=snapshot.metadata,
        txn=tuple(snapshot.transactions()),
        domain_metadata=tuple(snapshot.domains()),
        checkpoint=checkpoint_files(checkpoint),
        parts=tuple(part for part, _ in ordered),
        row_groups=tuple(groups),
    )
    path, data = manifest_path(checkpoint.version), manifest.encode()
    action = "refreshed" if reused else "built"
    try:
        store.put_if_absent(path, data)
    except ObjectExistsError:
        if load_manifest(store, snapshot, checkpoint) is None:
            store.put(path, data, if_match=store.head(path).etag)
        else:
            action = "already-valid"  # another builder was faster; our parts are debris that `clean` removes
    return BuildResult(
        action=action,
        version=manifest.version,
        num_files=manifest.num_files,
        num_parts=len(manifest.parts),
        size_bytes=manifest.sidecar_size_bytes,
        reused_parts=reused,
    )


def sidecar_state(snapshot: Snapshot, checkpoint: Checkpoint, plan: SidecarPlan) -> SidecarState:
    """Return what every file of this sidecar says of it."""
    state = {
        "protocol": snapshot.protocol,
        "metaData": snapshot.metadata,
        "txn": list(snapshot.transactions()),
        "domainMetadata": list(snapshot.domains()),
        "checkpoint": checkpoint_files(checkpoint),
    }
    return SidecarState(
        table_id=snapshot.metadata.id,
        version=checkpoint.version,
        schema_hash=schema_hash(snapshot),
        columns=plan.layout.columns,
        sort=plan.layout.sort,
        num_files=-1,
        state=msgspec.Raw(msgspec.json.encode(state)),
    )


def schema_hash(snapshot: Snapshot) -> str:
    """Return the digest of the schema at the checkpoint."""
    return hashlib.sha256(snapshot.metadata.schema_string.encode()).hexdigest()


def put_part(store: Store, part: WrittenPart, path: str) -> PublishedPart:
    """Write a part and return what the manifest says of it."""
    store.put(path, part.data)
    return msgspec.structs.replace(part.part, file=path), part.row_groups


def _put_single(store: Store, part: WrittenPart, path: str, otherwise: str) -> PublishedPart:
    try:
        store.put_if_absent(path, part.data)
    except ObjectExistsError:
        return put_part(store, part, otherwise)
    return msgspec.structs.replace(part.part, file=path), part.row_groups
