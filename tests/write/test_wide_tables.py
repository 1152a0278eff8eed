"""Tables with thousands of columns: what is done for each column does not depend on how many others there are."""

from __future__ import annotations

import json
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lazydelta
from lazydelta import DeltaTable, sidecar, write_arrow
from lazydelta.data_files.columns import ColumnFinder
from lazydelta.protocol.schema import NameIndex, TableSchema

_FEW, _MANY = 100, 200
_SOURCE = str(Path(lazydelta.__file__).parent)
# How often threads look for work and wait for each other depends on the machine.
_WAITING = ("threads.py", "flow.py", "stream.py", "bridge.py")


def _rows(columns: int, extra: int = 0) -> pa.Table:
    data: dict[str, Any] = {f"c{number}": [1, 2, 3] for number in range(columns)}
    # Texts that repeat are read as codes, and nested columns are found level by level.
    data |= {f"t{number}": ["a", "b", "a"] for number in range(columns)}
    data["nested"] = pa.array([{f"f{number}": 1 for number in range(columns)}] * 3)
    return pa.table(data | {f"new{number}": [1, 2, 3] for number in range(extra)})


def _table(uri: str) -> DeltaTable:
    return DeltaTable(uri)


def _with_sidecar(uri: str) -> DeltaTable:
    _table(uri).create_checkpoint()
    sidecar.build(uri)
    return _table(uri)


_every = pc.field("c0") == 1
for _number in range(1, 20):
    _every = _every | (pc.field(f"c{_number}") == 1)

WORK: dict[str, Callable[[str, int], object]] = {
    "append": lambda uri, columns: write_arrow(uri, _rows(columns)),
    "append columns in another order": lambda uri, columns: write_arrow(
        uri, _rows(columns).select(_rows(columns).column_names[::-1])
    ),
    "append new columns": lambda uri, columns: write_arrow(uri, _rows(columns, columns), schema_mode="merge"),
    "rows": lambda uri, _: _table(uri).to_pyarrow_table(),
    "rows that pass": lambda uri, _: _table(uri).to_pyarrow_table(filters=[("c7", "=", 2)]),
    "rows by an expression": lambda uri, _: _table(uri).to_pyarrow_dataset().to_table(filter=_every),
    "columns by name": lambda uri, columns: _table(uri).to_pyarrow_table(
        columns=[f"C{number}" for number in range(columns)]
    ),
    "files": lambda uri, _: list(_table(uri).files("c7 = 2 AND nested.f3 > 0")),
    "files by all columns": lambda uri, columns: list(
        _table(uri).files([(f"c{number}", ">", 0) for number in range(columns)])
    ),
    "statistics": lambda uri, _: _table(uri).get_add_actions(flatten=True),
    "delete": lambda uri, _: _table(uri).delete("c5 = 2"),
    "update": lambda uri, _: _table(uri).update({"c3": "7"}, predicate="c5 = 1"),
    "optimize": lambda uri, _: _table(uri).optimize.compact(),
    "checkpoint": lambda uri, _: _table(uri).create_checkpoint(),
    "sidecar": lambda uri, _: _with_sidecar(uri),
    "files of a sidecar": lambda uri, _: list(_with_sidecar(uri).files("c7 = 2 AND nested.f3 > 0")),
}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wide")
    for columns in (20, _FEW, _MANY):
        for _ in range(2):
            properties = {"delta.dataSkippingNumIndexedCols": "-1"}
            write_arrow(folder / str(columns), _rows(columns), properties=properties)
    return folder


@pytest.mark.parametrize("name", WORK)
def test_work_grows_with_the_columns_and_not_with_their_square(tables: Path, tmp_path: Path, name: str) -> None:
    lines = []
    for columns in (20, _FEW, _MANY):  # the first makes what is made once in a process
        uri = tmp_path / str(columns)
        shutil.copytree(tables / str(columns), uri)
        lines.append(_lines(WORK[name], str(uri), columns))
    assert lines[2] < 2.6 * lines[1]


def test_a_name_is_found_as_it_is_written_before_one_that_differs_by_case() -> None:
    names = NameIndex(["a", "B", "b", "A"])
    assert [list(names.positions(name)) for name in ("a", "A", "b", "c")] == [[0], [3], [2], []]
    assert list(NameIndex(["x", "Y", "y"]).positions("X")) == [0]
    names.append("C")
    assert list(names.positions("c")) == [4]


def test_a_column_that_two_names_may_mean_is_not_guessed() -> None:
    fields: list[dict[str, object]] = [
        {"name": name, "type": "long", "nullable": True, "metadata": {}} for name in ("aB", "Ab", "c")
    ]
    schema = TableSchema.parse(json.dumps({"type": "struct", "fields": fields}))
    assert schema.column("aB").path == ("aB",)
    assert schema.column("C").path == ("c",)
    with pytest.raises(lazydelta.errors.UnknownColumnError, match="no column 'AB'"):
        schema.column("AB")
    stored = [pa.field("C", pa.int64()), pa.field("other", pa.int64())]
    found = ColumnFinder("f.parquet", by_id=False).places(schema.fields, stored, "")
    assert [(field.name, index) for field, _, index in found] == [("aB", None), ("Ab", None), ("c", 0)]


def _lines(work: Callable[[str, int], object], uri: str, columns: int) -> int:
    """Count the lines of ours that are run, in all threads; each turn of a loop or comprehension is one."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        name = frame.f_code.co_filename
        if not name.startswith(_SOURCE) or name.endswith(_WAITING):
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    threading.settrace(trace)
    sys.settrace(trace)
    try:
        work(uri, columns)
    finally:
        sys.settrace(before)
        threading.settrace(before)
    return count
