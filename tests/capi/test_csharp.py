"""The C# example over ``libdelta_lazy.so``, compiled and run by mono."""

from __future__ import annotations

import datetime as dt
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from lazydelta import DeltaTable
from tests.capi.test_c_abi import FILES, ROOT, environment, library, made
from tests.row_scan.made_table import MadeTable
from tests.support import unavailable

__all__ = ["library", "made"]

Run = Callable[..., subprocess.CompletedProcess[str]]


pytestmark = pytest.mark.xdist_group("capi")  # the library is built once


@pytest.fixture(scope="module")
def scan(library: Path) -> Run:
    compiler, mono = shutil.which("mcs"), shutil.which("mono")
    if compiler is None or mono is None:
        unavailable("no mono; `make setup` installs it where it may")
    program = library.parent / "scan.exe"
    sources = sorted((ROOT / "examples" / "csharp").glob("*.cs"))
    options = ["-warnaserror", f"-out:{program}", "-r:System.Runtime.Serialization.dll"]
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
