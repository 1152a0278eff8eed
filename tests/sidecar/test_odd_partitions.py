"""Partition values that no comparison orders: NaN, and texts that their type does not have."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from lazydelta import sidecar
from lazydelta.sidecar.format.manifest import RangeText
from tests.scan.hand_log import HandLog, add
from tests.sidecar.conftest import Split
from tests.sidecar.sidecars import DISABLED, Place

part_file = importlib.import_module("lazydelta.sidecar.format.part_file")
verifying = importlib.import_module("lazydelta.sidecar.verification")

PREDICATES = [
    "p IS NOT NULL",
    "p IS NULL",
    "p = 1",
    "p != 1",
    "p > 3",
    "p <= 3",
    "NOT (p >= 3)",
    "NOT (p < 3)",
    "p IN (1, 7)",
    "p NOT IN (1, 7)",
    "p BETWEEN 2 AND 8",
    "p NOT BETWEEN 2 AND 8",
    "NOT (p = 5 OR p > 100)",
]
ODD = {"NaN", "no number", "someday", "12345678.9", "perhaps"}


def table(folder: Path, kind: str, texts: list[str | None]) -> Place:
    log = HandLog(folder, {"p": kind, "id": "long"}, partitions=["p"])
    log.commit(*(add(f"{number}.parquet", ids=(1, 9), partition={"p": text}) for number, text in enumerate(texts)))
    log.checkpoint()
    return Place(str(folder))


def paths(place: Place, where: str, **options: Any) -> set[str]:
    return {file.path for file in place.open(**options).files(where)}


@pytest.mark.parametrize(
    ("kind", "texts"),
    [
        ("double", ["1.0", "NaN", "5.0"]),
        ("float", ["1.0", "NaN", "5.0", None, "-Infinity", "Infinity"]),
        ("double", ["NaN", "NaN"]),
        ("double", ["NaN", None]),
        ("double", ["1.0", "no number", "5.0", None]),
        ("integer", ["1", "no number", "5"]),
        ("date", ["2026-01-01", "someday", None]),
        ("decimal(4,1)", ["1.0", "12345678.9", "5.0"]),
        ("boolean", ["true", "perhaps", None]),
    ],
)
@pytest.mark.parametrize("split_up", [False, True])
def test_no_sidecar_loses_a_file_with_an_odd_partition_value(
    tmp_path: Path, split: Split, kind: str, texts: list[str | None], *, split_up: bool
) -> None:
    if split_up:
        split(1, 1)
    place = table(tmp_path / "t", kind, texts)
    assert place.build() == "built"
    assert sidecar.verify(place.uri).problems == []
    values = {"date": "DATE '2026-01-01'", "boolean": "true"}
    for where in PREDICATES:
        asked = where
        if kind in values:
            if any(word in where for word in (" > ", ">=", " < ", "<=", "IN", "BETWEEN", "OR")):
                continue
            asked = where.replace("1", values[kind])
        by_log = paths(place, asked, **DISABLED)
        by_sidecar = paths(place, asked)
        assert by_sidecar == by_log, asked
        # NaN is not null and unequal to all, and an unreadable string may be anything.
        if "IS NOT NULL" in asked:
            assert by_log == {f"{number}.parquet" for number, text in enumerate(texts) if text}, asked
        if "!=" in asked or "NOT IN" in asked:
            assert by_log >= {f"{number}.parquet" for number, text in enumerate(texts) if text in ODD}, asked


def test_verify_asks_both_sides_and_finds_what_no_comparison_of_values_shows(
    tmp_path: Path, split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranges that have NaN as null are what a mistaken builder writes, and what it would find when it checks them."""
    split(1, 1)
    place = table(tmp_path / "t", "double", ["1.0", "NaN", "5.0"])
    for module in (part_file, verifying):
        real = module.ranges_of

        def mistaken(*given: Any, real: Any = real) -> Any:
            return {
                name: RangeText(has_null=True) if known.has_missing else known for name, known in real(*given).items()
            }

        monkeypatch.setattr(module, "ranges_of", mistaken)
    assert place.build() == "built"
    assert paths(place, "p IS NOT NULL") == {"0.parquet", "2.parquet"}
    report = sidecar.verify(place.uri)
    assert not report.ok
    assert "p IS NOT NULL finds 2 files by the sidecar and 3 by the log" in report.problems


def test_a_part_that_ends_in_a_year_without_a_text_is_built_anew_and_not_taken_for_null(
    tmp_path: Path, split: Split
) -> None:
    split(1, 1)
    log = HandLog(tmp_path / "t", {"p": "date", "id": "long"}, partitions=["p"])
    texts = ["2026-01-01", "10000-01-01", None]
    log.commit(*(add(f"{number}.parquet", ids=(1, 9), partition={"p": text}) for number, text in enumerate(texts)))
    log.checkpoint()
    place = Place(str(log.table))
    assert place.build() == "built"
    log.commit(add("new.parquet", ids=(1, 9), partition={"p": "2026-01-02"}))
    log.checkpoint()
    result = sidecar.refresh(place.uri)
    assert result.action == "built"
    assert "cannot be read back from text" in str(result.reason)
    assert sidecar.verify(place.uri).problems == []
    for where in ("p IS NULL", "p IS NOT NULL", "p > DATE '2026-01-01'", "p = DATE '2026-01-02'"):
        assert paths(place, where) == paths(place, where, **DISABLED), where
