"""``DeltaManifest``: the delta sidecars of a table, the commits they cover, and the location of each version.

One small object with a fixed name, so that a reader with a long log tail can fetch it at once. It is replaced as a
whole (if-match) and sealed like every manifest. A delta sidecar is used only if the store identifies its commits as the
same objects it was built from. A short digest of the name, size, etag and time of each commit is compared with the
listing, at no cost. Unlike checkpoints (see ``Proof``), there is no second check: it would have to read the commits,
which is what the delta sidecar avoids.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec
import numpy as np
import pyarrow as pa

from lazydelta.log.file_batch import FileBatch
from lazydelta.protocol.actions import Add, Count, LogLine, Metadata, Remove, domain_body, txn_body
from lazydelta.protocol.file_names import LogFile
from lazydelta.protocol.schema import Column, TableSchema
from lazydelta.runtime.arrays import boolean_array, from_numpy, one_array
from lazydelta.sidecar.format.columns import FOLDER, ColumnRole, SidecarColumn, SidecarLayout
from lazydelta.sidecar.format.leaves import inflated
from lazydelta.sidecar.format.manifest import UNSEALED, SidecarError, is_sealed, sealed
from lazydelta.sidecar.format.part_file import PartFooter, SidecarState, encode_part
from lazydelta.sidecar.format.rows import to_rows

__all__ = [
    "CommitActions",
    "DeltaEntry",
    "DeltaGroup",
    "DeltaManifest",
    "VersionedLine",
    "action_rows",
    "delta_layout",
    "delta_path",
    "encode_delta",
    "other_actions",
    "schema_hash",
    "versions_of",
]


DELTA_FORMAT = 1
_DIGEST = 12
_END = len('"}')


def delta_path(first: int, last: int, unique: str | None = None) -> str:
    """Return the path of the delta sidecar of commits ``first`` to ``last``, named after the version before them."""
    return f"{FOLDER}/v{first - 1}_{last}{'' if unique is None else f'-{unique}'}.delta.parquet"


class DeltaGroup(msgspec.Struct, frozen=True, array_like=True):
    """A row group: the byte range of its core columns, and its versions, newest first."""

    byte_offset: Count
    core_byte_length: Count
    num_rows: Count
    newest: Count
    oldest: Count


class DeltaEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A delta sidecar of the commits ``first`` to ``last``, none of which changes protocol or metadata."""

    file: str
    first: Count
    last: Count
    table_id: str
    schema_hash: str
    size: Count
    footer_offset: Count
    footer_length: Count
    footer_sha256: str
    num_adds: Count
    num_removes: Count
    commits: str
    row_groups: tuple[DeltaGroup, ...]

    @property
    def num_rows(self) -> int:
        """Return the number of file actions in the delta sidecar."""
        return self.num_adds + self.num_removes

    def stale_commit(self, commits: Sequence[LogFile]) -> int | None:
        """Return the first of these commits that differs from the recorded one; None if all match."""
        recorded = base64.b64decode(self.commits)
        for commit in commits:
            place = (commit.version - self.first) * _DIGEST
            if commit.info.etag is None or recorded[place : place + _DIGEST] != _digest(commit):
                return commit.version
        return None

    def check(self) -> None:
        """Raise if the entry contradicts itself."""
        groups = self.row_groups
        versions = [version for group in groups for version in (group.newest, group.oldest)]
        if not (
            1 <= self.first <= self.last
            and self.file.rpartition("/")[0] == FOLDER
            and len(base64.b64decode(self.commits, validate=True)) == (self.last - self.first + 1) * _DIGEST
            and sum(group.num_rows for group in groups) == self.num_rows
            and all(newer >= older for newer, older in pairwise(versions))
            and all(self.first <= version <= self.last for version in versions)
        ):
            message = f"what it says of {self.file} contradicts itself"
            raise SidecarError(message)


class DeltaManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The delta sidecars of a table, in ascending order and without overlapping versions."""

    format_version: int = DELTA_FORMAT
    spans: tuple[DeltaEntry, ...] = ()
    sha256: str = UNSEALED

    def encode(self) -> bytes:
        """Return the sealed bytes of the manifest."""
        data = msgspec.json.encode(msgspec.structs.replace(self, sha256=UNSEALED))
        return sealed(data, _place(data))

    @classmethod
    def decode(cls, data: bytes) -> DeltaManifest:
        """Verify and parse the bytes of a manifest."""
        if len(data) < len(UNSEALED) + _END or not is_sealed(data, _place(data)):
            message = "its digest does not match"
            raise SidecarError(message)
        try:
            manifest = msgspec.json.decode(data, type=cls)
            if manifest.format_version == DELTA_FORMAT:
                for entry in manifest.spans:
                    entry.check()
        except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError) as error:
            message = f"it cannot be decoded: {error}"
            raise SidecarError(message) from error
        if manifest.format_version != DELTA_FORMAT:
            message = f"its format version is {manifest.format_version}, and we read {DELTA_FORMAT}"
            raise SidecarError(message)
        if any(before.last >= after.first for before, after in pairwise(manifest.spans)):
            message = "its delta sidecars overlap"
            raise SidecarError(message)
        return manifest


def commit_digests(commits: Sequence[LogFile]) -> str:
    """Return digests that identify the commits, for an entry."""
    return base64.b64encode(b"".join(map(_digest, commits))).decode()


def _digest(commit: LogFile) -> bytes:
    info = commit.info
    facts = "\0".join(map(str, (info.path, info.size, info.etag, info.last_modified)))
    return hashlib.sha256(facts.encode()).digest()[:_DIGEST]


def _place(data: bytes) -> int:
    """Return the offset of the digest: the value of the last field."""
    return len(data) - _END - len(UNSEALED)


# The Parquet file of a delta sidecar: sidecar rows with a version each, including removes. It keeps all file actions,
# not only the last per file, so any range of versions can be read alone, whatever checkpoint or version is used. Rows
# are in order of precedence: newest commit first; in a commit, adds in log order, then removes.


_OWN = (ColumnRole.VERSION, ColumnRole.REMOVED)


class VersionedLine(msgspec.Struct, frozen=True):
    """An action that is not about a file, with the version of its commit."""

    version: int
    action: LogLine


class _DeltaState(msgspec.Struct, frozen=True):
    """Contents of a delta sidecar besides rows: its commits, and their other actions as compressed JSON lines."""

    first: int
    last: int
    actions: str = ""
    actions_length: int = 0


def delta_layout(schema: TableSchema, stats: Iterable[Column]) -> SidecarLayout:
    """Return the layout of delta sidecars: the columns of an unsorted sidecar, plus version and kind."""
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
    """The file actions of a commit."""

    version: int
    adds: list[Add]
    removes: list[Remove]

    def __len__(self) -> int:
        return len(self.adds) + len(self.removes)


def action_rows(commits: Sequence[CommitActions], layout: SidecarLayout, schema: TableSchema) -> pa.RecordBatch:
    """Return the actions of commits, newest first, as rows: for each commit its adds, then the keys of its removes."""
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
    """Write file actions, newest first, and other actions, ascending; return the file and its entry."""
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
                _DeltaState(first, last, base64.b64encode(pa.compress(text, "zstd", asbytes=True)).decode(), len(text))
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
    """Return the schema hash for entries and footers."""
    return hashlib.sha256(metadata.schema_string.encode()).hexdigest()


def versions_of(rows: pa.Table | pa.RecordBatch, layout: SidecarLayout) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the version of each row."""
    column = one_array(rows.column(layout.name_of(ColumnRole.VERSION)))
    if column.null_count:
        message = "it has rows without a version"
        raise SidecarError(message)
    return np.frombuffer(column.buffers()[1], np.int64, len(column), column.offset * 8)


def other_actions(footer: PartFooter, first: int, last: int) -> list[VersionedLine]:
    """Return the non-file actions of these versions, oldest first; raise unless the file covers the versions."""
    try:
        state = msgspec.json.decode(footer.state.state, type=_DeltaState)
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
        body = {}  # an unknown action only counts as present
    return msgspec.json.encode({"version": line.version, "action": body}) + b"\n"
