"""The C# example over ``libdelta_lazy.so``, compiled and run by mono and, where there is an SDK, by .NET."""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lazydelta import DeltaTable
from tests.capi.test_c_abi import FILES, ROOT, deleted_positions, environment, library, made, marked
from tests.rows.made_table import MadeTable
from tests.support import unavailable

__all__ = ["library", "made", "marked"]

Run = Callable[..., subprocess.CompletedProcess[str]]


pytestmark = pytest.mark.xdist_group("capi")  # the library is built once


@pytest.fixture(scope="module")
def scan(library: Path) -> Run:
    compiler, mono = shutil.which("mcs"), shutil.which("mono")
    if compiler is None or mono is None:
        unavailable("no mono; `make setup` installs it where it may")
    program = library.parent / "scan.exe"
    sources = sorted((ROOT / "examples" / "csharp").glob("*.cs"))
    options = [
        "-warnaserror",
        f"-out:{program}",
        "-r:System.Runtime.Serialization.dll",
        "-r:System.Xml.dll",
    ]
    subprocess.run([compiler, *options, *map(str, sources)], check=True)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        env = environment(LD_LIBRARY_PATH=str(library.parent))
        return subprocess.run([mono, program, *arguments], env=env, capture_output=True, text=True, check=False)

    return run


def expected(made: MadeTable, where: str | None = None) -> list[str]:
    """Return the lines that the program prints, by Python's own scan."""
    lines = []
    for file in DeltaTable(made.uri).files(where):
        values = ",".join(f"{name}={value or ''}" for name, value in sorted(file.partition_values.items()))
        written = dt.datetime.fromtimestamp(file.modification_time / 1000, dt.UTC)
        stamp = written.strftime("%Y-%m-%dT%H:%M:%S.%f0Z")
        lines.append(f"{file.path}\t{file.size}\t{values}\t{stamp}")
    return lines


def test_it_lists_the_files_of_a_table(scan: Run, made: MadeTable) -> None:
    done = scan("sync", made.uri)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == expected(made)


def test_it_lists_files_asynchronously_by_a_predicate(scan: Run, made: MadeTable) -> None:
    some = scan("async", made.uri, '{"hour": "2026021022"}').stdout.splitlines()
    assert some == expected(made, "hour = '2026021022'")
    assert 0 < len(some) < FILES


def test_leaving_the_loop_stops_the_scan(scan: Run, made: MadeTable) -> None:
    done = scan("sync", made.uri, "", "2")
    assert (done.returncode, done.stdout.splitlines()) == (0, expected(made)[:2]), done.stderr


def test_a_token_that_is_cancelled_ends_the_loop_with_an_exception(scan: Run, made: MadeTable) -> None:
    done = scan("cancel", made.uri, "", "2")
    assert (done.returncode, done.stderr) == (3, "cancelled\n")
    assert done.stdout.splitlines() == expected(made)[:2]


def test_several_threads_scan_at_once(scan: Run, made: MadeTable) -> None:
    assert scan("threads", made.uri).stdout.split() == [str(FILES)] * 4


def test_errors_are_exceptions_with_code_and_words(scan: Run, made: MadeTable) -> None:
    wrong = scan("async", made.uri, '{"nothing": 1}')
    assert wrong.returncode == 1
    assert wrong.stderr.startswith("error -1: ")
    assert "nothing" in wrong.stderr


