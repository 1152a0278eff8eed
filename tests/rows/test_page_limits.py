"""Small files whose pages or dictionaries become large: they are refused or read in small batches, never held whole."""

from __future__ import annotations

import io
import json
import uuid
from pathlib import Path
from typing import Any

import adbc_driver_flightsql.dbapi as adbc
import adbc_driver_manager
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lazydelta import DeltaTable
from lazydelta.data_files import reader
from lazydelta.errors import MemoryLimitError
from lazydelta.log.checkpoint.pages import _are_short
from lazydelta.server.flight_sql.calls import SqlLimits
from lazydelta.storage import open_store
from tests.server.serving import connected, location, serving

_BUDGET = 8 << 20
_LONG = 40_000
_BATCH_BYTES = 1 << 20


def _encoded(table: pa.Table, **how: Any) -> bytes:
    out = io.BytesIO()
    pq.write_table(table, out, compression="zstd", **how)
    return out.getvalue()


def _large_page() -> bytes:
    """Return a file of a few kilobytes with one page of 20 MB."""
    table = pa.table({"id": pa.array(range(500)), "s": ["x" * _LONG] * 500})
    return _encoded(table, use_dictionary=False, data_page_size=1 << 30, write_batch_size=1 << 20)


def _large_lists() -> bytes:
    texts = pa.array(["x" * _LONG])
    items = pa.DictionaryArray.from_arrays(pa.array([0] * 3000, pa.int32()), texts)
    lists = pa.ListArray.from_arrays(pa.array(range(0, 3001, 3), pa.int32()), items)
    return _encoded(pa.table({"id": pa.array(range(1000)), "l": lists}))


def _repeated() -> bytes:
    """Return a file whose only string stands in every row: 80 MB of rows."""
    codes = pa.array([0] * 2000, pa.int32())
    return _encoded(pa.table({"id": pa.array(range(2000)), "s": pa.DictionaryArray.from_arrays(codes, ["x" * _LONG])}))


def _varint(value: int, size: int) -> bytes:
    """Return a number of Thrift in exactly ``size`` bytes."""
    value *= 2
    return bytes((value >> 7 * at & 0x7F) | (0x80 if at < size - 1 else 0) for at in range(size))


def _lying(content: bytes) -> bytes:
    """Let the footer say that the column takes a kilobyte."""
    length = int.from_bytes(content[-8:-4], "little") + 8
    body, footer = content[:-length], content[-length:]
    for column in range(2):
        size = pq.read_metadata(io.BytesIO(content)).row_group(0).column(column).total_uncompressed_size
        said = next(_varint(size, bytes_) for bytes_ in range(1, 6) if size * 2 < 1 << 7 * bytes_)
        assert footer.count(said) >= 1
        footer = footer.replace(said, _varint(1000, len(said)))
    return body + footer


def _table(content: bytes, kind: str = "string", uri: str | None = None) -> str:
    place = uri or f"memory://{uuid.uuid4().hex}/t"
    column = {"name": "s", "type": "string", "nullable": True, "metadata": {}}
    if kind == "list":
        column |= {"name": "l", "type": {"type": "array", "elementType": "string", "containsNull": True}}
    fields = [{"name": "id", "type": "long", "nullable": True, "metadata": {}}, column]
    metadata = {
        "id": "t",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": [],
        "configuration": {},
    }
    add = {"path": "x", "partitionValues": {}, "size": len(content), "modificationTime": 0, "dataChange": True}
    actions = [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, {"metaData": metadata}, {"add": add}]
    store = open_store(place)
    store.put("x", content)
    store.put("_delta_log/00000000000000000000.json", "\n".join(map(json.dumps, actions)).encode())
    return place


def _open(uri: str, **options: Any) -> DeltaTable:
    return DeltaTable(uri, options={"memory_budget": _BUDGET, **options})


