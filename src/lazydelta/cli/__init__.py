"""The command ``lazydelta``: the outermost edge, a thin layer of options and rendering over ``DeltaTable``."""

from __future__ import annotations

from lazydelta.cli.app import main

__all__ = ["main"]
