"""Generated tables, made once and kept: a folder for each recipe, under a name that changes with the generator."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import lazydelta.testing
from lazydelta.testing import MadeTable, make_table

__all__ = ["cache_folder", "cached_table"]

_MADE = "made.json"


def cache_folder() -> Path:
    """Return where tables are kept: ``LAZYDELTA_BENCH_CACHE``, else the user's cache.

    Not the project's ``.cache/``: the documentation's builder empties that.
    """
    chosen = os.environ.get("LAZYDELTA_BENCH_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lazydelta" / "bench-tables"


def cached_table(**recipe: Any) -> tuple[Path, MadeTable]:
    """Return the folder of the table with this recipe, made now unless it is there.

    Processes that want the same table at the same time wait for the one that makes it.
    """
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / _name_of(recipe)
    with (cache / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / _MADE).exists():
            shutil.rmtree(folder, ignore_errors=True)
            made = make_table(folder, **recipe)
            # Last, so that its presence says that the table is whole.
            (folder / _MADE).write_text(json.dumps(made.as_dict()))
            _forget_older(folder)
    return folder, MadeTable(**json.loads((folder / _MADE).read_text()))


def _forget_older(folder: Path) -> None:
    """Delete the tables of this recipe that an older generator made; each may be hundreds of megabytes."""
    words = folder.name.rpartition("-")[0]
    for other in folder.parent.glob(f"{words}-*"):
        if other.is_dir() and other != folder and other.name.rpartition("-")[0] == words:
            shutil.rmtree(other, ignore_errors=True)


def _name_of(recipe: dict[str, Any]) -> str:
    words = "-".join(f"{key}={value}".replace("_", "") for key, value in sorted(recipe.items()) if value is not None)
    return f"{words}-{_generator_digest()}".replace("=", "")


def _generator_digest() -> str:
    digest = hashlib.sha256()
    for module in sorted(Path(lazydelta.testing.__file__).parent.glob("*.py")):
        digest.update(module.read_bytes())
    return digest.hexdigest()[:12]