@pytest.fixture(params=["at once", "streamed"])
def _fetched(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_BATCH_BYTES", _BATCH_BYTES)
    if request.param == "streamed":
        monkeypatch.setattr(reader, "_AT_ONCE", 10)


@pytest.mark.usefixtures("_fetched")
@pytest.mark.parametrize("place", ["memory", "disk"])
def test_a_page_beyond_the_budget_is_refused_before_it_is_decoded(tmp_path: Path, place: str) -> None:
    content = _large_page()
    assert len(content) < 20_000
    uri = _table(content, uri=None if place == "memory" else str(tmp_path / "t"))
    with pytest.raises(MemoryLimitError, match=r"x has a page of 20,0\d\d,\d\d\d bytes in column 's'.*39 MB"):
        _open(uri).rows().read_all()
    assert _open(uri).rows(["id"]).read_all().num_rows == 500
    assert _open(uri, memory_budget=39 << 20).rows(["s"]).read_all().num_rows == 500


def test_a_large_page_is_read_and_rewritten_unless_a_budget_is_given(tmp_path: Path) -> None:
    """Other readers read it too. Its 100 MB are more than half of the default budget."""
    column = pa.array(["x" * (1 << 20)] * 100)
    rows = pa.table({"id": pa.array(range(100)), "s": column})
    content = _encoded(rows, use_dictionary=False, data_page_size=1 << 30, write_batch_size=1 << 20)
    uri = _table(content, uri=str(tmp_path / "t"))
    table = DeltaTable(uri)
    assert table.rows(where="id >= 90").read_all()["s"].to_pylist() == ["x" * (1 << 20)] * 10
    assert table.to_pyarrow_table(columns=["s"]).num_rows == 100
    assert table.update({"id": "1000"}, predicate="id = 5")["num_updated_rows"] == 1
    given = DeltaTable(uri, version=0, options={"memory_budget": 150 << 20})
    with pytest.raises(MemoryLimitError, match="has a page of 104,"):
        given.rows().read_all()


@pytest.mark.usefixtures("_fetched")
@pytest.mark.parametrize("place", ["memory", "disk"])
@pytest.mark.parametrize("columns", [["id", "s"], ["s"]])
def test_a_string_that_stands_in_every_row_is_read_in_small_batches(
    tmp_path: Path, place: str, columns: list[str]
) -> None:
    uri = _table(_repeated(), uri=None if place == "memory" else str(tmp_path / "t"))
    ids: list[int] = []
    rows = 0
    for batch in _open(uri).rows(columns):
        assert batch.num_rows * _LONG <= 3 * _BATCH_BYTES
        assert set(batch["s"].to_pylist()) == {"x" * _LONG}
        rows += batch.num_rows
        ids += batch["id"].to_pylist() if "id" in columns else []
    assert (rows, ids) == (2000, list(range(2000)) if "id" in columns else [])


def test_lists_of_such_strings_are_read_in_small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_BATCH_BYTES", _BATCH_BYTES)
    uri = _table(_large_lists(), "list")
    sizes = [batch.num_rows for batch in _open(uri).rows(["l"])]
    assert sum(sizes) == 1000
    assert max(sizes) * 3 * _LONG <= 3 * _BATCH_BYTES


@pytest.mark.parametrize("content", [_large_page, _repeated], ids=["page", "dictionary"])
def test_a_footer_that_lies_is_not_believed_where_it_could_harm_others(content: Any) -> None:
    uri = _table(_lying(content()))
    with serving({"t": uri}) as server, connected(server) as connection:
        rows = connection.table("t").rows
        if content is _repeated:
            assert max(batch.nbytes for batch in rows()) <= 65 << 20
        server.limits = type(server.limits)(rows_memory=_BUDGET)
        if content is _large_page:
            with pytest.raises(MemoryLimitError, match="has a page of"):
                rows().read_all()


def test_a_statement_of_a_server_refuses_a_large_page(tmp_path: Path) -> None:
    rows = pa.table({"id": pa.array(range(80)), "s": ["x" * (1 << 20)] * 80})
    content = _encoded(rows, use_dictionary=False, data_page_size=1 << 30, write_batch_size=1 << 20)
    uri = _table(content, uri=str(tmp_path / "t"))
    with (
        serving({"t": uri}, sql=SqlLimits(memory=256 << 20)) as server,
        adbc.connect(location(server), autocommit=True) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("SELECT max(length(s)) FROM t")
        with pytest.raises(adbc_driver_manager.Error, match="has a page of"):
            cursor.fetchall()


@given(st.lists(st.binary(max_size=300) | st.text("a0\0", max_size=8).map(str.encode), max_size=40))
def test_values_are_short_at_a_glance_only_if_they_are(values: list[bytes]) -> None:
    """What the glance does not prove is looked at value by value."""
    plain = b"".join(len(value).to_bytes(4, "little") + value for value in values)
    without_zeros = all(value and b"\0" not in value for value in values)
    short = bool(values) and max(map(len, values)) < 256
    found = _are_short(plain, len(values))
    assert short if found else not (short and without_zeros)
    assert not _are_short(plain + b"\1\0\0\0", len(values) + 1)
