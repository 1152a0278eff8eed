"""The commands that change a table other than by writing rows to it: ``merge``, ``alter``, ``restore`` and others."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from lazydelta.cli.output import INTERRUPTED, note
from lazydelta.cli.parameters import CONTEXT, TableTarget, counting, pairs, target_command
from lazydelta.errors import OptionError

if TYPE_CHECKING:
    import pyarrow as pa

    from lazydelta.write.alter import TableChange
    from lazydelta.write.row_changes.merge_clauses import Action, Kind, MergeClause

__all__ = ["alter", "clone", "convert", "generate", "merge", "repair", "restore"]

_MIB = 1 << 20
_THEN = re.compile(
    r"^(?:(?P<condition>.*)\bthen\s+)?(?P<action>update|delete|insert)(?:\s+set\s+(?P<set>.+))?\s*$",
    re.IGNORECASE | re.DOTALL,
)
_DEEDS = {"matched": {"update", "delete"}, "not matched": {"insert"}, "not matched by source": {"update", "delete"}}
_dry_run = click.option("--dry-run", is_flag=True, help="Show what would change, without changing it.")


def _clause_option(name: str, deeds: str) -> Callable[[Any], Any]:
    help_text = f"What happens to such rows: [CONDITION then] {deeds}; repeatable, the first that applies counts."
    return click.option(name, multiple=True, metavar="CLAUSE", help=help_text)


@click.command("merge", context_settings=CONTEXT)
@target_command()
@click.option("--source", required=True, metavar="PLACE", help="The rows to merge: a Delta table, or a Parquet file.")
@click.option(
    "--on",
    required=True,
    metavar="CONDITION",
    help="The condition under which rows match, such as target.id = source.id.",
)
@_clause_option("--when-matched", "update, update set A = B, …, or delete")
@_clause_option("--when-not-matched", "insert, or insert set A = B, …")
@_clause_option("--when-not-matched-by-source", "update set A = B, …, or delete")
@click.option("--merge-schema", is_flag=True, help="Add source columns that a clause sets and the table lacks.")
@click.option(
    "--memory", type=click.IntRange(1), default=256, metavar="MIB", help="Memory budget; the rest spills to disk."
)
@_dry_run
def merge(  # noqa: PLR0913 - one parameter for each option
    target: TableTarget,
    *,
    source: str,
    on: str,
    when_matched: tuple[str, ...],
    when_not_matched: tuple[str, ...],
    when_not_matched_by_source: tuple[str, ...],
    merge_schema: bool,
    memory: int,
    dry_run: bool,
) -> None:
    """Update, delete and insert rows by comparing them with others, in one commit.

    Conditions and values are DuckDB SQL; prefix names that both tables have with `source.` or `target.`.
    """
    from lazydelta.maintenance.after_commit import after_commit  # noqa: PLC0415 - not needed for --help
    from lazydelta.write.row_changes.merge import MergeRequest, merge_rows  # noqa: PLC0415
    from lazydelta.write.row_changes.rewriter import FileRecipe  # noqa: PLC0415
    from lazydelta.write.row_changes.statements import DeleteSettings  # noqa: PLC0415

    clauses = (
        *(_clause("matched", each) for each in when_matched),
        *(_clause("not matched", each) for each in when_not_matched),
        *(_clause("not matched by source", each) for each in when_not_matched_by_source),
    )
    request = MergeRequest(predicate=on, clauses=clauses, adds_columns=merge_schema)
    schema, batches = _rows_of(source, target)
    recipe, handle, version = FileRecipe(memory_budget=memory * _MIB), target.handle, None
    try:
        with counting(target.out, "joined and rewritten") as progress:
            settings = DeleteSettings(recipe=recipe, progress=progress)
            result = merge_rows(handle, schema, batches, request, settings, dry_run=dry_run)
            version = result.version
            if version is not None:
                after_commit(handle, version, result.metadata)
    except KeyboardInterrupt:
        told = "nothing was changed" if dry_run else "one commit merges all of the rows or none"
        note(f"interrupted: {told if version is None else f'the rows were merged, as version {version}'}")
        click.get_current_context().exit(INTERRUPTED)
    found = {"dry_run": dry_run, "read_version": result.read_version, "version": result.version}
    target.out.tell(found | asdict(result.counts), _merged)


def _clause(kind: Kind, text: str) -> MergeClause:
    from lazydelta.write.row_changes.merge_clauses import MergeClause, assignments  # noqa: PLC0415

    match = _THEN.match(text.strip())
    deed = "" if match is None else match["action"].lower()
    if match is None or deed not in _DEEDS[kind]:
        option = f"--when-{kind.replace(' ', '-')}"
        hint = f"write [CONDITION then] {' or '.join(sorted(_DEEDS[kind]))} [set COLUMN = VALUE, …]"
        raise OptionError(f"{option} {text!r} is not valid", hint=hint)
    if kind == "not matched by source" and deed == "update" and not match["set"]:
        raise OptionError("Rows without a match have no previous values", hint="write update set COLUMN = VALUE, …")
    condition = (match["condition"] or "").strip() or None
    action: Action = deed  # type: ignore[assignment]  # one of the words above
    return MergeClause(kind, action, condition, assignments(match["set"]) if match["set"] else None)


def _rows_of(source: str, target: TableTarget) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    import pyarrow.parquet as pq  # noqa: PLC0415 - not needed for --help

    from lazydelta.table.delta_table import DeltaTable  # noqa: PLC0415

    if source.lower().endswith(".parquet"):
        try:
            file = pq.ParquetFile(source)
        except (OSError, ValueError) as error:
            raise OptionError(f"The file {source} cannot be read: {error}", hint="pass a Parquet file") from error
        return file.schema_arrow, file.iter_batches()
    reader = DeltaTable(source, storage_options=target.storage_options or None).to_pyarrow_reader()
    return reader.schema, iter(reader)


def _merged(result: dict[str, Any]) -> Iterator[str]:
    deeds = ", ".join(f"{result[each]:,} {each}" for each in ("updated", "deleted", "inserted"))
    if result["dry_run"]:
        yield f"{result['source_rows']:,} rows of the source; a run would report {deeds}; nothing was committed"
    elif result["version"] is None:
        yield "No row changes: nothing was committed"
    else:
        files = f"{result['files_removed']:,} files replaced by {result['files_added']:,}"
        vectors = f", {result['vectors']:,} with deletion vectors" if result["vectors"] else ""
        yield f"Version {result['version']}: {deeds}; {files}{vectors}; {result['files_scanned']:,} were read"


@click.command("alter", context_settings=CONTEXT)
@target_command()
@click.option("--set", "properties", multiple=True, metavar="K=V", callback=pairs, help="Set a property; repeatable.")
@click.option("--unset", multiple=True, metavar="K", help="Unset a property; repeatable.")
@click.option("--add", multiple=True, metavar="NAME:TYPE", help="Add a column; repeatable.")
@click.option("--rename", metavar="OLD=NEW", help="Rename a column; requires column mapping.")
@click.option("--drop", multiple=True, metavar="NAME", help="Drop a column; requires column mapping; repeatable.")
@click.option("--nullable", metavar="NAME", help="Make a column nullable.")
@click.option("--comment", metavar="NAME=TEXT", help="Set the comment of a column.")
@click.option("--constraint", metavar="NAME=SQL", help="Add a CHECK constraint; all rows are checked.")
@click.option("--drop-constraint", metavar="NAME", help="Drop a CHECK constraint.")
@click.option("--name", metavar="TEXT", help="Set the name of the table.")
@click.option("--description", metavar="TEXT", help="Set the description of the table.")
@_dry_run
def alter(target: TableTarget, *, dry_run: bool, **given: Any) -> None:
    """Change columns, constraints or properties of a table; one kind of change per commit."""
    from lazydelta.write.alter import alter_table  # noqa: PLC0415 - not needed for --help

    asked = {name: value for name, value in given.items() if value}
    if len(asked) != 1:
        raise click.UsageError("Specify one kind of change, such as --set K=V or --add NAME:TYPE.")
    change = _change(*next(iter(asked.items())))
    with target.out.watch(lambda: "reading the table"):
        if dry_run:
            snapshot, version = target.handle.newest(), None
            changes = change.of(snapshot) != (snapshot.protocol, snapshot.metadata)
        else:
            done = alter_table(target.handle, change)
            version, changes = (None, False) if done is None else (done.version, True)
    told = {"dry_run": dry_run, "operation": change.operation, "version": version, "changes": changes}
    target.out.tell(told, _altered)


def _change(kind: str, value: Any) -> TableChange:
    from lazydelta.cli.write import _schema  # noqa: PLC0415 - as above
    from lazydelta.write.alter import TableChange  # noqa: PLC0415

    def halves(text: str) -> tuple[str, str]:
        first, equals, second = text.partition("=")
        if not equals or not first.strip():
            raise OptionError(f"--{kind} {text!r} is not valid", hint="write NAME=VALUE")
        return first.strip(), second.strip()

    match kind:
        case "properties":
            return TableChange.set_properties(value)
        case "unset":
            return TableChange.set_properties(dict.fromkeys(value))
        case "add":
            return TableChange.add_columns(list(_schema(value, None)))
        case "rename":
            return TableChange.rename_column(*halves(value))
        case "drop":
            return TableChange.drop_columns(value)
        case "nullable":
            return TableChange.drop_not_null(value)
        case "comment":
            column, text = halves(value)
            return TableChange.set_column_metadata(column, {"comment": text})
        case "constraint":
            return TableChange.add_constraints(dict([halves(value)]))
        case "drop_constraint":
            return TableChange.drop_constraint(value)
    return TableChange.describe(**{kind: value})


def _altered(result: dict[str, Any]) -> Iterator[str]:
    if not result["changes"]:
        yield "The table is so already: nothing was committed"
    elif result["dry_run"]:
        yield f"{result['operation']} would change the table; nothing was committed"
    else:
        yield f"Version {result['version']}: {result['operation']}"


@click.command("restore", context_settings=CONTEXT)
@target_command()
@click.option("--version", "number", type=click.IntRange(0), metavar="N", help="Restore this version.")
@click.option(
    "--timestamp", metavar="T", help="Restore the version at this timestamp: ISO 8601, UTC unless it has a time zone."
)
@click.option("--ignore-missing-files", is_flag=True, help="Skip missing files and lose their rows.")
@_dry_run
def restore(
    target: TableTarget, *, number: int | None, timestamp: str | None, ignore_missing_files: bool, dry_run: bool
) -> None:
    """Restore a table to an older version, as a new version."""
    if (number is None) is (timestamp is None):
        raise click.UsageError("Specify what to restore: --version N, or --timestamp T.")
    from lazydelta.maintenance.after_commit import after_commit  # noqa: PLC0415 - not needed for --help
    from lazydelta.maintenance.restore import restore_table  # noqa: PLC0415

    instant = number if number is not None else timestamp or ""
    with counting(target.out, "of one version only") as progress:
        result = restore_table(
            target.handle, instant, ignore_missing_files=ignore_missing_files, dry_run=dry_run, progress=progress
        )
        if result.commit is not None:
            after_commit(target.handle, result.commit.version, result.commit.metadata)
    told = {
        "dry_run": dry_run,
        "restored_version": result.restored_version,
        "version": result.version,
        "restored_files": result.restored_files,
        "removed_files": result.removed_files,
        "missing": result.missing,
    }
    target.out.tell(told, _restored)


def _restored(result: dict[str, Any]) -> Iterator[str]:
    files = f"{result['restored_files']:,} files {'would come' if result['dry_run'] else 'came'} back"
    files += f", {result['removed_files']:,} {'would leave' if result['dry_run'] else 'left'}"
    lost = f"; {len(result['missing']):,} are gone" if result["missing"] else ""
    head = "" if result["version"] is None else f"Version {result['version']}: "
    yield f"{head}version {result['restored_version']}: {files}{lost}"


@click.command("clone", context_settings=CONTEXT)
@target_command()
@click.option("--to", required=True, metavar="URI", help="The URI of the new table.")
@click.option("--version", "number", type=click.IntRange(0), metavar="N", help="Clone this version.")
@_dry_run
def clone(target: TableTarget, *, to: str, number: int | None, dry_run: bool) -> None:
    """Create a table that refers to the files of the table at URI, without copying them."""
    from lazydelta.maintenance.restore import shallow_clone  # noqa: PLC0415 - not needed for --help
    from lazydelta.sidecar.handle import TableHandle  # noqa: PLC0415

    source = target.handle
    with counting(target.out, "of the source read") as progress:
        place = TableHandle.open(to, target.storage_options or None)
        made = shallow_clone(source.snapshot(number), place, dry_run=dry_run, progress=progress)
    version = None if made.commit is None else made.commit.version
    told = {"dry_run": dry_run, "source_version": made.source_version, "version": version, "files": made.files}
    target.out.tell(told | {"size": made.size}, _cloned)


def _cloned(result: dict[str, Any]) -> Iterator[str]:
    done = "would be" if result["dry_run"] else "was"
    yield f"Version {result['source_version']} {done} cloned: {result['files']:,} files, none of them copied"


@click.command("convert", context_settings=CONTEXT)
@target_command()
@click.option(
    "--partition-by",
    multiple=True,
    metavar="NAME:TYPE",
    help="A partition column, from folders named name=value; repeatable.",
)
@click.option("--name", metavar="TEXT", help="Set the name of the table.")
@_dry_run
def convert(target: TableTarget, *, partition_by: tuple[str, ...], name: str | None, dry_run: bool) -> None:
    """Convert the Parquet files below URI to a Delta table in place, in one commit."""
    from lazydelta.cli.write import _schema  # noqa: PLC0415 - not needed for --help
    from lazydelta.ingest.conversion import convert_parquet  # noqa: PLC0415

    columns = _schema(partition_by, None) if partition_by else None
    with target.out.watch(lambda: "reading the footers of the files"):
        files, done = convert_parquet(target.handle, partition_by=columns, name=name, dry_run=dry_run)
    version = None if done is None else done.version
    told = {"dry_run": dry_run, "uri": target.handle.store.uri, "version": version, "files": files}
    target.out.tell(told, _converted)


def _converted(result: dict[str, Any]) -> Iterator[str]:
    done = "would be a table" if result["dry_run"] else f"is a table, at version {result['version']}"
    yield f"{result['uri']} {done}: {result['files']:,} files"


@click.command("repair", context_settings=CONTEXT)
@target_command()
@_dry_run
def repair(target: TableTarget, *, dry_run: bool) -> None:
    """Remove missing files, and with them their rows, from the log."""
    from lazydelta.maintenance.restore import repair_table  # noqa: PLC0415 - not needed for --help

    with counting(target.out, "looked for") as progress:
        result = repair_table(target.handle, dry_run=dry_run, progress=progress)
    told = {"dry_run": dry_run, "version": result.version, "files_removed": result.files_removed}
    target.out.tell(told, _repaired)


def _repaired(result: dict[str, Any]) -> Iterator[str]:
    yield from result["files_removed"]
    count = f"{len(result['files_removed']):,} files are gone"
    done = "nothing was committed" if result["version"] is None else f"version {result['version']} does without them"
    yield f"{count}; {done}"


@click.command("generate", context_settings=CONTEXT)
@target_command()
@_dry_run
def generate(target: TableTarget, *, dry_run: bool) -> None:
    """Write symlink manifests of a table's files for Presto, Athena and others."""
    from lazydelta.maintenance.restore import write_manifests  # noqa: PLC0415 - not needed for --help

    with counting(target.out, "listed") as progress:
        written = write_manifests(target.handle, dry_run=dry_run, progress=progress)
    told: dict[str, Any] = {"dry_run": dry_run, "manifests": written}
    target.out.tell(told, lambda result: (each for each in result["manifests"]))
