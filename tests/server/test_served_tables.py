"""Names are looked up, never taken for places."""

from __future__ import annotations

from pathlib import Path

import pytest

from lazydelta.errors import OptionError, TableNotFoundError
from lazydelta.server.tables import ANYONE, Identity, ServedTables, TablePlace
from tests.scan.hand_log import HandLog, add

ESCAPES = (
    "../secret",
    "lake/../secret",
    "lake/../../etc",
    "lake/%2e%2e/secret",
    "lake/..%2fsecret",
    "lake//secret",
    "lake/./secret",
    "lake/link",
    "lake/a/../../secret",
    "/etc/passwd",
    "file:///etc",
    "s3://bucket/table",
    "lake",
    "lake/",
    "lake/\0",
    "lake/a\\..\\secret",
    "lake/sub/\u2025/secret",
    "",
    "x" * 10_000,
)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    for name in ("lake/sub/t", "secret"):
        HandLog(tmp_path / name).commit(add("a.parquet"))
    (tmp_path / "lake" / "link").symlink_to(tmp_path / "secret")
    return tmp_path


def _served(lake: Path) -> ServedTables:
    return ServedTables({"t": TablePlace(str(lake / "lake/sub/t"))}, {"lake": TablePlace(str(lake / "lake"))})


def test_a_table_is_opened_by_its_name_and_by_its_folder_below_a_root(lake: Path) -> None:
    tables = _served(lake)
    assert tables.open("t", ANYONE).version() == tables.open("lake/sub/t", ANYONE).version() == 0
    assert tables.names_for(ANYONE) == ["t"]


@pytest.mark.parametrize("number", range(len(ESCAPES)))
def test_what_could_lead_out_of_a_root_is_no_name(lake: Path, number: int) -> None:
    with pytest.raises(TableNotFoundError, match="There is no table"):
        _served(lake).open(ESCAPES[number], ANYONE)


def test_a_table_that_somebody_may_not_read_is_as_one_that_is_not_there(lake: Path) -> None:
    tables, someone = _served(lake), Identity("someone", ("lake/sub/*",))
    assert tables.names_for(someone) == []
    assert tables.open("lake/sub/t", someone).version() == 0
    with pytest.raises(TableNotFoundError) as hidden:
        tables.open("t", someone)
    with pytest.raises(TableNotFoundError) as absent:
        tables.open("u", someone)
    assert str(hidden.value).replace("'t'", "'u'") == str(absent.value)


def test_a_version_that_was_opened_is_the_same_object_for_all(lake: Path) -> None:
    tables = _served(lake)
    assert tables.open("t", ANYONE) is tables.open("t", ANYONE, 0, base=-1) is tables.open("t", ANYONE)


def test_another_table_at_the_same_place_is_not_taken_for_the_one_that_was_remembered(lake: Path) -> None:
    tables = _served(lake)
    tables.open("t", ANYONE)
    first = lake / "lake/sub/t/_delta_log/00000000000000000000.json"
    first.write_text(first.read_text(encoding="utf-8").replace('"hand"', '"another"'), encoding="utf-8")
    assert tables.open("t", ANYONE).metadata().id == "another"


@pytest.mark.parametrize("name", ["../t", "a/b", "", ".hidden", "a b"])
def test_a_configured_name_is_a_plain_word(name: str) -> None:
    with pytest.raises(OptionError, match="cannot be the name of a table"):
        ServedTables({name: TablePlace("/nowhere")})
