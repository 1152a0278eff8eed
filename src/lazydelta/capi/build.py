"""Build ``libdelta_lazy.so``: ``python -m lazydelta.capi.build [FOLDER]``.

The library contains no copy of lazydelta. It starts the Python that built it, or that of the virtual environment it is
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
from collections.abc import Sequence
from pathlib import Path

from lazydelta.errors import OptionError, require

__all__ = ["HEADER", "build"]

_HERE = Path(__file__).parent
HEADER = _HERE / "delta_lazy.h"
_LIBRARY = "libdelta_lazy.so"

# The Python half. delta_lazy.c explains why it never returns 0.
_DECLARED = """
int lazydelta_objects(const char *, const char *, bool (*)(const char *, void *), void *, char *, size_t);
int lazydelta_stream(const char *, const char *, uintptr_t, uintptr_t, char *, size_t);
int lazydelta_simple(const char *, const char *, size_t, uintptr_t, uintptr_t, char *, size_t);
int lazydelta_vector(const char *, const char *, const char *, const char *, const char *, int64_t, int64_t, int64_t,
                     bool (*)(const uint64_t *, size_t, void *), void *, char *, size_t);
int lazydelta_cancel(const char *, char *, size_t);
int lazydelta_open(const char *, const char *, char *, size_t, char *, size_t);
int lazydelta_close(const char *, char *, size_t);
int lazydelta_refresh(const char *, char *, size_t);
int lazydelta_metrics(const char *, char *, size_t, char *, size_t);
int lazydelta_start(char *, size_t);
int lazydelta_stop(char *, size_t);
"""
_MODULE = "_delta_lazy_embedded"
# Every call reports an import failure, in addition to standard error.
_AT_START = f"""
from {_MODULE} import ffi

try:
    from lazydelta.capi.embedded_scan import define
except BaseException as error:
    import sys
    words = f"lazydelta cannot be imported in {{sys.prefix}}: {{error}}".encode("utf-8", "replace")[:1000] + bytes(1)

    def refuse(*arguments):
        ffi.memmove(arguments[-2], words, len(words))
        return -8

    calls = "simple objects stream vector open close refresh metrics cancel start stop"
    for name in calls.split():
        ffi.def_extern(name="lazydelta_" + name)(refuse)
else:
    define(ffi)
"""


def build(folder: Path, *, bundled: Sequence[Path] | None = None) -> Path:
    """Build the library, put it and its header into a folder, and return its path.

    One of a bundle looks for its Python around itself only. It loads the ``bundled`` libraries, from its own folder.
    """
    require("capi", "cffi")
    import cffi  # noqa: PLC0415 - an optional extra

    if not sysconfig.get_config_var("Py_ENABLE_SHARED"):
        message = f"The Python in {sys.base_prefix} has no shared library, which libdelta_lazy needs"
        raise OptionError(message, hint="use a Python built with --enable-shared, as in most distributions")
    ffi = cffi.FFI()
    ffi.embedding_api(_DECLARED)
    ffi.embedding_init_code(_AT_START)
    ffi.set_source(_MODULE, (_HERE / "delta_lazy.c").read_text(encoding="utf-8"))
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="delta-lazy-") as scratch:
        source = Path(scratch) / f"{_MODULE}.c"
        ffi.emit_c_code(str(source))
        made = Path(scratch) / _LIBRARY
        _compile(source, made, bundled)
        target = folder / _LIBRARY
        # A process that has loaded the old library keeps it, and no process sees a partial new one.
        staged = target.with_suffix(".so.new")
        shutil.copy2(made, staged)
        staged.replace(target)
    for header in (HEADER, HEADER.with_suffix(".hpp")):
        shutil.copy2(header, folder / header.name)
    return target


def _compile(source: Path, target: Path, bundled: Sequence[Path] | None) -> None:
    libraries = str(sysconfig.get_config_var("LIBDIR"))
    version = sysconfig.get_config_var("LDVERSION") or sysconfig.get_config_var("VERSION")
    defines = {
        "DELTA_LAZY_VERSION": importlib.metadata.version("lazydelta"),
        "DELTA_LAZY_LIBPYTHON": str(sysconfig.get_config_var("INSTSONAME")),
        "DELTA_LAZY_PREFIX": sys.prefix if bundled is None else "",
        "DELTA_LAZY_PYTHON": sys.executable if bundled is None else "",
    }
    compiler = shlex.split(str(sysconfig.get_config_var("CC") or "cc"))
    if shutil.which(compiler[0]) is None:
        compiler = ["cc"]
    # Export only the functions of the header, and leave out where it was compiled.
    exports = source.with_suffix(".map")
    exports.write_text("DELTA_LAZY { global: delta_*; local: *; };\n", encoding="ascii")
    linking = [f"-Wl,-soname,{_LIBRARY}", f"-Wl,--version-script={exports}", "-s"]
    if bundled is not None:
        # Modules that Python loads look for libraries along their own paths only, but find what is loaded already.
        linking += ["-Wl,--disable-new-dtags,-rpath,$ORIGIN", "-Wl,--no-as-needed", *map(str, bundled)]
    elif libraries not in {"/lib", "/usr/lib", "/usr/lib64", f"/usr/lib/{sysconfig.get_config_var('MULTIARCH')}"}:
        linking.append(f"-Wl,-rpath,{libraries}")
    command = [
        *compiler,
        *("-shared", "-fPIC", "-O2", "-fvisibility=hidden", "-Wall", "-Wno-unused-function", "-o", str(target)),
        f"-ffile-prefix-map={source.parent}=.",
        str(source),
        *(f'-D{name}="{value}"' for name, value in defines.items()),
        f"-I{sysconfig.get_path('include')}",
        f"-I{_HERE}",
        f"-L{libraries}",
        f"-lpython{version}",
        *linking,
        *("-ldl", "-lpthread"),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own arguments
    except OSError as error:
        raise OptionError(f"There is no C compiler: {error}", hint="install gcc or clang") from error
    if done.returncode:
        raise OptionError(f"The C compiler failed:\n{done.stderr[-2000:]}", hint="install Python's headers")


def main(arguments: list[str] | None = None) -> None:
    """Build with the arguments of the command line."""
    parser = argparse.ArgumentParser(prog="python -m lazydelta.capi.build", description="Build libdelta_lazy.so.")
    parser.add_argument("folder", nargs="?", default="build/capi", type=Path, help="where it goes (build/capi)")
    try:
        print(build(parser.parse_args(arguments).folder))  # noqa: T201 - the output of the command
    except OptionError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
