"""What commands that change or check something say to people: lines of text, from what the library returned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lazydelta.cli import wording as text
from lazydelta.cli.sidecar_picture import picture

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lazydelta.maintenance.watching import Foreseen, Look
    from lazydelta.sidecar import BuildResult, CleanResult, DeltaResult, SidecarInfo, VerifyReport
    from lazydelta.sidecar.building.build_preview import BuildPreview
    from lazydelta.sidecar.inspection.delta_verification import DeltaReport

__all__ = [
    "appended",
    "checkpoint_foreseen",
    "checkpointed",
    "created",
    "deleted",
    "deltas_built",
    "ingested",
    "log_cleaned",
    "optimized",
    "sidecar_built",
    "sidecar_cleaned",
    "sidecar_foreseen",
    "sidecar_shown",
    "sidecar_verified",
    "streamed",
    "vacuumed",
    "watch_foreseen",
    "watch_looked",
]

_LISTED = 20
_BUILT = {
    "built": "was built",
    "refreshed": "was refreshed",
    "manifest-added": "was there and got its manifest",
    "already-valid": "is there and valid",
}


def created(result: dict[str, Any]) -> Iterator[str]:
    """Say which table there is now."""
    yield f"{_at(result)}"


def appended(result: dict[str, Any]) -> Iterator[str]:
    """Say what was appended, or that it had been before."""
    if result["already_committed"]:
        yield f"{text.printable(result['uri'])} had these rows already, in version {result['version']} at the latest"
        return
    yield f"{_at(result)}: {_counted(result['rows'], 'row')} of {_counted(result['files_read'], 'file')} appended"


def ingested(result: dict[str, Any]) -> Iterator[str]:
    """Say what a batch has done."""
    if result["already_committed"]:
        yield f"{text.printable(result['uri'])} had these rows already, in version {result['version']} at the latest"
        return
    yield (
        f"{_at(result)}: {text.count(result['rows'])} rows of {text.count(result['source_files'])} files in "
        f"{text.count(result['files'])} data files, {text.size(result['bytes'])}{_rejected(result)}, "
        f"{text.duration(result['seconds'] * 1000)}"
    )


def streamed(result: dict[str, Any]) -> Iterator[str]:
    """Say what all micro-batches of a stream have done."""
    if result["version"] is None:
        yield f"{text.printable(result['uri'])}: nothing new"
        return
    yield (
        f"{_at(result)}: {text.count(result['commits'])} commits, {text.count(result['rows'])} rows of "
        f"{text.count(result['source_files'])} files{_rejected(result)}"
    )


def checkpoint_foreseen(found: dict[str, Any]) -> Iterator[str]:
    """Say what would be written."""
    place = "on Spark" if found["engine"] == "spark" else "in this process"
    deed = "is there already" if found["action"] == "keep" else f"would be written, {place}"
    yield f"The checkpoint of version {found['version']} {deed}"
    yield f"The one that there is has {_counted(found['actions'], 'action')}"


def checkpointed(result: dict[str, Any]) -> Iterator[str]:
    """Say which checkpoint there is now."""
    deed = "was written" if result["action"] == "written" else "is there already"
    files = result["num_of_add_files"]
    counted = "" if files is None else f"{text.count(files)} files, "
    yield f"The checkpoint of version {result['version']} {deed}: {counted}{text.size(result['size_in_bytes'])}"


def log_cleaned(result: dict[str, Any]) -> Iterator[str]:
    """Name what was deleted from the log."""
    yield from _listed(result["paths"])
    floor = "" if result["floor"] is None else f"; version {result['floor']} and later can be read"
    yield f"{_deleted(result['paths'], result['size'], dry_run=result['dry_run'])}{floor}"


def sidecar_built(result: BuildResult) -> Iterator[str]:
    """Say what a build or refresh did."""
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
    """Say which delta sidecars there are now."""
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
    """Say what a build would do."""
    deed = {
        "keep": "is there; it would be read from end to end, and kept if it is good",
        "replace": "is there, and would be built anew",
        "build": "would be built",
    }[found.action]
    place = "on Spark" if found.engine == "spark" else "in this process"
    yield f"The sidecar of version {found.version} {deed}, {place}, sorted by {', '.join(found.sort) or 'path'}"
    yield f"Its checkpoint has {_counted(found.actions, 'action')}, {text.size(found.size_bytes)}"


def sidecar_verified(report: VerifyReport) -> Iterator[str]:
    """Say whether a sidecar equals the log, and where it does not."""
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
    """Say what a sidecar consists of, and draw it; delta sidecars are listed."""
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
    """Say what one look at a watched table did."""
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
    """Say what a look at a table would do."""
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
    """Name what was deleted of sidecars."""
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
    """Say which rows are gone."""
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
    """Say what was packed."""
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
    """Say what was deleted."""
    paths = result["paths"]
    yield from map(text.printable, paths[:_LISTED])
    if len(paths) > _LISTED:
        yield f"and {len(paths) - _LISTED:,} more"
    deed = "would be deleted" if result["dry_run"] else "deleted"
    folders = f" and {len(result['folders']):,} empty folders" if result["folders"] else ""
    yield (
        f"{len(paths):,} files{folders} {deed}, {text.size(result['size_bytes'])}; "
        f"what was removed since {text.moment(result['cutoff'])} stays"
    )
