"""``timeline``: how many files a table has at which time, from the manifest of its sidecar.

A manifest has the number of files and the first and last hour of every row group, so a table of ten million files is
drawn from a thousand entries and no file is listed. The files of a row group are spread evenly over its hours: a bar
can be off by a part of a row group. A small table is read file by file instead, which is exact and adds rows and bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from lazydelta.errors import LazyDeltaError, OptionError
from lazydelta.log.snapshot import LogSnapshot
from lazydelta.predicates import Predicate
from lazydelta.predicates.tree import And
from lazydelta.protocol.schema import Column
from lazydelta.protocol.values import from_text
from lazydelta.runtime import compute as pc
from lazydelta.runtime.arrays import flags, numpy_of, string_array
from lazydelta.scan.picture import ShownGroup
from lazydelta.scan.request import time_column
from lazydelta.sidecar.format.columns import manifest_path
from lazydelta.sidecar.format.leaves import EveryPart, every_part
from lazydelta.sidecar.format.manifest import RangeText, SidecarError, range_key
from lazydelta.sidecar.format.part_file import part_footer
from lazydelta.sidecar.handle import Snapshot
from lazydelta.sidecar.reading.discovery import open_manifest
from lazydelta.sidecar.reading.group_choice import matching_groups

__all__ = ["Timeline", "exact_timeline", "manifest_timeline", "row_groups", "time_column_of"]

_STEPS = tuple(hours * 3600 for hours in (1, 2, 3, 6, 12, 24, 7 * 24, 28 * 24))
_MOST_STEPS = 2000
_MICROSECOND = 1e-6


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """Files in steps of ``step`` seconds from ``start`` on, in seconds since 1970.

    ``rows`` and ``bytes`` are None where only the manifest was read. ``undated`` files have no time in the log.
    """

    start: int
    step: int
    files: list[float]
    rows: list[float] | None = None
    bytes: list[float] | None = None
    undated: int = 0
    column: str
    exact: bool
    version: int
    ranges: dict[str, RangeText] = {}


def time_column_of(snapshot: LogSnapshot) -> Column | None:
    """Return the column that a table's time is in. Return None if it has none, or several."""
    try:
        return time_column(snapshot.metadata, snapshot.schema)
    except OptionError:
        return None


def manifest_timeline(snapshot: Snapshot) -> Timeline | None:
    """Return the timeline of the checkpoint from its manifest. Return None if there is none that helps."""
    column, found = time_column_of(snapshot), _described(snapshot)
    if column is None or found is None:
        return None
    version, numbers, ranges = found
    first, last = _ends(column, ranges)
    counts = np.array(numbers, dtype=np.float64)
    start, step, files = _spread(first, last, counts)
    return Timeline(
        start=start,
        step=step,
        files=files,
        undated=int(counts[np.isnan(first) | np.isnan(last)].sum()),
        column=column.name,
        exact=False,
        version=version,
        ranges=_overall(ranges, snapshot),
    )


def row_groups(snapshot: Snapshot, predicate: Predicate | None) -> list[ShownGroup]:
    """Return the dated row groups of the base and which condition rules each out; none if no manifest has them."""
    column, found = time_column_of(snapshot), _described(snapshot)
    if column is None or found is None:
        return []
    _, numbers, ranges = found
    first, last = _ends(column, ranges)
    kept = set(matching_groups(predicate, ranges))
    parts = predicate.parts if isinstance(predicate, And) else () if predicate is None else (predicate,)
    alone = [(str(each), set(matching_groups(each, ranges))) for each in parts]
    return [
        ShownGroup(
            float(first[index]),
            float(last[index]),
            number,
            None
            if index in kept
            else next((text for text, left in alone if index not in left), "all conditions together"),
        )
        for index, number in enumerate(numbers)
        if not np.isnan(first[index]) and not np.isnan(last[index])
    ]


def _described(snapshot: Snapshot) -> tuple[int, list[int], list[dict[str, RangeText]]] | None:
    """Return the version of the manifest, and the files and ranges of its row groups."""
    checkpoint = snapshot.segment.checkpoint
    if checkpoint is None:
        return None
    try:
        manifest = snapshot.table.cache.manifest(snapshot.store.identity, checkpoint)
        if manifest is None:
            data = snapshot.store.get(manifest_path(checkpoint.version))
            table_id = snapshot.metadata.id
            manifest, proof = open_manifest(snapshot.store, data, checkpoint, snapshot.table.cache, table_id=table_id)
            if proof is not None:
                proof.check()
        return manifest.version, *_groups(every_part(snapshot.store, manifest), snapshot)
    except (SidecarError, LazyDeltaError):
        return None  # the scan says why a sidecar is not used


