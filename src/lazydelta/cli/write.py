"""The commands that write: ``create``, ``append``, ``checkpoint`` and ``log clean``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lazydelta.cli import sentences
from lazydelta.cli.command_group import CommandGroup
from lazydelta.cli.parameters import CONTEXT, pairs
from lazydelta.cli.spark_engine import chosen_engine, engine_options, session
from lazydelta.cli.table_target import TableTarget, target_command
from lazydelta.errors import OptionError, TableExistsError, TableNotFoundError

if TYPE_CHECKING:
    import pyarrow as pa


__all__ = ["append", "checkpoint", "create", "log"]

_MIB = 1 << 20
# As for sidecars: below this one process is through before a cluster has started.
_MANY_TO_SHARE = 10_000_000
_BOUNDARIES = ("month", "day", "hour", "minute", "second")
_COMPRESSIONS = ("zstd", "snappy", "gzip", "none")


_write_command = target_command(library_options=False)


def _layout_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add what decides on the partitions of a table."""
    for decorate in (
        click.option(
            "--boundary",
            type=click.Choice(_BOUNDARIES),
            help="The unit of time that no data file crosses: hour by default, or what the table has.",
        ),
        click.option(
            "--timestamp-column",
            metavar="A",
            help="Partition by the UTC time in this column: _event_hour, or what --boundary says.",
        ),
        click.option("--partition-by", metavar="A,B", help="Partition by these columns."),
    ):
        function = decorate(function)
    return function


_property_option = click.option(
    "--property",
    "properties",
    multiple=True,
    metavar="K=V",
    callback=pairs,
    help="A property of the new table, such as delta.checkpointInterval; repeatable.",
)
# Whether it exists is seen when it is opened: click would repeat a secret that was taken for a file by mistake.
_FILE = click.Path(path_type=Path)


@click.command("create", context_settings=CONTEXT)
@_write_command
@click.option(
    "--column",
    "columns",
    multiple=True,
    metavar="NAME:TYPE",
    help="A column and its Delta type (id:long, price:decimal(10,2)); NAME:TYPE! has no nulls; repeatable.",
)
@click.option("--like", type=_FILE, metavar="FILE", help="Take the columns of this Parquet, CSV or JSON file.")
@_layout_options
@_property_option
@click.option("--name", help="A name for people.")
@click.option("--description", help="A description for people.")
@click.option("--if-absent", is_flag=True, help="Leave a table that exists as it is, without an error.")
def create(
    target: TableTarget,
    *,
    columns: tuple[str, ...],
    like: Path | None,
    partition_by: str | None,
    if_absent: bool,
    **rest: Any,
) -> None:
    """Create an empty table at URI."""
    from lazydelta.write.create import create_table  # noqa: PLC0415 - a second that `--help` does not wait for

    try:
        version = create_table(
            target.uri,
            _schema(columns, like),
            partition_by=_names(partition_by),
            storage_options=target.storage_options or None,
            mode="ignore" if if_absent else "error",
            **rest,
        )
    except TableExistsError as error:
        hint = "--if-absent leaves it as it is; `lazydelta append` adds rows to it"
        raise TableExistsError(error.args[0], path=error.path, hint=hint) from error
    target.out.tell({"uri": target.handle.store.uri, "version": version}, sentences.created)


@click.command("append")
@_write_command
@click.argument("files", nargs=-1, required=True, type=_FILE)
@click.option(
    "--format",
    "file_format",
    type=click.Choice(["parquet", "csv", "json"]),
    help="What the files are, where their names do not tell; json means one object a line.",
)
@_layout_options
@click.option("--reject-null-timestamps", is_flag=True, help="Refuse rows without a time to partition by.")
@click.option("--merge-schema", is_flag=True, help="Add columns to the table that only the files have.")
@_property_option
@click.option("--app-id", metavar="ID", help="With --app-version: append once, however often the command is run.")
@click.option("--app-version", type=click.IntRange(min=0), metavar="N", help="Which of the application's writes it is.")
@click.option(
    "--file-size",
    type=click.IntRange(min=1),
    metavar="MIB",
    default=128,
    show_default=True,
    help="About the largest size of a data file.",
)
@click.option(
    "--memory",
    type=click.IntRange(min=1),
    metavar="MIB",
    default=256,
    show_default=True,
    help="Hold this much at once; less memory means smaller files.",
)
@click.option(
    "--compression",
    type=click.Choice(_COMPRESSIONS),
    default="zstd",
    show_default=True,
    help="Codec of the data files.",
)
def append(
    target: TableTarget,
    *,
    files: tuple[Path, ...],
    file_format: str | None,
    partition_by: str | None,
    reject_null_timestamps: bool,
    file_size: int,
    memory: int,
    **rest: Any,
) -> None:
    """Append the rows of FILES to the table at URI in one commit, and create the table if there is none."""
    from lazydelta.cli.write_input import Counted, open_files  # noqa: PLC0415
    from lazydelta.write.write_options import WriteOptions  # noqa: PLC0415
    from lazydelta.writing import commit_arrow  # noqa: PLC0415

    options = WriteOptions(
        partition_by=_names(partition_by) or None,
        null_timestamps="reject" if reject_null_timestamps else "null-partition",
        target_file_size=file_size * _MIB,
        memory_budget=memory * _MIB,
        storage_options=target.storage_options,
        **rest,
    )
    counted = Counted()
    with target.out.watch(counted.describe):
        known = _table_schema(target)
        rows = open_files(files, known, file_format=file_format, counted=counted, may_be_new=options.merge_schema)
        done = commit_arrow(target.uri, rows, options)
    result = {
        "uri": target.handle.store.uri,
        "version": done.version,
        "files_read": counted.files,
        "rows": 0 if done.already_committed else counted.rows,
        "already_committed": done.already_committed,
    }
    target.out.tell(result, sentences.appended)


