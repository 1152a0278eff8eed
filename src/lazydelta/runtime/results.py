"""``ArrowStream``: what every stream of files or rows offers, whichever part of lazydelta produces its batches."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn, Self

import pyarrow as pa

from lazydelta.errors import no_attribute, require
from lazydelta.runtime.threads import ClosesItself

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

__all__ = ["ArrowStream"]

_SHOWN_ROWS = 20
# What users of DuckDB, Polars, pandas and PyArrow try, and what a stream has.
_INSTEAD = {
    "arrow": "to_arrow()",
    "df": "to_pandas()",
    "fetchall": "to_list()",
    "fetchdf": "to_pandas()",
    "fetchone": "first()",
    "filter": "where=…, when the stream is made",
    "head": "limit=…, when the stream is made",
    "limit": "limit=…, when the stream is made",
    "num_rows": "count()",
    "pl": "to_polars()",
    "select": "columns=[…], when the stream is made",
    "shape": "count() and columns",
    "to_dict": "to_list()",
    "to_dicts": "to_list()",
    "to_pylist": "to_list()",
    "to_table": "to_arrow()",
}


class ArrowStream(ClosesItself):
    """A single-use stream of Arrow record batches that can be taken as a table, a frame or a list.

    It has the Arrow stream interface: ``pyarrow.table(stream)``, ``polars.DataFrame(stream)`` and DuckDB's
    ``FROM stream`` read it. Each of these consumes the stream, and nothing is read before the first of them.
    """

    if TYPE_CHECKING:

        @property
        def schema(self) -> pa.Schema:
            """The Arrow schema of the batches."""

    else:

        def __getattr__(self, name: str) -> NoReturn:
            raise no_attribute(f"{type(self).__name__!r} object", name, _INSTEAD)

        def __len__(self) -> NoReturn:
            raise TypeError(f"a {type(self).__name__} has no length before it is read; use count(), or to_list()")

        def __bool__(self) -> bool:
            return True

    @abstractmethod
    def _export(self) -> Iterator[pa.RecordBatch]:
        """Return the batches. The stream begins with the first of them, not with this call."""

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self.schema.names)

    def to_reader(self) -> pa.RecordBatchReader:
        """Return a PyArrow reader, which closes the stream when it is closed or dropped."""
        return pa.RecordBatchReader.from_batches(self.schema, self._export())

    def read_all(self) -> pa.Table:
        """Return everything as a PyArrow table."""
        return pa.Table.from_batches(self._export(), schema=self.schema)

    def to_arrow(self) -> pa.Table:
        """Return everything as a PyArrow table."""
        return self.read_all()

    def to_pandas(self, **options: Any) -> pd.DataFrame:
        """Return everything as a pandas data frame. ``options`` are those of ``pyarrow.Table.to_pandas``."""
        require("pandas", "pandas")
        return self.read_all().to_pandas(**options)

    def to_polars(self) -> pl.DataFrame:
        """Return everything as a Polars data frame."""
        require("polars", "polars")
        import polars as pl  # noqa: PLC0415 - optional, and slow to import

        return pl.DataFrame(self.read_all())

    def to_list(self) -> list[Any]:
        """Return everything as a list of dictionaries."""
        rows: list[Any] = self.read_all().to_pylist()
        return rows

    def first(self) -> Any:
        """Return the first row as a dictionary, or None if there is none, and close the stream."""
        with self:
            for batch in self._export():
                if batch.num_rows:
                    return batch.slice(0, 1).to_pylist()[0]
        return None

    def count(self) -> int:
        """Return the number of rows without keeping any."""
        return sum(batch.num_rows for batch in self._export())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Export the batches through the Arrow C stream interface."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> object:
        """Export the schema through the Arrow C schema interface."""
        return self.schema.__arrow_c_schema__()

    def peek(self) -> pa.RecordBatch | None:
        """Return the first rows if that does not consume the stream; only results of queries have some."""
        return None

    def __repr__(self) -> str:
        shown = ", ".join(f"{field.name}: {field.type}" for field in self.schema)
        return f"{type(self).__name__}({shown})"

    def _repr_html_(self) -> str:
        from lazydelta.runtime.display import preformatted, table_html  # noqa: PLC0415 - for notebooks only

        first = self.peek()
        if first is not None:
            rows = pa.Table.from_batches([first.slice(0, _SHOWN_ROWS)])
            cut = (
                f"the first {rows.num_rows} rows; to_pandas() or to_polars() returns all"
                if first.num_rows > _SHOWN_ROWS
                else ""
            )
            return table_html(rows, cut)
        explain = getattr(self, "explain", None)
        return preformatted(repr(self) if explain is None else f"{self!r}\n\n{_plan_text(explain())}")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        import asyncio  # noqa: PLC0415 - as below

        await asyncio.to_thread(self.close)

    def __aiter__(self) -> Any:
        return self._in_threads()

    async def _in_threads(self) -> Any:
        import asyncio  # noqa: PLC0415 - callers that await have loaded it; others need not

        batches = self._export()
        while True:
            try:
                batch = await asyncio.to_thread(next, batches, None)
            except asyncio.CancelledError:
                self.close()
                raise
            if batch is None:
                return
            yield batch


def _plan_text(explained: Any) -> str:
    """Return a plan line by line: what was decided, without the counters, which are zero before the stream is read."""
    plan = explained.get("plan", explained) if isinstance(explained, dict) else explained.plan
    shown = {name: value for name, value in plan.items() if value not in (None, [], "")}
    width = max(map(len, shown), default=0)
    return "\n".join(f"{name.replace('_', ' '):>{width}}  {value}" for name, value in shown.items())
