"""One shape for what commands say: data and words go to one of two renderers."""

from __future__ import annotations

import ast
import inspect
import io
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

import lazydelta.cli
from lazydelta.cli.console import ConsoleOutput, paced
from lazydelta.cli.output import JsonOutput, Output

VERBS = [name for name in vars(Output) if not name.startswith("_")]


class Result(msgspec.Struct):
    """What a library might return."""

    uri: str
    numbers: list[float]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("renderer", [ConsoleOutput, JsonOutput])
def test_both_renderers_have_every_verb_as_it_is_called(renderer: type, verb: str) -> None:
    called, taken = (list(inspect.signature(getattr(each, verb)).parameters) for each in (Output, renderer))
    assert taken == called


def test_no_other_module_says_how_commands_speak() -> None:
    """A renderer of its own for each group of commands is where this came from."""
    speaking = set()
    for module in Path(lazydelta.cli.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and "watch" in {
                each.name for each in node.body if isinstance(each, ast.FunctionDef)
            }:
                speaking.add((module.name, node.name))
    assert speaking == {
        ("output.py", "Output"),
        ("console.py", "ConsoleOutput"),
        ("output.py", "JsonOutput"),
    }


def _never(_: Any) -> list[str]:
    raise AssertionError("words are for people")


def test_programs_get_the_data_and_people_the_words(capsys: pytest.CaptureFixture[str]) -> None:
    result = Result("file:///größe", [1.5, float("inf")])
    out = io.StringIO()
    json_output = JsonOutput(out)
    json_output.tell(result, _never)
    json_output.step(result)
    json_output.sum_up(result, _never)
    document, line = out.getvalue().rsplit("\n", 2)[:2]
    assert json.loads(document) == json.loads(line) == {"uri": "file:///größe", "numbers": [1.5, "Infinity"]}
    assert out.getvalue().isascii()
    console = ConsoleOutput()
    console.tell(result, lambda each: [f"{each.uri} is there", "and no more"])
    console.step(result)
    console.sum_up(result, lambda each: [f"{len(each.numbers)} numbers"])
    assert capsys.readouterr().out == "file:///größe is there\nand no more\n2 numbers\n"


@pytest.mark.parametrize(
    ("told", "seconds", "line"),
    [
        ("12 files found", 2.0, "12 files found, 2.0 s"),
        ("1,000 of 4,000 files packed", 10.0, "1,000 of 4,000 files packed, 10.0 s, 100 a second, 30.0 s left"),
        ("0 of 4 files packed", 1.0, "0 of 4 files packed, 1.0 s"),
        ("4 of 4 files packed", 1.0, "4 of 4 files packed, 1.0 s"),
    ],
)
def test_progress_tells_rate_and_time_left_where_the_total_is_known(told: str, seconds: float, line: str) -> None:
    assert paced(told, seconds) == line
