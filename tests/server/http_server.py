"""An HTTP server in this process, and a table with a value of every type."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from lazydelta import write_arrow
from lazydelta.server.config import LimitSettings, ServeConfig, ServerSettings, TableSettings
from lazydelta.server.http.listening import HttpServer, served
from lazydelta.server.tokens import TokenFile

SCRIPT = "<script>document.title='owned'</script>"


@contextmanager
def http_serving(
    tables: Mapping[str, Path | str], tokens: Path | None = None, **limits: Any
) -> Iterator[tuple[HttpServer, str]]:
    """Serve tables for the block, and return the server and its address."""
    settings = ServeConfig(
        tables={name: TableSettings(str(place)) for name, place in tables.items()},
        server=ServerSettings(tokens=None if tokens is None else str(tokens)),
        limits=LimitSettings(**limits),
    ).checked()
    known = None if tokens is None else TokenFile(tokens)
    with served(settings, host="127.0.0.1", port=0, tokens=known) as server:
        yield server, f"http://127.0.0.1:{server.port}"


def every_type() -> pa.Table:
    """Return rows with nulls, infinities, empty and odd texts."""
    hours = [dt.datetime(2026, 1, 1, hour, 0, 0, 123456, tzinfo=dt.UTC) for hour in range(5)]
    return pa.table(
        {
            "ts": pa.array([*hours, None], pa.timestamp("us", "UTC")),
            "x": pa.array([1, 2, 3, 4, 5, None], pa.int64()),
            "i": pa.array([1, -2, 3, None, 5, 6], pa.int32()),
            "s": ["a", "b", None, SCRIPT, 'é\u2028\\"', ""],
            "f": [1.5, float("nan"), float("inf"), None, 0.0, float("-inf")],
            "b": [True, False, None, True, True, False],
            "d": pa.array(
                [Decimal("1.50"), None, Decimal("-2.25"), Decimal(0), Decimal("1e6"), None], pa.decimal128(12, 2)
            ),
            "l": [[1, 2], [], None, [3], [4], [5]],
        }
    )


def write_every_type(place: Path) -> Path:
    """Write them to a table."""
    write_arrow(str(place), every_type())
    return place
