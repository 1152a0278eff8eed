"""Commands that work in this process or on the cluster of a Spark session: the options, the choice, the session."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

import click

from lazydelta.cli.output import Output
from lazydelta.cli.parameters import pairs
from lazydelta.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["chosen_engine", "engine_options", "session"]

F = TypeVar("F", bound=Callable[..., Any])


def engine_options(function: F) -> F:
    """Add ``--engine``, ``--master`` and ``--conf``."""
    decorated = click.option(
        "--conf", multiple=True, metavar="K=V", callback=pairs, help="A setting of Spark; repeatable."
    )(function)
    decorated = click.option("--master", metavar="M", help="Spark's master; local[*] unless spark-submit has set it.")(
        decorated
    )
    return click.option(
        "--engine",
        type=click.Choice(["auto", "local", "spark"]),
        default="auto",
        show_default=True,
        help="Work in this process or on Spark; auto takes Spark for much work where there is a cluster.",
    )(decorated)


def chosen_engine(engine: str, master: str | None, conf: dict[str, str], files: Callable[[], int], *, many: int) -> str:
    """Return local or spark: what was asked for, or by size where --master or spark-submit name a cluster.

    ``files`` counts them, and is asked only then; ``many`` is from how many on Spark is chosen.
    """
    if engine == "local" and (master is not None or conf):
        raise click.UsageError("--master and --conf make no sense with --engine local.", click.get_current_context())
    has_cluster = master is not None or "PYSPARK_GATEWAY_PORT" in os.environ
    if engine == "auto":
        engine = "spark" if has_cluster and files() >= many else "local"
    if engine == "spark" and find_spec("pyspark") is None:
        raise OptionError("--engine spark needs PySpark, which is not installed", hint="pip install 'lazydelta[spark]'")
    return engine


@contextmanager
def session(name: str, master: str | None, conf: dict[str, str], out: Output | None) -> Iterator[SparkSession]:
    """Start Spark for the length of a block, or use the session that there is; ``out`` is told where nobody else is."""
    from py4j.protocol import Py4JError  # noqa: PLC0415 - only who asks for Spark loads it
    from pyspark.errors import PySparkException  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415

    from lazydelta.spark import start_session  # noqa: PLC0415

    is_ours = SparkSession.getActiveSession() is None
    with nullcontext() if out is None else out.watch(lambda: "starting Spark"):
        spark = start_session(name, master=master, conf=conf)
    try:
        yield spark
    finally:
        if is_ours:
            with suppress(Py4JError, PySparkException, OSError, KeyboardInterrupt):
                spark.stop()
