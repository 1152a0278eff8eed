"""``lazydelta ingest``: Spark is loaded only when the command runs."""

from __future__ import annotations

from typing import Any

import click

from lazydelta.cli.parameters import (
    CONTEXT,
    check_uri,
    debug_option,
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
@click.argument("source")
@click.argument("table")
@click.option(
    "--format",
    type=click.Choice(["json", "csv", "parquet"]),
    help="What the files are, where their names do not tell; json means one object a line.",
)
@click.option("--timestamp-column", metavar="A", help="Align the data files to the UTC time in this column.")
@click.option(
    "--boundary",
    type=click.Choice(["month", "day", "hour", "minute", "second"]),
    help="The unit of time that no data file crosses; hour, or what the table has.",
)
@click.option("--partition-column", metavar="NAME", help="Name the column of that time; _event_hour for hours.")
@click.option("--partition-generated", is_flag=True, help="Make the column of that time a generated column of Delta.")
@click.option("--partition-format", metavar="FORMAT", help="How that time is written, as strftime does: %Y-%m-%d-%H.")
@click.option("--partition-by", metavar="A,B", help="Partition by these columns as well.")
@click.option("--schema", metavar="DDL", help='The columns of a new table: "device string, ts timestamp, v double".')
@click.option("--merge-schema", is_flag=True, help="Add columns to the table that only the files have.")
@click.option(
    "--on-bad-rows",
    type=click.Choice(["reject", "fail"]),
    default="reject",
    show_default=True,
    help="Put rows that do not fit into the rejected table, or let the first of them be an error.",
)
@click.option(
    "--max-rejected",
    metavar="N",
    help="Let at most N rows, or this share of them (0.01, 1%), be rejected; 100% lets whole files be.",
)
@click.option(
    "--header/--no-header",
    default=None,
    help="CSV files have a header (and it is one, whatever it looks like), or none: cells are in the order of columns.",
)
@click.option(
    "--null-timestamps",
    type=click.Choice(["null-partition", "reject"]),
    default="null-partition",
    show_default=True,
    help="What becomes of rows without a time.",
)
@click.option(
    "--rejected-table", metavar="URI", help="Where rejected rows go; by default TABLE with _rejected after it."
)
@click.option("--target-file-size", metavar="SIZE", help="About the largest size of a data file, such as 128MB.")
@click.option("--stats-columns", metavar="A,B", help="Collect statistics of these columns only.")
@click.option(
    "--compression",
    type=click.Choice(["zstd", "snappy", "gzip", "none"]),
    default="zstd",
    show_default=True,
    help="Codec of the data files.",
)
@click.option(
    "--property",
    "properties",
    multiple=True,
    metavar="K=V",
    callback=pairs,
    help="A property of a new table, such as delta.checkpointInterval; repeatable.",
)
@click.option("--mode", type=click.Choice(["append", "overwrite"]), help="Add to the table, or replace all its rows.")
@click.option("--stream", is_flag=True, help="Go on with the files that come to the folder, until Ctrl-C.")
@click.option("--trigger", metavar="T", help='With --stream: once, available-now, or how often, such as "5 seconds".')
@click.option("--checkpoint-location", metavar="URI", help="With --stream: where Spark notes which files are done.")
@click.option(
    "--max-files-per-trigger",
    type=click.IntRange(min=1),
    metavar="N",
    help="With --stream: at most this many files in a commit; 1000 by default.",
)
@click.option("--master", metavar="M", help="Spark's master; local[*] unless spark-submit has set it.")
@click.option("--conf", multiple=True, metavar="K=V", callback=pairs, help="A setting of Spark; repeatable.")
@click.option(
    "--source-option",
    multiple=True,
    metavar="K=V",
    callback=pairs,
    help="As --storage-option, for SOURCE, where it is not in the store of the table; repeatable.",
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
