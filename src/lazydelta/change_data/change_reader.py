"""The changed rows of some versions as a stream of record batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import msgspec
import pyarrow as pa

from lazydelta import compute as pc
from lazydelta.arrays import typed_scalar
from lazydelta.change_data.changed_files import ChangedFile, changed_files
from lazydelta.change_data.version_range import ChangeCommit
from lazydelta.log.snapshot import Snapshot
from lazydelta.pruning import Where, parse_predicate, to_arrow_expression
from lazydelta.rows import DeletedRows, RowReader, read_deletion_vector
from lazydelta.types.schema import Field, Primitive, TableSchema

__all__ = ["ChangeReader"]

_TYPE, _VERSION, _TIME = "_change_type", "_commit_version", "_commit_timestamp"
# What predicates compare with; the rows leave as deltalake has them.
_COMPARED = {_TYPE: "string", _VERSION: "long", _TIME: "timestamp_ntz"}
_GIVEN = {_TYPE: pa.string(), _VERSION: pa.uint64(), _TIME: pa.timestamp("ms")}


class ChangeReader:
    """Reads changed rows under the schema of a snapshot, whatever the schema was when they were changed.

    ``schema`` is that of the batches: the columns asked for, by default all of the table's with ``_change_type``,
    ``_commit_version`` and ``_commit_timestamp`` (UTC).
    """

    def __init__(self, snapshot: Snapshot, *, columns: Sequence[str] | None = None, where: Where = None) -> None:
        self._store = snapshot.store
        self._table = snapshot.schema
        notes = tuple(Field(name, Primitive(kind), True, name) for name, kind in _COMPARED.items())  # noqa: FBT003
        whole = msgspec.structs.replace(self._table, fields=(*self._table.fields, *notes))
        predicate = parse_predicate(where, whole)
        self._filter = None if predicate is None else to_arrow_expression(predicate, whole)
        self._columns = [each.name for each in whole.fields] if columns is None else list(columns)
        self._columns = [whole.field(name).name for name in self._columns]
        self.schema: pa.Schema = pa.schema(
            [pa.field(name, _GIVEN.get(name) or whole.field(name).type.to_arrow()) for name in self._columns]
        )

    def read(self, commits: Sequence[ChangeCommit]) -> Iterator[pa.RecordBatch]:
        """Yield the rows that the commits changed, in their order."""
        for commit in commits:
            for changed in changed_files(self._store, commit.file):
                for batch in self._rows(changed):
                    yield from self._noted(batch, commit)

    def _rows(self, changed: ChangedFile) -> Iterator[pa.RecordBatch]:
        """Yield the table's columns and the change of each row."""
        if changed.change is None:
            yield from self._cdc.read(changed.file)
            return
        if changed.other is None:
            rows = self._plain.read(changed.file)
        else:
            rows = self._difference(changed)
        kind = typed_scalar(changed.change, pa.string())
        for batch in rows:
            yield batch.append_column(pa.field(_TYPE, pa.string()), pa.repeat(kind, batch.num_rows))

    def _difference(self, changed: ChangedFile) -> Iterator[pa.RecordBatch]:
        file, start = changed.file, 0
        old = None if file.deletion_vector is None else self._vector(changed, file.deletion_vector)
        other = self._vector(changed, changed.other)
        # By their places in the file, so the file is read without any vector.
        for batch in self._plain.read(msgspec.structs.replace(file, deletion_vector=None)):
            length = batch.num_rows
            gone = other.keep_mask(start, length)
            if gone is not None:
                mask = pc.invert(gone)
                live = None if old is None else old.keep_mask(start, length)
                kept = batch.filter(mask if live is None else pc.and_(mask, live))
                if kept.num_rows:
                    yield kept
            start += length

    def _vector(self, changed: ChangedFile, vector: object) -> DeletedRows:
        return read_deletion_vector(self._store, vector, data_file=changed.file.path)  # type: ignore[arg-type]

    def _noted(self, batch: pa.RecordBatch, commit: ChangeCommit) -> Iterator[pa.RecordBatch]:
        count = batch.num_rows
        version = pa.repeat(typed_scalar(commit.file.version, pa.int64()), count)
        moment = pa.repeat(typed_scalar(commit.timestamp * 1000, pa.int64()), count).view(pa.timestamp("us"))
        batch = batch.append_column(pa.field(_VERSION, version.type), version)
        batch = batch.append_column(pa.field(_TIME, moment.type), moment)
        kept = batch if self._filter is None else batch.filter(self._filter)
        if kept.num_rows:
            yield kept.select(self._columns).cast(self.schema)

    @cached_property
    def _plain(self) -> RowReader:
        return RowReader(self._store, self._table)

    @cached_property
    def _cdc(self) -> RowReader:
        noted = Field(_TYPE, Primitive("string"), True, _TYPE)  # noqa: FBT003
        fields = (*self._table.fields, noted)
        # The column with the change has no id in any schema; files of change data have names as well.
        mapping = "name" if self._table.column_mapping == "id" else self._table.column_mapping
        return RowReader(self._store, TableSchema(fields, self._table.partition_columns, mapping))
