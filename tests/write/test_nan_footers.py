"""Footers of data files with NaN: readers that push filters to them, as Spark does, must not skip the rows with NaN."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lazydelta import DeltaTable, write_deltalake
from lazydelta.storage import open_store
from lazydelta.write.data_files import DataFileWriter
from lazydelta.write.parquet_encoding import ParquetEncoding

NAN = math.nan
KIND = pa.float64()
NESTED = pa.schema(
    [
        ("id", pa.int64()),
        ("f", KIND),
        ("g", pa.float32()),
        ("s", pa.struct([("n", pa.int64()), ("x", KIND)])),
        ("l", pa.list_(pa.field("element", KIND))),
        ("m", pa.map_(pa.string(), pa.struct([("x", KIND)]))),
    ]
)


def chunks(path: Path) -> list[dict[str, Any]]:
    """Return for each row group the bounds in the footer by the name of the leaf; None where there are none."""
    metadata = pq.read_metadata(path)
    found = []
    for group in range(metadata.num_row_groups):
        columns = [metadata.row_group(group).column(index) for index in range(metadata.num_columns)]
        found.append(
            {
                each.path_in_schema: None if each.statistics is None else (each.statistics.min, each.statistics.max)
                for each in columns
            }
        )
        # A column index holds bounds too, page by page.
        assert all(each.has_column_index is (each.statistics is not None) for each in columns)
        assert all(each.has_offset_index for each in columns)
    return found


def row(id_: int, value: float, **more: Any) -> dict[str, Any]:
    same = {"f": value, "g": value, "s": {"n": id_, "x": value}, "l": [value], "m": [("k", {"x": value})]}
    return {"id": id_, **same, **more}


def written(folder: Path, rows: list[dict[str, Any]], **options: Any) -> Path:
    with DataFileWriter(open_store(str(folder)), NESTED, **options) as writer:
        writer.write(pa.RecordBatch.from_pylist(rows, schema=NESTED))
        (add,) = writer.close()
    return folder / add.path


def test_a_chunk_with_nan_has_no_bounds_and_the_others_keep_theirs(tmp_path: Path) -> None:
    rows = [row(0, 0.5), row(1, 1.5), row(2, 2.5, l=[NAN, 1.0], m=[("k", {"x": NAN})]), row(3, NAN), row(4, NAN)]
    path = written(tmp_path, rows, encoding=ParquetEncoding(row_group_rows=2))
    first, second, third = chunks(path)
    floats = ["f", "g", "s.x", "l.list.element", "m.key_value.value.x"]
    assert {name: first[name] for name in floats} == dict.fromkeys(floats, (0.5, 1.5))
    assert second == dict.fromkeys(floats) | {"id": (2, 3), "s.n": (2, 3), "m.key_value.key": ("k", "k")}
    assert third == dict.fromkeys(floats) | {"id": (4, 4), "s.n": (4, 4), "m.key_value.key": ("k", "k")}
    table = pq.read_table(path)
    assert repr(table.to_pylist()) == repr(pa.Table.from_pylist(rows, schema=NESTED).to_pylist())
    with duckdb.connect() as con:
        assert con.execute("SELECT id FROM read_parquet($1) WHERE f > 2", [str(path)]).fetchall() == [(2,), (3,), (4,)]


def test_zeros_have_bounds_of_both_signs(tmp_path: Path) -> None:
    (found,) = chunks(written(tmp_path, [row(0, 0.0), row(1, 0.0)]))
    assert repr(found["f"]) == "(-0.0, 0.0)"
    (found,) = chunks(written(tmp_path, [row(0, -0.0), row(1, -0.0)]))
    assert repr(found["s.x"]) == "(-0.0, 0.0)"


def test_a_file_without_nan_is_written_as_it_is_encoded(tmp_path: Path) -> None:
    (found,) = chunks(written(tmp_path, [row(0, math.inf), row(1, -math.inf)]))
    assert found["f"] == (-math.inf, math.inf)


def test_many_columns_and_row_groups_keep_every_value(tmp_path: Path) -> None:
    # More than fourteen items make the long form of a list in the footer.
    schema = pa.schema([(f"c{index}", KIND) for index in range(40)])
    rows = [
        {f"c{each}": NAN if (each + number) % 3 == 0 else float(number) for each in range(40)} for number in range(20)
    ]
    with DataFileWriter(open_store(str(tmp_path)), schema, encoding=ParquetEncoding(row_group_rows=1)) as writer:
        writer.write(pa.RecordBatch.from_pylist(rows, schema=schema))
        (add,) = writer.close()
    assert add.size == (tmp_path / add.path).stat().st_size
    for number, group in enumerate(chunks(tmp_path / add.path)):
        for index in range(40):
            assert group[f"c{index}"] == (None if (index + number) % 3 == 0 else (number, number))
    assert repr(pq.read_table(tmp_path / add.path).to_pylist()) == repr(rows)


@pytest.mark.parametrize(
    "rewrite",
    [
        lambda table: table.optimize.compact(),
        lambda table: table.delete("id = 0"),
        lambda table: table.update({"id": "id + 100"}, predicate="id = 0"),
    ],
    ids=["OPTIMIZE", "DELETE", "UPDATE"],
)
def test_every_writer_leaves_out_bounds_of_nan(tmp_path: Path, rewrite: Callable[[DeltaTable], object]) -> None:
    for part in range(2):
        data = pa.table({"id": [10 * part, 10 * part + 1], "f": [0.5, NAN]})
        write_deltalake(str(tmp_path), data, mode="append")
    rewrite(DeltaTable(str(tmp_path)))
    files = list(tmp_path.glob("*.parquet"))
    assert len(files) == 3
    for path in files:
        values = pq.read_table(path)["f"].to_pylist()
        expected = None if any(map(math.isnan, values)) else (0.5, 0.5)
        assert [group["f"] for group in chunks(path)] == [expected]
