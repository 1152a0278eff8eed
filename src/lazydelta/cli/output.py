"""What a command has to say, apart from how it is said: one renderer for people, one for programs.

Commands hand data to an ``Output``. Streams are handed over as iterators of batches, so that either renderer prints
what is found while the scan goes on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    import pyarrow as pa

    from lazydelta.cli.values import Record

__all__ = ["Column", "Output", "TableInfo"]


class Column(msgspec.Struct, frozen=True):
    """A column of the table; ``type`` is PyArrow's name for it."""

    name: str
    type: str
    nullable: bool


class TableInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Everything ``info`` tells; moments are epoch milliseconds."""

    uri: str
    version: int
    timestamp: int | None
    operation: str | None
    id: str
    name: str | None
    description: str | None
    created_time: int | None
    partition_columns: list[str]
    columns: list[Column]
    min_reader_version: int
    min_writer_version: int
    reader_features: list[str]
    writer_features: list[str]
    properties: dict[str, str | None]
    checkpoint_version: int | None
    tail_commits: int


class Output(Protocol):
    """How a command speaks."""

    def watch(self, describe: Callable[[], str]) -> AbstractContextManager[object]:
        """Show ``describe()`` now and then while the block runs, where somebody would see it."""

    def info(self, info: TableInfo) -> None:
        """Print what is known of a table without looking at its files."""

    def history(self, versions: list[dict[str, Any]]) -> None:
        """Print the provenance of versions."""

    def files(self, batches: Iterable[Iterable[Record]], *, with_counts: bool = False) -> None:
        """Print files, each batch as it comes; ``with_counts`` says that their numbers of rows were asked for."""

    def rows(self, batches: Iterable[pa.RecordBatch], names: list[str]) -> None:
        """Print rows, each batch as it comes; ``names`` are those of the columns, should no batch come."""

    def explanation(self, explanation: dict[str, Any]) -> None:
        """Print the plan of a scan and what it did."""
