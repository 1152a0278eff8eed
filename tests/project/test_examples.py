"""Docstrings of the functions that users call first have all sections, and their examples give what they say."""

from __future__ import annotations

import dataclasses
import doctest
import inspect
from typing import TYPE_CHECKING, Any

import pytest

import lazydelta
from lazydelta import DeltaTable
from lazydelta.table import delta_table
from lazydelta.write.options import WriteOptions
from tests.support.code_blocks import make_world

if TYPE_CHECKING:
    from pathlib import Path

OF_TABLES = """
    count delete file_uris files head history kql load_as_version restore rows sql to_pandas update vacuum
"""
OF_THE_PACKAGE = "create_table read scan write_arrow write_deltalake"
# `scan` is a package as well; its docstring is that of the function.
HOMES: dict[str, Any] = dict.fromkeys(OF_TABLES.split(), DeltaTable)
HOMES |= {name: delta_table if name in {"read", "scan"} else lazydelta for name in OF_THE_PACKAGE.split()}
SHOWN = [getattr(home, name) for name, home in HOMES.items()] + [lazydelta.sql]


@pytest.mark.parametrize("function", SHOWN, ids=lambda each: each.__qualname__)
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
