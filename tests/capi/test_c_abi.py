"""``libdelta_lazy.so`` from C: the files of the command line, threads, early stops, cancelling, errors, streams."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import _cffi_backend
import pytest

from lazydelta.capi.build import build
from tests.row_scan.made_table import MadeTable, make_rich_table
from tests.support import unavailable

pytestmark = pytest.mark.xdist_group("capi")  # the library is built once

ROOT = Path(__file__).resolve().parents[2]
FILES = 9
Run = Callable[..., str]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeTable:
    return make_rich_table(tmp_path_factory.mktemp("tä ble"), seed=11, files=FILES, rows=10)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("cc") is None:
        unavailable("no C compiler")
    if not sysconfig.get_config_var("Py_ENABLE_SHARED"):
        pytest.skip("this Python has no shared library to embed")
    return build(tmp_path_factory.mktemp("capi"))


def compiled(source: Path, target: Path, library: Path, *arguments: str) -> Path:
    command = ["cc", "-Wall", "-Wextra", "-Werror", str(source), f"-I{library.parent}", "-o", str(target)]
    subprocess.run([*command, *arguments], check=True)
    return target


def environment(**extra: str) -> dict[str, str]:
    paths = os.pathsep.join(path for path in sys.path if path and Path(path).is_dir())
    return os.environ | {"PYTHONPATH": paths, "LC_ALL": "C.UTF-8"} | extra


@pytest.fixture(scope="module")
def host(library: Path) -> Run:
    program = compiled(Path(__file__).with_name("host.c"), library.parent / "host", library, "-ldl", "-lpthread")

    def run(*arguments: str, env: dict[str, str] | None = None, of: Path = library) -> str:
        done = subprocess.run(
            [program, of, *arguments], env=env or environment(), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="module")
def by_command(made: MadeTable) -> list[dict[str, object]]:
    command = [sys.executable, "-m", "lazydelta.cli", "files", made.uri, "--json"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_example_prints_the_files_of_the_command_line(
    library: Path, made: MadeTable, by_command: list[dict[str, object]]
) -> None:
    linked = [f"-L{library.parent}", "-ldelta_lazy", f"-Wl,-rpath,{library.parent}"]
    program = compiled(ROOT / "examples" / "c" / "scan.c", library.parent / "scan", library, *linked)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([program, *arguments], env=environment(), capture_output=True, text=True, check=False)

    done = run(made.uri)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, done.stderr
    shown = ("path", "size", "modification_time", "partition_values", "version")
    assert len(by_command) == FILES
    assert [[file[name] for name in shown] for file in found] == [[file[name] for name in shown] for file in by_command]
    assert len(run(made.uri, '{"strategy": "reverse"}', "2").stdout.splitlines()) == 2
    failed = run(made.uri, '{"where": "nothing = 1"}')
    assert failed.returncode == 1
    assert "nothing" in failed.stderr


def test_a_host_that_loads_it_locally_gets_the_files(
    host: Run, made: MadeTable, by_command: list[dict[str, object]]
) -> None:
    found = [line.split("\t") for line in host("files", made.uri).splitlines()]
    assert found == [[file["path"], str(file["size"])] for file in by_command]
    assert len(host("files", made.uri, "", "3").splitlines()) == 3
    some = host("files", made.uri, '{"hour": "2026021022"}').splitlines()
    expected = [file["path"] for file in by_command if file["partition_values"] == {"hour": "2026021022"}]
    assert [line.split("\t")[0] for line in some] == expected
    assert 0 < len(expected) < FILES


def test_a_callback_that_has_enough_stops_the_scan_and_the_next_call_begins_anew(host: Run, made: MadeTable) -> None:
    assert host("stop", made.uri).splitlines() == [
        "code 0 files 1",
        "code 0 files 2",
        "code 0 files 3",
        f"code 0 files {FILES}",
    ]


def test_threads_scan_at_the_same_time_and_have_errors_of_their_own(host: Run, made: MadeTable) -> None:
    assert host("threads", made.uri, "5") == f"files {4 * 5 * FILES} wrong 0\n"


def test_a_scan_is_cancelled_by_its_name_from_another_thread(host: Run, made: MadeTable) -> None:
    assert host("cancel", made.uri).splitlines() == [
        "none 0",
        "stopped 1",
        "code -6 files 1 error The scan 'one' was cancelled",
        "after 0",
    ]


def test_files_and_rows_as_an_arrow_stream(host: Run, made: MadeTable) -> None:
    files = host("stream", made.uri, '{"stats_columns": []}').splitlines()
    assert files[0].startswith("columns path size modification_time partition_values")
    assert files[1] == f"rows {FILES}"
    rows = host("stream", made.uri, '{"of": "rows", "columns": ["id", "s"], "where": "id >= 5"}').splitlines()
    assert rows == ["columns id s", f"rows {sum(row['id'] >= 5 for row in made.rows)}"]
    first = host("stream", made.uri, '{"of": "rows"}', "1").splitlines()[1]
    assert 0 < int(first.split()[1]) < len(made.rows)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("files", "/nowhere/at-all"), "code -3 error There is no Delta table"),
        (("files", "TABLE", "{not json"), "code -1 error The predicate cannot be read as JSON"),
        (("stream", "TABLE", '{"of": "columns"}'), "code -1 error A stream is of files or rows"),
        (("stream", "TABLE", '{"limmit": 1}'), "code -1 error There is no option 'limmit'"),
        (("stream", "TABLE", '{"version": 99}'), "code -3 error"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, tuple) else "",
)
def test_errors_have_codes_and_words(host: Run, made: MadeTable, arguments: tuple[str, ...], said: str) -> None:
    assert host(*(made.uri if each == "TABLE" else each for each in arguments)).startswith(said)


def test_null_where_something_is_needed_is_an_error(host: Run) -> None:
    assert host("null").splitlines() == [
        "code -1 error delta_scan_lazy needs a table and a callback",
        "code -1 error delta_scan_lazy_ex needs a table and a callback",
    ]


# --- the environment that it finds


def virtual_environment(folder: Path, *paths: str) -> Path:
    """Make a virtual environment by hand, whose packages are those of the folders given."""
    base = Path(sys.base_prefix) / "bin" / "python3"
    packages = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    packages.mkdir(parents=True)
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(base)
    (folder / "pyvenv.cfg").write_text(f"home = {base.parent}\ninclude-system-site-packages = false\n")
    (packages / "those.pth").write_text("\n".join(paths) + "\n")
    return folder


def test_the_virtual_environment_around_the_library_is_found(
    host: Run, library: Path, made: MadeTable, tmp_path: Path
) -> None:
    clean = {name: value for name, value in environment().items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    empty = virtual_environment(tmp_path / "empty")
    bare = host("files", made.uri, env=clean | {"DELTA_LAZY_VENV": str(empty)})
    assert bare == "code -8 error the Python of libdelta_lazy could not be started; standard error has why\n"
    # With cffi alone, which the library needs to begin.
    backend = Path(_cffi_backend.__file__)
    (empty / backend.parent.relative_to(sys.prefix) / backend.name).symlink_to(backend)
    placed = shutil.copy2(library, empty / "lib" / library.name)
    said = host("files", made.uri, env=clean, of=placed)
    assert said.startswith(f"code -8 error lazydelta cannot be imported in {empty}:")

    full = virtual_environment(tmp_path / "full", *(path for path in sys.path if path and Path(path).is_dir()))
    placed = shutil.copy2(library, full / "lib" / library.name)
    assert len(host("files", made.uri, env=clean, of=placed).splitlines()) == FILES
    # A variable counts more than the place.
    assert "lazydelta cannot be imported" in host(
        "files", made.uri, env=clean | {"DELTA_LAZY_VENV": str(empty)}, of=placed
    )
    wrong = host("files", made.uri, env=clean | {"DELTA_LAZY_VENV": str(tmp_path)})
    assert wrong == "code -8 error DELTA_LAZY_VENV names no virtual environment\n"
