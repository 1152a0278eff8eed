"""Parts of a query that Python computes over batches of rows: sequences, keys and values of strings, and patterns."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from lazydelta.kql.binding.plan import Staged

__all__ = ["batch_of", "kv_parser", "reduced", "sessions", "stage_batches", "staged_type"]

_ROWS = 4096
_TYPES = {
    "bool": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "real": pa.float64(),
    "decimal": pa.decimal128(38, 18),
    "string": pa.string(),
    "datetime": pa.timestamp("us"),
    "timespan": pa.int64(),
    "dynamic": pa.string(),
    "guid": pa.string(),
}


def staged_type(kind: str) -> pa.DataType:
    """Return the Arrow type of a column between DuckDB and Python. A nested type stands for itself."""
    return kind if isinstance(kind, pa.DataType) else _TYPES[kind]


def stage_batches(plan: Staged, rows: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Return the batches that a stage makes of the rows of its source."""
    step = plan.make()
    width = len(plan.inputs)
    if not plan.keeps:
        for batch in step(each.select(range(width)) for each in rows):
            yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)
        return
    for batch in rows:
        made = step(batch.select(range(width)))
        yield pa.RecordBatch.from_arrays([*made, *batch.columns[width:]], schema=schema)


def batch_of(kinds: Iterable[str], rows: Iterable[tuple[Any, ...]]) -> Iterator[pa.RecordBatch]:
    """Return rows of Python values as batches."""
    types = [staged_type(kind) for kind in kinds]
    names = [str(index) for index in range(len(types))]
    waiting = iter(rows)
    while chunk := list(itertools.islice(waiting, _ROWS)):
        columns = zip(*chunk, strict=True)
        arrays = [pa.array(values, kind) for values, kind in zip(columns, types, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, names)


# Sessions of rows: ``row_window_session``.


def sessions() -> Callable[[pa.RecordBatch], list[pa.Array]]:
    """Return a function from value, longest session, longest gap and restart to the first value of the session."""
    first: Any = None
    last: Any = None

    def step(batch: pa.RecordBatch) -> list[pa.Array]:
        nonlocal first, last
        found: list[Any] = []
        values, longest, gaps, restarts = (column.to_pylist() for column in batch.columns)
        for value, most, gap, restart in zip(values, longest, gaps, restarts, strict=True):
            if value is None:
                found.append(None)
                continue
            if first is None or restart or value - first > most or value - last > gap or value < last:
                first = value
            last = value
            found.append(first)
        return [pa.array(found, pa.int64())]

    return step


# Keys and values in a string: ``parse-kv``.


def kv_parser(names: tuple[str, ...], options: Mapping[str, Any]) -> Callable[[pa.RecordBatch], list[pa.Array]]:
    """Return a function from texts to the values of the keys, as texts, null where a key does not occur."""
    read = _by_regex(options["regex"]) if options.get("regex") else _by_delimiters(names, options)

    def step(batch: pa.RecordBatch) -> list[pa.Array]:
        found = [read(text or "") for text in batch.column(0).to_pylist()]
        return [pa.array([each.get(name) for each in found], pa.string()) for name in names]

    return step


def _by_regex(pattern: str) -> Callable[[str], dict[str, str]]:
    compiled = re.compile(pattern)

    def read(text: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for match in compiled.finditer(text):
            found.setdefault(match[1].strip(), match[2].strip())
        return found

    return read


def _by_delimiters(names: tuple[str, ...], options: Mapping[str, Any]) -> Callable[[str], dict[str, str]]:
    pairs, middle = options.get("pair_delimiter"), options.get("kv_delimiter")
    quotes, escape = str(options.get("quote") or ""), str(options.get("escape") or "")
    greedy = bool(options.get("greedy"))
    opening, closing = (quotes[:1], quotes[-1:]) if quotes else ("\0", "\0")
    word = (
        rf"{re.escape(opening)}((?:{re.escape(escape)}.|[^{re.escape(closing)}])*?){re.escape(closing)}"
        if escape
        else (rf"{re.escape(opening)}([^{re.escape(closing)}]*){re.escape(closing)}")
    )
    if pairs is None and middle is None:
        # Without delimiters any text that is neither a word nor a quote separates.
        return _guessing(word, escape, quotes=quotes)
    between = re.escape(str(middle if middle is not None else "="))
    end = re.escape(str(pairs)) if pairs is not None else r"\s"
    key = rf"(?:{word}|((?:(?!{between})(?!{end}).)+?))"
    if greedy:
        known = "|".join(re.escape(each) for each in sorted(names, key=len, reverse=True))
        following = rf"{re.escape(opening)}?(?:{known}){re.escape(closing)}?\s*{between}"
        value = rf"(?:{word}|(.*?))(?=\s*(?:{end})\s*{following}|\s*$)"
    else:
        value = rf"(?:{word}|(.*?))(?=\s*(?:{end})|\s*$)"
    compiled = re.compile(rf"\s*{key}\s*{between}\s*{value}", re.DOTALL)
    return _reader(compiled, escape)


def _guessing(word: str, escape: str, *, quotes: str) -> Callable[[str], dict[str, str]]:
    value = rf"(?:{word}|([\w.+-]+))" if quotes else r"(?:(\0)|([\w.+-]+))"
    key = rf"(?:{word}|(\w+))" if quotes else r"(?:(\0)|(\w+))"
    return _reader(re.compile(rf"{key}\s*[:=]\s*{value}"), escape)


def _reader(compiled: re.Pattern[str], escape: str) -> Callable[[str], dict[str, str]]:
    def plain(quoted: str | None, bare: str | None) -> str:
        if quoted is None:
            return (bare or "").strip()
        return re.sub(re.escape(escape) + "(.)", r"\1", quoted) if escape else quoted

    def read(text: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for match in compiled.finditer(text):
            quoted_key, bare_key, quoted_value, bare_value = match.groups()
            found.setdefault(plain(quoted_key, bare_key), plain(quoted_value, bare_value))
        return found

    return read


# Groups of similar strings: ``reduce``.


def reduced(threshold: float, characters: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function from texts to patterns, how many texts have each, and one of them.

    A text is cut at each character that is neither a letter nor a digit; those in ``characters`` belong to no word.
    Words that differ among texts of the same shape become ``*``; shapes that are rarer than ``threshold`` are left as
    ``others``.
    """
    swallowed = re.escape(characters or "*")
    edges = re.compile(rf"([^\W_{re.escape(characters)}]+)" if characters else r"([^\W_]+)")

    def step(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        groups: dict[tuple[str, ...], list[Any]] = {}
        total = 0
        for batch in batches:
            for text in batch.column(0).to_pylist():
                total += 1
                words = edges.split(text)
                shape = (words[1] if len(words) > 1 else "", str(len(words)))
                group = groups.setdefault(shape, [list(words), 0, text])
                group[0] = [one if one == other else None for one, other in zip(group[0], words, strict=True)]
                group[1] += 1
        rows = []
        others = 0
        for pattern, count, example in groups.values():
            if count < max(2, threshold * total):
                others += count
            else:
                text = "".join("*" if each is None else each for each in pattern)
                rows.append((re.sub(rf"[{swallowed}]*\*(?:[^\w*]*\*)*", "*", text), count, example))
        rows.sort(key=lambda row: -row[1])
        if others:
            rows.append(("others", others, ""))
        yield from batch_of(("string", "long", "string"), rows)

    return step
