"""Rows in the order of some columns, in bounded memory: sorted runs on disk, merged a piece at a time."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from lazydelta import compute as pc
from lazydelta.arrays import boolean_array, from_numpy
from lazydelta.errors import OptionError, UnknownColumnError
from lazydelta.types.schema import TableSchema

__all__ = ["check_sort_columns", "sorted_rows"]

_PIECE_ROWS = 16_384


def check_sort_columns(columns: Sequence[str], schema: TableSchema) -> tuple[str, ...]:
    """Return the columns to sort by as the table spells them; those that have no order are refused."""
    if isinstance(columns, str):
        raise OptionError("The columns to sort by are a list of names, not a text", hint=f"write [{columns!r}]")
    known = {each.name.lower(): each for each in schema.fields}
    found: list[str] = []
    for name in columns:
        field = known.get(name.lower())
        if field is None:
            message = f"The table has no column {name!r} to sort by"
            raise UnknownColumnError(message, hint=f"it has {', '.join(each.name for each in schema.fields[:20])}")
        kind = field.to_arrow().type
        if pa.types.is_nested(kind):
            message = f"Rows cannot be sorted by the column {field.name!r} of type {kind}"
            raise OptionError(message, hint="sort by columns of primitive types")
        found.append(field.name)
    return tuple(found)


def sorted_rows(batches: Iterable[pa.RecordBatch], columns: Sequence[str], memory: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows in the order of ``columns``, nulls last; about ``memory`` bytes are held at once."""
    keys = [(name, "ascending") for name in columns]
    with ExitStack() as files:
        runs: list[Iterator[pa.RecordBatch]] = []
        held: list[pa.RecordBatch] = []
        size = 0
        for batch in batches:
            held.append(batch)
            size += batch.nbytes
            if size >= memory // 2:
                runs.append(_spilled(_sorted(pa.Table.from_batches(held), keys), files))
                held, size = [], 0
        rest = _sorted(pa.Table.from_batches(held), keys) if held else None
        del held
        if not runs:
            yield from () if rest is None else rest.to_batches(_PIECE_ROWS)
            return
        if rest is not None:
            runs.append(iter(rest.to_batches(_PIECE_ROWS)))
        yield from _merged(runs, keys)


def _sorted(table: pa.Table, keys: list[tuple[str, str]]) -> pa.Table:
    return table.take(pc.sort_indices(table, sort_keys=keys)).combine_chunks()


def _spilled(run: pa.Table, files: ExitStack) -> Iterator[pa.RecordBatch]:
    file = files.enter_context(tempfile.TemporaryFile(prefix="lazydelta-optimize-"))  # noqa: SIM115
    with pa.ipc.new_stream(file, run.schema) as writer:
        writer.write_table(run, max_chunksize=_PIECE_ROWS)
    file.seek(0)
    return iter(pa.ipc.open_stream(file))


@dataclass(slots=True)
class _Run:
    """A sorted run: the rows of it that are in memory, and whether more are to come."""

    rest: Iterator[pa.RecordBatch]
    rows: pa.Table | None = None
    is_over: bool = False

    def load(self) -> None:
        if not self.is_over and (self.rows is None or not self.rows.num_rows):
            piece = next(self.rest, None)
            self.is_over = piece is None
            self.rows = None if piece is None else pa.Table.from_batches([piece])


def _merged(runs: Sequence[Iterator[pa.RecordBatch]], keys: Any) -> Iterator[pa.RecordBatch]:
    """Merge runs: of what is in memory, all that stands before the first end of a run's piece is final."""
    waiting = [_Run(each) for each in runs]
    while True:
        for run in waiting:
            run.load()
        waiting = [run for run in waiting if run.rows is not None and run.rows.num_rows]
        if not waiting:
            return
        tables = [run.rows for run in waiting if run.rows is not None]
        together = pa.concat_tables(tables)
        order = pc.sort_indices(together, sort_keys=keys).to_numpy()
        owners = np.repeat(np.arange(len(tables)), [each.num_rows for each in tables])[order]
        # Where the last row of each piece stands; beyond the first such place its run may have rows to come.
        last = len(order) - 1 - np.array([np.argmax(owners[::-1] == number) for number in range(len(tables))])
        final = int(last.min()) + 1
        yield from together.take(from_numpy(order[:final].astype(np.int64))).combine_chunks().to_batches()
        stays = np.ones(len(order), np.bool_)
        stays[order[:final]] = False
        start = 0
        for run, rows in zip(waiting, tables, strict=True):
            run.rows = rows.filter(boolean_array(stays[start : start + rows.num_rows]))
            start += rows.num_rows
