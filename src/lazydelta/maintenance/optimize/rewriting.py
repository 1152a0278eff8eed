"""One bin rewritten: its live rows go from its files to new ones, in order, and nothing is published."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec
import pyarrow as pa

from lazydelta.handle import TableHandle
from lazydelta.log.actions import Add
from lazydelta.log.properties import TableProperties
from lazydelta.maintenance.optimize.bins import Bin
from lazydelta.maintenance.optimize.sorted_rows import sorted_rows
from lazydelta.rows import RowReader
from lazydelta.types.schema import TableSchema
from lazydelta.write.copied_rows import copy_rows, stored_columns, writer_of_copies

__all__ = ["Rewriter", "Rewritten", "dated_in_order"]


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A bin whose rows are in new files, which no commit names yet; ``batches`` were read.

    ``run_again`` is said where an attempt came before that may have left files.
    """

    bin: Bin
    adds: tuple[Add, ...]
    rows: int
    batches: int
    run_again: bool = False


@dataclass(frozen=True, slots=True)
class Rewriter:
    """Rewrites bins of one version of a table; plain data, so that it can be sent to tasks."""

    handle: TableHandle
    schema: TableSchema
    properties: TableProperties
    target: int
    sort_by: tuple[str, ...]
    memory_budget: int
    compression: str = "zstd"

    def within(self, memory_budget: int) -> Rewriter:
        """Return one that has less memory."""
        return replace(self, memory_budget=memory_budget)

    def carrying_credentials(self) -> Rewriter:
        """Return one whose pickles hold the credentials of its table."""
        return replace(self, handle=self.handle.carrying_credentials())

    def rewrite(self, bin_: Bin, family: str = "", *, run_again: bool = False) -> Rewritten:
        """Write the live rows of a bin to new files; if that fails, these are deleted again.

        ``family`` is what the names of the files have in common.
        """
        schema = self.schema
        reader = RowReader(self.handle.store, schema, columns=stored_columns(schema))
        read = _Counted()
        rows = read.through(batch for file in bin_.files for batch in reader.read(file))
        # By a partition column all rows of a bin are in order already.
        keys = [name for name in self.sort_by if name not in schema.partition_columns]
        if keys:
            rows = sorted_rows(rows, keys, self.memory_budget // 2)
        with writer_of_copies(
            self.handle.store,
            schema,
            self.properties,
            target_file_size=self.target,
            memory_budget=self.memory_budget,
            compression=self.compression,
            family=family,
        ) as writer:
            for batch in rows:
                copy_rows(writer, bin_.partition, batch)
            adds = writer.close()
        return Rewritten(
            bin_,
            tuple(msgspec.structs.replace(each, data_change=False) for each in adds),
            writer.num_rows,
            read.batches,
            run_again,
        )


def dated_in_order(rewritten: Sequence[Rewritten], latest: dict[tuple[str | None, ...], int]) -> list[Rewritten]:
    """Return bins whose new files are as old as they are, but of each partition none older than one of a bin before.

    Bins that are rewritten side by side end in any order, and the next run packs neighbours by these times: files that
    changed places would be packed again. ``latest`` are the times given so far.
    """
    dated = list(rewritten)
    for place in sorted(range(len(dated)), key=lambda place: dated[place].bin.place):
        each, adds = dated[place], []
        last = latest.get(each.bin.partition, 0)
        for add in each.adds:
            last = max(add.modification_time, last + 1)  # of two with one time the path would decide, which is random
            adds.append(msgspec.structs.replace(add, modification_time=last))
        latest[each.bin.partition] = last
        dated[place] = replace(each, adds=tuple(adds))
    return dated


class _Counted:
    """Counts batches on their way."""

    def __init__(self) -> None:
        self.batches = 0

    def through(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self.batches += 1
            yield batch
