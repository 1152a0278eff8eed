"""The temporary files of local writers: hidden from listings, and removed when their writer was killed long ago."""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
import time

__all__ = ["TEMPORARY", "temporaries", "tidy"]

TEMPORARY = ".lazydelta-"
"""How the name of a file begins that is being written; see ``FileStore``."""

# No writer leaves its temporary file untouched for so long, whatever it is waiting for.
_STALE_SECONDS = 24 * 3600
_MAX_REMEMBERED = 10_000
_tidied: set[str] = set()


def temporaries(folder: str, most: int | None = None) -> list[tuple[str, os.stat_result]]:
    """Return the temporary files in a folder, having looked at so many of its entries at most."""
    found = []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in itertools.islice(entries, most):
            if entry.name.startswith(TEMPORARY):
                # Gone in the meantime: its writer is alive and well.
                with contextlib.suppress(FileNotFoundError):
                    info = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(info.st_mode):
                        found.append((entry.name, info))
    return found


def tidy(folder: str) -> None:
    """Remove what writers that were killed long ago left in a folder, once for each folder that we write to."""
    if folder in _tidied:
        return
    if len(_tidied) >= _MAX_REMEMBERED:
        _tidied.clear()
    _tidied.add(folder)
    stale = time.time() - _STALE_SECONDS
    # What was to be written is written; tidying may fail, and another writer tries again.
    with contextlib.suppress(OSError):
        for name, info in temporaries(folder, _MAX_REMEMBERED):
            if info.st_mtime < stale:
                os.unlink(f"{folder}/{name}")  # noqa: PTH108
