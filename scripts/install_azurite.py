"""Install the Azurite blob emulator, which the tests talk to.

The version is pinned: a dependency of later releases cannot be installed.
"""

from __future__ import annotations

import sys

from scripts.npm_cache import NpmPackage, cache_root, node_bin

__all__ = ["AZURITE_VERSION", "cache_root", "entry_point", "install", "location", "node_bin"]

AZURITE_VERSION = "3.35.0"
_PACKAGE = NpmPackage("azurite", AZURITE_VERSION, "azurite", "dist/src/blob/main.js")

location = _PACKAGE.location
entry_point = _PACKAGE.entry_point
install = _PACKAGE.install


if __name__ == "__main__":
    sys.exit(_PACKAGE.command("Azurite"))
