"""Stops a process at a counted change of files, until it is killed: what `tests.spark.stops` puts into all processes.

Python imports this by itself at its start wherever this folder is on the search path.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

# Where each event names the folder that its path is in; "open" does not tell.
_FOLDERS = {"os.link": 2, "os.rename": 2, "os.remove": 1}
_CHANGES = frozenset({"open", *_FOLDERS})


class _Stops:
    def __init__(self, table: str, folder: str, at: list[int], command: str) -> None:
        self._table, self._folder, self._at, self._command = table, folder, frozenset(at), command
        self._is_meant: dict[int, bool] = {}

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _CHANGES:
            return
        if event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR):
            return
        if not self._is_below(str(arguments[0]), -1 if event == "open" else arguments[_FOLDERS[event]]):
            return
        if self._runs_what_is_meant():
            number = self._count()
            if number in self._at:
                self._stop(number)

    def _is_below(self, path: str, folder: int) -> bool:
        """Tell whether a path is the table's; one without a folder is looked up by the folders that are open."""
        if path.startswith("/"):
            return path.startswith(self._table)
        for each in [str(folder)] if folder >= 0 else os.listdir("/proc/self/fd"):  # noqa: PTH208 - light
            try:
                place = os.readlink(f"/proc/self/fd/{each}")  # noqa: PTH115
            except OSError:
                continue
            if place.startswith(self._table) and os.path.isdir(place):  # noqa: PTH112
                return True
        return False

    def _runs_what_is_meant(self) -> bool:
        mine = os.getpid()  # workers are forks
        if mine not in self._is_meant:
            words = Path("/proc/self/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            self._is_meant[mine] = self._command in words
        return self._is_meant[mine]

    def _count(self) -> int:
        """Count one more change, of all processes together."""
        with open(f"{self._folder}/count", "ab", buffering=0) as file:  # noqa: PTH123 - light
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(b".")
            # Not where this process believes to be: another one may have written since it was opened here.
            return os.fstat(file.fileno()).st_size

    def _stop(self, number: int) -> None:
        with open(f"{self._folder}/{number}.new", "w") as file:  # noqa: PTH123
            file.write(str(os.getpid()))
        os.rename(f"{self._folder}/{number}.new", f"{self._folder}/{number}")  # noqa: PTH104
        while True:
            time.sleep(60)


_given = os.environ.get("LAZYDELTA_TEST_STOPS")
if _given:
    for _each in json.loads(_given):
        sys.addaudithook(_Stops(**_each))
