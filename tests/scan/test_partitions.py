"""``DeltaTable.partitions()``: each partition once, however its files spell it."""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING

import deltalake
import pyarrow as pa
import pytest

import lazydelta
from tests.scan.hand_log import HandLog, add

if TYPE_CHECKING:
    from pathlib import Path

COLUMNS = {"id": "long", "a": "string", "b": "integer", "c": "string"}


@pytest.mark.parametrize("base", ["tail", "checkpoint", "struct"])
def test_the_order_of_a_map_makes_no_partition(base: str, tmp_path: Path) -> None:
    """Six spellings of each of four partitions are four partitions, each with the table's order of columns."""
    log = HandLog(tmp_path, COLUMNS, partitions=["a", "b", "c"])
    log.commit(
        *(
            add(f"{x}{y}-{number}", partition={name: {"a": x, "b": y, "c": "z"}[name] for name in order})
            for x in "xy"
            for y in "12"
            for number, order in enumerate(permutations("abc"))
        )
    )
    if base != "tail":
        log.checkpoint(stats="json" if base == "checkpoint" else "both")
    found = lazydelta.DeltaTable(str(tmp_path)).partitions()
    assert sorted(found, key=repr) == [{"a": x, "b": y, "c": "z"} for x in "xy" for y in "12"]
    assert all(list(each) == ["a", "b", "c"] for each in found)


def test_a_null_is_one_partition_whether_logged_as_null_as_empty_text_or_not_at_all(tmp_path: Path) -> None:
    """The protocol writes a null as an empty text too."""
    log = HandLog(tmp_path, COLUMNS, partitions=["a", "b"])
    log.commit(
        add("one", partition={"a": None, "b": "1"}),
        add("two", partition={"b": "1", "a": ""}),
        add("three", partition={"b": "1"}),
    )
    assert lazydelta.DeltaTable(str(tmp_path)).partitions() == [{"a": None, "b": "1"}]


def test_partitions_are_those_of_deltalake(tmp_path: Path) -> None:
    """Also for a table without partition columns, which has none."""
    rows = pa.table({"id": range(60), "a": [str(i % 4) for i in range(60)], "b": [i % 7 for i in range(60)]})
    for _ in range(3):
        deltalake.write_deltalake(tmp_path / "split", rows, partition_by=["a", "b"], mode="append")
        deltalake.write_deltalake(tmp_path / "whole", rows, mode="append")
    for name, count in (("split", 28), ("whole", 0)):
        theirs = deltalake.DeltaTable(tmp_path / name).partitions()
        ours = lazydelta.DeltaTable(tmp_path / name).partitions()
        assert len(ours) == count
        assert {frozenset(each.items()) for each in ours} == {frozenset(each.items()) for each in theirs}
    both = [("a", "=", "3"), ("b", "=", 6)]
    split = lazydelta.DeltaTable(tmp_path / "split")
    assert split.partitions(file_pruning_predicate=both) == [{"a": "3", "b": "6"}]
