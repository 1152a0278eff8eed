"""The demo's telemetry: files of JSON lines that arrive in a folder, with late rows and rows without a time."""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["HOURS", "SCHEMA", "START", "Arrived", "Telemetry", "device"]

SCHEMA = "device_id string, sensor string, timestamp timestamp, value double, battery double"
START = datetime(2026, 2, 10, tzinfo=UTC)
HOURS = 48
# So many rows a device that each has some in every hour, and a few devices at least.
_ROWS_A_DEVICE, _FEW_DEVICES, _MANY_DEVICES = 300, 8, 200
_SENSORS = {"temperature": (18.0, 6.0), "humidity": (55.0, 15.0), "pressure": (1013.0, 4.0), "vibration": (0.3, 0.1)}
_LATE, _MOST_LATE_S = 0.03, 6 * 3600
_WITHOUT_TIME = 0.004
# A checkpoint is due at every tenth commit, so there is to be at least one.
_FEW_FILES, _MANY_FILES, _MANY_ROWS = 12, 24, 100_000


class Arrived(msgspec.Struct, frozen=True):
    """What has arrived: ``late`` rows belong to hours that were written before, ``without_time`` to none."""

    files: int = 0
    rows: int = 0
    late: int = 0
    without_time: int = 0


def device(number: int) -> str:
    """Return the name of a device."""
    return f"sensor-{number:03}"


class Telemetry:
    """Two days of measurements in a number of files; the same number of rows makes the same files."""

    def __init__(self, rows: int) -> None:
        self.files = _MANY_FILES if rows >= _MANY_ROWS else _FEW_FILES
        self._rows = rows
        self._devices = min(_MANY_DEVICES, max(_FEW_DEVICES, rows // _ROWS_A_DEVICE))
        self._random = random.Random(42)  # noqa: S311 - telemetry, not secrets

    def write(self, folder: Path, number: int) -> Arrived:
        """Let one file arrive, whole at once, as whoever watches the folder needs it."""
        seconds = HOURS * 3600 // self.files
        begin = number * seconds
        rows = self._rows // self.files + (number < self._rows % self.files)
        late = without_time = 0
        lines = []
        for _ in range(rows):
            moment = begin + self._random.random() * seconds
            chance = self._random.random()
            if chance < _LATE and begin:
                moment = max(0.0, begin - self._random.random() * _MOST_LATE_S)
                late += 1
            is_timeless = chance > 1 - _WITHOUT_TIME
            without_time += is_timeless
            lines.append(self._line(moment, is_timeless=is_timeless))
        # A name that begins with a dot is not looked at.
        hidden = folder / f".{number:03}.json"
        hidden.write_text("".join(lines), encoding="utf-8")
        hidden.rename(folder / f"telemetry-{number:03}.json")
        return Arrived(1, rows, late, without_time)

    def _line(self, moment: float, *, is_timeless: bool) -> str:
        chance = self._random
        sensor, (middle, swing) = chance.choice(list(_SENSORS.items()))
        day = math.sin((moment / 3600 - 8) * math.pi / 12)
        value = middle + swing * (day + chance.gauss(0, 0.2))
        time = "null" if is_timeless else f'"{(START + timedelta(seconds=moment)).isoformat()}"'
        return (
            f'{{"device_id":"{device(chance.randrange(self._devices))}","sensor":"{sensor}","timestamp":{time},'
            f'"value":{value:.3f},"battery":{chance.random():.2f}}}\n'
        )
