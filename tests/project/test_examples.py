"""Docstrings of the functions that users call first have all sections, and their examples give what they say."""

from __future__ import annotations

import dataclasses
import doctest
import inspect
from typing import TYPE_CHECKING, Any

import pytest

import lazydelta
from lazydelta import DeltaTable
from lazydelta.write.options import WriteOptions
from tests.support.code_blocks import make_world

if TYPE_CHECKING:
    from pathlib import Path

SHOWN = [DeltaTable.files, DeltaTable.rows, lazydelta.sql, lazydelta.write_arrow]


@pytest.mark.parametrize("function", SHOWN, ids=lambda each: each.__name__)
def test_every_parameter_is_described(function: Any) -> None:
    text = inspect.getdoc(function) or ""
    told, _, rest = text.partition("Args:\n")[2].partition("Returns:\n")
    names = {line.strip().partition(":")[0].lstrip("*") for line in told.splitlines() if line.startswith("    ")}
    fields = {each.name for each in dataclasses.fields(WriteOptions)} if "options" in names else set()
    assert names >= set(inspect.signature(function).parameters) - {"self"} - fields
    assert rest.index("Raises:\n") < rest.index("Example:\n")


def test_examples_give_what_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_world(tmp_path)
    monkeypatch.chdir(tmp_path)
    runner, names = doctest.DocTestRunner(), {"DeltaTable": DeltaTable, "lazydelta": lazydelta}
    for function in SHOWN:
        [example] = doctest.DocTestFinder(recurse=False).find(function, function.__name__, globs=names)
        assert example.examples
        runner.run(example)
    assert runner.summarize(verbose=False).failed == 0
