"""``ArrowStream``: what every stream of files or rows offers, whichever part of lazydelta produces its batches."""

from __future__ import annotations

import base64
import html
import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeAlias

import pyarrow as pa

from lazydelta.errors import require
from lazydelta.missing_names import OF_A_STREAM, AnswersNames
from lazydelta.runtime.threads import ClosesItself

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

__all__ = [
    "ArrowStream",
    "Record",
    "bar_chart",
    "bytes_text",
    "facts_html",
    "plain",
    "preformatted",
    "records",
    "table_html",
    "text_table",
]


# Convert Arrow values to plain JSON values: numbers, strings, booleans, null, lists and objects.


Record: TypeAlias = dict[str, Any]


def records(batch: pa.RecordBatch) -> Iterator[Record]:
    """Yield the rows of a batch as dictionaries of plain values."""
    names = batch.schema.names
    if not names:
        return iter([{} for _ in range(batch.num_rows)])
    columns = [_column(column) for column in batch.columns]
    return (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))


def plain(value: object) -> Any:
    """Return a Python value in a form that JSON can hold."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {_key(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value)


def _column(column: pa.Array) -> list[Any]:
    kind = column.type
    if column.null_count == len(column):
        return [None] * len(column)
    if pa.types.is_string(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        values: list[Any] = column.to_pylist()
        return values
    # Converts nested values by their parts: a third of the time of `to_pylist`, and inner maps become objects too.
    if pa.types.is_map(kind):
        keys, items = (_column(_referenced_part(part, column.offsets)) for part in (column.keys, column.items))
        found: list[Any] = [
            dict(zip(map(_key, keys[span]), items[span], strict=True)) for span in _spans(column.offsets)
        ]
    elif pa.types.is_struct(kind):
        found = _structs(column)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        values = _column(_referenced_part(column.values, column.offsets))
        found = [values[span] for span in _spans(column.offsets)]
    else:
        return [plain(each) for each in _python_values(column)]
    if column.null_count:
        return [each if valid else None for each, valid in zip(found, column.is_valid().to_pylist(), strict=True)]
    return found


def _structs(column: pa.StructArray) -> list[dict[str, Any]]:
    names = [field.name for field in column.type]
    if not names:
        return [{} for _ in range(len(column))]
    parts = [_column(part) for part in column.flatten()]
    return [dict(zip(names, row, strict=True)) for row in zip(*parts, strict=True)]


def _referenced_part(part: pa.Array, offsets: pa.Array) -> pa.Array:
    """Return the part of a nested array that the offsets of a slice refer to."""
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    return part.slice(first, last - first)


def _spans(offsets: pa.Array) -> Iterator[slice]:
    positions = offsets.to_pylist()
    first = positions[0]
    return (slice(start - first, end - first) for start, end in pairwise(positions))


def _python_values(column: pa.Array) -> list[Any]:
    try:
        values: list[Any] = column.to_pylist()
    except (ValueError, OverflowError, pa.ArrowException):
        values = [_python_value(each) for each in column]
    return values


def _python_value(scalar: pa.Scalar) -> object:
    try:
        return scalar.as_py()
    except (ValueError, OverflowError, pa.ArrowException):
        # Python's calendar ends with the year 9999, Delta's does not: later values are returned as stored.
        return scalar.value


def _key(key: object) -> str:
    converted = plain(key)
    return converted if isinstance(converted, str) else str(converted)


_SHOWN_ROWS = 20


class ArrowStream(AnswersNames, ClosesItself):
    """A single-use stream of Arrow record batches that can be taken as a table, a frame or a list.

    It has the Arrow stream interface: ``pyarrow.table(stream)``, ``polars.DataFrame(stream)`` and DuckDB's
    ``FROM stream`` read it. Each of these consumes the stream, and nothing is read before the first of them.
    """

    _INSTEAD = OF_A_STREAM

    if TYPE_CHECKING:

        @property
        def schema(self) -> pa.Schema:
            """The Arrow schema of the batches."""

    else:

        def __getitem__(self, _: object) -> NoReturn:
            raise TypeError(f"a {type(self).__name__} has no items; use first(), to_list() or a for loop")

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

    def show(self, n: int = 10) -> None:
        """Print the first rows, and close the stream."""
        shown, left = [], n
        with self:
            for batch in self._export():
                shown.append(batch.slice(0, left))
                left -= shown[-1].num_rows
                if left <= 0:
                    break
        print(text_table(pa.Table.from_batches(shown, schema=self.schema)))  # noqa: T201 - what it is for

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


# How tables, facts and small charts look to people: as plain text, and as HTML in notebooks.


_WIDEST = 60
_BAR_COLOUR = "#4c78a8"


def text_table(table: pa.Table) -> str:
    """Return rows as aligned columns of text under their names, numbers to the right."""
    names = list(table.schema.names)
    cells = [[_cell(value) for value in column] for column in _columns(table)]
    right = [_is_number(field.type) for field in table.schema]
    widths = [max(len(name), *map(len, column), 0) for name, column in zip(names, cells, strict=True)]
    lines = [_line(names, widths, right), _line(["─" * width for width in widths], widths, right)]
    lines += [_line(row, widths, right) for row in zip(*cells, strict=True)]
    return "\n".join([*lines, f"({_counted(table.num_rows, 'row')})"])


def table_html(table: pa.Table, note: str = "") -> str:
    """Return rows as an HTML table with names and types in its head."""
    head = "".join(
        f"<th>{html.escape(field.name)}<br><small>{html.escape(str(field.type))}</small></th>" for field in table.schema
    )
    rows = zip(*([_cell(value) for value in column] for column in _columns(table)), strict=True)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    said = f"<small>{html.escape(note)}</small>" if note else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{said}"


def facts_html(title: str, facts: Mapping[str, Any]) -> str:
    """Return names and values as an HTML table of two columns under a title. Empty values are left out."""
    rows = "".join(
        f'<tr><th style="text-align:left">{html.escape(name)}</th>'
        f'<td style="text-align:left">{html.escape(str(value))}</td></tr>'
        for name, value in facts.items()
        if value not in (None, "", [], {})
    )
    return f"<strong>{html.escape(title)}</strong><table><tbody>{rows}</tbody></table>"


def preformatted(text: str) -> str:
    """Return text as HTML, line by line."""
    return f"<pre>{html.escape(text)}</pre>"


def bar_chart(counts: Sequence[tuple[str, int]], what: str, *, width: int = 480, height: int = 60) -> str:
    """Return a small bar chart as SVG; each bar says its label and count, and the ends of the axis are labelled."""
    if not counts:
        return ""
    most = max(count for _, count in counts) or 1
    step = width / len(counts)
    bars = "".join(
        f'<rect x="{number * step:.1f}" y="{height - max(1, round(count / most * height))}" '
        f'width="{max(step - 1, 0.5):.1f}" height="{max(1, round(count / most * height))}" fill="{_BAR_COLOUR}">'
        f"<title>{html.escape(label)}: {count:,} {html.escape(what)}</title></rect>"
        for number, (label, count) in enumerate(counts)
    )
    ends = (
        f'<text x="0" y="{height + 14}" font-size="11" fill="currentColor">{html.escape(counts[0][0])}</text>'
        f'<text x="{width}" y="{height + 14}" font-size="11" fill="currentColor" text-anchor="end">'
        f"{html.escape(counts[-1][0])}</text>"
    )
    label = html.escape(f"{what} from {counts[0][0]} to {counts[-1][0]}, at most {most:,}")
    return (
        f'<svg role="img" aria-label="{label}" width="{width}" height="{height + 18}" '
        f'viewBox="0 0 {width} {height + 18}">{bars}{ends}</svg>'
    )


def bytes_text(size: float) -> str:
    """Return a size in the largest unit that leaves a number from 1."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":  # noqa: PLR2004 - the next unit
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1000
    raise AssertionError(size)  # the loop ends with TB


def _columns(table: pa.Table) -> Iterable[list[Any]]:
    return (column.to_pylist() for column in table.columns)


def _cell(value: Any) -> str:
    if value is None:
        return "null"
    text = str(plain(value)).replace("\n", "↵")
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    padded = [
        cell.rjust(width) if number else cell.ljust(width)
        for cell, width, number in zip(cells, widths, right, strict=True)
    ]
    return "  ".join(padded).rstrip()


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
