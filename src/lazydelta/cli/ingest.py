"""``lazydelta ingest``: Spark is loaded only when the command runs."""

from __future__ import annotations

from typing import Any

import click

from lazydelta.cli.parameters import (
    CONTEXT,
    check_uri,
    debug_option,
    folders,
    json_option,
    pairs,
    refuse_extra_arguments,
    storage_option,
)
from lazydelta.errors import require

__all__ = ["ingest"]

_ONLY_STREAM = {
    "checkpoint_location": "--checkpoint-location",
    "trigger": "--trigger",
    "max_files_per_trigger": "--max-files-per-trigger",
}
_ONLY_BATCH = {"mode": "--mode"}


@click.command("ingest", context_settings=CONTEXT)
@click.argument("source", shell_complete=folders)
@click.argument("table", shell_complete=folders)
@click.option(
    "--format",
    type=click.Choice(["json", "csv", "parquet"]),
    help="The format of the files, if their names do not show it; json is one object per line.",
)
@click.option("--timestamp-column", metavar="A", help="Align the data files to the UTC time in this column.")
@click.option(
    "--boundary",
    type=click.Choice(["month", "day", "hour", "minute", "second"]),
    help="The unit of time that no data file crosses. [default: hour, or that of the table]",
)
@click.option("--partition-column", metavar="NAME", help="The name of the time column; _event_hour for hours.")
@click.option("--partition-generated", is_flag=True, help="Make the time column a Delta generated column.")
@click.option(
    "--partition-format", metavar="FORMAT", help="The strftime format of the time column, such as %Y-%m-%d-%H."
)
@click.option("--partition-by", metavar="A,B", help="Also partition by these columns.")
@click.option("--schema", metavar="DDL", help='The columns of a new table: "device string, ts timestamp, v double".')
@click.option("--merge-schema", is_flag=True, help="Add columns of the files that the table lacks.")
@click.option(
    "--on-bad-rows",
    type=click.Choice(["reject", "fail"]),
    default="reject",
    show_default=True,
    help="Write rows that do not fit to the rejected table, or fail on the first one.",
)
@click.option(
    "--max-rejected",
    metavar="N",
    help="The maximum number or share (0.01, 1%) of rejected rows; 100% accepts fully rejected files.",
)
@click.option(
    "--header/--no-header",
    default=None,
    help="Whether CSV files have a header line; without one, cells are in the order of the columns.",
)
@click.option(
    "--null-timestamps",
    type=click.Choice(["null-partition", "reject"]),
    default="null-partition",
    show_default=True,
    help="How to handle rows without a timestamp.",
)
@click.option("--rejected-table", metavar="URI", help="The table for rejected rows; TABLE_rejected by default.")
@click.option("--target-file-size", metavar="SIZE", help="The approximate maximum size of a data file, such as 128MB.")
@click.option("--stats-columns", metavar="A,B", help="Collect statistics only for these columns.")
@click.option(
    "--compression",
    type=click.Choice(["zstd", "snappy", "gzip", "none"]),
    default="zstd",
    show_default=True,
    help="The compression codec of data files.",
)
@click.option(
    "--property",
    "properties",
    multiple=True,
    metavar="K=V",
    callback=pairs,
    help="A property of a new table, such as delta.checkpointInterval; repeatable.",
)
@click.option(
    "--mode", type=click.Choice(["append", "overwrite"]), help="Append to the table, or replace all its rows."
)
@click.option("--stream", is_flag=True, help="Keep ingesting new files of the folder until Ctrl-C.")
@click.option("--trigger", metavar="T", help='With --stream: once, available-now, or an interval such as "5 seconds".')
@click.option(
    "--checkpoint-location", metavar="URI", help="With --stream: the folder in which Spark records its progress."
)
@click.option(
    "--max-files-per-trigger",
    type=click.IntRange(min=1),
    metavar="N",
    help="With --stream: the maximum number of files per commit; 1000 by default.",
)
@click.option("--master", metavar="M", help="The Spark master; local[*] unless set by spark-submit.")
@click.option("--conf", multiple=True, metavar="K=V", callback=pairs, help="A Spark configuration setting; repeatable.")
@click.option(
    "--source-option",
    multiple=True,
    metavar="K=V",
    callback=pairs,
    help="A --storage-option for SOURCE, if it is in another store than the table; repeatable.",
)
@storage_option
@json_option
@debug_option
def ingest(*, source: str, table: str, as_json: bool, stream: bool, **rest: Any) -> None:
    """Write the rows of SOURCE to the Delta table TABLE, in one commit, with Spark.

    SOURCE is a folder, a file, or a pattern for names in a folder. A table that does not exist is created. With
    --stream each micro-batch of new files is a commit, and no file is ingested twice.
    """
    refuse_extra_arguments()
    check_uri(source)
    check_uri(table)
    for name, option in (_ONLY_BATCH if stream else _ONLY_STREAM).items():
        if rest[name] is not None:
            when = "without" if stream else "with"
            raise click.UsageError(f"{option} can only be used {when} --stream.", click.get_current_context())
    require("spark", "pyspark")
    from lazydelta.cli.ingest_run import run  # noqa: PLC0415 - and with it Spark

    run(source, table, as_json=as_json, stream=stream, **rest)
