"""What reading a file costs beside decoding it: counted in calls, arrays and objects, never in seconds."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lazydelta import DeltaTable, write_arrow
from lazydelta.data_files import reader
from lazydelta.data_files.columns import ColumnFinder
from lazydelta.rows import file_rows
from lazydelta.rows.file_rows import FileLayouts, RepeatedValues, judge_row_groups
from lazydelta.rows.flow import ReadingPool
from lazydelta.rows.request import RowMetrics, RowRequest
from lazydelta.rows.scanner import RowScanner, stream_files
from lazydelta.sidecar.handle import TableHandle
from tests.rows.made_table import make_rich_table, make_table
from tests.rows.watching import watch


def refuse(*_: object) -> None:
    raise AssertionError("a local file was read by way of Python")


def test_arrow_reads_local_files_by_itself_and_what_it_reads_is_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_table(tmp_path, files=2, rows=4000, group=1000)
    monkeypatch.setattr(reader, "open_native", refuse)
    table = DeltaTable(made.uri)
    with watch() as watched:
        stream = table.rows(["id", "text"])
        found = stream.read_all().sort_by("id").to_pylist()
    assert found == [{"id": row["id"], "text": row["text"]} for row in made.rows]
    for path in made.files:
        size = (tmp_path / path).stat().st_size
        metadata = pq.read_metadata(tmp_path / path)
        told = [each for each in watched.requests if each.path == path]
        assert (told[0].start, told[0].length) == (max(0, size - 65536), min(size, 65536))
        for group in range(metadata.num_row_groups):
            for index in (0, 2):
                chunk = metadata.row_group(group).column(index)
                start = chunk.dictionary_page_offset or chunk.data_page_offset
                assert any(
                    each.start is not None
                    and each.length is not None
                    and each.start <= start
                    and start + chunk.total_compressed_size <= each.start + each.length
                    for each in told[1:]
                )
    assert stream.explain()["metrics"]["delta.lazy.bytes_read"] >= sum(
        each.length or 0 for each in watched.requests if each.path in made.files
    )


def test_a_local_file_whose_size_is_wrong_in_the_log_is_read_all_the_same(tmp_path: Path) -> None:
    made = make_table(tmp_path, files=3, rows=100)
    for log in sorted((tmp_path / "_delta_log").glob("*.json"))[1:]:
        log.write_text(log.read_text().replace('"size": ', '"size": 9'))
    assert DeltaTable(made.uri).to_pyarrow_table().num_rows == 300


def test_whoever_wants_all_rows_has_twice_as_many_files_under_way_as_threads(tmp_path: Path) -> None:
    made = make_table(tmp_path, files=20, rows=50, one_commit=True)
    handle = TableHandle.open(made.uri)
    snapshot = handle.snapshot()
    with ReadingPool(3, 1 << 30) as pool:
        stream = RowScanner(snapshot, RowRequest.of(snapshot.schema), pool=pool).stream()
        assert stream.read_all().num_rows == 1000
        assert stream.metrics.most_files_at_once == 6
        assert pool.most_at_once <= 3


def test_batches_of_a_file_share_the_array_of_its_partition_value(tmp_path: Path) -> None:
    table = pa.table({"hour": ["a"] * 900, "n": list(range(900))})
    write_arrow(tmp_path, table, partition_by=["hour"])
    batches = list(DeltaTable(tmp_path).to_pyarrow_dataset().to_batches(batch_size=200))
    assert [batch.num_rows for batch in batches] == [200, 200, 200, 200, 100]
    assert pa.Table.from_batches(batches).to_pylist() == table.select(batches[0].schema.names).to_pylist()
    assert len({batch.column("hour").buffers()[2].address for batch in batches}) == 1


def test_files_share_where_the_texts_of_their_partition_values_end(tmp_path: Path) -> None:
    rows = pa.table({"hour": [f"{row // 100:010d}" for row in range(400)], "id": range(400)})
    write_arrow(tmp_path, rows, partition_by=["hour"])
    batches = list(DeltaTable(str(tmp_path)).rows())
    columns = [batch.column("hour") for batch in batches]
    assert sorted(text for column in columns for text in column.to_pylist()) == rows["hour"].to_pylist()
    assert len({column.buffers()[2].address for column in columns}) == 4
    assert len({column.buffers()[1].address for column in columns}) == 1


@pytest.mark.parametrize("number", [0, 1, 7, 1000, 40_000])
@pytest.mark.parametrize(
    "value",
    [
        pa.scalar("2026021022"),
        pa.scalar(""),
        pa.scalar("é😀"),
        pa.scalar(b"\x00\xff"),
        pa.scalar(None, pa.string()),
        pa.scalar(7, pa.int32()),
        pa.scalar(1, pa.int8()).cast(pa.bool_()),
    ],
    ids=["text", "empty", "not-ascii", "bytes", "null", "number", "flag"],
)
def test_a_value_is_repeated_as_arrow_does_it(value: pa.Scalar, number: int) -> None:
    repeated = RepeatedValues()
    for count in (number, number // 2, 2 * number):
        found = repeated.of(value, count)
        found.validate(full=True)
        assert found.equals(pa.repeat(value, count))


def test_footers_that_decide_nothing_are_not_asked_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log has the same bounds for a file with one row group: the footer's statistics add nothing."""
    made = make_table(tmp_path, files=100, rows=20, one_commit=True)
    asked: list[str] = []
    original = judge_row_groups

    def counted(opened: reader.OpenedFile, *arguments: object) -> list[bool | None]:
        asked.append(opened.file.path)
        return original(opened, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(file_rows, "judge_row_groups", counted)
    table = DeltaTable(made.uri)
    wanted = {number * 20 + 7 for number in range(100)}
    found = table.rows(["id"], where=[("id", "in", sorted(wanted))]).read_all()
    assert set(found["id"].to_pylist()) == wanted
    assert len(asked) <= 4 + 100 // 16 + 1
    asked.clear()
    # Each of these proves its file: they are asked to the end.
    assert table.rows(["id"], where="id >= 0").read_all().num_rows == 2000
    assert len(asked) == 100


def test_footers_of_files_with_several_row_groups_are_always_asked(tmp_path: Path) -> None:
    made = make_table(tmp_path, files=40, rows=20, group=10, one_commit=True)
    stream = DeltaTable(made.uri).rows(["id"], where=[("id", "in", [number * 20 + 7 for number in range(40)])])
    assert stream.read_all().num_rows == 40
    assert (stream.metrics.row_groups_read, stream.metrics.row_groups_pruned) == (40, 40)


def _footers() -> list[object]:
    return [each for each in gc.get_objects() if isinstance(each, pq.FileMetaData | pq.ParquetSchema)]


def test_footers_are_let_go_with_their_file(tmp_path: Path) -> None:
    """A footer and its schema hold each other; thousands of them would wait for the collector of garbage."""
    made = make_rich_table(tmp_path, seed=5)
    table = DeltaTable(made.uri)
    gc.collect()
    before = _footers()  # which others keep on purpose
    gc.disable()
    try:
        rows = table.rows(["id", "place.name"], where="n > 3 and price < 100 and place.row > 0").read_all()
        assert rows.num_rows
        left = _footers()
    finally:
        gc.enable()
    assert [each for each in left if not any(each is other for other in before)] == []


def test_columns_are_looked_up_once_for_all_files_of_one_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_table(tmp_path, files=40, rows=20, one_commit=True, stats=False)
    looked_in: list[str] = []
    original = ColumnFinder.places

    def counted(self: ColumnFinder, *arguments: Any) -> Any:
        looked_in.append(self.path)
        return original(self, *arguments)

    monkeypatch.setattr(ColumnFinder, "places", counted)
    with ReadingPool(1, 1 << 30) as pool:
        handle = TableHandle.open(made.uri)
        snapshot = handle.snapshot()
        rows = RowScanner(snapshot, RowRequest.of(snapshot.schema), pool=pool).stream().read_all()
    assert rows.to_pylist() == made.rows
    assert len(set(looked_in)) == 1


def test_files_of_other_schemas_between_them_are_read_as_they_are(tmp_path: Path) -> None:
    """Columns in another order, narrower, in another case, missing, or as codes: each file by its own schema."""
    made = make_table(tmp_path, files=24, rows=10, one_commit=True, stats=False)
    expected = made.table().to_pylist()
    for number, path in enumerate(made.files):
        rows = pq.read_table(tmp_path / path)
        match number % 6:
            case 1:
                rows = rows.select(["text", "id", "part"])
            case 2:
                rows = rows.set_column(1, "part", rows["part"].cast(pa.int32()))
            case 3:
                rows = rows.rename_columns(["ID", "part", "text"])
            case 4:
                rows = rows.drop_columns(["part"])
                for row in expected[number * 10 : (number + 1) * 10]:
                    row["part"] = None
            case 5:
                rows = rows.set_column(2, "text", rows["text"].dictionary_encode())
        pq.write_table(rows, tmp_path / path)
    table = DeltaTable(made.uri)
    assert table.rows().read_all().to_pylist() == expected
    found = table.rows(where="part >= 3 and text like '0%'").read_all()
    assert found.to_pylist() == [row for row in expected if row["part"] is not None and row["part"] >= 3]


@pytest.mark.parametrize(("size", "coded"), [(65536, ["text"]), (1000, [])])
def test_texts_that_repeat_are_read_as_codes_unless_batches_are_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, coded: list[str]
) -> None:
    texts = [None if number % 7 == 0 else f"value {number % 50}" for number in range(40_000)]
    table = pa.table({"text": texts, "unique": [f"{number:08d}" for number in range(40_000)]})
    write_arrow(tmp_path, table)
    asked: list[list[str]] = []
    original = reader._parquet

    def counted(*arguments: object, codes: Sequence[str] = (), **options: Any) -> pq.ParquetReader:
        asked.append(list(codes))
        return original(*arguments, codes=codes, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(reader, "_parquet", counted)
    handle = TableHandle.open(str(tmp_path))
    snapshot = handle.snapshot()
    request = RowRequest.of(snapshot.schema, batch_size=size)
    assert RowScanner(snapshot, request).stream().read_all() == table
    assert asked[-1] == coded


def test_a_file_is_opened_once_also_for_columns_that_come_as_codes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the first one; a file that lacks the column, or in which it does not repeat, is read as it is."""
    expected: list[str | None] = []
    for number in range(8):
        texts = [f"value {row % 5}" if number != 5 else f"unique {row:08d}" for row in range(2000)]
        columns = {"id": range(number * 2000, (number + 1) * 2000)} | ({} if number == 3 else {"text": texts})
        write_arrow(tmp_path, pa.table(columns), schema_mode="merge")
        expected += [None] * 2000 if number == 3 else texts
    opened: list[list[str]] = []
    original = reader._parquet

    def counted(*arguments: object, codes: Sequence[str] = (), **options: Any) -> pq.ParquetReader:
        opened.append(list(codes))
        return original(*arguments, codes=codes, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(reader, "_parquet", counted)
    handle = TableHandle.open(str(tmp_path))
    snapshot = handle.snapshot()
    with ReadingPool(1, 1 << 30) as pool:
        for where, judge in ((None, None), ("text = 'value 3'", "value 3")):
            opened.clear()
            request = RowRequest.of(snapshot.schema, where=where)
            rows = RowScanner(snapshot, request, pool=pool).stream().read_all().sort_by("id")
            wanted = [(row, text) for row, text in enumerate(expected) if judge in (None, text)]
            assert list(zip(rows["id"].to_pylist(), rows["text"].to_pylist(), strict=True)) == wanted
            # Once each, and again for the first, for the one without the column and for those where it changes.
            assert len(opened) <= 8 + 5


@pytest.mark.parametrize(
    ("where", "passes"),
    [
        ("hour >= '2026021023'", lambda hour: hour is not None and hour >= "2026021023"),
        ("hour is null", lambda hour: hour is None),
        ("not (hour = '2026021022')", lambda hour: hour not in (None, "2026021022")),
        ("hour in ('2026021022', '2026021100') or hour is null", lambda hour: hour != "2026021023"),
    ],
    ids=["range", "null", "negated", "some"],
)
def test_no_footer_is_asked_about_partitions_and_files_of_one_are_judged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, passes: Callable[[str | None], bool]
) -> None:
    """A file that the scan should have left out is shown to the reader as well: it has to judge, and not to believe."""
    made = make_rich_table(tmp_path, seed=11, files=12)
    handle = TableHandle.open(made.uri)
    snapshot = handle.snapshot()
    every = list(RowScanner(snapshot, RowRequest.of(snapshot.schema)).found_files())
    monkeypatch.setattr(file_rows, "judge_row_groups", refuse)
    judged: list[object] = []
    original = FileLayouts._judged

    def counted(layouts: FileLayouts, shared: Mapping[str, pa.Array]) -> bool:
        judged.append(shared["hour"][0].as_py())
        return original(layouts, shared)

    monkeypatch.setattr(FileLayouts, "_judged", counted)
    request = RowRequest.of(snapshot.schema, where=where)
    with ReadingPool(1, 1 << 30) as pool, stream_files(handle, request, every, pool=pool) as stream:
        found = stream.read_all().sort_by("id")
    expected = [(row["id"], row["hour"]) for row in made.rows if passes(row["hour"])]
    assert list(zip(found["id"].to_pylist(), found["hour"].to_pylist(), strict=True)) == expected
    assert sorted(judged, key=str) == sorted({row["hour"] for row in made.rows}, key=str)


def test_a_file_ends_with_its_last_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a file costs no extra call: a reader is asked as often as the file has batches."""
    made = make_table(tmp_path, files=5, rows=100, group=30)
    pulled: list[bool] = []
    original = file_rows.FileRows.batches

    def watched(rows: file_rows.FileRows) -> Iterator[pa.RecordBatch]:
        batches = original(rows)
        try:
            while True:
                pulled.append(rows.is_last)
                yield next(batches)
        except StopIteration:
            return
        finally:
            batches.close()  # type: ignore[attr-defined]

    monkeypatch.setattr(file_rows.FileRows, "batches", watched)
    for where in (None, "id >= 0"):
        pulled.clear()
        found = DeltaTable(made.uri).rows(["id"], where).read_all()
        assert sorted(found["id"].to_pylist()) == list(range(500))
        assert pulled == [False] * 5 * 4


def test_only_the_last_batch_of_a_file_says_so(tmp_path: Path) -> None:
    """Rows of the rich table are deleted, also the last ones, so the end is known only after the last batch."""
    made = make_rich_table(tmp_path, seed=3, files=8)
    handle = TableHandle.open(made.uri)
    snapshot = handle.snapshot()
    said = 0
    for where in (None, "id >= 0", "n > 3"):
        request = RowRequest.of(snapshot.schema, where=where, batch_size=8)
        for file in RowScanner(snapshot, request).found_files():
            rows = file_rows.FileRows(handle.store, request, file, RowMetrics())
            told = [rows.is_last for _ in rows.batches()]
            assert True not in told[:-1]
            said += told[-1:] == [True]
    assert said


def test_columns_are_asked_for_by_their_place_and_not_by_their_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To list the names of all columns of each file takes longer than to open it, where tables are wide."""
    made = make_rich_table(tmp_path, seed=4)
    monkeypatch.setattr(pq.ParquetFile, "__init__", refuse)
    found = DeltaTable(made.uri).rows(["id", "place.name", "tags"]).read_all().sort_by("id")
    expected = [
        (row["id"], None if row["place"] is None else {"name": row["place"]["name"]}, row["tags"]) for row in made.rows
    ]
    assert [tuple(row.values()) for row in found.to_pylist()] == expected
