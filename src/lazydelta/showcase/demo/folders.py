"""The demo's folder: a temporary one, or one that is new, empty or of an earlier demo; no other is touched."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from lazydelta.errors import OptionError

__all__ = ["Folders", "folders_in"]

_MARKER = ".lazydelta-demo"
_TABLE = "telemetry"


@dataclass(frozen=True, slots=True)
class Folders:
    """Where everything is; what is in ``scratch`` is nothing that one would look at later."""

    root: Path

    @property
    def table(self) -> Path:
        """Return the table."""
        return self.root / _TABLE

    @property
    def rejected(self) -> Path:
        """Return the table of rows that the first one did not take."""
        return self.root / f"{_TABLE}_rejected"

    @property
    def scratch(self) -> Path:
        """Return the folder of all else: what arrives, what the stream remembers, a large table to compare with."""
        return self.root / "scratch"

    @property
    def arriving(self) -> Path:
        """Return where telemetry arrives."""
        return self.scratch / "arriving"

    @property
    def checkpoint(self) -> Path:
        """Return what the stream remembers."""
        return self.scratch / "stream-checkpoint"

    @property
    def log(self) -> Path:
        """Return what Spark has to say."""
        return self.root / "spark.log"

    @property
    def large(self) -> Path:
        """Return the table that has a log and no data."""
        return self.scratch / "large"

    def checkpoints(self) -> list[int]:
        """Return the versions of which there are checkpoints; those being written have other names yet."""
        found = (self.table / "_delta_log").glob("[0-9]*.checkpoint.parquet")
        return sorted(int(each.name.partition(".")[0]) for each in found)

    def sidecars(self) -> list[int]:
        """Return the versions whose checkpoints have a sidecar."""
        found = (self.table / "_delta_log" / "_sidecars").glob("v[0-9]*.manifest.json")
        return sorted(int(each.name.partition(".")[0][1:]) for each in found)

    def clear(self) -> None:
        """Delete all that a demo makes."""
        for each in (self.table, self.rejected, self.scratch):
            shutil.rmtree(each, ignore_errors=True)
        self.log.unlink(missing_ok=True)


def folders_in(chosen: str | None) -> Folders:
    """Return folders without anything in them; one that is not the demo's own is never emptied."""
    if chosen is None:
        root = Path(tempfile.mkdtemp(prefix="lazydelta-demo-"))
    else:
        root = Path(chosen).expanduser().absolute()
    folders = Folders(root)
    try:
        root.mkdir(parents=True, exist_ok=True)
        if any(root.iterdir()) and not (root / _MARKER).is_file():
            message = f"{root} is not empty and was not made by the demo"
            raise OptionError(message, path=str(root), hint="give --folder a folder that is new or empty")
        (root / _MARKER).write_text("This folder belongs to `lazydelta demo`, which replaces what it made.\n", "utf-8")
        folders.clear()
        folders.arriving.mkdir(parents=True)
    except OSError as error:
        message = f"The demo cannot use {root}: {error.strerror or error}"
        raise OptionError(message, path=str(root), hint="give --folder a folder that you may write to") from error
    return folders
