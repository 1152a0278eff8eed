from __future__ import annotations

import importlib
import json
import shlex
from typing import TYPE_CHECKING

import pytest

from lazydelta import DeltaTable
from lazydelta.cli import demo_table

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    from tests.cli.conftest import Invoke


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_table.make_table, "__defaults__", (24, 4))


def test_the_demo_ends_with_agreement_and_the_place_of_its_table(invoke: Invoke, tmp_path: Path) -> None:
    shown = invoke("demo", "--path", tmp_path / "new").stdout
    assert "lazydelta and deltalake agree on every file list." in shown
    assert shown.splitlines()[-1].strip() == str(tmp_path / "new" / "telemetry")
    assert DeltaTable(tmp_path / "new" / "telemetry").version() == 23


def test_the_demo_as_json_is_one_document_and_may_be_run_again(invoke: Invoke, tmp_path: Path) -> None:
    invoke("demo", "--path", tmp_path)
    document = json.loads(invoke("demo", "--path", tmp_path, "--json").stdout)
    assert document["agrees_with_deltalake"] is True
    assert document["table"]["commits"] == 24
    comparisons = document["steps"][-1]["shown"]
    assert [each["equal"] for each in comparisons] == [True] * len(comparisons)
    assert all(each["lazydelta"] > 0 for each in comparisons)


def test_every_command_that_the_demo_shows_can_be_typed(invoke: Invoke, tmp_path: Path) -> None:
    document = json.loads(invoke("demo", "--path", tmp_path, "--json").stdout)
    commands = [step["command"] for step in document["steps"] if step["command"] is not None]
    assert len(commands) >= 5
    for command in commands:
        name, *args = shlex.split(command)
        assert name == "lazydelta"
        assert invoke(*args).stdout


def test_a_folder_of_somebody_else_is_left_alone(invoke: Invoke, tmp_path: Path) -> None:
    precious = tmp_path / "telemetry" / "precious"
    precious.parent.mkdir()
    precious.write_text("mine", encoding="utf-8")
    stderr = invoke("demo", "--path", tmp_path, code=2).stderr
    assert "is not empty and was not made by the demo" in stderr
    assert precious.read_text(encoding="utf-8") == "mine"


def test_without_deltalake_the_demo_says_what_to_install(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = importlib.import_module

    def refuse(name: str, package: str | None = None) -> ModuleType:
        if name == "deltalake":
            raise ImportError(name)
        return original(name, package)

    monkeypatch.setattr(importlib, "import_module", refuse)
    stderr = invoke("demo", "--path", tmp_path / "new", code=2).stderr
    assert "pip install deltalake" in stderr
    assert not (tmp_path / "new").exists()