def test_deletion_vectors_are_refused_unless_they_are_handled(scan: Run, marked: MadeTable) -> None:
    deleted = deleted_positions(marked)
    done = scan("sync", marked.uri)
    assert (done.returncode, done.stderr[:10]) == (1, "error -5: ")
    assert [path for path in deleted if f"{path} has a deletion vector" in done.stderr] != []
    assert [line for line in done.stdout.splitlines() if line.split("\t")[0] in deleted] == []

    logged: dict[str, dict[str, Any]] = {}
    for commit in (marked.path / "_delta_log").glob("*.json"):
        for add in (json.loads(line).get("add") for line in commit.read_text().splitlines()):
            logged |= {add["path"]: add | {"version": int(commit.stem)}} if add else {}
    done = scan("vectors", marked.uri)
    assert done.returncode == 0, done.stderr
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    assert sorted(line[0] for line in lines) == sorted(marked.files)
    for path, records, version, low, high, nulls, vector, positions in lines:
        add = logged[path]
        stats = json.loads(add.get("stats", "{}"))
        assert (int(records), int(version)) == (stats.get("numRecords", -1), add["version"])
        known = [str(stats[name]["id"]) for name in ("minValues", "maxValues", "nullCount")] if stats else None
        assert [low, high, nulls] == (known or ["none", "none", "-1"])
        dv = add.get("deletionVector")
        assert vector == (f"i {dv['pathOrInlineDv']} -1 {dv['sizeInBytes']} {dv['cardinality']}" if dv else "")
        assert [int(row) for row in positions.split()] == deleted.get(path, [])


def test_the_metrics_of_a_scan_are_known_by_its_id(scan: Run, made: MadeTable) -> None:
    done = scan("metrics", made.uri)
    count, emitted, memory, strategy = done.stdout.split()
    assert int(count) == int(emitted) == FILES
    assert int(memory) > 0
    assert strategy in {"forward", "reverse"}
    assert (done.returncode, "nobody" in done.stderr) == (1, True), done.stderr


@pytest.fixture(scope="module")
def stream(library: Path) -> Run:
    """Compile the example with the SDK in DOTNET_ROOT, for the newest runtime there and without NuGet."""
    root = Path(os.environ.get("DOTNET_ROOT", "/usr/share/dotnet"))
    compilers = sorted(root.glob("sdk/*/Roslyn/bincore/csc.dll"))
    runtimes = sorted(root.glob("shared/Microsoft.NETCore.App/*"))
    if not (compilers and runtimes):
        unavailable("no .NET SDK; set DOTNET_ROOT to the folder of one")
    program = library.parent / "scan.dll"
    sources = sorted((ROOT / "examples" / "csharp").glob("*.cs"))
    # The mark of .NET metadata; others are libraries in C.
    managed = [f"-r:{each}" for each in runtimes[-1].glob("*.dll") if b"BSJB" in each.read_bytes()]
    options = ["-nologo", "-noconfig", "-nostdlib", "-warnaserror", "-define:NETCOREAPP", f"-out:{program}"]
    dotnet, paths = [str(root / "dotnet"), "exec"], os.environ.get("LD_LIBRARY_PATH", "")
    subprocess.run(
        [*dotnet, str(compilers[-1]), *options, *(f"-r:{each}" for each in managed), *map(str, sources)], check=True
    )
    framework = {"name": "Microsoft.NETCore.App", "version": runtimes[-1].name}
    program.with_suffix(".runtimeconfig.json").write_text(json.dumps({"runtimeOptions": {"framework": framework}}))

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        env = environment(LD_LIBRARY_PATH=f"{library.parent}:{paths}")
        return subprocess.run([*dotnet, str(program), *arguments], env=env, capture_output=True, text=True, check=False)

    return run


@pytest.mark.slow
def test_dotnet_streams_files_as_an_async_enumerable(stream: Run, made: MadeTable) -> None:
    done = stream("stream", made.uri)
    assert (done.returncode, done.stdout.splitlines()) == (0, expected(made)), done.stderr
    left = stream("stream", made.uri, "{}", "2")
    assert (left.returncode, left.stdout.splitlines()) == (0, expected(made)[:2]), left.stderr
    cancelled = stream("stream-cancel", made.uri, "{}", "2")
    assert (cancelled.returncode, cancelled.stderr) == (3, "cancelled\n")
    assert cancelled.stdout.splitlines() == expected(made)[:2]
    wrong = stream("stream", made.uri, '{"nothing": 1}')
    assert (wrong.returncode, wrong.stderr[:10]) == (1, "error -1: ")