def _ends(column: Column, ranges: list[dict[str, RangeText]]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the first and last second of each row group; NaN where a file has no time."""
    key = range_key(column.physical_path)
    spans = [each.get(key) or RangeText(has_missing=True) for each in ranges]
    first, last = (
        _seconds(column, (None if each.has_missing else getattr(each, side) for each in spans))
        for side in ("min", "max")
    )
    return first, last


def exact_timeline(
    snapshot: LogSnapshot, batches: Callable[[Column], Iterable[pa.RecordBatch]], *, left: Callable[[], bool]
) -> Timeline | None:
    """Return the timeline of files that ``batches`` yields with the statistics of the time column."""
    column = time_column_of(snapshot)
    if column is None:
        return None
    timestamps: list[np.ndarray[Any, Any]] = []
    weights: list[np.ndarray[Any, Any]] = []
    for batch in batches(column):
        if left():
            return None
        first, last = (_as_seconds(batch.column(f"{side}.{column.name}")) for side in ("min", "max"))
        timestamps.append((first + last) / 2)
        sides = (batch.column("num_records"), batch.column("size"))
        counted = [np.ones(batch.num_rows), *(numpy_of(pc.fill_null(each, 0)) for each in sides)]
        weights.append(np.vstack(counted).astype(np.float64))
    if not timestamps:
        return Timeline(start=0, step=3600, files=[], column=column.name, exact=True, version=snapshot.version)
    when, what = np.concatenate(timestamps), np.concatenate(weights, axis=1)
    dated = ~np.isnan(when)
    start, step, length = _grid(when[dated], when[dated])
    places = ((when[dated] - start) // step).astype(np.int64)
    files, rows, size = (np.bincount(places, each[dated], minlength=length).tolist() for each in what)
    return Timeline(
        start=start,
        step=step,
        files=files,
        rows=rows,
        bytes=size,
        undated=int((~dated).sum()),
        column=column.name,
        exact=True,
        version=snapshot.version,
    )


def _groups(every: EveryPart, snapshot: LogSnapshot) -> tuple[list[int], list[dict[str, RangeText]]]:
    numbers: list[int] = []
    ranges: list[dict[str, RangeText]] = []
    for index, part in enumerate(every.parts):
        # A long manifest leaves row groups to the footers.
        found = every.groups_of(index)
        for group in part_footer(snapshot.store, part).row_groups() if found is None else found:
            numbers.append(group.num_rows)
            ranges.append(group.ranges)
    return numbers, ranges


def _overall(ranges: list[dict[str, RangeText]], snapshot: LogSnapshot) -> dict[str, RangeText]:
    """Return the range of every column over all row groups; texts are compared as values of the column."""
    found: dict[str, RangeText] = {}
    for column in snapshot.schema.leaves():
        key = range_key(column.physical_path)
        known = [each[key] for each in ranges if key in each]
        sides = {side: list(_texts(known, side)) for side in ("min", "max")}
        if not known or not sides["min"] or not sides["max"]:
            continue
        chosen = {}
        for side, texts in sides.items():
            values = from_text(string_array(texts), column.type)
            order = pc.sort_indices(values)
            chosen[side] = texts[order[0 if side == "min" else len(texts) - 1].as_py()]
        has_null, has_missing = any(each.has_null for each in known), any(each.has_missing for each in known)
        found[column.name] = RangeText(chosen["min"], chosen["max"], has_missing, has_null)
    return found


def _texts(ranges: Iterable[RangeText], side: str) -> Iterator[str]:
    return (text for each in ranges if (text := getattr(each, side)) is not None)


def _seconds(column: Column, texts: Iterable[str | None]) -> np.ndarray[Any, Any]:
    return _as_seconds(from_text(string_array(list(texts)), column.type))


def _as_seconds(values: pa.Array) -> np.ndarray[Any, Any]:
    """Return timestamps as seconds; NaN where there is none."""
    zone = getattr(values.type, "tz", None)
    whole = values.cast(pa.timestamp("us", zone)).cast(pa.int64())
    seconds = numpy_of(pc.fill_null(whole, 0)).astype(np.float64) * _MICROSECOND
    seconds[flags(whole.is_null())] = np.nan
    return seconds


def _grid(first: np.ndarray[Any, Any], last: np.ndarray[Any, Any]) -> tuple[int, int, int]:
    """Return where steps begin, how long one is in seconds, and how many there are."""
    if not len(first):
        return 0, _STEPS[0], 0
    low, high = float(first.min()), float(last.max())
    step = next((each for each in _STEPS if (high - low) / each <= _MOST_STEPS), _STEPS[-1])
    start = int(low // step * step)
    return start, step, min(int((high - start) // step) + 1, 10 * _MOST_STEPS)


def _apart(
    begin: np.ndarray[Any, Any], end: np.ndarray[Any, Any], number: np.ndarray[Any, Any]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return spans by time that meet halfway where neighbours overlap a little.

    Files are sorted by hour: the hour in which one row group ends and the next begins belongs to both, and would
    otherwise be drawn twice as high as the others.
    """
    order = np.argsort(begin, kind="stable")
    begin, end, number = begin[order], end[order], number[order]
    overlap, length = end[:-1] - begin[1:], end - begin
    is_part = (overlap > 0) & (end[1:] > end[:-1]) & (overlap <= 0.55 * np.minimum(length[:-1], length[1:]))
    middle = (begin[1:] + end[:-1]) / 2
    begin[1:], end[:-1] = np.where(is_part, middle, begin[1:]), np.where(is_part, middle, end[:-1])
    return begin, end, number


def _spread(
    first: np.ndarray[Any, Any], last: np.ndarray[Any, Any], counts: np.ndarray[Any, Any]
) -> tuple[int, int, list[float]]:
    dated = ~(np.isnan(first) | np.isnan(last))
    start, step, length = _grid(first[dated], last[dated])
    begin, end, number = _apart(first[dated], np.maximum(last[dated], first[dated] + 1.0), counts[dated])
    # Files a second change at the ends of row groups; between them the number of files so far is a straight line.
    density = number / (end - begin)
    order = np.argsort(points := np.concatenate([begin, end]), kind="stable")
    slopes = np.cumsum(np.concatenate([density, -density])[order])
    places = points[order]
    so_far = np.concatenate([[0.0], np.cumsum(slopes[:-1] * np.diff(places))]) if length else np.zeros(0)
    edges = start + step * np.arange(length + 1)
    files = np.diff(np.interp(edges, places, so_far, left=0.0, right=float(number.sum()))) if length else so_far
    return start, step, np.round(files, 1).tolist()
