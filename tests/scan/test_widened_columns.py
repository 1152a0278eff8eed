"""A table whose columns were widened to decimals: rows, statistics and partition values of its old files."""

from __future__ import annotations

import decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lazydelta import DeltaTable, sidecar
from tests.scan.hand_log import HandLog, add, paths

if TYPE_CHECKING:
    from pathlib import Path

D = decimal.Decimal
# Column, its old type, its old Arrow type, its new type, and the value of the old file.
CHANGES = [
    ("byte", pa.int8(), "decimal(4,1)", -128),
    ("short", pa.int16(), "decimal(6,1)", 32767),
    ("integer", pa.int32(), "decimal(11,1)", -(2**31)),
    ("long", pa.int64(), "decimal(20,1)", 2**63 - 1),
]


def widened(folder: Path, base: str) -> DeltaTable:
    """Write a file of the old types, widen every column, write a file of the new ones; a checkpoint under either."""
    log = HandLog(folder, {name: name for name, *_ in CHANGES} | {"p": "byte"}, partitions=["p"])
    old = {name: pa.array([value], kind) for name, kind, _, value in CHANGES}
    log.commit(_file(folder, "old", pa.table(old), {name: value for name, *_, value in CHANGES}, "7"))
    if base == "old checkpoint":
        log.checkpoint(stats="both")
    log.features = ["typeWidening"]
    log.columns = {name: new for name, _, new, _ in CHANGES} | {"p": "decimal(4,1)"}
    metadata = log.metadata()
    fields = _fields(log.columns, {**{name: new for name, _, new, _ in CHANGES}, "p": "decimal(4,1)"})
    metadata["metaData"]["schemaString"] = fields
    new = {
        name: pa.array([D("1.5")], pa.decimal128(*map(int, kind.removeprefix("decimal(").removesuffix(")").split(","))))
        for name, _, kind, _ in CHANGES
    }
    log.commit(log.protocol(), metadata)
    log.commit(_file(folder, "new", pa.table(new), dict.fromkeys(new, 1.5), "7.5"))
    if base == "new checkpoint":
        log.checkpoint(stats="json")
    if base != "tail":
        sidecar.build(folder)
    return DeltaTable(str(folder))


def _fields(columns: dict[str, Any], new: dict[str, str]) -> str:
    import json  # noqa: PLC0415

    before = {name: name for name, *_ in CHANGES} | {"p": "byte"}
    fields = []
    for name in columns:
        change = {"fromType": before[name], "toType": new[name], "tableVersion": 1}
        fields.append({"name": name, "type": new[name], "nullable": True, "metadata": {"delta.typeChanges": [change]}})
    return json.dumps({"type": "struct", "fields": fields})


def _file(folder: Path, name: str, table: pa.Table, values: dict[str, Any], partition: str) -> dict[str, Any]:
    pq.write_table(table, folder / name)
    stats = {"minValues": values, "maxValues": values, "nullCount": dict.fromkeys(values, 0)}
    action = add(name, stats=stats, partition={"p": partition})
    action["add"]["size"] = (folder / name).stat().st_size
    return action


@pytest.mark.parametrize("base", ["tail", "old checkpoint", "new checkpoint"])
def test_a_decimal_that_holds_every_value_of_the_old_type_is_read(base: str, tmp_path: Path) -> None:
    """Rows have the new type's values; statistics and partition values of the old files prune as theirs do."""
    table = widened(tmp_path / "table", base)
    rows = {row["byte"]: row for row in table.to_pyarrow_table().to_pylist()}
    assert rows == {
        D("-128.0"): {name: D(value) for name, *_, value in CHANGES} | {"p": D("7.0")},
        D("1.5"): dict.fromkeys((name for name, *_ in CHANGES), D("1.5")) | {"p": D("7.5")},
    }
    for name, _, _, value in CHANGES:
        assert paths(table.files([(name, "=", D("1.5"))])) == ["new"], name
        assert paths(table.files([(name, "=", value)])) == ["old"], name
    assert paths(table.files([("p", "=", 7)])) == ["old"]
    assert paths(table.files([("p", ">", D("7.1"))])) == ["new"]
    assert table.to_pyarrow_table(filters=[("p", "=", D(7))]).num_rows == 1
