"""The ``lazydelta`` command: a thin layer of options and rendering over ``DeltaTable``."""

from __future__ import annotations

from lazydelta.cli.app import main

__all__ = ["main"]
