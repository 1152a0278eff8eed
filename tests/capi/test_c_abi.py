"""``libdelta_lazy.so`` from C: the files of the command line, threads, early stops, cancelling, errors, streams."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path

import _cffi_backend
import pyarrow.parquet as pq
import pytest

from lazydelta.capi.build import HEADER, build
from tests.rows.made_table import MadeTable, make_rich_table
from tests.support import unavailable

pytestmark = pytest.mark.xdist_group("capi")  # the library is built once

ROOT = Path(__file__).resolve().parents[2]
FILES = 9
Run = Callable[..., str]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeTable:
    return make_rich_table(tmp_path_factory.mktemp("tä ble"), seed=11, files=FILES, rows=10, with_vectors=False)


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> MadeTable:
    """Return a table some of whose files have deletion vectors."""
    return make_rich_table(tmp_path_factory.mktemp("marked"), seed=11, files=FILES, rows=10)


def deleted_positions(marked: MadeTable) -> dict[str, list[int]]:
    """Return the deleted rows of each file that has some: those in the file that the table does not have."""
    live = {row["id"] for row in marked.rows}
    found = {
        path: [at for at, id_ in enumerate(pq.read_table(marked.path / path)["id"].to_pylist()) if id_ not in live]
        for path in marked.files
    }
    return {path: rows for path, rows in found.items() if rows}


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


@pytest.mark.parametrize("mode", ["cancel", "cancel structs"])
def test_a_scan_is_cancelled_by_its_name_from_another_thread(host: Run, made: MadeTable, mode: str) -> None:
    assert host(mode, made.uri).splitlines() == [
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
        (("files", "TABLE", "[" * 50_000), "code -1 error The predicate cannot be read as JSON"),
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
        "code -1 error delta_scan_files needs a table and a callback",
        "code -1 error delta_deletion_vector_rows needs a table, a file, its vector and a callback",
    ]


_WRONG = "code -1 error An option has a value of the wrong type"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("files", os.fsdecode(b"/t\xff")), "code -1 error A string is not UTF-8"),
        (("files", "TABLE", os.fsdecode(b'{"hour": "\xff"}')), "code -1 error A string is not UTF-8"),
        (("files", "TABLE", "5"), _WRONG),
        (("stream", "TABLE", '{"limit": "3"}'), _WRONG),
        (("stream", "TABLE", '{"limit": -3}'), "code -1 error limit is negative"),
        (("stream", "TABLE", '{"version": [1]}'), _WRONG),
        (("stream", "TABLE", '{"scan_id": 5}'), _WRONG),
        (
            ("stream", "TABLE", '{"of": "rows", "columns": "id"}'),
            _WRONG,
        ),
        (("stream", "TABLE", '{"storage_options": {"a": 1}}'), _WRONG),
        (("stream", "TABLE", '{"strategy": "sideways"}'), _WRONG),
        (("objects", "TABLE", '{"of": "rows"}'), "code -1 files 0 error A callback is given files, not 'rows'"),
        (("objects", "TABLE", '{"of": "nothing"}'), "code -1 files 0 error A callback is given files, not 'nothing'"),
    ],
    ids=lambda each: ascii(each)[:40],
)
def test_what_makes_no_sense_has_a_code_of_its_own(
    host: Run, made: MadeTable, arguments: tuple[str, ...], said: str
) -> None:
    told = host(*(made.uri if each == "TABLE" else each for each in arguments))
    assert told.startswith(said)
    assert len(told.splitlines()) == 1


HANDLED = '{"handles_deletion_vectors": true, "stats_columns": []}'


def calls(host: Run, table: Path, *asked: tuple[str, str]) -> list[list[str]]:
    """Return the lines that each call prints, with its code and error in the last one."""
    told = host("calls", str(table), *(each for call in asked for each in call)).splitlines()
    found: list[list[str]] = []
    for line in told:
        if len(found) < len(asked) and line == asked[len(found)][0]:
            found.append([])
        else:
            found[-1].append(line)
    return found


def test_a_file_with_a_deletion_vector_never_looks_like_a_plain_one(
    host: Run, marked: MadeTable, tmp_path: Path
) -> None:
    deleted = deleted_positions(marked)
    wrong = tmp_path / "wrong"
    shutil.copytree(marked.path, wrong)
    logged = {}
    for commit in (wrong / "_delta_log").glob("*.json"):
        actions = [json.loads(line) for line in commit.read_text().splitlines()]
        for add in (action["add"] for action in actions if "add" in action):
            logged[add["path"]] = add | {"version": int(commit.stem)}
            if add["path"] == min(deleted):
                add["deletionVector"] = add["deletionVector"] | {"cardinality": 77}
        commit.write_text("".join(json.dumps(action) + "\n" for action in actions))

    *refused, structs, objects, stream, rows, mixed, no_stats = calls(
        host,
        marked.path,
        *[(call, "") for call in ("simple", "structs", "objects", "stream")],
        *[(call, HANDLED) for call in ("structs", "objects", "stream")],
        ("stream", '{"of": "rows", "columns": ["id"]}'),
        ("stream", '{"of": "rows", "handles_deletion_vectors": true}'),
        ("structs", '{"stats_columns": ["id"]}'),
    )
    assert [told[-1].partition(" files")[0] for told in refused] == ["code -5"] * 3 + [
        "code 0"
    ]  # a stream says it later
    for told in refused:
        assert sum(f"{path} has a deletion vector" in "".join(told) for path in deleted) == 1
        assert [line for line in told if line.split("\t")[0] in deleted] == []
    assert objects == [f"code 0 files {FILES} error "]
    assert stream[1] == f"rows {FILES}"
    assert rows[1] == f"rows {len(marked.rows)}"
    assert mixed[0].startswith("code -1 error There is no option 'handles_deletion_vectors'")
    assert "error A struct carries neither rows nor column statistics" in no_stats[0]

    lines = [line.split("\t") for line in structs[:-1]]
    assert sorted(line[0] for line in lines) == sorted(marked.files)
    for path, size, time, records, version, tier, partition, *vector in lines:
        add = logged[path]
        assert (int(size), int(time), int(version), tier) == (add["size"], add["modificationTime"], add["version"], "0")
        assert int(records) == json.loads(add.get("stats", "{}")).get("numRecords", -1)
        assert partition == f"hour={add['partitionValues']['hour'] or '(null)'}"
        assert (path in deleted) is bool(vector)
        if path in deleted:
            dv = add["deletionVector"]
            fields, _, positions = vector[0].rpartition(":")
            assert fields == f"i {dv['pathOrInlineDv']} -1 {dv['sizeInBytes']} {len(deleted[path])}"
            assert [int(row) for row in positions.split()] == deleted[path]
    [damaged] = calls(host, wrong, ("structs", HANDLED))
    told_of_it = next(line for line in damaged if line.startswith(min(deleted)))
    assert "code -4 error The deletion vector" in told_of_it


def test_an_open_table_is_scanned_by_name_and_moves_on_when_asked(host: Run, made: MadeTable) -> None:
    lines = host("open", made.uri).splitlines()
    assert lines[:9] == [
        "code 0",
        "files 1",
        "code -1 error version is an option of delta_lazy_open (pass it when opening the table)",
        "code 0",
        f"files {FILES}",
        f"rows {len(made.rows)}",
        "code -3",
        "closed 1",
        "same 1",
    ]
    metrics = json.loads(lines[9])
    assert metrics["delta.lazy.files_emitted"] == FILES
    assert metrics["delta.lazy.strategy"] in {"forward", "reverse"}
    assert lines[10] == "code -1 error There was no scan of files 'none' (pass the scan_id of an earlier scan)"


def test_the_example_in_cpp_lists_files_and_their_deleted_rows(library: Path, marked: MadeTable) -> None:
    compiler = shutil.which("c++")
    if compiler is None:
        unavailable("no C++ compiler")
    program = library.parent / "scan-cpp"
    source = ROOT / "examples" / "c" / "scan.cpp"
    linked = [f"-I{library.parent}", f"-L{library.parent}", "-ldelta_lazy", f"-Wl,-rpath,{library.parent}"]
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([compiler, *flags, str(source), *linked, "-o", str(program)], check=True)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([program, *arguments], env=environment(), capture_output=True, text=True, check=False)

    deleted = deleted_positions(marked)
    done = run(marked.uri, HANDLED)
    assert done.returncode == 0, done.stderr
    found = {line.split("\t")[0]: line.split("\t")[3].split(" ")[1:] for line in done.stdout.splitlines()}
    assert {path: [int(row) for row in rows] for path, rows in found.items()} == {
        path: deleted.get(path, []) for path in marked.files
    }
    refused = run(marked.uri)
    assert (refused.returncode, refused.stderr[:9]) == (1, "error -5:")


def test_threads_share_an_open_table(host: Run, made: MadeTable) -> None:
    assert host("together", made.uri, "", "8", "3") == f"files {8 * 3 * FILES} wrong 0\n"


def test_a_stream_that_is_cancelled_has_a_code_of_its_own(host: Run, made: MadeTable) -> None:
    assert host("cancel stream", made.uri).splitlines() == ["stopped 1", "is ECANCELED 1: The scan 'one' was cancelled"]


def test_errors_of_a_stream_have_no_traces_of_python(host: Run, made: MadeTable, tmp_path: Path) -> None:
    shutil.copytree(made.uri, tmp_path / "t")
    for file in (tmp_path / "t").glob("*.parquet"):
        file.unlink()
    told = host("stream", str(tmp_path / "t"), '{"of": "rows"}').splitlines()
    assert told[1].startswith("error ")
    assert ".parquet" in told[1]
    assert "Traceback" not in "".join(told)
    assert "Python exception" not in "".join(told)
    assert told[2:] == ["", "rows 0"]


def test_a_thread_whose_stack_is_too_small_is_refused(host: Run, made: MadeTable) -> None:
    assert host("stack", made.uri, "32").startswith("code -1 files 0 error the stack of this thread is too small")
    assert host("stack", made.uri, "1024") == f"code 0 files {FILES} error \n"


def test_a_child_that_was_forked_after_the_first_call_is_refused(host: Run, made: MadeTable) -> None:
    said = host("fork", made.uri).splitlines()
    assert said[0].startswith("code -8 error this process was forked after the first call")
    assert said[1:] == ["child 4", f"code 0 files {2 * FILES}"]


def test_after_a_shutdown_every_call_is_refused(host: Run, made: MadeTable) -> None:
    refused = "error libdelta_lazy was shut down"
    assert host("shutdown", made.uri).splitlines() == [
        f"code 0 files {FILES} error ",
        f"code -6 files 0 {refused}",
        f"code -6 {refused}",
    ]


@pytest.mark.parametrize(("mode", "code"), [("leave", 0), ("exit", 3), ("interrupt", -signal.SIGINT)])
def test_a_host_ends_as_it_wants_to(host: Run, library: Path, made: MadeTable, mode: str, code: int) -> None:
    """While threads scan, from inside a callback, and by Ctrl-C where it handles none itself."""
    del host  # which has built the program
    for _ in range(3 if mode == "leave" else 1):
        command = [str(library.parent / "host"), str(library), mode, made.uri]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (code, "")
        assert "still here" not in done.stdout


def run_tool(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_only_the_functions_of_the_header_are_exported(library: Path) -> None:
    told = run_tool("nm", "-D", "--defined-only", str(library))
    names = {line.split()[-1].partition("@")[0] for line in told.splitlines()} - {"DELTA_LAZY"}
    declared = set(re.findall(r"\b(delta_\w+)\(", HEADER.read_text(encoding="utf-8")))
    assert names == declared
    assert "Library soname: [libdelta_lazy.so]" in run_tool("readelf", "-d", str(library))
    assert f"{tempfile.gettempdir()}/delta-lazy-".encode() not in library.read_bytes()


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
