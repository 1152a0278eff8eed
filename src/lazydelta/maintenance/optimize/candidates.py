"""``Candidates``: the files that OPTIMIZE may rewrite, gathered by partition without holding all of them.

A scan yields files in the order of the log, and a bin needs those of one partition together. So each is written to one
of a few temporary files by the hash of its partition, and one such file is read at a time.
"""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from lazydelta.arrays import boolean_array, numpy_of
from lazydelta.log.actions import Add, DeletionVector
from lazydelta.log.file_batch import FileBatch
from lazydelta.stats import stats_ranges

__all__ = ["Candidate", "Candidates", "candidates_of"]

_BUCKETS = 64
_IN_MEMORY = 256 << 10


class Candidate(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An active file, with what it takes to read and to remove it; ``partition`` is in the order of the table."""

    path: str
    size: int
    modification_time: int
    partition: tuple[str | None, ...]
    partition_values: dict[str, str | None]
    tags: dict[str, str | None] | None
    deletion_vector: DeletionVector | None
    num_records: int | None

    @property
    def deleted_share(self) -> float:
        """Return which share of the rows is deleted; all of them where it is not known how many there are."""
        if self.deletion_vector is None:
            return 0.0
        if not self.num_records:
            return 1.0
        return min(1.0, self.deletion_vector.cardinality / self.num_records)

    @property
    def live_size(self) -> int:
        """Return about how large the file would be without its deleted rows."""
        if self.deletion_vector is None or not self.num_records:
            return self.size
        return int(self.size * (1 - self.deleted_share))

    def as_add(self) -> Add:
        """Return the file as the log has it, but for its statistics."""
        return Add(
            path=self.path,
            size=self.size,
            modification_time=self.modification_time,
            partition_values=self.partition_values,
            tags=self.tags,
            deletion_vector=self.deletion_vector,
        )


class Candidates:
    """Files by partition; memory is that of a sixty-fourth of them."""

    def __init__(self) -> None:
        self._buckets: dict[int, Any] = {}
        self.count = 0

    def add(self, found: Iterable[Candidate]) -> None:
        """Put files to those of their partition."""
        for each in found:
            number = zlib.crc32(msgspec.json.encode(each.partition)) % _BUCKETS
            bucket = self._buckets.get(number)
            if bucket is None:
                bucket = self._buckets[number] = tempfile.SpooledTemporaryFile(  # noqa: SIM115
                    max_size=_IN_MEMORY, prefix="lazydelta-optimize-"
                )
            bucket.write(msgspec.json.encode(each) + b"\n")
            self.count += 1

    def partitions(self) -> Iterator[list[Candidate]]:
        """Yield the files of one partition after the other, in the order in which they were written."""
        decoder = msgspec.json.Decoder(Candidate)
        for bucket in self._buckets.values():
            bucket.seek(0)
            by_partition: dict[tuple[str | None, ...], list[Candidate]] = {}
            for line in bucket:
                each = decoder.decode(line)
                by_partition.setdefault(each.partition, []).append(each)
            for files in by_partition.values():
                yield sorted(files, key=lambda each: (each.modification_time, each.path))

    def close(self) -> None:
        """Give back memory and temporary files."""
        for bucket in self._buckets.values():
            bucket.close()
        self._buckets.clear()


def candidates_of(
    batch: FileBatch, partition_columns: Sequence[str], below: int, *, counted: bool
) -> Iterator[Candidate]:
    """Yield the files of a batch that are smaller than ``below`` or have a deletion vector.

    ``partition_columns`` are those of the log, under their physical names; ``counted`` says that the batch has
    statistics, and so perhaps numbers of rows.
    """
    chosen = numpy_of(batch.size) < below
    if batch.deletion_vector is not None:
        chosen |= np.asarray(batch.deletion_vector.is_valid().to_numpy(zero_copy_only=False), np.bool_)
    if not chosen.any():
        return
    kept = batch.filter(boolean_array(chosen))
    nothing = [None] * len(kept)
    records = stats_ranges(kept, ()).num_records if counted else None
    rows = zip(
        kept.path.to_pylist(),
        kept.size.to_pylist(),
        kept.modification_time.to_pylist(),
        kept.partition_values.to_pylist(),
        nothing if kept.extra is None else kept.extra.field("tags").to_pylist(),
        nothing if kept.deletion_vector is None else kept.deletion_vector.to_pylist(),
        nothing if records is None else records.to_pylist(),
        strict=True,
    )
    for path, size, modified, values, tags, vector, count in rows:
        logged = dict(values or ())
        yield Candidate(
            path,
            size,
            modified,
            # An empty text is a null, whoever wrote it.
            tuple(logged.get(name) or None for name in partition_columns),
            logged,
            dict(tags) if tags else None,
            None if vector is None else msgspec.convert(vector, DeletionVector),
            count,
        )
