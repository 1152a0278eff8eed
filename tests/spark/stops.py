"""Processes that stop at a counted change of a table's files, report that they are there, and wait to be killed."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CHANGES_OF_A_COMMIT", "CHANGES_OF_A_FILE", "Stops"]

_STOPPING = Path(__file__).with_name("stopping")
# A file is opened under a temporary name, gets its own, and the temporary one is removed, if need be. A commit is such
# a file, and so are its checksum and at least one data file.
CHANGES_OF_A_FILE = 3
CHANGES_OF_A_COMMIT = 3 * CHANGES_OF_A_FILE
_PATIENCE = 300


@dataclass(frozen=True)
class Stops:
    """The changes of files in ``table`` at which processes stop, counted over all whose command holds ``command``."""

    folder: Path
    table: Path
    at: Sequence[int]
    command: str = ""

    @property
    def imported(self) -> str:
        """The folder that has to be on the search path of the processes."""
        return str(_STOPPING)

    def environment(self, *others: Stops) -> dict[str, str]:
        """Return what the first of the processes has to have in its environment; the others inherit it."""
        given = []
        for each in (self, *others):
            each.folder.mkdir(parents=True)
            table, folder = str(each.table), str(each.folder)
            given.append({"table": table, "folder": folder, "at": list(each.at), "command": each.command})
        paths = [str(_STOPPING), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {"LAZYDELTA_TEST_STOPS": json.dumps(given), "PYTHONPATH": os.pathsep.join(paths)}

    def wait(self, number: int, is_alive: Callable[[], bool]) -> int:
        """Wait until a process has stopped there, and return its id."""
        place = self.folder / str(number)
        deadline = time.monotonic() + _PATIENCE
        while not place.exists():
            assert is_alive(), f"all was done before change {number} of a file"
            assert time.monotonic() < deadline, f"change {number} of a file was not reached"
            time.sleep(0.01)
        return int(place.read_text())

    def kill(self) -> None:
        """Kill the processes that still wait at a stop."""
        for number in self.at:
            with suppress(FileNotFoundError, ProcessLookupError):
                os.kill(int((self.folder / str(number)).read_text()), signal.SIGKILL)
