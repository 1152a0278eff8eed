"""``TimestampCheck``: detects typed timestamp bounds that a writer got wrong.

Nanoseconds in 64 bits end in 2262. A writer that reads Spark's INT96 timestamps as nanoseconds and writes the result
turns 9999-12-31 into a day in 1816. Such a bound does not look wrong. The bounds in the JSON statistics show the error,
if there are any; otherwise the data files with the most extreme bounds do.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import msgspec
import pyarrow as pa

from lazydelta.data_files.reader import RowReader
from lazydelta.errors import LazyDeltaError
from lazydelta.log.checkpoint.reader import CheckpointReader, StatsWanted
from lazydelta.log.file_batch import FileBatch
from lazydelta.log.snapshot import LogSnapshot
from lazydelta.protocol.schema import Column
from lazydelta.runtime import compute as pc
from lazydelta.runtime.arrays import typed_scalar
from lazydelta.scan.file import data_files
from lazydelta.stats import is_timestamp, ranges_from_json, ranges_from_parsed

__all__ = ["TimestampCheck", "false_timestamps", "without_bounds"]

logger = logging.getLogger(__name__)

_MILLISECOND = 1000
_DATA_FILES = 4  # to check per column: a writer that overflows does so for all values out of range


@dataclass(slots=True)
class TimestampCheck:
    """Checks batches of files of one snapshot. ``wrong`` holds the columns that cannot be trusted, with the reason."""

    snapshot: LogSnapshot
    wrong: dict[Column, str] = field(default_factory=dict)
    _looked: set[tuple[Column, str]] = field(default_factory=set)

    def look(self, batch: FileBatch) -> None:
        """Compare the typed bounds of a batch with its JSON statistics, or else with the data of a few files."""
        typed = batch.parsed_stats
        columns = [column for column in self.snapshot.schema.leaves() if self._is_open(column)]
        if typed is None or not columns:
            return
        texts = None if batch.json_stats is None else ranges_from_json(batch.json_stats, columns)
        stored = ranges_from_parsed(typed, columns)
        for column in columns:
            mine, text = stored.column(column), None if texts is None else texts.column(column)
            if mine is None:
                continue
            for end in ("min", "max"):
                bound, said = getattr(mine, end), None if text is None else getattr(text, end)
                if bound is None or bound.null_count == len(bound):
                    continue
                if said is not None and said.null_count < len(said):
                    self._compare(column, batch, end, bound, said)
                elif column not in self.wrong:
                    self._look_into_data(column, batch, end, bound)

    def _is_open(self, column: Column) -> bool:
        return is_timestamp(column) and not column.is_partition and column not in self.wrong

    def _compare(self, column: Column, batch: FileBatch, end: str, bound: pa.Array, said: pa.Array) -> None:
        apart = pc.abs(pc.subtract(_as_integers(bound), _as_integers(said)))
        differs = pc.fill_null(pc.greater_equal(apart, _LIMIT), _FALSE)
        if differs.true_count and column not in self.wrong:
            row = differs.index(_TRUE).as_py()
            path, typed, text = batch.path[row].as_py(), _shown(bound[row]), _shown(said[row])
            self.wrong[column] = f"{path} has the {end}imum {typed} of {column.name} beside the text {text}"

    def _look_into_data(self, column: Column, batch: FileBatch, end: str, bound: pa.Array) -> None:
        extreme = pc.sort_indices(bound, sort_keys=[("", "ascending" if end == "min" else "descending")])
        rows = [row for row in extreme[:_DATA_FILES].to_pylist() if bound[row].is_valid]
        for row in rows:
            path = batch.path[row].as_py()
            if (column, f"{end} {path}") in self._looked:
                continue
            self._looked.add((column, f"{end} {path}"))
            found = self._extreme_value(batch.slice(row, 1), column, end)
            if found is None:
                continue
            logged, value = bound[row].value, found.value
            if value < logged if end == "min" else value >= logged + _MILLISECOND:
                self.wrong[column] = (
                    f"{path} has the {end}imum {_shown(bound[row])} of {column.name} and holds {_shown(found)}"
                )
                return

    def _extreme_value(self, file: FileBatch, column: Column, end: str) -> pa.Scalar | None:
        """Return the smallest or largest value in a data file; None if it has none or cannot be read."""
        store, schema = self.snapshot.store, self.snapshot.schema
        reader = RowReader(store, schema, columns=[column.path[0]])
        found: list[pa.Scalar] = []
        try:
            for each in data_files(file, store, schema):
                for rows in reader.read(each.to_read()):
                    values = rows.column(0)
                    for name in column.path[1:]:
                        values = pc.struct_field(values, name)
                    found.append(pc.min_max(values)[end])
        except LazyDeltaError:
            return None  # not reported here: reading its rows raises the error
        known = [each for each in found if each.is_valid]
        if not known:
            return None
        return min(known, key=_number) if end == "min" else max(known, key=_number)


def false_timestamps(snapshot: LogSnapshot) -> Sequence[Column]:
    """Return the columns whose typed bounds in the checkpoint are wrong, judging by its first files.

    For callers that copy typed bounds. If there are JSON statistics they use those, so no bound is wrong for them.
    """
    checkpoint = snapshot.segment.checkpoint
    if checkpoint is None or not any(map(is_timestamp, snapshot.schema.leaves())):
        return ()
    check = TimestampCheck(snapshot)
    with closing(CheckpointReader(snapshot.store, checkpoint).files(StatsWanted())) as batches:
        first = next(batches, None)
    if first is None or first.parsed_stats is None:
        return ()
    if first.json_stats is None or first.json_stats.null_count == len(first):
        check.look(msgspec.structs.replace(first, json_stats=None))
    for column, reason in check.wrong.items():
        logger.warning("the bounds of %s are left out: %s", column.name, reason)
    return tuple(check.wrong)


def without_bounds(batch: FileBatch, columns: Iterable[Column]) -> FileBatch:
    """Return a batch without the typed bounds of ``columns``. Counts are kept."""
    paths = [(end, *column.physical_path) for column in columns for end in ("minValues", "maxValues")]
    if batch.parsed_stats is None or not paths:
        return batch
    return msgspec.structs.replace(batch, parsed_stats=_without(batch.parsed_stats, paths))


def _without(structs: pa.StructArray, paths: Sequence[tuple[str, ...]]) -> pa.StructArray:
    names, children = [], []
    for index, each in enumerate(structs.type):
        below = [path[1:] for path in paths if path[0] == each.name]
        if () in below:
            continue
        child = pc.struct_field(structs, [index])
        names.append(each.name)
        children.append(_without(child, below) if below and pa.types.is_struct(child.type) else child)
    if not children:
        return pa.nulls(len(structs), pa.struct([]))
    return pa.StructArray.from_arrays(children, names=names, mask=structs.is_null())


def _number(value: pa.Scalar) -> int:
    number: int = value.value
    return number


def _as_integers(bound: pa.Array) -> pa.Array:
    return bound.view(pa.int64())


def _shown(value: pa.Scalar) -> str:
    return str(pc.cast(value, pa.string()))


_LIMIT = typed_scalar(_MILLISECOND, pa.int64())
_TRUE, _FALSE = typed_scalar(value=True, kind=pa.bool_()), typed_scalar(value=False, kind=pa.bool_())
