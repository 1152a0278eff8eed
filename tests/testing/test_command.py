from __future__ import annotations

import json
from typing import TYPE_CHECKING

from click.testing import CliRunner

from lazydelta import DeltaTable
from lazydelta.testing import command, make_table

if TYPE_CHECKING:
    from pathlib import Path

RECIPE = [
    "--files",
    "500",
    "--tail",
    "2",
    "--adds-per-commit",
    "3",
    "--removes",
    "4",
    "--checkpoint",
    "v2",
    "--checksum",
]


def test_the_command_says_what_it_made(tmp_path: Path) -> None:
    result = CliRunner().invoke(command.make_table, [str(tmp_path / "t"), *RECIPE])
    assert result.exit_code == 0
    assert "version 12, 502 files in the hours 2026011200 to 2026021023" in result.stdout


def test_the_command_makes_the_table_that_the_function_makes(tmp_path: Path) -> None:
    result = CliRunner().invoke(command.make_table, [str(tmp_path / "a"), *RECIPE, "--json"])
    told = json.loads(result.stdout)
    made = make_table(tmp_path / "b", files=500, tail=2, adds_per_commit=3, removes=4, checkpoint="v2", checksum=True)
    assert told == {**made.as_dict(), "uri": told["uri"]}
    of_command, of_function = ([file.path for file in DeltaTable(tmp_path / name).files()] for name in ("a", "b"))
    assert of_command == of_function


def test_a_storage_option_without_a_value_is_refused_without_repeating_it(tmp_path: Path) -> None:
    result = CliRunner().invoke(command.make_table, [str(tmp_path / "t"), "--storage-option", "hunter2"])
    assert result.exit_code == 2
    assert "hunter2" not in result.output
