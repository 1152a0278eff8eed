from __future__ import annotations

import datetime as dt
import decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lazydelta.data_files.reader import RowReader
from lazydelta.errors import DataFileError, OptionError, PredicateError, UnknownColumnError
from lazydelta.storage import observe
from tests.rows.files import LoggedFile, column, inline_vector, rows, schema_of, stored_vector, struct_type, write

if TYPE_CHECKING:
    from pathlib import Path

    from lazydelta.storage import Store

UTC = dt.UTC
TYPES: dict[Any, list[Any]] = {
    "string": ["x", "", "ü" * 50],
    "long": [2**62, -1, 0],
    "integer": [2**31 - 1, -1, 0],
    "short": [2**15 - 1, -1, 0],
    "byte": [127, -128, 0],
    "float": [0.5, -1.25, 0.0],
    "double": [0.1, -1e300, 0.0],
    "boolean": [True, False, True],
    "binary": [b"\x00\xff", b"", b"x"],
    "date": [dt.date(2024, 2, 29), dt.date(1, 1, 1), dt.date(9999, 12, 31)],
    "timestamp": [dt.datetime(2024, 1, 1, 1, 2, 3, 4, tzinfo=UTC), dt.datetime(1, 1, 1, tzinfo=UTC), None],
    "timestamp_ntz": [dt.datetime(2024, 1, 1, 1, 2, 3, 4), dt.datetime(1, 1, 1), None],  # noqa: DTZ001
    "decimal(5,2)": [decimal.Decimal("1.25"), decimal.Decimal("-999.99"), None],
    "decimal(38,10)": [decimal.Decimal("1234567890123456789012345678.0123456789"), None, decimal.Decimal(0)],
}


def numbered(count: int) -> pa.Table:
    return pa.table({"a": list(range(count)), "b": [f"row {index}" for index in range(count)]})


PLAIN = schema_of(column("a", "long"), column("b", "string"))


def test_every_primitive_type_comes_back_as_it_was_written(store: Store, tmp_path: Path) -> None:
    schema = schema_of(*(column(name, name) for name in TYPES))
    table = pa.table([pa.array(values, schema.field(name).type.to_arrow()) for name, values in TYPES.items()], [*TYPES])
    file = write(tmp_path, table)
    assert rows(store, schema, file) == table.to_pylist()


def test_columns_come_in_the_order_asked_for(store: Store, tmp_path: Path) -> None:
    file = write(tmp_path, numbered(2))
    reader = RowReader(store, PLAIN, columns=["b", "a"])
    assert reader.schema.names == ["b", "a"]
    (batch,) = reader.read(file)
    assert batch.to_pylist() == [{"b": "row 0", "a": 0}, {"b": "row 1", "a": 1}]


def test_a_column_is_found_whatever_its_case(store: Store, tmp_path: Path) -> None:
    file = write(tmp_path, pa.table({"A": [1], "B": ["x"]}))
    assert rows(store, PLAIN, file, columns=["B"]) == [{"b": "x"}]


def test_a_name_that_differs_by_case_loses_to_the_exact_one(store: Store, tmp_path: Path) -> None:
    file = write(tmp_path, pa.table({"A": [1], "a": [2], "b": ["x"]}))
    assert rows(store, PLAIN, file) == [{"a": 2, "b": "x"}]


def test_a_column_that_the_file_has_twice_is_an_error(store: Store, tmp_path: Path) -> None:
    file = write(tmp_path, pa.table([pa.array([1]), pa.array([2])], ["a", "a"]))
    with pytest.raises(DataFileError, match=r"part-0\.parquet.*'a'"):
        rows(store, PLAIN, file)


def test_an_unknown_column_is_an_error_that_names_it(store: Store) -> None:
    with pytest.raises(UnknownColumnError, match="'c'"):
        RowReader(store, PLAIN, columns=["c"])


def test_a_column_asked_for_twice_is_an_error(store: Store) -> None:
    with pytest.raises(OptionError, match="twice"):
        RowReader(store, PLAIN, columns=["a", "A"])


def test_a_batch_size_below_one_is_an_error(store: Store) -> None:
    with pytest.raises(OptionError, match="batch_size"):
        RowReader(store, PLAIN, batch_size=0)


def test_columns_missing_in_the_file_are_null(store: Store, tmp_path: Path) -> None:
    file = write(tmp_path, pa.table({"a": [1, 2]}))
    schema = schema_of(column("a", "long"), column("b", "string"), column("s", struct_type(column("x", "long"))))
    assert rows(store, schema, file) == [{"a": 1, "b": None, "s": None}, {"a": 2, "b": None, "s": None}]


