"""``LoggedFile``: an active file with what it takes to read it, and to remove it in a commit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from lazydelta.log.actions import Add, DeletionVector
from lazydelta.log.file_batch import FileBatch
from lazydelta.stats import stats_ranges

__all__ = ["LoggedFile", "logged_files"]


class LoggedFile(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A file of a snapshot; ``partition`` is in the order of the table, ``num_records`` what the log counts."""

    path: str
    size: int
    modification_time: int
    partition: tuple[str | None, ...]
    partition_values: dict[str, str | None]
    tags: dict[str, str | None] | None
    deletion_vector: DeletionVector | None
    num_records: int | None

    @property
    def live_rows(self) -> int | None:
        """Return how many rows are not deleted, where the log tells."""
        if self.num_records is None or self.deletion_vector is None:
            return self.num_records
        return self.num_records - self.deletion_vector.cardinality

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


def logged_files(batch: FileBatch, partition_columns: Sequence[str], *, counted: bool = True) -> Iterator[LoggedFile]:
    """Yield the files of a batch.

    ``partition_columns`` are those of the log, under their physical names; ``counted`` says that the batch has
    statistics, and so perhaps numbers of rows.
    """
    nothing = [None] * len(batch)
    records = stats_ranges(batch, ()).num_records if counted else None
    rows = zip(
        batch.path.to_pylist(),
        batch.size.to_pylist(),
        batch.modification_time.to_pylist(),
        batch.partition_values.to_pylist(),
        nothing if batch.extra is None else batch.extra.field("tags").to_pylist(),
        nothing if batch.deletion_vector is None else batch.deletion_vector.to_pylist(),
        nothing if records is None else records.to_pylist(),
        strict=True,
    )
    for path, size, modified, values, tags, vector, count in rows:
        logged = dict(values or ())
        yield LoggedFile(
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
