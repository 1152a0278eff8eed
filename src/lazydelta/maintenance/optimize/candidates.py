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
from lazydelta.log.file_batch import FileBatch
from lazydelta.write.logged_files import LoggedFile, logged_files

__all__ = ["Candidates", "candidates_of"]

_BUCKETS = 64
_IN_MEMORY = 256 << 10


class Candidates:
    """Files by partition; memory is that of a sixty-fourth of them."""

    def __init__(self) -> None:
        self._buckets: dict[int, Any] = {}
        self.count = 0

    def add(self, found: Iterable[LoggedFile]) -> None:
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

    def partitions(self) -> Iterator[list[LoggedFile]]:
        """Yield the files of one partition after the other, in the order in which they were written."""
        decoder = msgspec.json.Decoder(LoggedFile)
        for bucket in self._buckets.values():
            bucket.seek(0)
            by_partition: dict[tuple[str | None, ...], list[LoggedFile]] = {}
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
) -> Iterator[LoggedFile]:
    """Yield the files of a batch that are smaller than ``below`` or have a deletion vector; see `logged_files`."""
    chosen = numpy_of(batch.size) < below
    if batch.deletion_vector is not None:
        chosen |= np.asarray(batch.deletion_vector.is_valid().to_numpy(zero_copy_only=False), np.bool_)
    if chosen.any():
        yield from logged_files(batch.filter(boolean_array(chosen)), partition_columns, counted=counted)
