"""Statistics of files that are known by path."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from lazydelta import compute as pc
from lazydelta.arrays import int64_array, numpy_of, string_array
from lazydelta.errors import DataFileError
from lazydelta.log.file_batch import FileBatch
from lazydelta.scan.file_stream import FileStream
from lazydelta.scan.files_schema import to_record_batch
from lazydelta.scan.named_files import NamedFiles
from lazydelta.scan.request import ScanRequest, ScanStrategy
from lazydelta.types.schema import Column, TableSchema

__all__ = ["stats_of_files"]


def stats_of_files(
    paths: Sequence[str],
    columns: tuple[Column, ...],
    schema: TableSchema,
    scan: Callable[[ScanRequest], FileStream],
    *,
    missing: str,
) -> pa.Table:
    """Return a row for each path in the order given: ``num_records``, and the statistics of ``columns``.

    Files are looked for where their paths say that they are, and everywhere only if one of them is not there. A path
    that is no active file is an error, or a row of nulls where ``missing`` is ``"null"``.
    """
    found = _Found(paths, to_record_batch(FileBatch.from_adds([]), schema, columns).schema)
    everywhere = ScanRequest(strategy=ScanStrategy.FORWARD, stats_columns=columns)
    # The tail is read whole before anything of the base is: a file may have been written again there.
    near = replace(everywhere, strategy=ScanStrategy.REVERSE, named=NamedFiles.of(paths, schema))
    if paths and found.take_from(scan(near)):
        found.take_from(scan(everywhere))
    if missing != "null":
        found.check()
    return found.table(paths)


class _Found:
    """The rows of a scan that belong to paths, each with its path's place among these."""

    def __init__(self, paths: Sequence[str], schema: pa.Schema) -> None:
        self._wanted = string_array(list(dict.fromkeys(paths)))
        self._rows = np.full(len(self._wanted), -1, np.int64)
        self._batches: list[pa.RecordBatch] = []
        self._count = 0
        self._schema = schema

    def take_from(self, files: FileStream) -> bool:
        """Take what is wanted, until all is found; tell whether the rest may be where the scan did not look."""
        with files:
            for batch in files.batches():
                at = pc.index_in(batch.column("path"), value_set=self._wanted)
                rows = batch.filter(at.is_valid())
                if rows.num_rows:
                    places = numpy_of(at.drop_null().cast(pa.int64()))
                    self._rows[places] = np.arange(self._count, self._count + rows.num_rows)
                    self._batches.append(rows)
                    self._count += rows.num_rows
                if (self._rows >= 0).all():
                    return False
            return files.metrics.row_groups_pruned > 0

    def check(self) -> None:
        """Raise if a path was not found."""
        lost = [self._wanted[int(index)].as_py() for index in np.flatnonzero(self._rows < 0)]
        if lost:
            more = "" if len(lost) == 1 else f" (and {len(lost) - 1} more)"
            message = f"{lost[0]!r}{more} is not an active file of this version"
            raise DataFileError(message, path=lost[0], hint="give paths as logged, or missing='null' for rows of nulls")

    def table(self, paths: Sequence[str]) -> pa.Table:
        """Return the rows in the order of ``paths``, nulls for what was not found."""
        where = dict(zip(self._wanted.to_pylist(), self._rows.tolist(), strict=True))
        order = int64_array([None if where[path] < 0 else where[path] for path in paths])
        names = [name for name in self._schema.names if name == "num_records" or "." in name]
        rows = pa.Table.from_batches(self._batches, schema=self._schema)
        return pa.table({"path": string_array(list(paths)), **{name: rows.column(name).take(order) for name in names}})
