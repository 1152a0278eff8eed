"""Messages of commands that change or check something: lines of text for people, from library results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from lazydelta.cli import wording as text

if TYPE_CHECKING:
    from lazydelta.maintenance.watch import Foreseen, Look
    from lazydelta.sidecar import BuildResult, CleanResult, DeltaResult, SidecarInfo, VerifyReport
    from lazydelta.sidecar.building.build import BuildPreview
    from lazydelta.sidecar.delta_verification import DeltaReport
    from lazydelta.sidecar.inspection import ShownRowGroup


# A sidecar drawn as text: a bar for each row group, from its minimum to its maximum on a common axis.


_MOST_BARS = 40
_NARROWEST = 16
# The formats of time boundaries as partition values, by their length.
_BOUNDARIES = {6: "%Y%m", 8: "%Y%m%d", 10: "%Y%m%d%H", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}


@dataclass(frozen=True, slots=True)
class _Bar:
    label: str
    num_rows: int
    size: int
    min: str | None
    max: str | None
    has_missing: bool


def picture(info: SidecarInfo, width: int, *, everything: bool, blocks: bool) -> Iterator[str]:
    """Yield the lines of the drawing. Many row groups are drawn by part, and many parts share a bar."""
    bars, unit = _bars(info, everything=everything)
    ends = [end for bar in bars for end in (bar.min, bar.max) if end is not None]
    if not bars:
        yield "no files, nothing to draw"
        return
    column = info.sort[0] if info.sort else "path"
    heads = [(bar.label, text.count(bar.num_rows), text.size(bar.size)) for bar in bars]
    widths = [
        max(len(name), *(len(head[place]) for head in heads)) for place, name in enumerate((unit, "files", "size"))
    ]
    room = max(_NARROWEST, width - sum(widths) - 3 * 2 - 1)
    axis = _Axis(ends)
    yield f"{unit:<{widths[0]}}  {'files':>{widths[1]}}  {'size':>{widths[2]}}  {text.printable(column)}"
    for bar, head in zip(bars, heads, strict=True):
        drawn = axis.drawn(bar, room, "█" if blocks else "#")
        missing = "+" if bar.has_missing else " "
        yield f"{head[0]:<{widths[0]}}  {head[1]:>{widths[1]}}  {head[2]:>{widths[2]}}  {drawn}{missing}".rstrip()
    if ends:
        low, high = text.printable(axis.lowest), text.printable(axis.highest)
        gap = max(1, room - len(low) - len(high))
        yield f"{'':<{sum(widths) + 3 * 2}}{low}{' ' * gap}{high}" if low != high else f"{'':<{sum(widths) + 6}}{low}"
    if any(bar.has_missing for bar in bars):
        yield f"+ holds files without {text.printable(column)}"


def _bars(info: SidecarInfo, *, everything: bool) -> tuple[list[_Bar], str]:
    groups = [
        (f"{number}/{group.index}", [group]) for number, part in enumerate(info.parts, 1) for group in part.row_groups
    ]
    if everything or len(groups) <= _MOST_BARS:
        return [_bar(label, members) for label, members in groups], "part/group"
    parts = [(number, part.row_groups) for number, part in enumerate(info.parts, 1) if part.row_groups]
    step = -(-len(parts) // _MOST_BARS)
    bars = []
    for start in range(0, len(parts), step):
        some = parts[start : start + step]
        label = str(some[0][0]) if len(some) == 1 else f"{some[0][0]}-{some[-1][0]}"
        bars.append(_bar(label, [group for _, members in some for group in members]))
    return bars, "part"


def _bar(label: str, groups: Sequence[ShownRowGroup]) -> _Bar:
    # Rows are sorted: the first group has the minimum, and the last group with a value has the maximum.
    known = [group for group in groups if group.min is not None and group.max is not None]
    return _Bar(
        label,
        sum(group.num_rows for group in groups),
        sum(group.size_bytes for group in groups),
        known[0].min if known else None,
        known[-1].max if known else None,
        any(len(group.last) > 1 and group.last[0] is None for group in groups),
    )


class _Axis:
    """Maps values to positions between the minimum and the maximum: by time or number, or by rank for strings."""

    def __init__(self, values: Sequence[str]) -> None:
        numbers = [_number(value) for value in values]
        self._places: dict[str, float] = {}
        if all(number is not None for number in numbers):
            self._places = {value: number for value, number in zip(values, numbers, strict=True) if number is not None}
        else:
            self._places = {value: float(rank) for rank, value in enumerate(sorted(set(values)))}
        ordered = sorted(self._places, key=self._places.__getitem__)
        self.lowest, self.highest = (ordered[0], ordered[-1]) if ordered else ("", "")

    def drawn(self, bar: _Bar, room: int, mark: str) -> str:
        if bar.min is None or bar.max is None:
            return " " * room
        low, high = self._places[self.lowest], self._places[self.highest]
        scale = (room - 1) / (high - low) if high > low else 0.0
        start = round((self._places[bar.min] - low) * scale)
        end = max(start, round((self._places[bar.max] - low) * scale))
        return (" " * start + mark * (end - start + 1)).ljust(room)


def _number(value: str) -> float | None:
    form = _BOUNDARIES.get(len(value)) if value.isdigit() else None
    if form is not None:
        try:
            return datetime.strptime(value, form).replace(tzinfo=UTC).timestamp()
        except ValueError:
            pass
    try:
        return float(value)
    except ValueError:
        pass
    try:
        timestamp = datetime.fromisoformat(value)
    except ValueError:
        return None
    return (timestamp if timestamp.tzinfo is not None else timestamp.replace(tzinfo=UTC)).timestamp()


_LISTED = 20
_BUILT = {
    "built": "was built",
    "refreshed": "was refreshed",
    "manifest-added": "was there and got its manifest",
    "already-valid": "is there and valid",
}


def created(result: dict[str, Any]) -> Iterator[str]:
    """Describe the table that was created."""
    yield f"{_at(result)}"


def appended(result: dict[str, Any]) -> Iterator[str]:
    """Describe what was appended, or that it had been appended before."""
    if result["already_committed"]:
        yield f"{text.printable(result['uri'])} had these rows already, in version {result['version']} at the latest"
        return
    yield f"{_at(result)}: {_counted(result['rows'], 'row')} of {_counted(result['files_read'], 'file')} appended"


def ingested(result: dict[str, Any]) -> Iterator[str]:
    """Describe the result of a batch."""
    if result["already_committed"]:
        yield f"{text.printable(result['uri'])} had these rows already, in version {result['version']} at the latest"
        return
    yield (
        f"{_at(result)}: {text.count(result['rows'])} rows of {text.count(result['source_files'])} files in "
        f"{text.count(result['files'])} data files, {text.size(result['bytes'])}{_rejected(result)}, "
        f"{text.duration(result['seconds'] * 1000)}"
    )


def streamed(result: dict[str, Any]) -> Iterator[str]:
    """Describe the result of all micro-batches of a stream."""
    if result["version"] is None:
        yield f"{text.printable(result['uri'])}: nothing new"
        return
    yield (
        f"{_at(result)}: {text.count(result['commits'])} commits, {text.count(result['rows'])} rows of "
        f"{text.count(result['source_files'])} files{_rejected(result)}"
    )


def checkpoint_foreseen(found: dict[str, Any]) -> Iterator[str]:
    """Describe the checkpoint that would be written."""
    place = "on Spark" if found["engine"] == "spark" else "in this process"
    deed = "is there already" if found["action"] == "keep" else f"would be written, {place}"
    yield f"The checkpoint of version {found['version']} {deed}"
    yield f"The one that there is has {_counted(found['actions'], 'action')}"


def checkpointed(result: dict[str, Any]) -> Iterator[str]:
    """Describe the checkpoint that was written."""
    deed = "was written" if result["action"] == "written" else "is there already"
    files = result["num_of_add_files"]
    counted = "" if files is None else f"{text.count(files)} files, "
    yield f"The checkpoint of version {result['version']} {deed}: {counted}{text.size(result['size_in_bytes'])}"
    if (built := result["sidecar"]) is not None:
        yield f"The sidecar of version {built['version']} {_BUILT.get(built['action'], built['action'])}"


def log_cleaned(result: dict[str, Any]) -> Iterator[str]:
    """List what was deleted from the log."""
    yield from _listed(result["paths"])
    floor = "" if result["floor"] is None else f"; version {result['floor']} and later can be read"
    yield f"{_deleted(result['paths'], result['size'], dry_run=result['dry_run'])}{floor}"


def sidecar_built(result: BuildResult) -> Iterator[str]:
    """Describe the result of a build or refresh."""
    yield (
        f"The sidecar of version {result.version} {_BUILT.get(result.action, result.action)}: "
        f"{_counted(result.num_files, 'file')} in {_counted(result.num_parts, 'part')}, {text.size(result.size_bytes)}"
    )
    if result.action == "refreshed":
        written = result.num_parts - result.reused_parts
        yield f"{_counted(result.reused_parts, 'part')} used again, {_counted(written, 'part')} written"
    elif result.reason is not None:
        yield f"Everything was built anew: {text.one_line(result.reason)}"


def deltas_built(result: DeltaResult) -> Iterator[str]:
    """Describe the delta sidecars that exist now."""
    since = "since the table was created" if result.checkpoint is None else f"since checkpoint {result.checkpoint}"
    yield (
        f"{result.covered:,} of {_counted(result.commits, 'commit')} {since} are in "
        f"{_counted(len(result.deltas), 'delta sidecar')}, {len(result.written):,} of them new"
    )
    for each in result.deltas[-_LISTED:]:
        yield (
            f"{text.printable(each.file)}: commits {each.first} to {each.last}, {_counted(each.adds, 'file')} added, "
            f"{each.removes:,} removed, {text.size(each.size_bytes)}"
        )


def sidecar_foreseen(found: BuildPreview) -> Iterator[str]:
    """Describe what a build would do."""
    deed = {
        "keep": "is there; it would be read from end to end, and kept if it is good",
        "replace": "is there, and would be built anew",
        "build": "would be built",
    }[found.action]
    place = "on Spark" if found.engine == "spark" else "in this process"
    yield f"The sidecar of version {found.version} {deed}, {place}, sorted by {', '.join(found.sort) or 'path'}"
    yield f"Its checkpoint has {_counted(found.actions, 'action')}, {text.size(found.size_bytes)}"


def sidecar_verified(report: VerifyReport) -> Iterator[str]:
    """Report whether a sidecar equals the log, and where it differs."""
    for problem in report.problems:
        yield text.one_line(problem)
    if report.not_compared:
        names = ", ".join(map(text.printable, report.not_compared))
        yield f"The checkpoint does not have, so nothing to compare with: {names}"
    if report.checksum is not None:
        yield f"The version checksum {report.checksum}."
    if report.deltas is not None:
        yield from _deltas_verified(report.deltas)
    if report.version is None:
        yield "There is no checkpoint, and so no sidecar of one."
    elif report.ok:
        yield (
            f"The sidecar of version {report.version} equals the log: {_counted(report.num_files, 'file')}, "
            f"{_counted(report.compared_columns, 'column')}, {_counted(report.num_row_groups, 'row group')} in "
            f"{_counted(report.num_parts, 'part')}"
        )
    elif report.tier is not None:
        yield f"The sidecar of version {report.version} does not equal the log."


def _deltas_verified(report: DeltaReport) -> Iterator[str]:
    yield (
        f"{_counted(report.files, 'delta sidecar')} compared with {_counted(report.commits, 'commit')}: "
        f"{_counted(report.actions, 'action')}"
    )
    if report.gaps:
        runs = ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in report.gaps[:_LISTED])
        more = "" if len(report.gaps) <= _LISTED else f" and {len(report.gaps) - _LISTED:,} more runs"
        yield f"Commits that are in no good one, and read as JSON: {runs}{more}"
    if report.leftovers:
        number = _counted(len(report.leftovers), "delta sidecar")
        yield f"No reader needs {number}; `lazydelta sidecar clean` removes what is old enough:"
        yield from (f"  {text.printable(each)}" for each in report.leftovers[:_LISTED])


def _deltas_shown(info: SidecarInfo) -> Iterator[str]:
    words = {
        "good": "",
        "behind": ", no longer needed: the checkpoint has it",
        "stale": ", not used: the log has other commits of these versions",
        "missing": ", not used: the file is not there as it was written",
    }
    if info.delta_problem is not None:
        yield text.one_line(info.delta_problem)
    if info.deltas:
        size = sum(each.size_bytes for each in info.deltas)
        yield f"{_counted(len(info.deltas), 'delta sidecar')}, {text.size(size)}"
    for each in info.deltas[-_LISTED:]:
        yield (
            f"{text.printable(each.file)}: commits {each.first} to {each.last}, {_counted(each.adds, 'file')} added, "
            f"{each.removes:,} removed, {text.size(each.size_bytes)}{words[each.state]}"
        )


def sidecar_shown(info: SidecarInfo, *, everything: bool, width: int, blocks: bool) -> Iterator[str]:
    """Describe and draw a sidecar, and list its delta sidecars."""
    if info.version is None:
        yield f"{text.printable(info.uri)} has no sidecar of a checkpoint; `lazydelta sidecar build` makes one"
        yield from _deltas_shown(info)
        return
    newest = info.checkpoint_version
    state = "of the newest checkpoint" if newest == info.version else f"stale: the newest checkpoint is {newest}"
    state += "" if info.tier == 1 else ", without a manifest"
    facts = {
        "table": info.uri,
        "version": f"{info.version} ({state})",
        "files": text.count(info.num_files),
        "size": f"{text.size(info.size_bytes)} in {_counted(len(info.parts), 'part')}",
        "row groups": text.count(info.num_row_groups),
        "sorted by": ", ".join(info.sort) or "path",
        "columns": text.count(len(info.columns)),
    }
    if info.other_files:
        facts["also there"] = f"{_counted(info.other_files, 'other file')}, {text.size(info.other_bytes)}"
    for name, fact in facts.items():
        yield f"{name:<12}{text.printable(fact)}"
    yield ""
    yield from picture(info, width, everything=everything, blocks=blocks)
    if info.deltas or info.delta_problem is not None:
        yield ""
        yield from _deltas_shown(info)


def watch_looked(look: Look) -> Iterator[str]:
    """Describe the result of one check of a watched table."""
    table = text.printable(look.table)
    if look.error is not None:
        yield f"{table}: failed: {text.one_line(look.error)}"
        return
    deeds = []
    if look.checkpoint is not None:
        deeds.append(f"checkpoint {look.checkpoint} written")
    if look.built is not None and look.built.action != "already-valid":
        took = "" if look.metrics.build_ms is None else f" in {text.duration(look.metrics.build_ms)}"
        deeds.append(f"sidecar {look.built.version} {look.built.action}{took}")
    if look.deltas:
        deeds.append(f"{_counted(look.deltas, 'delta sidecar')} written")
    if look.checksum is not None:
        deeds.append(f"checksum {look.checksum} written")
    states = {
        "waiting": "there is no checkpoint yet, and a sidecar mirrors one",
        "busy": "another process is at it",
        "resting": "left alone for a while after it failed",
    }
    done = ", ".join(deeds) or states.get(look.state, "nothing to do")
    yield f"{table}: {done}; {_counted(look.metrics.lag_commits or 0, 'commit')} behind version {look.metrics.version}"


def watch_foreseen(found: Foreseen) -> Iterator[str]:
    """Describe what a check of a table would do."""
    deeds = [
        words
        for words, is_due in (
            (f"write checkpoint {found.version}", found.checkpoint),
            ("bring the sidecar to it", found.sidecar),
            ("write delta sidecars", found.deltas),
            ("write the checksum at the head", found.checksum),
        )
        if is_due
    ]
    yield f"{text.printable(found.table)}: {'would ' + ', '.join(deeds) if deeds else 'nothing to do'}"


def sidecar_cleaned(result: CleanResult) -> Iterator[str]:
    """List the sidecar files that were deleted."""
    yield from _listed(result.deleted)
    kept = ", ".join(map(str, result.kept_versions)) or "none"
    deleted = _deleted(result.deleted, result.size_bytes, dry_run=result.dry_run)
    yield f"{deleted}; versions with a sidecar: {kept}"


def _at(result: dict[str, Any]) -> str:
    return f"{text.printable(result['uri'])} is at version {result['version']}"


def _rejected(result: dict[str, Any]) -> str:
    return f", {text.count(result['rejected'])} rows rejected" if result["rejected"] else ""


def _listed(paths: list[str]) -> Iterator[str]:
    yield from map(text.printable, paths[:_LISTED])
    if len(paths) > _LISTED:
        yield f"and {_counted(len(paths) - _LISTED, 'file')} more"


def _deleted(paths: list[str], size: int, *, dry_run: bool) -> str:
    return f"{_counted(len(paths), 'file')} {'would be deleted' if dry_run else 'deleted'}, {text.size(size)}"


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def deleted(result: dict[str, Any]) -> Iterator[str]:
    """Describe the rows that were deleted."""
    if not result["removed_files"]:
        yield "No row matches: nothing was committed" if not result["dry_run"] else "No row matches"
        return
    rows = "the rows" if result["rows"] is None else _counted(result["rows"], "row")
    place = f"{rows} in {_counted(result['removed_files'], 'file')}"
    rewritten = _counted(result["rewritten_files"], "file")
    if result["dry_run"]:
        yield f"{place} would be deleted; {rewritten} would be copied without them"
        return
    yield f"Version {result['version']}: {place} deleted" + (
        f"; {_counted(result['copied_rows'], 'row')} of {rewritten} copied to {_counted(result['added_files'], 'file')}"
        if result["added_files"]
        else ""
    )


def optimized(result: dict[str, Any]) -> Iterator[str]:
    """Describe what was compacted."""
    before, after = result["removed"], result["added"]
    place = f"in {_counted(result['partitions'], 'partition')}"
    if not before["count"]:
        yield f"Nothing to pack: {result['considered']:,} files were considered"
    elif result["dry_run"]:
        yield f"{before['count']:,} files {place}, {text.size(before['total'])}, would be packed"
    else:
        yield (
            f"Version {result['version']}: {before['count']:,} files {place}, {text.size(before['total'])}, became "
            f"{after['count']:,}, {text.size(after['total'])}"
        )
    if result["conflicts"]:
        yield f"{result['conflicts']:,} files were left as they are, because others changed some of them meanwhile"


def vacuumed(result: dict[str, Any]) -> Iterator[str]:
    """Describe what was deleted."""
    paths = result["paths"]
    yield from map(text.printable, paths[:_LISTED])
    if len(paths) > _LISTED:
        yield f"and {len(paths) - _LISTED:,} more"
    deed = "would be deleted" if result["dry_run"] else "deleted"
    folders = f" and {len(result['folders']):,} empty folders" if result["folders"] else ""
    yield (
        f"{len(paths):,} files{folders} {deed}, {text.size(result['size_bytes'])}; "
        f"what was removed since {text.timestamp(result['cutoff'])} stays"
    )