def test_a_file_with_none_of_the_columns_still_has_its_rows(store: Store, tmp_path: Path) -> None:
    file = write(tmp_path, pa.table({"z": [1, 2, 3]}))
    assert rows(store, PLAIN, file, batch_size=2) == [{"a": None, "b": None}] * 3


def test_a_name_with_dots_is_not_taken_for_a_nested_one(store: Store, tmp_path: Path) -> None:
    schema = schema_of(column("a.b", "long"), column("a", struct_type(column("b", "long"))))
    file = write(tmp_path, pa.table({"a.b": [1], "a": [{"b": 2}]}))
    assert rows(store, schema, file) == [{"a.b": 1, "a": {"b": 2}}]
    assert rows(store, schema, file, columns=["a.b"]) == [{"a.b": 1}]


def test_partition_columns_come_from_the_log_even_if_the_file_has_them(store: Store, tmp_path: Path) -> None:
    schema = schema_of(column("day", "date"), column("a", "long"), column("p", "string"), partitions=["day", "p"])
    file = write(tmp_path, pa.table({"a": [1, 2], "day": ["wrong", "wrong"]}))
    file.partition_values = {"day": "2024-02-29", "p": ""}
    expected = {"day": dt.date(2024, 2, 29), "p": None}
    assert rows(store, schema, file) == [{**expected, "a": 1}, {**expected, "a": 2}]


def test_only_partition_columns_read_no_data_page(store: Store, tmp_path: Path) -> None:
    schema = schema_of(column("a", "binary"), column("p", "integer"), partitions=["p"])
    blobs = [bytes([index % 251]) * 500_000 for index in range(20)]
    file = write(tmp_path, pa.table({"a": blobs}), compression="none", use_dictionary=False)
    file.partition_values = {"p": "7"}
    before = store.counters.bytes_read
    assert rows(store, schema, file, columns=["p"], batch_size=8) == [{"p": 7}] * 20
    assert store.counters.bytes_read - before < file.size / 10


def test_no_columns_at_all_give_rows_to_count(store: Store, tmp_path: Path) -> None:
    file = write(tmp_path, numbered(10))
    file.deletion_vector = inline_vector([0, 5, 9])
    batches = list(RowReader(store, PLAIN, columns=[], batch_size=4).read(file))
    assert [batch.num_columns for batch in batches] == [0, 0, 0]
    assert sum(batch.num_rows for batch in batches) == 7


def test_only_the_columns_asked_for_are_read(store: Store, tmp_path: Path) -> None:
    wide = pa.table({"a": [1] * 20, "b": [str(index) * 100_000 for index in range(20)]})
    file = write(tmp_path, wide, compression="none", use_dictionary=False)
    before = store.counters.bytes_read
    assert rows(store, PLAIN, file, columns=["a"]) == [{"a": 1}] * 20
    assert store.counters.bytes_read - before < file.size / 4


def test_deleted_rows_are_masked_by_their_position_in_the_file(store: Store, tmp_path: Path) -> None:
    """Positions run through all row groups, and batches need not end where row groups do."""
    file = write(tmp_path, numbered(1000), row_group_size=300)
    gone = [0, 1, 299, 300, 301, 450, 899, 900, 999]
    expected = [index for index in range(1000) if index not in gone]
    for vector in (inline_vector(gone), stored_vector(tmp_path, gone)[0]):
        file.deletion_vector = vector
        for batch_size in (7, 128, 5000):
            found = rows(store, PLAIN, file, columns=["a"], batch_size=batch_size)
            assert [each["a"] for each in found] == expected


def test_small_files_read_in_order_come_in_few_batches(store: Store, tmp_path: Path) -> None:
    """Whatever each file is like: older than a column, with deleted rows, of another integer type, or large."""
    tables = [numbered(50), numbered(3).select(["a"]), numbered(100), numbered(20_000), numbered(4)]
    tables += [numbered(5).cast(pa.schema([("a", pa.int32()), ("b", pa.string())])), numbered(6)]
    files = [write(tmp_path, table, f"part-{number}.parquet") for number, table in enumerate(tables)]
    files[2].deletion_vector = inline_vector([0, 7, 99])
    expected = [row for file in files for row in rows(store, PLAIN, file)]
    batches = list(RowReader(store, PLAIN).read_in_order(files))
    assert [row for batch in batches for row in batch.to_pylist()] == expected
    joined = list(RowReader(store, PLAIN).read_in_order(files[:1] * 600))
    assert [batch.num_rows for batch in joined] == [50 * 256, 50 * 256, 50 * 88]