@click.command("checkpoint", context_settings=CONTEXT)
@_write_command
@click.option("--version", type=click.IntRange(min=0), metavar="N", help="Write the checkpoint of this version.")
@click.option(
    "--memory",
    type=click.IntRange(min=16),
    metavar="MIB",
    default=256,
    show_default=True,
    help="Work within this much.",
)
@engine_options
@click.option("--dry-run", is_flag=True, help="Write nothing, and tell what would be written, and where.")
def checkpoint(
    target: TableTarget,
    *,
    version: int | None,
    memory: int,
    engine: str,
    master: str | None,
    conf: dict[str, str],
    dry_run: bool,
) -> None:
    """Write the checkpoint of the newest version of the table at URI, unless it is there.

    Readers then start from it, however many commits the table has.
    """
    import msgspec  # noqa: PLC0415

    from lazydelta.log.checkpoint.writing.checkpoint_writer import write_checkpoint  # noqa: PLC0415
    from lazydelta.log.checkpoint.writing.spread_checkpoint import preview  # noqa: PLC0415
    from lazydelta.log.hint.hint_writer import write_last_checkpoint  # noqa: PLC0415

    store = target.handle.store
    done: list[int] = [0]

    def progress(count: int, _total: int | None) -> None:
        done[0] = count

    asked: dict[str, Any] = {"memory_budget": memory * _MIB, "progress": progress}
    chosen = chosen_engine(engine, master, conf, lambda: preview(store, version).actions, many=_MANY_TO_SHARE)
    if dry_run:
        found = msgspec.structs.replace(preview(store, version), engine=chosen)
        target.out.tell(msgspec.to_builtins(found), sentences.checkpoint_foreseen)
        return
    if chosen == "spark":
        with session("lazydelta checkpoint", master, conf, target.out) as spark:
            from lazydelta.spark.checkpoint_spreading import write_on  # noqa: PLC0415 - and with it Spark

            with target.out.watch(lambda: "the tasks of Spark write"):
                result = write_on(spark, store, version, **asked)
    else:
        with target.out.watch(lambda: f"{done[0]:,} files written"):
            result = write_checkpoint(store, version, **asked)
            write_last_checkpoint(store, result)
    target.out.tell(msgspec.to_builtins(result), sentences.checkpointed)


@click.group("log", cls=CommandGroup)
def log() -> None:
    """Take care of a table's log."""


@log.command("clean", context_settings=CONTEXT)
@_write_command
@click.option("--dry-run", is_flag=True, help="Delete nothing, and tell what would be deleted.")
def clean(target: TableTarget, *, dry_run: bool) -> None:
    """Delete commits and checkpoints that no version within the table's retention needs.

    The property delta.logRetentionDuration says how long that is; 30 days by default.
    """
    from dataclasses import asdict  # noqa: PLC0415

    from lazydelta.maintenance.log_cleanup import clean_log  # noqa: PLC0415

    with target.out.watch(lambda: "cleaning the log"):
        result = clean_log(target.handle, dry_run=dry_run)
    target.out.tell(asdict(result), sentences.log_cleaned)


def _names(text: str | None) -> list[str]:
    return [name for each in (text or "").split(",") if (name := each.strip())]


def _table_schema(target: TableTarget) -> pa.Schema | None:
    import pyarrow as pa  # noqa: PLC0415

    from lazydelta.log.snapshot_opening import open_snapshot  # noqa: PLC0415

    try:
        snapshot = open_snapshot(target.handle.store)
    except TableNotFoundError:
        return None
    made = snapshot.metadata.property("lazydelta.partitionColumn")  # it is no column of the files
    return pa.schema([each for each in snapshot.schema.to_arrow() if each.name != made])


def _schema(columns: tuple[str, ...], like: Path | None) -> pa.Schema:
    import pyarrow as pa  # noqa: PLC0415

    from lazydelta.cli.write_input import schema_of  # noqa: PLC0415
    from lazydelta.types.schema import TableSchema  # noqa: PLC0415

    if not columns and like is None:
        raise OptionError("A table needs columns", hint="give --column NAME:TYPE, or --like FILE")
    fields = []
    for each in columns:
        name, colon, kind = each.partition(":")
        if not colon or not name or not kind:
            raise OptionError(f"--column {each} makes no sense", hint="write it as name:type")
        required = kind.endswith("!")
        fields.append({"name": name, "type": kind.removesuffix("!").strip().lower(), "nullable": not required})
    named = TableSchema.parse(json.dumps({"type": "struct", "fields": fields}), origin="--column").to_arrow()
    taken = [] if like is None else list(schema_of(like))
    return pa.schema([*taken, *named])
