"""The questions that everybody is asked: which files hold an hour, a day, a month, a value; some files; all files."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lazydelta.testing import MadeTable

__all__ = ["DEVICE", "HOURS", "PARTITION", "Question", "questions"]

HOURS = 1440
"""Two months in a table, so that a month is half of it."""
PARTITION = "_event_hour"
DEVICE = "sensor-04242"


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked for; ``since`` is the first hour that counts, ``limit`` how many files are enough.

    ``where`` is the condition as users write it. Peers without SQL conditions get its parts.
    """

    name: str
    where: str | None = None
    since: str | None = None
    device: str | None = None
    limit: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return it for a child."""
        return asdict(self)


def questions(made: MadeTable) -> list[Question]:
    """Return the questions to a table whose newest hour is known."""
    day, month = hours_before(made.last_hour, 23), hours_before(made.last_hour, 30 * 24 - 1)
    return [
        Question("one hour", f"{PARTITION} >= '{made.last_hour}'", since=made.last_hour),
        Question("24 hours", f"{PARTITION} >= '{day}'", since=day),
        Question("30 days", f"{PARTITION} >= '{month}'", since=month),
        Question("take 100", limit=100),
        Question("take 1000", limit=1000),
        Question("all files"),
        Question("statistics", f"device_id = '{DEVICE}'", device=DEVICE),
    ]


def hours_before(hour: str, number: int) -> str:
    """Return the name of the hour so many hours earlier."""
    timestamp = datetime.strptime(hour, "%Y%m%d%H") - timedelta(hours=number)  # noqa: DTZ007 - a name, not a timestamp
    return timestamp.strftime("%Y%m%d%H")