def test_a_small_file_with_a_value_that_does_not_fit_is_named(store: Store, tmp_path: Path) -> None:
    wide = [pa.table({"a": pa.array([value], pa.uint64())}) for value in (1, 2**63, 3)]
    files = [write(tmp_path, table, f"part-{number}.parquet") for number, table in enumerate(wide)]
    with pytest.raises(DataFileError, match=r"part-\d\.parquet") as raised:
        list(RowReader(store, schema_of(column("a", "long"))).read_in_order(files))
    assert raised.value.path in {"part-0.parquet", "part-1.parquet"}


def test_deleted_rows_are_masked_before_the_filter(store: Store, tmp_path: Path) -> None:
    file = write(tmp_path, numbered(100))
    file.deletion_vector = inline_vector([50, 52])
    found = rows(store, PLAIN, file, columns=["a"], where=pc.field("a") >= 50, batch_size=10)
    assert [each["a"] for each in found] == [51, *range(53, 100)]


def test_a_file_whose_rows_are_all_deleted_gives_no_batch(store: Store, tmp_path: Path) -> None:
    file = write(tmp_path, numbered(10))
    file.deletion_vector = inline_vector(range(10))
    assert list(RowReader(store, PLAIN).read(file)) == []


def test_a_vector_that_deletes_rows_beyond_the_file_is_an_error(store: Store, tmp_path: Path) -> None:
    file = write(tmp_path, numbered(10))
    file.deletion_vector = inline_vector([10])
    with pytest.raises(DataFileError, match=r"row 10.*10 rows"):
        rows(store, PLAIN, file)


def test_rows_for_which_the_filter_is_null_are_left_out(store: Store, tmp_path: Path) -> None:
    file = write(tmp_path, pa.table({"a": [1, None, 3], "b": ["x", "y", None]}))
    assert rows(store, PLAIN, file, where=pc.field("a") > 0) == [{"a": 1, "b": "x"}, {"a": 3, "b": None}]
    assert rows(store, PLAIN, file, where=~(pc.field("b") == "x")) == [{"a": None, "b": "y"}]


def test_the_filter_may_name_columns_that_are_not_asked_for(store: Store, tmp_path: Path) -> None:
    schema = schema_of(column("a", "long"), column("b", "string"), column("p", "integer"), partitions=["p"])
    file = write(tmp_path, numbered(5))
    file.partition_values = {"p": "3"}
    where = (pc.field("a") > 2) & (pc.field("p") == 3)
    assert rows(store, schema, file, columns=["b"], where=where) == [{"b": "row 3"}, {"b": "row 4"}]
    assert next(iter(RowReader(store, schema, columns=[]).read(file, filter=where))).num_rows == 2


def test_a_reader_may_be_asked_with_one_filter_after_another(store: Store, tmp_path: Path) -> None:
    file = write(tmp_path, numbered(5))
    reader = RowReader(store, PLAIN, columns=["b"])
    for where in (pc.field("a") > 2, pc.field("b") != "row 0", pc.field("a") < 1):
        found = [row["b"] for batch in reader.read(file, filter=where) for row in batch.to_pylist()]
        assert found == numbered(5).filter(where)["b"].to_pylist()


@pytest.mark.parametrize(("where", "count"), [(pc.scalar(True), 5), (pc.scalar(False), 0)], ids=str)  # noqa: FBT003
def test_a_filter_may_name_no_column_where_none_is_asked_for(
    store: Store, tmp_path: Path, where: pc.Expression, count: int
) -> None:
    file = write(tmp_path, numbered(5))
    assert sum(batch.num_rows for batch in RowReader(store, PLAIN, columns=[]).read(file, filter=where)) == count


def test_the_filter_sees_the_tables_types(store: Store, tmp_path: Path) -> None:
    schema = schema_of(column("a", "long"))
    file = write(tmp_path, pa.table({"a": pa.array([1, 2], pa.int8())}))
    assert rows(store, schema, file, where=pc.field("a") < 2**40) == [{"a": 1}, {"a": 2}]


def test_the_filter_may_name_a_nested_field(store: Store, tmp_path: Path) -> None:
    schema = schema_of(column("a", "long"), column("s", struct_type(column("x", "long"))))
    file = write(tmp_path, pa.table({"a": [1, 2, 3], "s": [{"x": 5}, None, {"x": 6}]}))
    assert rows(store, schema, file, columns=["a"], where=pc.field("s", "x") > 5) == [{"a": 3}]


