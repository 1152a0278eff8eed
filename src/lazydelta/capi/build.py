"""Build ``libdelta_lazy.so``: ``python -m lazydelta.capi.build [FOLDER]``.

The library holds no copy of lazydelta. It starts the Python that built it, or that of the virtual environment it lies
in, and imports lazydelta there.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from lazydelta.errors import OptionError

__all__ = ["HEADER", "build"]

_HERE = Path(__file__).parent
HEADER = _HERE / "delta_lazy.h"
_LIBRARY = "libdelta_lazy.so"

# The Python half; see delta_lazy.c for why 0 is none of its answers.
_DECLARED = """
int lazydelta_files(const char *, const char *, size_t, bool (*)(const char *, int64_t), char *, size_t);
int lazydelta_objects(const char *, const char *, bool (*)(const char *, void *), void *, char *, size_t);
int lazydelta_stream(const char *, const char *, uintptr_t, char *, size_t);
int lazydelta_cancel(const char *, char *, size_t);
"""
_MODULE = "_delta_lazy_embedded"
# What cannot be imported is told by every call, and not on standard error alone.
_AT_START = f"""
from {_MODULE} import ffi

try:
    from lazydelta.capi.embedded_scan import define
except BaseException as error:
    import sys
    words = f"lazydelta cannot be imported in {{sys.prefix}}: {{error}}".encode()[:1000] + bytes(1)

    def refuse(*arguments):
        ffi.memmove(arguments[-2], words, len(words))
        return -8

    for name in ("lazydelta_files", "lazydelta_objects", "lazydelta_stream", "lazydelta_cancel"):
        ffi.def_extern(name=name)(refuse)
else:
    define(ffi)
"""


def build(folder: Path) -> Path:
    """Build the library and put it, with its header, into a folder; return its path."""
    try:
        import cffi  # noqa: PLC0415 - of an extra
    except ImportError as error:
        raise OptionError("cffi is not installed", hint="pip install 'lazydelta[capi]'") from error
    if not sysconfig.get_config_var("Py_ENABLE_SHARED"):
        message = f"The Python in {sys.base_prefix} has no shared library, which libdelta_lazy has to load"
        raise OptionError(message, hint="use one that was built with --enable-shared, as distributions do")
    ffi = cffi.FFI()
    ffi.embedding_api(_DECLARED)
    ffi.embedding_init_code(_AT_START)
    ffi.set_source(_MODULE, (_HERE / "delta_lazy.c").read_text(encoding="utf-8"))
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="delta-lazy-") as scratch:
        source = Path(scratch) / f"{_MODULE}.c"
        ffi.emit_c_code(str(source))
        made = Path(scratch) / _LIBRARY
        _compile(source, made)
        target = folder / _LIBRARY
        # Another process may have the old one loaded; it keeps it, and nobody sees half of the new one.
        staged = target.with_suffix(".so.new")
        shutil.copy2(made, staged)
        staged.replace(target)
    shutil.copy2(HEADER, folder / HEADER.name)
    return target


def _compile(source: Path, target: Path) -> None:
    libraries = str(sysconfig.get_config_var("LIBDIR"))
    version = sysconfig.get_config_var("LDVERSION") or sysconfig.get_config_var("VERSION")
    defines = {
        "DELTA_LAZY_VERSION": importlib.metadata.version("lazydelta"),
        "DELTA_LAZY_LIBPYTHON": str(sysconfig.get_config_var("INSTSONAME")),
        "DELTA_LAZY_PREFIX": sys.prefix,
        "DELTA_LAZY_PYTHON": sys.executable,
    }
    compiler = shlex.split(str(sysconfig.get_config_var("CC") or "cc"))
    if shutil.which(compiler[0]) is None:
        compiler = ["cc"]
    command = [
        *compiler,
        *("-shared", "-fPIC", "-O2", "-fvisibility=hidden", "-Wall", "-Wno-unused-function", "-o", str(target)),
        str(source),
        *(f'-D{name}="{value}"' for name, value in defines.items()),
        f"-I{sysconfig.get_path('include')}",
        f"-I{_HERE}",
        f"-L{libraries}",
        f"-lpython{version}",
        f"-Wl,-rpath,{libraries}",
        *("-ldl", "-lpthread"),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own arguments
    except OSError as error:
        raise OptionError(f"There is no C compiler: {error}", hint="install gcc or clang") from error
    if done.returncode:
        raise OptionError(f"The C compiler failed:\n{done.stderr[-2000:]}", hint="install Python's headers")


def main(arguments: list[str] | None = None) -> None:
    """Build as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m lazydelta.capi.build", description="Build libdelta_lazy.so.")
    parser.add_argument("folder", nargs="?", default="build/capi", type=Path, help="where it goes (build/capi)")
    print(build(parser.parse_args(arguments).folder))  # noqa: T201 - the answer of the command


if __name__ == "__main__":
    main()
