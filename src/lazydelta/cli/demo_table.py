"""The demo's table: telemetry of a few devices, written hour by hour, by deltalake and not by us."""

from __future__ import annotations

import importlib
import random
import shutil
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from lazydelta.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Made", "deltalake", "folder_for", "make_table"]

_MARKER = ".lazydelta-demo"
_TABLE = "telemetry"
_START = datetime(2026, 2, 8, 6, tzinfo=UTC)
_DEVICES = 20
_MINUTES = 60
_APPENDS_AN_HOUR = 2
_DELETED = "sensor-07"


class Made(msgspec.Struct, frozen=True):
    """What was written: where, and the versions worth looking at."""

    path: str
    commits: int
    rows: int
    checkpoint_version: int
    delete_version: int
    last_hour: str


def deltalake() -> Any:
    """Return the deltalake package; it is not one of ours, so it may be absent."""
    try:
        return importlib.import_module("deltalake")
    except ImportError as error:
        message = "The demo writes its table with deltalake, which is not installed"
        raise OptionError(message, hint="pip install deltalake") from error


def folder_for(path: str | None) -> Path:
    """Return an empty folder for the table; one that is not the demo's own is never emptied."""
    if path is None:
        folder = Path(tempfile.mkdtemp(prefix="lazydelta-demo-"))
    else:
        folder = Path(path).expanduser().absolute()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if any(folder.iterdir()) and not (folder / _MARKER).is_file():
                message = f"{folder} is not empty and was not made by the demo"
                raise OptionError(message, path=str(folder), hint="give --path a folder that is new or empty")
            if (folder / _TABLE).exists():
                shutil.rmtree(folder / _TABLE)
        except OSError as error:
            message = f"The demo cannot use {folder}: {error.strerror or error}"
            raise OptionError(message, path=str(folder), hint="give --path a folder that you may write to") from error
    (folder / _MARKER).write_text("This folder belongs to `lazydelta demo`, which replaces the table in it.\n", "utf-8")
    return folder / _TABLE


def make_table(folder: Path, commits: int = 60, tail: int = 8) -> Made:
    """Write ``commits`` commits: two appends an hour, one delete, a checkpoint before the last few."""
    library = deltalake()
    random_numbers = random.Random(42)  # noqa: S311 - telemetry, not secrets
    checkpoint, rows, deleted_at, hour = 0, 0, 0, ""
    for version, batch in enumerate(_appends(commits, random_numbers)):
        hour = batch.column("_event_hour")[0].as_py()
        if version == commits // 2:
            first = _START.strftime("%Y%m%d%H")
            library.DeltaTable(folder).delete(f"device_id = '{_DELETED}' AND _event_hour = '{first}'")
            deleted_at = version
            continue
        library.write_deltalake(
            folder,
            batch,
            mode="append",
            partition_by=["_event_hour"],
            name="telemetry",
            description="What the devices of the demo measured",
        )
        rows += batch.num_rows
        if version == commits - tail - 1:
            library.DeltaTable(folder).create_checkpoint()
            checkpoint = version
    return Made(str(folder), commits, rows, checkpoint, deleted_at, hour)


def _appends(count: int, random_numbers: random.Random) -> Iterator[pa.Table]:
    for number in range(count):
        start = _START + timedelta(hours=number // _APPENDS_AN_HOUR)
        devices = [f"sensor-{device:02}" for device in range(_DEVICES)]
        moments = [start + timedelta(minutes=random_numbers.randrange(_MINUTES)) for _ in devices]
        values = [round(random_numbers.gauss(20, 4), 2) for _ in devices]
        yield pa.table(
            {
                "device_id": devices,
                "timestamp": pa.array(moments, pa.timestamp("us", "UTC")),
                "value": values,
                "_event_hour": [start.strftime("%Y%m%d%H")] * len(devices),
            }
        )