@pytest.mark.parametrize("where", [pc.field("zz") > 1, pc.field("b") > 1], ids=str)
def test_a_filter_that_does_not_fit_the_table_is_an_error_of_ours(
    store: Store, tmp_path: Path, where: pc.Expression
) -> None:
    file = write(tmp_path, numbered(3))
    with pytest.raises(PredicateError, match="filter"):
        rows(store, PLAIN, file, where=where)


def test_a_filter_that_keeps_nothing_gives_no_batch(store: Store, tmp_path: Path) -> None:
    file = write(tmp_path, numbered(100))
    assert list(RowReader(store, PLAIN).read(file, filter=pc.field("a") < 0)) == []


def test_a_missing_data_file_is_an_error_that_names_it(store: Store) -> None:
    for size in (0, 100):
        with pytest.raises(DataFileError, match=r"gone\.parquet does not exist") as caught:
            rows(store, PLAIN, LoggedFile("gone.parquet", size))
        assert caught.value.path == "gone.parquet"


def test_a_percent_encoded_path_is_decoded(store: Store, tmp_path: Path) -> None:
    (tmp_path / "p=a b").mkdir()
    file = write(tmp_path, numbered(2), "p=a b/part%1.parquet")
    file.path = "p=a%20b/part%251.parquet"
    assert len(rows(store, PLAIN, file)) == 2


@pytest.mark.parametrize("lie", [-1, 0, 1, 11, 12, 500, 10**6, 2**40])
def test_a_wrong_size_in_the_log_does_not_matter(store: Store, tmp_path: Path, lie: int) -> None:
    file = write(tmp_path, numbered(100))
    file.size = lie
    assert len(rows(store, PLAIN, file)) == 100


def test_a_right_size_in_the_log_saves_the_request_for_it(store: Store, tmp_path: Path) -> None:
    file = write(tmp_path, numbered(100))
    verbs: list[str] = []
    with observe(lambda request: verbs.append(request.verb)):
        rows(store, PLAIN, file)
    assert set(verbs) == {"GET"}


@pytest.mark.parametrize("content", [b"", b"PAR1", b"not a parquet file at all, not at all", b"PAR1" + bytes(500)])
def test_a_file_that_is_not_parquet_is_an_error_that_names_it(store: Store, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.parquet").write_bytes(content)
    with pytest.raises(DataFileError, match=r"bad\.parquet cannot be read as Parquet"):
        rows(store, PLAIN, LoggedFile("bad.parquet", len(content)))


def test_an_encrypted_file_is_refused_as_such(store: Store, tmp_path: Path) -> None:
    content = b"PARE" + bytes(100) + (50).to_bytes(4, "little") + b"PARE"
    (tmp_path / "secret.parquet").write_bytes(content)
    with pytest.raises(DataFileError, match=r"secret\.parquet is encrypted"):
        rows(store, PLAIN, LoggedFile("secret.parquet", len(content)))


def test_damage_in_a_page_with_a_checksum_is_an_error(store: Store, tmp_path: Path) -> None:
    file = write(tmp_path, numbered(1000), write_page_checksum=True, compression="none", use_dictionary=False)
    whole = bytearray((tmp_path / file.path).read_bytes())
    whole[len(whole) // 3] ^= 4
    (tmp_path / file.path).write_bytes(whole)
    with pytest.raises(DataFileError, match=r"part-0\.parquet"):
        rows(store, PLAIN, file)


def test_a_large_row_group_is_streamed_and_closing_stops_reading(store: Store, tmp_path: Path) -> None:
    """One row group of 40 MB: the first batch needs a part of it, and closing reads no more."""
    texts = [f"{index:08d}" * 50 for index in range(100_000)]
    table = pa.table({"a": range(100_000), "b": texts})
    file = write(tmp_path, table, row_group_size=10**6, compression="none", use_dictionary=False)
    reader = RowReader(store, PLAIN, batch_size=1000).read(file)
    before = store.counters.bytes_read
    assert next(reader).num_rows == 1000
    reader.close()  # type: ignore[attr-defined]
    after = store.counters.bytes_read
    assert after - before < file.size / 4
    requests: list[object] = []
    with observe(requests.append):
        assert list(reader) == []
    assert requests == []


def test_rows_of_megabytes_come_in_batches_of_bounded_bytes(store: Store, tmp_path: Path) -> None:
    blobs = [bytes([index % 251]) * (1 << 20) for index in range(200)]
    schema = schema_of(column("x", "binary"))
    file = write(tmp_path, pa.table({"x": blobs}), compression="none", use_dictionary=False, row_group_size=100)
    sizes = [batch.nbytes for batch in RowReader(store, schema).read(file)]
    assert sum(sizes) >= 200 << 20
    assert max(sizes) <= 65 << 20
