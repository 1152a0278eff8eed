"""The Parquet file of a delta sidecar: rows of a sidecar with a version each, and removes among them.

All actions about files are there, not only the last one of each file: so any run of its versions can be read by itself,
whatever checkpoint was written in between and whichever version is asked for. Rows stand in the order in which they
count: the newest commit first, of each commit its adds in the log's order, then its removes.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
import pyarrow as pa

from lazydelta.arrays import boolean_array, from_numpy, one_array
from lazydelta.log.action_bodies import domain_body, txn_body
from lazydelta.log.actions import Add, LogLine, Metadata, Remove
from lazydelta.log.file_batch import FileBatch
from lazydelta.log.names import LogFile
from lazydelta.sidecar.layout.delta_manifest import DeltaEntry, DeltaGroup, commit_digests
from lazydelta.sidecar.layout.leaves import inflated
from lazydelta.sidecar.layout.manifest import SidecarError
from lazydelta.sidecar.layout.part_file import PartFooter, SidecarState, encode_part
from lazydelta.sidecar.layout.sidecar_columns import ColumnRole, SidecarColumn, SidecarLayout
from lazydelta.sidecar.layout.sidecar_rows import to_rows
from lazydelta.types.schema import Column, TableSchema

__all__ = [
    "CommitActions",
    "VersionedLine",
    "action_rows",
    "delta_layout",
    "encode_delta",
    "other_actions",
    "schema_hash",
    "versions_of",
]

_OWN = (ColumnRole.VERSION, ColumnRole.REMOVED)


class VersionedLine(msgspec.Struct, frozen=True):
    """An action that is not about a file, with the version of its commit."""

    version: int
    action: LogLine


class _State(msgspec.Struct, frozen=True):
    """What a delta sidecar carries besides rows: its commits, and their other actions as compressed lines of JSON."""

    first: int
    last: int
    actions: str = ""
    actions_length: int = 0


def delta_layout(schema: TableSchema, stats: Iterable[Column]) -> SidecarLayout:
    """Lay out the delta sidecars of a table: the columns of a sidecar that is not sorted, with version and kind."""
    columns = SidecarLayout.of(schema, stats, ()).columns
    taken = {column.name for column in columns}
    own = [SidecarColumn(_free(role.value, taken), role) for role in _OWN]
    return SidecarLayout((*own, *columns), ())


def _free(name: str, taken: set[str]) -> str:
    free, number = name, 2
    while free in taken:
        free, number = f"{name}#{number}", number + 1
    return free


class CommitActions(msgspec.Struct, frozen=True):
    """What a commit did to files."""

    version: int
    adds: list[Add]
    removes: list[Remove]

    def __len__(self) -> int:
        return len(self.adds) + len(self.removes)


def action_rows(commits: Sequence[CommitActions], layout: SidecarLayout, schema: TableSchema) -> pa.RecordBatch:
    """Return the actions of commits, given newest first, as rows: of each its adds, then the keys of its removes."""
    files: list[Add] = []
    for commit in commits:
        files += commit.adds
        files += map(_key_of, commit.removes)
    plain = SidecarLayout(layout.columns[len(_OWN) :], ())
    rows = to_rows(FileBatch.from_adds(files, extra=True), plain, schema)
    sizes = [len(commit) for commit in commits]
    kinds = [(kind, len(some)) for commit in commits for kind, some in ((False, commit.adds), (True, commit.removes))]
    own = [
        from_numpy(np.repeat(np.array([commit.version for commit in commits], np.int64), sizes)),
        boolean_array(np.repeat(np.array([kind for kind, _ in kinds], np.bool_), [count for _, count in kinds])),
    ]
    return pa.RecordBatch.from_arrays([*own, *rows.columns], schema=layout.arrow_schema(schema))


def _key_of(remove: Remove) -> Add:
    vector = remove.deletion_vector
    return Add(path=remove.path, size=0, modification_time=0, partition_values={}, deletion_vector=vector)


def encode_delta(
    rows: pa.Table,
    lines: Sequence[VersionedLine],
    commits: Sequence[LogFile],
    layout: SidecarLayout,
    metadata: Metadata,
    path: str,
) -> tuple[bytes, DeltaEntry]:
    """Write rows, newest first, and the other actions of commits, ascending; return the file and its entry."""
    first, last = commits[0].version, commits[-1].version
    text = b"".join(_encoded(line) for line in lines)
    state = SidecarState(
        table_id=metadata.id,
        version=last,
        schema_hash=schema_hash(metadata),
        columns=layout.columns,
        sort=(),
        num_files=rows.num_rows,
        state=msgspec.Raw(
            msgspec.json.encode(
                _State(first, last, base64.b64encode(pa.compress(text, "zstd", asbytes=True)).decode(), len(text))
            )
        ),
    )
    written = encode_part(rows, state, ())
    versions = versions_of(rows, layout)
    removed = one_array(rows.column(layout.name_of(ColumnRole.REMOVED)))
    groups, start = [], 0
    for group in written.row_groups:
        end = start + group.num_rows
        groups.append(
            DeltaGroup(
                group.byte_offset,
                group.core_byte_length,
                group.num_rows,
                int(versions[start]),
                int(versions[end - 1]),
            )
        )
        start = end
    part = written.part
    entry = DeltaEntry(
        file=path,
        first=first,
        last=last,
        table_id=metadata.id,
        schema_hash=state.schema_hash,
        size=part.size,
        footer_offset=part.footer_offset,
        footer_length=part.footer_length,
        footer_sha256=part.footer_sha256,
        num_adds=rows.num_rows - removed.true_count,
        num_removes=removed.true_count,
        commits=commit_digests(commits),
        row_groups=tuple(groups),
    )
    return written.data, entry


def schema_hash(metadata: Metadata) -> str:
    """Return what tells schemas apart, in entries and footers."""
    return hashlib.sha256(metadata.schema_string.encode()).hexdigest()


def versions_of(rows: pa.Table | pa.RecordBatch, layout: SidecarLayout) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the version of each row."""
    column = one_array(rows.column(layout.name_of(ColumnRole.VERSION)))
    if column.null_count:
        message = "it has rows without a version"
        raise SidecarError(message)
    return np.frombuffer(column.buffers()[1], np.int64, len(column), column.offset * 8)


def other_actions(footer: PartFooter, first: int, last: int) -> list[VersionedLine]:
    """Return the actions of some versions that are not about files, oldest first; raise unless it says it has these."""
    try:
        state = msgspec.json.decode(footer.state.state, type=_State)
        packed = base64.b64decode(state.actions, validate=True)
        text = inflated(packed, state.actions_length) if state.actions_length else b""
        lines = msgspec.json.Decoder(VersionedLine).decode_lines(text)
    except (msgspec.MsgspecError, pa.ArrowException, ValueError, UnicodeError, OSError) as error:
        message = f"its actions cannot be read: {error}"
        raise SidecarError(message) from error
    if not state.first <= first <= last <= state.last:
        message = f"it is of versions {state.first} to {state.last}"
        raise SidecarError(message)
    return [line for line in lines if first <= line.version <= last]


def _encoded(line: VersionedLine) -> bytes:
    action = line.action
    if action.txn is not None:
        body = {"txn": txn_body(action.txn)}
    elif action.domain_metadata is not None:
        body = {"domainMetadata": domain_body(action.domain_metadata)}
    else:
        body = {}  # of an action that nobody knows it counts that there was one
    return msgspec.json.encode({"version": line.version, "action": body}) + b"\n"
