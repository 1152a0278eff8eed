"""The group ``sidecar``: build, refresh, verify, show, clean and drop."""

from __future__ import annotations

import functools
import importlib
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate

import click

from lazydelta.cli.parameters import CONTEXT, debug_option, key_value_option

if TYPE_CHECKING:
    from collections.abc import Callable

    from lazydelta.cli.sidecar_output import SidecarOutput

__all__ = ["sidecar"]
