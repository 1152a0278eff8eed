"""Rich tables for people, from library results, and the consoles that print them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table

from lazydelta.cli import wording as text
from lazydelta.scan.scanner import describe_metric

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lazydelta.table.information import TableInfo

__all__ = ["console", "explanation", "history", "info"]

# A pipe has no width: lines are as long as needed, for grep and cut.
_ENDLESS = 4000
_METRICS = "delta.lazy."
# The metrics of operations, by the names that Delta-Spark and delta-rs use.
_DEEDS = (
    ("+{} files", ("numFiles", "numAddedFiles", "num_added_files", "numFilesAdded")),
    ("-{} files", ("numRemovedFiles", "num_removed_files", "numFilesRemoved", "numDeletedFiles")),
    ("+{} rows", ("numOutputRows", "num_added_rows", "num_output_rows")),
    ("-{} rows", ("numDeletedRows", "num_deleted_rows")),
)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Let the command handle it, because it knows the exit code. Rich would exit here."""
        raise BrokenPipeError


def console(*, stderr: bool = False) -> Console:
    """Return a console on a standard stream without markup: paths are full of brackets and colons."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _ENDLESS
    return _Console(file=stream, width=width, markup=False, highlight=False, emoji=False)


def info(found: TableInfo) -> Iterator[Table]:
    """Show names and values, then the columns."""
    facts = _facts()
    commit = [text.timestamp(found.timestamp), found.operation or ""] if found.timestamp is not None else []
    features = dict.fromkeys([*found.reader_features, *found.writer_features])
    commits = f"{text.count(found.tail_commits)} commits"
    known = found.checkpoint_version
    log = f"{commits}, no checkpoint" if known is None else f"checkpoint {known} and {commits} after it"
    for name, fact in (
        ("table", found.uri),
        ("name", found.name),
        ("description", found.description),
        ("id", found.id),
        ("version", text.count(found.version)),
        ("committed", "  ".join(filter(None, commit))),
        ("created", text.timestamp(found.created_time) if found.created_time is not None else None),
        ("partitioned by", ", ".join(found.partition_columns)),
        ("protocol", f"reader {found.min_reader_version}, writer {found.min_writer_version}"),
        ("features", ", ".join(features)),
        ("log", log),
    ):
        if fact:
            facts.add_row(name, text.printable(fact))
    for name, setting in sorted(found.properties.items()):
        facts.add_row(text.printable(name), text.value(setting))
    yield facts
    columns = _table("column", "type", "nullable")
    for column in found.columns:
        nullable = "" if column.nullable else "no"
        columns.add_row(text.printable(column.name), text.printable(column.type), nullable)
    yield columns


def history(versions: list[dict[str, Any]]) -> Iterator[Table]:
    """Show one line per version."""
    table = _table("version", "committed (UTC)", "operation", "what it did", right=("version",))
    for each in versions:
        operation = text.printable(str(each.get("operation") or "-"))
        table.add_row(str(each.get("version")), text.timestamp(each.get("timestamp")), operation, _deeds(each))
    yield table


# What a short explanation always says, and what it says only if there is something to say.
_ESSENTIAL = frozenset(
    {
        *("table", "version", "base_version", "tail_commits", "strategy", "reason", "sidecar", "predicate"),
        *("conditions", "limit", "row_limit", "files_emitted", "files_pruned", "row_groups_read", "row_groups_pruned"),
        *("requests", "bytes_read", "time_to_first_file_ms", "total_ms"),
    }
)
_TROUBLE = frozenset(
    {
        *("sidecar_failure", "files_without_stats", "fallback_triggered", "checksum_mismatches", "unknown_actions"),
        *("compactions_rejected", "delta_sidecars_rejected", "checkpoints_replaced", "stats_passed_by"),
    }
)


def short_explanation(found: dict[str, dict[str, Any]]) -> Iterator[RenderableType]:
    """Show what the scan found and what it cost, and everything that went wrong on the way."""
    facts = _facts()
    for name, fact in _flat(found).items():
        if name in _ESSENTIAL or (name in _TROUBLE and fact):
            _add_fact(facts, name, fact)
    yield facts
    yield "(--all shows every counter and what it means)"


def explanation(found: dict[str, dict[str, Any]]) -> Iterator[Table]:
    """Show the plan, then what the scan did, and what each line means."""
    facts = _facts()
    facts.add_column(style="dim", overflow="fold")
    for name, fact in _flat(found).items():
        _add_fact(facts, name, fact, describe_metric(name))
    yield facts


def _add_fact(facts: Table, name: str, fact: Any, *meant: str) -> None:
    if name == "conditions":  # a line for each: they are sentences
        for each in fact:
            facts.add_row("condition", text.printable(each), *meant)
        return
    label = name.removesuffix("_ms").removesuffix("_bytes").replace("_", " ")
    facts.add_row(label, text.printable(_measure(name, fact)), *meant)


def _facts() -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def _table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table


def _deeds(version: dict[str, Any]) -> str:
    metrics = version.get("operationMetrics")
    if not isinstance(metrics, dict):
        return ""
    parts = []
    for form, names in _DEEDS:
        number = next((str(metrics[name]) for name in names if name in metrics), "0")
        if number != "0":
            parts.append(form.format(text.printable(number)))
    return ", ".join(parts)


def _flat(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return plan and metrics in one dictionary, without empty values and duplicates."""
    facts: dict[str, Any] = {}
    for section in found.values():
        for name, fact in section.items():
            if fact is not None and fact != []:
                facts.setdefault(name.removeprefix(_METRICS), fact)
    return facts


def _measure(name: str, fact: Any) -> str:
    if isinstance(fact, bool | str | list):
        return ", ".join(map(str, fact)) if isinstance(fact, list) else str(fact)
    if name.endswith("_ms"):
        return text.duration(fact)
    if "bytes" in name:
        return text.size(fact)
    return text.count(fact) if isinstance(fact, int) else str(fact)
