"""Options: from a mapping or from the environment, checked, and never from the table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lazydelta import DeltaTable
from lazydelta.errors import OptionError
from lazydelta.options import Options
from lazydelta.warned import ChecksumWarning
from tests.log.support import Log, add, metadata, protocol, requests

if TYPE_CHECKING:
    from pathlib import Path

MB = 1 << 20
DEFAULTS: dict[str, Any] = {
    "delta.sidecar.enabled": True,
    "delta.commit.parallelism": None,
    "delta.sidecar.row_groups_per_batch": 5,
    "delta.open.prefetched_versions": 10,
    "delta.reverse.window": 1000,
    "batch_size": 8192,
    "remove_set_memory_limit": 64 * MB,
    "memory_budget": 150 * MB,
    "cache_size": 64 * MB,
    "enable_fallback": True,
    "checksum": "warn",
    "max_staleness": 0.0,
    "float_max": "ignore",
    "page_checksums": "ignore",
    "page_sizes": "any",
    "retries": 5,
    "request_timeout": 30.0,
    "use_manifest": True,
    "project_columns": True,
    "prune_row_groups": True,
}
ATTRIBUTES = {name: name.removeprefix("delta.").replace(".", "_") for name in DEFAULTS}


@pytest.mark.parametrize("name", DEFAULTS)
def test_every_documented_option_has_its_documented_default(name: str) -> None:
    assert getattr(Options.load(env={}), ATTRIBUTES[name]) == DEFAULTS[name]


def test_there_are_no_other_options() -> None:
    assert set(Options.__struct_encode_fields__) == set(DEFAULTS)


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("DELTA_SIDECAR_ENABLED", "false", "sidecar_enabled", False),
        ("DELTA_COMMIT_PARALLELISM", "3", "commit_parallelism", 3),
        ("DELTA_REVERSE_WINDOW", "7", "reverse_window", 7),
        ("DELTA_BATCH_SIZE", "100", "batch_size", 100),
        ("DELTA_CHECKSUM", "error", "checksum", "error"),
        ("DELTA_ENABLE_FALLBACK", "0", "enable_fallback", False),
        ("DELTA_MAX_STALENESS", "1.5", "max_staleness", 1.5),
    ],
)
def test_options_come_from_the_environment(variable: str, text: str, name: str, value: object) -> None:
    assert getattr(Options.load(env={variable: text}), name) == value


def test_what_is_given_wins_over_the_environment() -> None:
    loaded = Options.load({"delta.commit.parallelism": 4}, env={"DELTA_COMMIT_PARALLELISM": "9"})
    assert loaded.commit_parallelism == 4


def test_other_variables_of_the_environment_are_left_alone() -> None:
    assert Options.load(env={"DELTA_SOMETHING": "x", "BATCH_SIZE": "1"}) == Options()


def test_the_environment_reaches_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Log(tmp_path).commits(0, 4)
    monkeypatch.setenv("DELTA_BATCH_SIZE", "2")
    log = Log(tmp_path)
    log.commit(5, *[add(f"g{index}") for index in range(5)])
    assert max(batch.num_rows for batch in DeltaTable(tmp_path).files().batches()) == 2


def test_text_is_taken_for_numbers_and_switches() -> None:
    loaded = Options.load({"batch_size": "12", "enable_fallback": "true", "max_staleness": "2"}, env={})
    assert (loaded.batch_size, loaded.enable_fallback, loaded.max_staleness) == (12, True, 2.0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_size", 0),
        ("batch_size", -1),
        ("batch_size", "many"),
        ("batch_size", 1.5),
        ("batch_size", None),
        ("delta.commit.parallelism", 0),
        ("delta.reverse.window", 0),
        ("checksum", "maybe"),
        ("enable_fallback", "perhaps"),
        ("max_staleness", -1),
        ("max_staleness", float("nan")),
        ("retries", -1),
        ("cache_size", -1),
        ("request_timeout", "soon"),
    ],
)
def test_a_value_that_makes_no_sense_is_an_error_that_names_the_option(name: str, value: object) -> None:
    with pytest.raises(OptionError, match=name):
        Options.load({name: value}, env={})


def test_a_bad_variable_of_the_environment_is_an_error_that_names_the_option() -> None:
    with pytest.raises(OptionError, match="batch_size"):
        Options.load(env={"DELTA_BATCH_SIZE": "lots"})


def test_an_unknown_option_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(OptionError, match=r"'delta\.commit\.paralelism'.*'delta\.commit\.parallelism'"):
        Options.load({"delta.commit.paralelism": 3}, env={})


def test_an_unknown_option_without_a_near_one_is_an_error_that_names_all() -> None:
    with pytest.raises(OptionError, match=r"known options.*batch_size"):
        Options.load({"zzz": 3}, env={})


def test_options_are_checked_before_any_request(tmp_path: Path) -> None:
    with requests() as seen, pytest.raises(OptionError):
        DeltaTable(tmp_path, options={"batch_size": 0})
    assert seen == []


def test_table_properties_are_not_options(tmp_path: Path) -> None:
    log = Log(tmp_path)
    properties = {"batch_size": "1", "delta.commit.parallelism": "1", "checksum": "error"}
    log.commit(0, protocol(), metadata(properties), *[add(f"f{index}") for index in range(5)])
    log.checksum(0, numFiles=99)
    with pytest.warns(ChecksumWarning, match="counts 99 files"):
        assert [batch.num_rows for batch in DeltaTable(tmp_path).files().batches()] == [5]


def test_the_parallelism_bounds_the_commits_asked_for_before_the_first_file(tmp_path: Path) -> None:
    log = Log(tmp_path).commits(0, 30)
    log.checksum(30)
    table = DeltaTable(tmp_path, options={"delta.commit.parallelism": 4})
    with requests() as seen, table.files(strategy="reverse") as files:
        assert next(iter(files)).path == "f30"
    assert len(seen.of("GET")) <= 4
