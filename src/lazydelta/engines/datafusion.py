"""DataFusion: tables under names of a session, and the table function ``delta('URI')``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from lazydelta.engines.table_source import TableOrUri, engine, engine_dataset
from lazydelta.errors import QueryError, ScanError
from lazydelta.row_scan.reading_pool import ReadingPool

__all__ = ["begin_here", "register_function", "register_table"]

# The process in which DataFusion has its threads; they stay there when it is forked.
_at_work_in: int | None = None


def begin_here() -> None:
    """Take note that DataFusion works in this process, or raise if it has begun in one that this was forked from."""
    global _at_work_in  # noqa: PLW0603 - process-wide by nature, like DataFusion's threads
    if _at_work_in is None:
        _at_work_in = os.getpid()
    if _at_work_in != os.getpid():
        message = (
            "The tokio runtime does not support forked processes: this one was forked from one that had run queries,"
        )
        message += " and DataFusion's threads stayed there"
        raise ScanError(message, hint="start it with the 'spawn' or 'forkserver' method, or run queries only in it")


def register_table(
    ctx: Any,
    name: str,
    table: TableOrUri,
    *,
    storage_options: Mapping[str, str] | None = None,
    pool: ReadingPool | None = None,
) -> Any:
    """Make a table known to a session as ``name``; return the session. The version is pinned now."""
    engine("datafusion", "datafusion")
    ctx.register_dataset(name, engine_dataset(table, storage_options, pool=pool))
    return ctx


def register_function(ctx: Any, *, storage_options: Mapping[str, str] | None = None) -> Any:
    """Give a session the table function ``delta('URI')``; return the session."""
    datafusion = engine("datafusion", "datafusion")

    def delta(*arguments: Any) -> Any:
        texts = [_text(each) for each in arguments]
        if len(texts) != 1 or texts[0] is None:
            raise QueryError("delta(…) takes the URI of a table as a text", hint="write delta('URI')")
        return datafusion.catalog.Table(engine_dataset(texts[0], storage_options))

    ctx.register_udtf(datafusion.udtf(delta, "delta"))
    return ctx


def _text(argument: Any) -> str | None:
    try:
        value = argument.python_value()
    except Exception:  # noqa: BLE001 - DataFusion raises no narrower class for what is no literal
        return None
    return value if isinstance(value, str) else value.as_py() if hasattr(value, "as_py") else None
