"""Rows over HTTP: the same rows, few requests for a file, and an end to all of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lazydelta import DeltaTable
from lazydelta.storage import open_store
from tests.rows.made_table import MadeTable, make_rich_table, make_table
from tests.rows.watching import row_threads, watch

if TYPE_CHECKING:
    from tests.support.azurite import Azurite


def published(made: MadeTable, azurite: Azurite, name: str) -> DeltaTable:
    """Copy a table to a container of its own and open it there."""
    uri = f"az://{azurite.container(name)}/t"
    store = open_store(uri, azurite.storage_options())
    for file in sorted(made.path.rglob("*")):
        if file.is_file():
            store.put(str(file.relative_to(made.path)), file.read_bytes())
    return DeltaTable(uri, storage_options=azurite.storage_options())


def test_rows_are_the_same_as_on_disk(azurite: Azurite, tmp_path: Path) -> None:
    made = make_rich_table(tmp_path / "t", seed=11, files=8, rows=60)
    table = published(made, azurite, "rows-same")
    assert sorted(map(repr, table.to_pyarrow_table().to_pylist())) == sorted(map(repr, made.rows))
    few = table.to_pyarrow_table(columns=["s", "place.name"], filters="n > 5 and s is not null")
    expected = [row for row in made.rows if row["n"] is not None and row["n"] > 5 and row["s"] is not None]
    assert sorted(few["s"].to_pylist()) == sorted(row["s"] for row in expected)


def test_a_small_file_takes_one_request_and_a_large_one_two(azurite: Azurite, tmp_path: Path) -> None:
    made = make_table(tmp_path / "t", files=2, rows=50)
    large = [{"id": number, "part": 9, "text": f"{number * 7919:050d}" * 4} for number in range(8000)]
    pq.write_table(pa.Table.from_pylist(large, schema=made.schema), made.path / made.files[1], compression="none")
    table = published(made, azurite, "rows-requests")
    sizes = {path: (made.path / path).stat().st_size for path in made.files}
    assert sizes[made.files[1]] > 1 << 20
    with watch() as watched:
        table.rows(["id"], limit=10**6).read_all()
    asked = [request.path for request in watched.requests if request.path in sizes]
    assert asked.count(made.files[0]) == 1
    # The log has the size of the file that was there before, which costs a look at the right one.
    assert asked.count(made.files[1]) <= 4


@pytest.mark.parametrize("taken", [1, 3])
def test_a_closed_stream_makes_no_request_and_leaves_no_thread(azurite: Azurite, tmp_path: Path, taken: int) -> None:
    made = make_table(tmp_path / "t", files=12, rows=50)
    table = published(made, azurite, f"rows-closed-{taken}")
    stream = table.rows()
    for _ in range(taken):
        next(stream)
    stream.close()
    assert row_threads() == []
    with watch() as watched:
        assert next(stream, None) is None
    assert watched.requests == []


def test_a_filter_that_nothing_passes_fetches_no_other_column(azurite: Azurite, tmp_path: Path) -> None:
    """The value lies between the bounds of each row group and is in none of them."""
    schema = pa.schema([("id", pa.int64()), ("part", pa.int64()), ("text", pa.string())])
    rows = [{"id": 2 * number, "part": 0, "text": f"{number:0500d}"} for number in range(8000)]
    made = make_table(tmp_path / "t", files=1, rows=1, stats=False)
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), made.path / made.files[0], compression="none")
    table = published(made, azurite, "rows-late")
    stream = table.rows(["text"], where="id = 4321")
    assert stream.read_all().num_rows == 0
    assert stream.metrics.columns_skipped == 1
    assert stream.explain()["metrics"]["delta.lazy.bytes_read"] < 1 << 20
    assert (made.path / made.files[0]).stat().st_size > 2 << 20
