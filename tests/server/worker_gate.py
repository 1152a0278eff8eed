"""Imported by the worker processes of tests: it makes their scans tell what they do, and wait where a test says so.

The folder in ``LAZYDELTA_TEST_GATE`` holds ``free`` while a ``Gate`` is at work: how many files a scan may hand out.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from lazydelta.log.file_batch import FileBatch
from lazydelta.scan.scanner import LazyDeltaScanner

FOLDER = Path(os.environ["LAZYDELTA_TEST_GATE"])
_original = LazyDeltaScanner.converted


def _one_by_one(scanner: LazyDeltaScanner, convert: Callable[[FileBatch], Any]) -> Generator[Any]:
    if not (FOLDER / "free").exists():
        yield from _original(scanner, convert)
        return
    free = int((FOLDER / "free").read_text())
    for batch in _original(scanner, lambda found: found):
        for index in range(len(batch)):
            with (FOLDER / "pulled").open("a+") as pulled:
                pulled.seek(0)
                number = len(pulled.readlines())
            if number == free:
                (FOLDER / "reaching").write_text(str(os.getpid()))
                (FOLDER / "reaching").rename(FOLDER / "reached")
                while not (FOLDER / "open").exists():
                    time.sleep(0.01)
            one = batch.slice(index, 1)
            with (FOLDER / "pulled").open("a") as pulled:
                pulled.write(one.path[0].as_py() + "\n")
            yield convert(one)


LazyDeltaScanner.converted = _one_by_one  # type: ignore[method-assign,assignment]
