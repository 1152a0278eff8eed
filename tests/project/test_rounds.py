"""What a mark leaves to `make soak`: the quick suite still has each value, or every n-th case."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CASES = """
import pytest

@pytest.fixture(params=["p", "q"])
def fixed(request):
    return request.param

@pytest.mark.each_value
@pytest.mark.parametrize("letter", ["a", "b", pytest.param("z", marks=pytest.mark.slow)])
@pytest.mark.parametrize("number", range(3))
def test_values(number, letter, fixed): ...

@pytest.mark.one_in(4)
@pytest.mark.parametrize("number", range(10))
def test_cases(number): ...

@pytest.mark.parametrize("number", range(2))
def test_all(number): ...
"""
INI = """
[pytest]
markers =
    slow
    each_value
    one_in
"""
CONFTEST = """
import pytest
from tests.support.rounds import leave_to_soak

@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    leave_to_soak(items)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("rounds")
    for name, text in {"test_some.py": CASES, "pytest.ini": INI, "conftest.py": CONFTEST}.items():
        (made / name).write_text(text)
    return made


def _collected(folder: Path, *arguments: str) -> list[str]:
    root = Path(__file__).parents[2]
    code = f"import sys, pytest; sys.path.insert(0, {str(root)!r}); sys.exit(pytest.main(sys.argv[1:]))"
    options = ["--collect-only", "-q", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(
        [sys.executable, "-c", code, *options], cwd=folder, capture_output=True, text=True, check=True
    )
    return [line.partition("::")[2] for line in done.stdout.splitlines() if "::" in line]


def test_the_quick_suite_has_each_value_and_every_nth_case(folder: Path) -> None:
    found = _collected(folder, "-m", "not slow")
    values = [each[len("test_values[") : -1].split("-") for each in found if each.startswith("test_values")]
    assert [sorted(set(each)) for each in zip(*values, strict=True)] == [["p", "q"], ["0", "1", "2"], ["a", "b"]]
    assert len(values) == 3
    assert found[3:] == ["test_cases[0]", "test_cases[4]", "test_cases[8]", "test_all[0]", "test_all[1]"]


def test_the_soak_tests_have_the_rest(folder: Path) -> None:
    found = _collected(folder)
    assert len(found) == 18 + 10 + 2
    assert sorted(_collected(folder, "-m", "slow") + _collected(folder, "-m", "not slow")) == sorted(found)


def test_a_case_that_is_asked_for_alone_is_there(folder: Path) -> None:
    assert _collected(folder, "-m", "not slow", "test_some.py::test_cases[3]") == ["test_cases[3]"]
