"""How tables, facts and small charts look to people: as plain text, and as HTML in notebooks.

All values are escaped: column names and values come from the table. The HTML has no script and no colour of its own
except for bars, so it follows the theme of the notebook.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from lazydelta.runtime.json_values import plain

__all__ = ["bar_chart", "bytes_text", "facts_html", "preformatted", "table_html", "text_table"]

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
