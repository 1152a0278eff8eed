"""Make a relocatable folder with the library, a Python and lazydelta: ``python -m lazydelta.capi.bundle [FOLDER]``.

The folder can be copied to any machine with the same processor and a glibc that is not older. Nothing in it names the
machine that made it: the library finds its Python by its own place.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

from lazydelta.capi.build import build
from lazydelta.errors import OptionError

__all__ = ["bundle"]

MARK = "delta_lazy.bundle"
"""The file by which the library knows the folder; ``delta_lazy.c`` has the same name."""
_EXTRA = "cffi"
_GLIBC = re.compile(r"(ld-linux[-\w]*|linux-vdso|lib(c|m|dl|pthread|rt|util|resolv|anl|nss_\w+))\.so[.\d]*")
_NEEDED = re.compile(r"^\s*(\S+) => (/\S+)", re.MULTILINE)
_NAME = re.compile(r"[A-Za-z0-9][-A-Za-z0-9._]*")
# What no scan uses, and takes half of the space.
# fmt: off
_LEFT_OUT_OF_PYTHON = (
    "site-packages", "test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "config-*", "sqlite3",
    "_tkinter*", "_curses*", "_sqlite3*", "_dbm*", "_gdbm*", "_crypt.*", "nis.*", "readline.*", "_test*", "_xxtest*",
    "xxlimited*",
)
# fmt: on
_LEFT_OUT_OF_PACKAGES = ("tests", "include", "*.pyx", "*.pxd", "*.pxi", "*.a", "*.h")


def bundle(folder: Path) -> Path:
    """Make the folder, and return the path of the library in it."""
    if folder.exists() and any(folder.iterdir()) and not (folder / MARK).exists():
        raise OptionError(f"{folder} has other files", hint="choose an empty folder, or the output of an earlier run")
    shutil.rmtree(folder, ignore_errors=True)
    libraries = folder / "lib"
    standard = Path(sysconfig.get_path("stdlib"))
    packages = libraries / standard.name / "site-packages"
    shutil.copytree(standard, packages.parent, ignore=shutil.ignore_patterns(*_LEFT_OUT_OF_PYTHON))
    packages.mkdir()
    for name in _closure(["lazydelta", _EXTRA]):
        _copy_distribution(name, packages)
    soname = str(sysconfig.get_config_var("INSTSONAME"))
    shutil.copy2(Path(str(sysconfig.get_config_var("LIBDIR"))) / soname, libraries / soname)
    library = build(libraries, bundled=_copy_needed(libraries))
    (folder / "include").mkdir()
    for header in sorted(libraries.glob("delta_lazy.h*")):
        header.rename(folder / "include" / header.name)
    (folder / "bin").mkdir()
    shutil.copy2(Path(sys.executable).resolve(), folder / "bin" / "python")
    (folder / MARK).write_text(f"lazydelta {importlib.metadata.version('lazydelta')}\n", encoding="ascii")
    return library


def _closure(names: Iterable[str]) -> list[str]:
    """Return distributions and all that they need, without extras."""
    found: dict[str, None] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop().lower().replace("_", "-")
        if name in found:
            continue
        found[name] = None
        for needed in importlib.metadata.requires(name) or []:
            match = _NAME.match(needed)
            if match is not None and "extra ==" not in needed and _is_installed(match[0]):
                waiting.append(match[0])
    return list(found)


def _is_installed(name: str) -> bool:
    # What is needed only elsewhere (by another system, an older Python) is not installed here.
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _copy_distribution(name: str, packages: Path) -> None:
    ignored = shutil.ignore_patterns(*_LEFT_OUT_OF_PACKAGES)
    files = importlib.metadata.distribution(name).files or []
    tops = {
        each.parts[0]: Path(str(each.locate())).parents[len(each.parts) - 1] for each in files if ".." not in each.parts
    }
    if name == "lazydelta":  # an editable install has no files of its own but a path
        spec = importlib.util.find_spec("lazydelta")
        if spec is not None and spec.origin is not None:
            tops["lazydelta"] = Path(spec.origin).parent.parent
    for top, parent in tops.items():
        source = parent / top
        if source.is_dir() and top != "__pycache__":
            shutil.copytree(source, packages / top, ignore=ignored, dirs_exist_ok=True)
        elif source.is_file() and not top.startswith("__editable__") and source.suffix != ".pth":
            shutil.copy2(source, packages / top)


def _copy_needed(libraries: Path) -> list[Path]:
    """Copy the shared libraries that modules need, and return them; glibc is that of the machine."""
    modules = sorted(libraries.rglob("*.so*"))
    inside = {path.name for path in modules}
    command = ["ldd", *map(str, modules)]
    listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout  # noqa: S603 - our own files
    needed = {name: path for name, path in _NEEDED.findall(listed) if name not in inside and not _GLIBC.fullmatch(name)}
    for name, path in needed.items():
        shutil.copy2(Path(path).resolve(), libraries / name)
    return [libraries / name for name in sorted(needed)]


def main(arguments: list[str] | None = None) -> None:
    """Make the folder that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m lazydelta.capi.bundle", description=__doc__.partition(":")[0])
    parser.add_argument("folder", nargs="?", default="build/capi-bundle", type=Path, help="(build/capi-bundle)")
    try:
        print(bundle(parser.parse_args(arguments).folder))  # noqa: T201 - the output of the command
    except (OptionError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
