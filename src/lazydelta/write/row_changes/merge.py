"""MERGE: update, delete and insert rows of a table by comparing them with other rows, in one commit.

The source is loaded into DuckDB, which spills what exceeds the memory budget. The log leaves out the files that can
hold no match: their ranges and partition values are compared with those of the source's keys. Of the other files, the
columns that the conditions name are read and joined. Only files with changed rows are read whole and copied; the rows
that stay as they are never pass through DuckDB.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from lazydelta.data_files.reader import RowReader
from lazydelta.errors import (
    CommitConflictError,
    LazyDeltaError,
    OptionError,
    SchemaMismatchError,
    TableNotFoundError,
    WriteError,
)
from lazydelta.log.checksum.writer import state_at
from lazydelta.predicates import Predicate, conjunction, parse_predicate
from lazydelta.predicates.binding import disjunction
from lazydelta.protocol.actions import Metadata
from lazydelta.protocol.properties import TableProperties
from lazydelta.protocol.schema import TableSchema
from lazydelta.runtime import compute as pc
from lazydelta.runtime.arrays import boolean_array, from_numpy, typed_scalar
from lazydelta.runtime.threads import in_parallel
from lazydelta.sidecar.handle import Snapshot, TableHandle
from lazydelta.write.commit import removal_of
from lazydelta.write.computed_columns import ComputedColumns, generated_columns
from lazydelta.write.copied_rows import copy_rows, stored_columns, writer_of_copies
from lazydelta.write.data_files import DataFileWriter
from lazydelta.write.evolution import cast_failure
from lazydelta.write.identity import lacking, with_used
from lazydelta.write.plan import WritePlan, schema_of
from lazydelta.write.row_changes.choice import RowChoice, TouchedFile, candidate_files
from lazydelta.write.row_changes.merge_clauses import BoundClause, Bounds, MergeClause, MergeNames, canonical, quoted
from lazydelta.write.row_changes.merge_source import BYTES_AT_ONCE, ROW_NUMBER, ROWS_AT_ONCE, MergeSource, of_keys
from lazydelta.write.row_changes.rewriter import ChangeFiles, VectorRecorder, records_changes
from lazydelta.write.row_changes.statements import DeleteSettings, beginnings
from lazydelta.write.table_rows import TableRows
from lazydelta.write.transaction import Transaction

__all__ = ["MergeCounts", "MergeRequest", "MergeResult", "merge_rows"]

_log = logging.getLogger(__name__)

_FILE, _PLACE, _INDEX = "__lazydelta_file", "__lazydelta_place", "__lazydelta_index"
_THREADS = 4
# A larger file is read batch by batch, as they are joined.
_SMALL = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeRequest:
    """A MERGE: the condition under which rows match, and the clauses.

    ``adds_columns`` adds columns of the source that a clause sets and the target lacks. With ``nulls_for_misfits`` a
    value that its column cannot hold becomes null instead of an error. ``most_spilled`` bounds the bytes on disk.
    """

    predicate: str
    clauses: tuple[MergeClause, ...]
    source_alias: str | None = None
    target_alias: str | None = None
    adds_columns: bool = False
    nulls_for_misfits: bool = False
    most_spilled: int | None = None

    def of_kind(self, kind: str) -> list[MergeClause]:
        """Return the clauses of one kind, in order."""
        return [each for each in self.clauses if each.kind == kind]

    @property
    def only_inserts(self) -> bool:
        """Return whether no row of the target can change."""
        return all(each.action == "insert" for each in self.clauses)

    def parameters(self) -> dict[str, Any]:
        """Return the operation parameters for the log, as Delta-Spark and delta-rs name them."""
        found: dict[str, Any] = {"predicate": self.predicate, "mergePredicate": canonical(self.predicate)}
        for kind, name in (
            ("matched", "matchedPredicates"),
            ("not matched", "notMatchedPredicates"),
            ("not matched by source", "notMatchedBySourcePredicates"),
        ):
            clauses = self.of_kind(kind)
            found[name] = [
                {"actionType": each.action}
                | ({} if each.predicate is None else {"predicate": canonical(each.predicate)})
                for each in clauses
            ]
        return found


@dataclass(slots=True)
class MergeCounts:
    """What a merge did. ``files_skipped`` is None if the log does not have the number of files."""

    source_rows: int = 0
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    copied: int = 0
    files_scanned: int = 0
    files_skipped: int | None = None
    files_added: int = 0
    files_removed: int = 0
    bytes_added: int = 0
    bytes_removed: int = 0
    change_files: int = 0
    vectors: int = 0
    scan_seconds: float = 0.0
    rewrite_seconds: float = 0.0

    @property
    def output_rows(self) -> int:
        """Return the number of rows in the new files."""
        return self.inserted + self.updated + self.copied

    def metrics(self) -> dict[str, str]:
        """Return the operation metrics of the commit, under Delta-Spark's names."""
        found = {
            "numSourceRows": self.source_rows,
            "numTargetRowsInserted": self.inserted,
            "numTargetRowsUpdated": self.updated,
            "numTargetRowsDeleted": self.deleted,
            "numTargetRowsCopied": self.copied,
            "numOutputRows": self.output_rows,
            "numTargetFilesAdded": self.files_added,
            "numTargetFilesRemoved": self.files_removed,
            "numTargetBytesAdded": self.bytes_added,
            "numTargetBytesRemoved": self.bytes_removed,
            "numTargetChangeFilesAdded": self.change_files,
            "numTargetDeletionVectorsAdded": self.vectors,
            "scanTimeMs": round(self.scan_seconds * 1000),
            "rewriteTimeMs": round(self.rewrite_seconds * 1000),
        }
        return {key: str(value) for key, value in found.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeResult:
    """Result of a merge, or its preview with ``dry_run``. ``version`` is None if nothing was committed."""

    dry_run: bool
    read_version: int
    counts: MergeCounts
    seconds: float
    metadata: Metadata = field(repr=False)
    version: int | None = None


def merge_rows(
    handle: TableHandle,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    request: MergeRequest,
    settings: DeleteSettings | None = None,
    *,
    dry_run: bool = False,
) -> MergeResult:
    """Merge rows into a table. ``batches`` have ``schema`` and are read once, whatever other writers commit meanwhile.

    A row of the target that several rows of the source would change is an error, unless the only clause for matches
    deletes them without a condition. If nothing changes, nothing is committed. The caller starts the maintenance that
    follows a commit.
    """
    settings, begun = settings or DeleteSettings(), time.monotonic()
    _check_clauses(request)
    with MergeSource(schema, settings.recipe.memory_budget, request.most_spilled) as source:
        # Names and types are checked before a row of the source is read.
        _check_names(handle, schema, request)
        source.load(batches)
        for remaining in beginnings(settings):
            try:
                return _attempt(handle, source, request, settings, begun, dry_run=dry_run)
            except CommitConflictError as error:
                if not remaining:
                    raise
                _log.info("the merge begins again: %s", error)
    raise AssertionError("the last attempt returns or raises")  # pragma: no cover


def _check_clauses(request: MergeRequest) -> None:
    if not request.clauses:
        raise OptionError(
            "The merge has no clause, and would change nothing", hint="add a clause such as when_matched_update_all()"
        )


def _check_names(handle: TableHandle, schema: pa.Schema, request: MergeRequest) -> None:
    with _begun(handle, request) as transaction:
        _Bound.of(transaction, schema, request, DeleteSettings())


def _begun(handle: TableHandle, request: MergeRequest) -> Transaction:
    transaction = Transaction.begin(handle, operation="MERGE", parameters=request.parameters())
    if transaction.snapshot is None:
        transaction.close()
        message = f"There is no Delta table at {handle.uri} to merge rows into"
        raise TableNotFoundError(message, path=handle.uri, hint="check the URI, or create the table first")
    return transaction


@dataclass(frozen=True, slots=True)
class _Bound:
    """A merge bound to one version of the table, whose columns may grow in the same commit."""

    snapshot: Snapshot
    plan: WritePlan
    metadata: Metadata
    table: TableSchema
    names: MergeNames
    clauses: tuple[BoundClause, ...]

    @classmethod
    def of(cls, transaction: Transaction, source: pa.Schema, request: MergeRequest, settings: DeleteSettings) -> _Bound:
        snapshot = transaction.snapshot
        if snapshot is None:
            raise AssertionError("a merge begins with a table")  # pragma: no cover
        aliases = (request.target_alias, request.source_alias)
        incoming = snapshot.schema.to_arrow()
        plan = replace(WritePlan.of(schema_mode="merge"), note=settings.note).settled(snapshot, incoming)
        if request.adds_columns:
            added = MergeNames(snapshot.schema, source, *aliases).added(request.clauses)
            for name in added:
                incoming = incoming.append(source.field(name))
        metadata = plan.stage(transaction, incoming, inserts=False)
        table = schema_of(metadata)
        names = MergeNames(table, source, *aliases)
        names.sql(request.predicate)
        clauses = tuple(names.bound(number, each) for number, each in enumerate(request.clauses))
        computed = ComputedColumns(table, plan.made_columns)
        for each in clauses:
            if each.clause.action == "insert":
                computed.check_inserted(list(each.values))
            else:
                computed.check_updated(list(each.values))
        return cls(snapshot, plan, metadata, table, names, clauses)

    def of_kind(self, kind: str) -> list[BoundClause]:
        return [each for each in self.clauses if each.clause.kind == kind]

    def used_columns(self, expressions: Iterable[Any]) -> list[str]:
        """Return the target's columns that some expressions use, in the table's order."""
        used = {name for each in expressions if each is not None for name in each.target}
        return [each.name for each in self.table.fields if each.name in used]


# The files that can hold a match.


def _target_files_where(bound: _Bound, source: MergeSource, request: MergeRequest) -> Predicate | None:
    """Return what the log can leave files out by; None if every file has to be read."""
    others = [each.clause for each in bound.of_kind("not matched by source")]
    table, alternatives = bound.snapshot.schema, [_of_matches(bound, source, request)]
    alternatives += [
        None if each.predicate is None else _bound_to(bound.names.of_target(each.predicate), table) for each in others
    ]
    known = [each for each in alternatives if each is not None]
    return disjunction(known) if len(known) == len(alternatives) else None


def _bound_to(text: str, table: TableSchema) -> Predicate | None:
    try:
        return parse_predicate(text, table)
    except LazyDeltaError:  # DuckDB may understand it; if not, it says so
        return None


def _of_matches(bound: _Bound, source: MergeSource, request: MergeRequest) -> Predicate | None:
    found: list[Predicate] = []
    table = bound.snapshot.schema
    for implied in bound.names.implied(request.predicate):
        made = of_keys(implied, source, table) if isinstance(implied, Bounds) else _bound_to(implied, table)
        if made is not None:
            found.append(made)
    return conjunction(found) if found else None


# One attempt on one version of the table.


def _attempt(
    handle: TableHandle,
    source: MergeSource,
    request: MergeRequest,
    settings: DeleteSettings,
    begun: float,
    *,
    dry_run: bool,
) -> MergeResult:
    counts = MergeCounts(source_rows=source.rows)
    with _begun(handle, request) as transaction:
        bound = _Bound.of(transaction, source.schema, request, settings)
        snapshot = bound.snapshot
        merge = _Merge(transaction, bound, source, request, settings, counts)
        merge.find()
        version = None
        if not dry_run:
            merge.rewrite()
            is_changed = counts.files_removed or counts.files_added or transaction.metadata != snapshot.metadata
            if is_changed:
                transaction.metrics = counts.metrics() | {
                    "executionTimeMs": str(round((time.monotonic() - begun) * 1000))
                }
                version = transaction.commit(max_attempts=settings.max_attempts).version
    return MergeResult(
        dry_run=dry_run,
        read_version=snapshot.version,
        version=version,
        counts=counts,
        seconds=time.monotonic() - begun,
        metadata=bound.metadata,
    )


@dataclass(frozen=True, slots=True)
class _Piece:
    """Rows of a file, from its live row number ``start`` on."""

    file: int
    start: int
    rows: pa.RecordBatch

    def places(self) -> tuple[pa.Array, pa.Array]:
        number = self.rows.num_rows
        places = np.arange(self.start, self.start + number, dtype=np.int64)
        return pa.repeat(typed_scalar(self.file, pa.int32()), number), from_numpy(places)


class _Merge:
    """Finds the rows that match, and writes the files that replace the changed ones."""

    def __init__(
        self,
        transaction: Transaction,
        bound: _Bound,
        source: MergeSource,
        request: MergeRequest,
        settings: DeleteSettings,
        counts: MergeCounts,
    ) -> None:
        self._transaction, self._bound, self._source = transaction, bound, source
        self._request, self._settings, self._counts = request, settings, counts
        self._handle = transaction.handle
        self._files: list[TouchedFile] = []
        self._vectors = VectorRecorder.of(transaction)
        # The changed rows of files that keep their others, and the number of rows read of each.
        self._places: dict[int, list[Any]] = {}
        self._read_rows: dict[int, int] = {}
        self._by_source = bound.of_kind("not matched by source")
        self._matched = bound.of_kind("matched")
        self._inserts = bound.of_kind("not matched")

    # --- which rows match

    def find(self) -> None:
        """Join the rows of the files that can hold a match with the source, and count what the clauses will do."""
        begun, bound, source = time.monotonic(), self._bound, self._source
        snapshot = bound.snapshot
        where = _target_files_where(bound, source, self._request)
        choice = RowChoice(snapshot.schema, where, None)
        self._transaction.rest_on_rows(choice, any_append=False, removes=not self._request.only_inserts)
        with_stats = self._vectors is not None
        self._files = list(candidate_files(snapshot, choice, with_stats=with_stats))
        self._counts.files_scanned = len(self._files)
        known = state_at(snapshot)
        self._counts.files_skipped = None if known is None else known.num_files - len(self._files)
        source.run("DROP TABLE IF EXISTS pairs")
        source.run('CREATE TABLE pairs (file INTEGER, place BIGINT, "row" BIGINT, action INTEGER)')
        predicate = bound.names.sql(self._request.predicate)
        conditions = [each.condition for each in (*self._matched, *self._by_source)]
        columns = bound.used_columns([predicate, *conditions])
        query = self._join(predicate.text)
        for chunk in self._chunks(columns, range(len(self._files)), max(ROWS_AT_ONCE, source.rows)):
            source.run_on(_numbered(chunk), query)
        self._check_duplicates()
        self._count()
        self._counts.scan_seconds = time.monotonic() - begun

    def _join(self, predicate: str) -> str:
        matched, rest = _case(self._matched), _case(self._by_source)
        join = "LEFT JOIN" if self._by_source else "JOIN"
        return (
            f'INSERT INTO pairs SELECT * FROM (SELECT t."{_FILE}", t."{_PLACE}", s."{ROW_NUMBER}" AS "row", '  # noqa: S608
            f'CASE WHEN s."{ROW_NUMBER}" IS NULL THEN {rest} ELSE {matched} END AS action '
            f'FROM rows t {join} s ON ({predicate}\n)) WHERE "row" IS NOT NULL OR action IS NOT NULL'
        )

    def _chunks(self, columns: Sequence[str], numbers: Sequence[int], most_rows: int) -> Iterator[list[_Piece]]:
        """Yield rows of files, several small files together."""
        store, table = self._handle.store, self._bound.table
        reader = RowReader(store, table, columns=columns)
        most_bytes = max(BYTES_AT_ONCE, self._settings.recipe.memory_budget // 8)

        def opened(number: int) -> tuple[int, Iterable[pa.RecordBatch]]:
            add = self._files[number].add
            batches = reader.read(add)
            return number, list(batches) if add.size <= _SMALL else batches

        held: list[_Piece] = []
        rows = size = 0
        with closing(in_parallel(opened, numbers, threads=_THREADS, stop=lambda: None)) as files:
            for done, (number, batches) in enumerate(files):
                if self._settings.progress is not None:
                    self._settings.progress(done, len(numbers))
                start = 0
                for batch in batches:
                    held.append(_Piece(number, start, batch))
                    start += batch.num_rows
                    rows += batch.num_rows
                    size += batch.nbytes
                    if rows >= most_rows or size >= most_bytes:
                        yield held
                        held, rows, size = [], 0, 0
        if held:
            yield held

    def _check_duplicates(self) -> None:
        """Refuse a row that several rows of the source change, unless each deletes it without a condition."""
        changing = [
            each.number for each in self._matched if each.clause.action != "delete" or each.clause.predicate is not None
        ]
        if not changing:
            return
        found = self._source.read(
            'SELECT file, count(*) FROM pairs WHERE "row" IS NOT NULL AND action IS NOT NULL GROUP BY file, place '  # noqa: S608 - numbers
            f"HAVING count(*) > 1 AND bool_or(action IN ({', '.join(map(str, changing))})) LIMIT 1"
        ).to_pylist()
        if found:
            number, count = found[0].values()
            message = (
                f"A row of {self._files[number].add.path} matches {count} rows of the source: duplicate relevant WHEN "
                "MATCHED source rows for one row of the target"
            )
            raise WriteError(message, hint="nothing was committed; keep one row per key in the source")

    def _count(self) -> None:
        """Count the rows that the clauses concern; each row of the target once."""
        by_action = self._source.read(
            "SELECT action, count(*) FROM (SELECT DISTINCT file, place, action FROM pairs WHERE action IS NOT NULL) "
            "GROUP BY action"
        ).to_pylist()
        counts, clauses = self._counts, self._bound.clauses
        for action, number in (each.values() for each in by_action):
            if clauses[action].clause.action == "update":
                counts.updated += number
            else:
                counts.deleted += number
        source = self._source
        source.run("DROP TABLE IF EXISTS fresh")
        case = _case(self._inserts)
        source.run(
            f'CREATE TABLE fresh AS SELECT * FROM (SELECT s."{ROW_NUMBER}" AS "row", {case} AS action FROM s '  # noqa: S608
            f'WHERE NOT EXISTS (FROM pairs p WHERE p."row" = s."{ROW_NUMBER}")) WHERE action IS NOT NULL'
        )
        counts.inserted = source.read("SELECT count(*) FROM fresh").column(0)[0].as_py()

    # --- what replaces them

    def rewrite(self) -> None:
        """Write the new files and stage them, with the removal of the files that they replace."""
        begun, transaction, bound = time.monotonic(), self._transaction, self._bound
        counts, recipe = self._counts, self._settings.recipe
        touched = self._source.read("SELECT DISTINCT file FROM pairs WHERE action IS NOT NULL ORDER BY file")
        numbers: list[int] = touched.column(0).to_pylist()
        changes = ChangeFiles(self._handle.store, bound.table) if numbers and records_changes(transaction) else None
        rows = TableRows(bound.plan, bound.metadata)
        writer = writer_of_copies(
            self._handle.store,
            bound.table,
            TableProperties.of(bound.metadata),
            target_file_size=recipe.target_file_size,
            memory_budget=recipe.memory_budget,
            compression=recipe.compression,
            encoding=recipe.encoding,
        )
        with changes or nullcontext(), writer:
            columns = bound.used_columns(sql for each in bound.clauses for sql in each.values.values())
            for chunk in self._chunks([each.name for each in bound.table.fields], numbers, ROWS_AT_ONCE):
                self._replace(chunk, columns, rows, writer, changes)
            for each in self._inserts:
                self._insert(each, rows, writer, changes)
            adds, noted = writer.close(), [] if changes is None else changes.close()
            transaction.add_own(adds, noted)
            if self._vectors is not None:
                for number, places in self._places.items():
                    add = self._files[number].add
                    self._vectors.record(add, np.concatenate(places), self._read_rows[number])
                counts.vectors = self._vectors.stage(transaction)
        if rows.last_identity >= 0:
            inserts = [each for each in bound.clauses if each.clause.action == "insert"]
            made = {name for each in inserts for name in lacking(bound.table, each.values)}
            transaction.set_metadata(with_used(bound.metadata, made, rows.last_identity))
        now, gone = transaction.deletion_time(), set(numbers)
        for number, file in enumerate(self._files):
            if number in gone:
                transaction.remove_found(removal_of(file.add, now))
                counts.bytes_removed += file.add.size
            else:
                transaction.read(file.add.path)
        counts.files_removed, counts.files_added = len(numbers), len(adds)
        counts.bytes_added, counts.change_files = sum(each.size for each in adds), len(noted)
        counts.rewrite_seconds = time.monotonic() - begun

    def _replace(
        self,
        chunk: list[_Piece],
        columns: Sequence[str],
        as_table: TableRows,
        writer: DataFileWriter,
        changes: ChangeFiles | None,
    ) -> None:
        whole = pa.Table.from_batches([each.rows for each in chunk])
        numbered = _numbered([replace(each, rows=each.rows.select(columns)) for each in chunk])
        index = from_numpy(np.arange(len(whole), dtype=np.int64))
        numbered = numbered.append_column(_INDEX, index)
        stays = np.ones(len(whole), np.bool_)
        for clause in (*self._matched, *self._by_source):
            found = self._source.read(self._changed(clause, chunk), numbered).combine_chunks()
            if not found.num_rows:
                continue
            order = np.argsort(found.column(0).to_numpy(), kind="stable")
            found = found.take(from_numpy(order.astype(np.int64)))
            places = found.column(0).combine_chunks()
            stays[places.to_numpy()] = False
            before = whole.take(places).combine_chunks().to_batches()[0]
            if clause.clause.action == "delete":
                _note(changes, before, "delete")
                continue
            after = as_table(self._set(before, clause, found))
            _note(changes, before, "update_preimage")
            _note(changes, after, "update_postimage")
            writer.write(after)
        start, stored = 0, stored_columns(self._bound.table)
        for piece in chunk:
            kept = stays[start : start + piece.rows.num_rows]
            start += piece.rows.num_rows
            if self._vectors is not None and self._vectors.takes(self._files[piece.file].add):
                self._places.setdefault(piece.file, []).append(np.flatnonzero(~kept) + piece.start)
                self._read_rows[piece.file] = piece.start + piece.rows.num_rows
                continue
            rows = piece.rows if kept.all() else piece.rows.filter(boolean_array(kept))
            self._counts.copied += rows.num_rows
            copy_rows(writer, self._files[piece.file].partition, rows.select(stored))

    def _changed(self, clause: BoundClause, chunk: list[_Piece]) -> str:
        """Return the query for the new values of the rows that a clause changes, with their index in the chunk."""
        names = [f't."{_INDEX}"', *(self._value(name, sql.text) for name, sql in clause.values.items())]
        distinct = "DISTINCT" if clause.clause.action == "delete" else ""
        return (
            f"SELECT {distinct} {', '.join(names)} FROM rows t "  # noqa: S608
            f'JOIN pairs p ON p.file = t."{_FILE}" AND p.place = t."{_PLACE}" '
            f'LEFT JOIN s ON s."{ROW_NUMBER}" = p."row" '
            f"WHERE p.action = {clause.number} AND p.file BETWEEN {chunk[0].file} AND {chunk[-1].file}"
        )

    def _value(self, name: str, text: str) -> str:
        if self._request.nulls_for_misfits:
            empty = pa.Table.from_batches([], pa.schema([self._bound.table.field(name).to_arrow()]))
            kind = self._source.read("SELECT column_type FROM (DESCRIBE rows)", empty).column(0)[0].as_py()
            return f"TRY_CAST(({text}\n) AS {kind}) AS {quoted(name)}"
        return f"({text}\n) AS {quoted(name)}"

    def _set(self, rows: pa.RecordBatch, clause: BoundClause, found: pa.Table) -> pa.RecordBatch:
        """Return rows with the values that an update gives them."""
        for name in clause.values:
            at = rows.schema.get_field_index(name)
            given = rows.schema.field(at)
            column = _fitted(found.column(name).combine_chunks(), given)
            rows = rows.set_column(at, pa.field(name, column.type), column)
        aligned = self._bound.plan.alignment
        if aligned is not None and aligned.partition_column not in clause.values:
            # It is made anew: the timestamp that it is made from may have changed.
            rows = rows.remove_column(rows.schema.get_field_index(aligned.partition_column))
        recomputed = [
            name
            for name in generated_columns(self._bound.table)
            if name not in clause.values and name in rows.schema.names
        ]
        return rows.drop_columns(recomputed) if recomputed else rows

    def _insert(
        self, clause: BoundClause, as_table: TableRows, writer: DataFileWriter, changes: ChangeFiles | None
    ) -> None:
        values = [self._value(name, sql.text) for name, sql in clause.values.items()]
        query = (
            f'SELECT {", ".join(values)} FROM s JOIN fresh f ON f."row" = s."{ROW_NUMBER}" '  # noqa: S608
            f'WHERE f.action = {clause.number} ORDER BY f."row"'
        )
        fields = [self._bound.table.field(name).to_arrow() for name in clause.values]
        for batch in self._source.stream(query):
            arrays = [_fitted(column, each) for column, each in zip(batch.columns, fields, strict=True)]
            rows = as_table(pa.RecordBatch.from_arrays(arrays, names=list(clause.values)))
            _note(changes, rows, "insert")
            writer.write(rows)


def _numbered(chunk: list[_Piece]) -> pa.Table:
    """Return the rows of a chunk with their files and places."""
    batches = []
    for piece in chunk:
        names = [*piece.rows.schema.names, _FILE, _PLACE]
        batches.append(pa.RecordBatch.from_arrays([*piece.rows.columns, *piece.places()], names=names))
    return pa.Table.from_batches(batches)


def _case(clauses: Sequence[BoundClause]) -> str:
    """Return SQL for the number of the first clause whose condition is true, or null."""
    if not clauses:
        return "NULL::INTEGER"
    conditions = ((each.number, "true" if each.condition is None else each.condition.text) for each in clauses)
    whens = "".join(f"WHEN ({text}\n) THEN {number} " for number, text in conditions)
    return f"(CASE {whens}END)"


def _note(changes: ChangeFiles | None, rows: pa.RecordBatch, change: str) -> None:
    if changes is not None:
        changes.note(rows, change, None)


def _fitted(values: pa.Array, wanted: pa.Field) -> pa.Array:
    """Return values in the type of their column. Those that it cannot hold are an error."""
    if values.type == wanted.type:
        return values
    try:
        return pc.cast(values, wanted.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        if pa.types.is_nested(wanted.type):
            return values  # converted field by field when the rows take the table's schema
        message = f"The values of column {wanted.name!r} are {values.type}, which its type {wanted.type} does not hold"
        hint = "nothing was committed; cast them in the merge, as TRY_CAST(… AS …)"
        raise SchemaMismatchError(f"{message}: {cast_failure(error, wanted.type)}", hint=hint) from error
