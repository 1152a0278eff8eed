"""Install axe-core, which finds what keeps people from using the page with a screen reader or a keyboard."""

from __future__ import annotations

import sys

from scripts.npm_cache import NpmPackage

AXE = NpmPackage("axe-core", "4.14.0", "axe-core", "axe.min.js")


if __name__ == "__main__":
    sys.exit(AXE.command("axe-core"))
