"""``make capi-bundle``: a folder with the library, its Python and lazydelta, in a root that has nothing but glibc."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from lazydelta import DeltaTable
from lazydelta.capi.bundle import bundle
from lazydelta.errors import OptionError
from lazydelta.testing import make_table
from tests.support import unavailable

HOST = r"""
#include <stdio.h>
#include "delta_lazy.h"
static int found;
static bool seen(const char *path, int64_t size) { return path != NULL && size >= 0 && ++found; }
int main(int count, char **words) {
    int code = count < 2 ? -1 : delta_scan_lazy(words[1], "{\"_event_hour\": \"2026021005\"}", 0, seen);
    printf("%d %d %s\n", code, found, code ? delta_last_error() : "");
    return 0;
}
"""


def _tool(name: str) -> str:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") or unavailable(f"no {name}")


def _empty_root(root: Path, program: Path) -> None:
    """Put a program and the glibc that it is linked with into a root of its own."""
    done = subprocess.run([_tool("ldd"), program], capture_output=True, text=True, check=True)
    needed = set(re.findall(r"(/\S+/(?:ld-linux[^\s/]*|lib(?:c|m|dl|pthread|rt|util|resolv)\.so[.\d]*))", done.stdout))
    folder = Path(next(path for path in needed if "libc.so" in path)).parent
    for name in ("m", "dl", "pthread", "rt", "util", "resolv"):
        needed |= {str(each) for each in folder.glob(f"lib{name}.so.[0-9]")}
    for path in needed:
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(Path(path).resolve(), target)
    for name in ("tmp", "proc"):
        (root / name).mkdir()


@pytest.mark.slow
def test_a_bundle_scans_in_a_root_that_has_nothing_else(tmp_path: Path) -> None:
    """It is made in one place and used in another, by a host that knows only where the library is."""
    if os.geteuid() != 0:
        pytest.skip("only root may change its root folder")
    if shutil.which("cc") is None:
        unavailable("no C compiler")
    if not sysconfig.get_config_var("Py_ENABLE_SHARED"):
        pytest.skip("this Python has no shared library to embed")
    made = tmp_path / "made"
    assert bundle(made).parent == made / "lib"
    root = tmp_path / "root"
    (root / "opt").mkdir(parents=True)
    made.rename(root / "opt" / "delta")
    source = tmp_path / "host.c"
    source.write_text(HOST, encoding="ascii")
    inside = root / "opt/delta"
    command = [
        _tool("cc"),
        str(source),
        "-o",
        str(root / "host"),
        f"-I{inside}/include",
        f"-L{inside}/lib",
        "-ldelta_lazy",
    ]
    subprocess.run([*command, "-Wl,-rpath,/opt/delta/lib", "-Wl,--allow-shlib-undefined"], check=True)
    _empty_root(root, root / "host")
    make_table(root / "table", files=600, hours=24, tail=2)
    expected = len(list(DeltaTable(root / "table").files("_event_hour = '2026021005'")))
    assert expected
    try:
        done = subprocess.run(
            [_tool("chroot"), root, "/host", "/table"], capture_output=True, text=True, check=True, env={}
        )
    except PermissionError:
        pytest.skip("this container does not let root change its root folder")
    code, found, *words = done.stdout.split(maxsplit=2)
    assert code == "0", (words, done.stderr)
    assert int(found) == expected
    (inside / "delta_lazy.bundle").unlink()
    done = subprocess.run(
        [_tool("chroot"), root, "/host", "/table"], capture_output=True, text=True, check=True, env={}
    )
    assert "the rest of the bundle is not around it" in done.stdout


def test_a_bundle_does_not_replace_other_files(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine", encoding="ascii")
    with pytest.raises(OptionError, match="has other files"):
        bundle(tmp_path)
    assert (tmp_path / "mine").exists()
