"""Lines that deltalake's users write, with nothing changed but the import."""

from __future__ import annotations

import importlib
import os
import pickle
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import arro3.core
import datafusion
import deltalake
import polars as pl
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

import lazydelta
from lazydelta import exceptions
from lazydelta.errors import LazyDeltaError, OptionError, TableNotFoundError, UnsupportedOperationError, WriteError
from tests.table.change_log import action, handmade

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

ROWS = pa.table(
    {
        "id": pa.array(range(6), pa.int64()),
        "day": ["a", "a", "b", "b", "c", "c"],
        "at": pa.array([datetime(2026, 2, 10, hour, tzinfo=UTC) for hour in range(6)], pa.timestamp("us", "UTC")),
    }
)
BOTH = [lazydelta, deltalake]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    deltalake.write_deltalake(tmp_path / "t", ROWS, partition_by=["day"])
    return tmp_path / "t"


def plain(rows: Any) -> list[dict[str, Any]]:
    """Return rows in an order of their own."""
    return sorted(pa.table(rows).to_pylist(), key=repr)


def rows_of(place: Path) -> list[dict[str, Any]]:
    """Return a table's rows as deltalake reads them."""
    return plain(deltalake.DeltaTable(place).to_pyarrow_table())


# --- with another name for the package


def test_a_program_runs_with_nothing_but_another_module_under_deltalakes_name(table: Path) -> None:
    """Also its submodules are found there; one process tries it, because an import is for life."""
    program = f"""
import sys, lazydelta, lazydelta.fs
sys.modules["deltalake"] = lazydelta
import deltalake, pyarrow as pa
from deltalake import DeltaTable, Field, Schema, CommitProperties, Transaction, WriterProperties, write_deltalake
from deltalake.exceptions import DeltaError, SchemaMismatchError, TableNotFoundError
from deltalake.schema import ArrayType, PrimitiveType
from deltalake.transaction import PostCommitHookProperties
from deltalake.writer import write_deltalake as write_again
from deltalake.table import DeltaTable as TheTable
from deltalake._internal import Schema as TheSchema
from deltalake.fs import DeltaStorageHandler
from deltalake.query import QueryBuilder
from deltalake.writer._conversion import _convert_arro3_schema_to_delta
from deltalake.writer._utils import try_get_table_and_table_uri
assert TheTable is DeltaTable is lazydelta.DeltaTable
assert DeltaStorageHandler is lazydelta.fs.DeltaStorageHandler
write_deltalake(DeltaTable({str(table)!r}), pa.table({{"id": [7], "day": ["z"], "at": [None]}}), mode="append")
table = TheTable({str(table)!r})
assert table.schema() == TheSchema.from_json(DeltaTable({str(table)!r}).schema().to_json())
assert table.schema().fields[0] == Field("id", PrimitiveType("long"))
try:
    DeltaTable({str(table)!r} + "/nowhere")
except TableNotFoundError as error:
    assert isinstance(error, DeltaError)
print(table.version(), table.count())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.split() == ["1", "7"]


# --- tables as values


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("package", BOTH, ids=lambda each: each.__name__)
def test_commit_arguments_by_position_are_taken_in_their_old_order(package: ModuleType) -> None:
    move = importlib.import_module(f"{package.__name__}._util").deprecate_positional_commit_args
    assert move("f", (), 1, 2) == (1, 2)
    with pytest.warns(DeprecationWarning, match=r"f\(\)"):
        assert move("f", (1,), None, 2) == (1, 2)
    with pytest.warns(DeprecationWarning, match="positionally"):
        assert move("f", (2, 1), legacy_order=("post_commithook_properties", "commit_properties")) == (1, 2)
    with pytest.raises(TypeError, match="multiple values for 'commit_properties'"):
        move("f", (1,), 1)
    with pytest.raises(TypeError, match="takes at most 2"):
        move("f", (1, 2, 3))


def test_tables_are_equal_that_are_the_same_version_of_the_same_place(table: Path) -> None:
    first, second = lazydelta.DeltaTable(table), lazydelta.DeltaTable(f"file://{table}/")
    assert first == second
    assert len({first, second}) == 1
    lazydelta.write_deltalake(table, ROWS, mode="append")
    assert first != lazydelta.DeltaTable(table)
    assert first == lazydelta.DeltaTable(table, version=0)
    assert first != "anything"


def test_a_table_travels_to_another_process_at_its_version(table: Path) -> None:
    sent = lazydelta.DeltaTable(table, options={"batch_size": 7})
    lazydelta.write_deltalake(table, ROWS, mode="append")
    found = pickle.loads(pickle.dumps(sent))  # noqa: S301 - our own bytes
    assert found == sent
    assert (found.version(), found.count()) == (0, 6)
    assert sorted(each.path for each in found.files()) == sorted(each.path for each in sent.files())


def test_a_pickled_table_holds_no_credentials(table: Path) -> None:
    secret = "a-key-that-nobody-may-see"
    sent = lazydelta.DeltaTable(table, storage_options={"aws_secret_access_key": secret})
    assert secret.encode() not in pickle.dumps(sent)


def test_a_tilde_is_the_home_folder(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(table.parent))
    assert lazydelta.DeltaTable("~/t").version() == 0
    assert lazydelta.DeltaTable(Path("~/t")).table_uri == lazydelta.DeltaTable(table).table_uri
    lazydelta.write_arrow("~/written", ROWS)
    assert lazydelta.DeltaTable(table.parent / "written").count() == 6
    (table.parent / "~odd").mkdir()
    monkeypatch.chdir(table.parent)
    lazydelta.write_arrow("~odd", ROWS)
    assert (table.parent / "~odd" / "_delta_log").is_dir()


@pytest.mark.parametrize("place", ["foo://bucket/table", "/nowhere/at/all"])
def test_a_place_that_nobody_can_read_is_no_table(place: str) -> None:
    for package in BOTH:
        assert not package.DeltaTable.is_deltatable(place)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("package", BOTH, ids=lambda each: each.__name__)
def test_filters_that_are_none_say_what_is_wrong_with_them(table: Path, package: ModuleType) -> None:
    opened = package.DeltaTable(table)
    with pytest.raises(ValueError, match="empty conjunction"):
        opened.file_uris([[("day", "=", "a")], []])
    with pytest.raises(ValueError, match="not a mix"):
        opened.file_uris([("day", "=", "a"), [("day", "=", "b")]])
    for wrong in ([("day", "=", {"no": "value"})], [("day", "in", [{"no": "value"}, "a"])]):
        with pytest.raises(ValueError, match="Could not encode partition value for type"):
            opened.file_uris(wrong)
    with pytest.warns(DeprecationWarning, match="partitions"):
        opened.to_pyarrow_dataset(partitions=[("day", "=", "a")])


def test_a_column_may_be_asked_for_twice(table: Path) -> None:
    asked = ["id", "day", "id"]
    ours = lazydelta.DeltaTable(table).to_pyarrow_table(columns=asked)
    theirs = deltalake.DeltaTable(table).to_pyarrow_table(columns=asked)
    assert ours.schema.names == theirs.schema.names == asked
    assert sorted(ours.column(2).to_pylist()) == sorted(theirs.column(2).to_pylist())
    assert lazydelta.DeltaTable(table).scan(columns=asked).read_all().schema.names == asked


def test_lists_are_lists_and_the_callers_own(table: Path) -> None:
    ours = lazydelta.DeltaTable(table)
    ours.metadata().partition_columns.append("x")
    ours.metadata().configuration["x"] = "y"
    assert (ours.metadata().partition_columns, ours.metadata().configuration) == (["day"], {})
    assert str(ours.metadata()) == str(deltalake.DeltaTable(table).metadata())
    assert ours.protocol() == tuple(deltalake.DeltaTable(table).protocol())
    with pytest.warns(DeprecationWarning, match="table_config"):
        assert ours.table_config == (False, 8, False)


def test_parameters_that_deltalake_calls_deprecated_work_and_say_so(table: Path) -> None:
    ours = lazydelta.DeltaTable(table)
    chosen = [("day", "=", "a")]
    with pytest.warns(DeprecationWarning, match="partition_filters"):
        assert ours.file_uris(chosen) == ours.file_uris(file_pruning_predicate=chosen)
    with pytest.warns(DeprecationWarning, match="partition_filters"):
        assert ours.partitions(partition_filters=chosen) == [{"day": "a"}]
    with pytest.warns(DeprecationWarning, match="use `filters`"):
        assert ours.to_pyarrow_table(chosen).num_rows == 2
    for name, value in {"without_files": True, "skip_stats": True, "log_buffer_size": 1}.items():
        with pytest.warns(DeprecationWarning, match=f"'{name}' parameter is deprecated and ignored"):
            assert lazydelta.DeltaTable(table, **{name: value}) == ours  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="deprecated"):
        lazydelta.DeltaTable(table).to_pyarrow_dataset([("day", "=", "a")], file_pruning_predicate="n > 1")
    with pytest.raises(ValueError, match="deprecated"):
        ours.file_uris(chosen, file_pruning_predicate="day = 'a'")


# --- errors


def test_errors_are_what_python_and_deltalake_call_them(tmp_path: Path, table: Path) -> None:
    with pytest.raises(exceptions.TableNotFoundError) as missing:
        lazydelta.DeltaTable(tmp_path / "nowhere")
    assert isinstance(missing.value, FileNotFoundError)
    assert isinstance(missing.value, exceptions.DeltaError)
    with pytest.raises(ValueError, match="no option"):
        lazydelta.DeltaTable(table, options={"nonsense": 1})
    with pytest.raises(ValueError, match="no column 'nothing'"):
        lazydelta.DeltaTable(table).files("nothing = 1")
    with pytest.raises(exceptions.SchemaMismatchError):
        lazydelta.write_deltalake(table, pa.table({"other": [1]}), mode="append")
    assert exceptions.DeltaError is LazyDeltaError
    assert exceptions.TableNotFoundError is TableNotFoundError
    assert set(exceptions.__all__) == set(deltalake.exceptions.__all__)


# --- reading


def test_a_scan_gives_deltalakes_rows(table: Path) -> None:
    lines: list[Callable[[Any], Any]] = [
        lambda each: each.scan(),
        lambda each: each.scan(columns=["id"]),
        lambda each: each.scan(predicate="id > 2 AND day <> 'c'"),
        lambda each: each.scan(["day"], "id = 4"),
    ]
    for line in lines:
        ours, theirs = line(lazydelta.DeltaTable(table)), line(deltalake.DeltaTable(table))
        assert ours.schema.names == theirs.schema.names
        assert plain(ours.read_all()) == plain(theirs.read_all())
    for bad in ({"columns": ["nothing"]}, {"predicate": "nothing = 1"}):
        with pytest.raises(LazyDeltaError, match="nothing"):
            lazydelta.DeltaTable(table).scan(**bad)


def test_deletion_vectors_are_masks_of_the_rows_that_are_kept(tmp_path: Path) -> None:
    root = tmp_path / "a table"
    root.mkdir()
    for name in ("a.parquet", "b.parquet"):
        pa.parquet.write_table(pa.table({"id": list(range(5))}), root / name)
    adds = [action("add", "a.parquet", root, [0, 3]), action("add", "b.parquet", root)]
    for each in adds:
        each["add"]["stats"] = '{"numRecords":5}'
    handmade(root, adds)
    ours = lazydelta.DeltaTable(root).deletion_vectors()
    theirs = deltalake.DeltaTable(root).deletion_vectors()
    assert ours.schema.names == theirs.schema.names
    assert ours.read_all().to_pylist() == pa.table(theirs.read_all()).to_pylist()
    again = lazydelta.DeltaTable(root).deletion_vectors().read_all().to_pylist()
    assert again == [{"filepath": (root / "a.parquet").as_uri(), "selection_vector": [False, True, True, False, True]}]


def test_the_add_actions_are_an_arrow_table_to_whoever_takes_one(table: Path) -> None:
    found = lazydelta.DeltaTable(table).get_add_actions(flatten=True)
    assert pl.DataFrame(found).sort("path")["partition.day"].to_list() == ["a", "b", "c"]
    assert pa.table(found)["num_records"].to_pylist() == [2, 2, 2]


# --- writing


def test_a_table_that_we_write_is_the_one_that_deltalake_would_have_written(tmp_path: Path) -> None:
    for package in BOTH:
        place = tmp_path / package.__name__
        package.write_deltalake(place, ROWS, partition_by="day", name="n", description="d")
        package.write_deltalake(place, ROWS.slice(0, 2), mode="append")
        package.write_deltalake(package.DeltaTable(place), ROWS, mode="ignore")
        with pytest.raises(package.exceptions.DeltaError, match="already exists"):
            package.write_deltalake(place, ROWS)
    ours, theirs = (deltalake.DeltaTable(tmp_path / package.__name__) for package in BOTH)
    assert (ours.version(), rows_of(tmp_path / "lazydelta")) == (theirs.version(), rows_of(tmp_path / "deltalake"))
    assert (ours.metadata().name, ours.metadata().description) == ("n", "d")
    assert ours.metadata().partition_columns == theirs.metadata().partition_columns == ["day"]
    modes = [[each["operationParameters"]["mode"] for each in table.history()] for table in (ours, theirs)]
    assert modes[0] == modes[1] == ["Append", "ErrorIfExists"]


@pytest.mark.parametrize(
    "data",
    [
        lambda: ROWS,
        ROWS.to_batches,
        lambda: ROWS.to_batches()[0],
        ROWS.to_reader,
        lambda: pl.from_arrow(ROWS),
        ROWS.to_pandas,
        lambda: arro3.core.Table.from_arrow(ROWS),
        lambda: arro3.core.Table.from_arrow(ROWS).to_batches(),
    ],
    ids=["table", "batches", "batch", "reader", "polars", "pandas", "arro3", "arro3 batches"],
)
def test_rows_come_from_anything_that_gives_arrow(tmp_path: Path, data: Callable[[], Any]) -> None:
    lazydelta.write_deltalake(tmp_path, data())
    assert rows_of(tmp_path) == plain(ROWS)


def test_a_table_object_is_at_the_version_that_was_written_with_it(table: Path) -> None:
    ours = lazydelta.DeltaTable(table)
    lazydelta.write_deltalake(ours, ROWS, mode="append")
    assert (ours.version(), ours.count()) == (1, 12)


def test_an_overwrite_replaces_partitions_and_columns(table: Path) -> None:
    lazydelta.write_deltalake(table, ROWS.slice(0, 1), mode="overwrite", predicate="day = 'a'")
    assert sorted(each["id"] for each in rows_of(table)) == [0, 2, 3, 4, 5]
    other = pa.table({"x": [1.5], "y": ["p"]})
    with pytest.raises(exceptions.SchemaMismatchError):
        lazydelta.write_deltalake(table, other, mode="overwrite")
    lazydelta.write_deltalake(table, other, mode="overwrite", schema_mode="overwrite", partition_by=["y"])
    found = deltalake.DeltaTable(table)
    assert rows_of(table) == other.to_pylist()
    assert found.metadata().partition_columns == ["y"]
    assert found.metadata().id == deltalake.DeltaTable(table, version=0).metadata().id
    assert lazydelta.DeltaTable(table, version=0).count() == 6


def test_an_overwrite_by_rows_may_say_that_it_replaces_the_columns_if_they_are_the_same(table: Path) -> None:
    kept = [each for each in rows_of(table) if each["id"] != 3]
    given: dict[str, Any] = {"mode": "overwrite", "schema_mode": "overwrite", "predicate": "id = 3"}
    lazydelta.write_deltalake(table, ROWS.slice(3, 1), **given)
    assert len(rows_of(table)) == len(kept) + 1
    with pytest.raises(exceptions.SchemaMismatchError, match="whose other rows keep them"):
        lazydelta.write_deltalake(table, pa.table({"id": [3]}), **given)
    with pytest.raises(exceptions.DeltaError, match="Specified table partitioning does not match"):
        lazydelta.write_deltalake(table, ROWS.slice(3, 1), partition_by=["id"], **given)


def test_errors_say_also_what_deltalake_says(table: Path, tmp_path: Path) -> None:
    wide = ROWS.append_column("more", pa.array(["x"] * 6))
    with pytest.raises(exceptions.SchemaMismatchError, match="Cannot cast schema, number of fields does not match"):
        lazydelta.write_deltalake(table, wide, mode="append")
    with pytest.raises(exceptions.DeltaError, match="Invalid data found: 2 rows failed validation check"):
        lazydelta.write_deltalake(table, ROWS.slice(3, 3), mode="overwrite", predicate="id = 3")
    kept = tmp_path / "kept"
    lazydelta.write_deltalake(kept, ROWS, configuration={"delta.appendOnly": "true"})
    with pytest.raises(exceptions.CommitFailedError, match="Remove action with data change but Delta table is append"):
        lazydelta.write_deltalake(kept, ROWS, mode="overwrite")


def test_new_columns_come_in_where_they_are_let(table: Path) -> None:
    wide = ROWS.append_column("more", pa.array(["x"] * 6))
    with pytest.raises(exceptions.SchemaMismatchError, match="schema_mode='merge'"):
        lazydelta.write_deltalake(table, wide, mode="append")
    lazydelta.write_deltalake(table, wide, mode="append", schema_mode="merge")
    assert sum(each["more"] == "x" for each in rows_of(table)) == 6


def test_what_goes_with_a_commit_is_in_the_log_as_deltalake_writes_it(tmp_path: Path) -> None:
    for package in BOTH:
        properties = package.CommitProperties(
            custom_metadata={"userName": "me", "deep": {"a": [1, None]}, "operationParameters": {"mode": "x", "y": 1}},
            app_transactions=[package.Transaction("app", 7), package.Transaction("other", 1, 5)],
            max_commit_retries=3,
        )
        place = tmp_path / package.__name__
        package.write_deltalake(place, ROWS, commit_properties=properties)
        package.write_deltalake(place, ROWS, mode="append", commit_properties=properties)
        found = deltalake.DeltaTable(place)
        assert [found.transaction_version(each) for each in ("app", "other", "nobody")] == [7, 1, None]
        newest = found.history(1)[0]
        assert (newest["userName"], newest["deep"], newest["operationParameters"]["y"]) == ("me", {"a": [1, None]}, "1")
        assert newest["operationParameters"]["mode"] == "Append"
        assert found.version() == 1
    # A checksum says what the log says, transactions included.
    assert lazydelta.DeltaTable(tmp_path / "lazydelta").transaction_version("app") == 7


@pytest.mark.parametrize(
    "noted",
    [
        {"timestamp": 1},
        {"operation": "x"},
        {"engineInfo": "x"},
        {"readVersion": -1},
        {"readVersion": 1.5},
        {"userName": 3},
        {"isolationLevel": "none"},
        {"operationParameters": "x"},
        {"x": float("nan")},
        {"x": object()},
        {1: "x"},
        [("a", "b")],
    ],
    ids=lambda noted: repr(noted).partition(" at 0x")[0],  # every worker has to find the same names
)
def test_what_would_make_the_log_wrong_is_refused_by_both(tmp_path: Path, noted: Any) -> None:
    for package in BOTH:
        with pytest.raises(ValueError):  # noqa: PT011 - the words are each package's own
            package.write_deltalake(tmp_path, ROWS, commit_properties=package.CommitProperties(custom_metadata=noted))
    assert not (tmp_path / "_delta_log").exists()


@pytest.mark.parametrize("cleans", [None, False])
def test_a_checkpoint_may_leave_the_expired_log_in_place(tmp_path: Path, cleans: bool | None) -> None:  # noqa: FBT001
    hooks = lazydelta.PostCommitHookProperties(cleanup_expired_logs=cleans)
    given: dict[str, Any] = {"mode": "append", "configuration": {"delta.checkpointInterval": "2"}}
    for _ in range(5):
        lazydelta.write_deltalake(tmp_path, ROWS, **given)
    first = tmp_path / "_delta_log" / f"{0:020}.json"
    for log in first.parent.glob("*"):
        os.utime(log, (1, 1))
    lazydelta.write_deltalake(tmp_path, ROWS, **given, post_commithook_properties=hooks)
    lazydelta.write_deltalake(tmp_path, ROWS, **given, post_commithook_properties=hooks)
    assert (first.parent / f"{6:020}.checkpoint.parquet").exists()
    assert first.exists() is (cleans is False)


def test_tables_are_at_places_of_opendal(tmp_path: Path) -> None:
    where: dict[str, Any] = {"storage_options": {"opendal.root": str(tmp_path)}}
    lazydelta.write_deltalake("fs://localhost/a", ROWS, **where)
    assert lazydelta.DeltaTable(tmp_path / "a").count() == len(ROWS)
    assert lazydelta.DeltaTable.is_deltatable("opendal+fs://localhost/a", **where)


def test_the_tables_own_folder_may_be_given_as_a_file_system(tmp_path: Path) -> None:
    lazydelta.write_deltalake(tmp_path, ROWS)
    table = lazydelta.DeltaTable(tmp_path)
    own = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
    assert table.to_pyarrow_table(filesystem=own).num_rows == table.to_pyarrow_dataset(filesystem=own).count_rows()
    for other in (pafs.LocalFileSystem(), pafs.SubTreeFileSystem(str(tmp_path.parent), pafs.LocalFileSystem())):
        with pytest.raises(exceptions.DeltaError, match="own store"):
            table.to_pyarrow_table(filesystem=other)


def test_numbers_find_partitions_of_text_by_deltalakes_parameter_only(tmp_path: Path) -> None:
    rows = pa.table({"id": [1, 2], "year": ["2020", "2021"]})
    lazydelta.write_deltalake(tmp_path, rows, partition_by=["year"])
    for package in (lazydelta, deltalake):
        found = package.DeltaTable(tmp_path).partitions(file_pruning_predicate="year BETWEEN 2021 AND 2022")
        assert found == [{"year": "2021"}]
    with pytest.raises(exceptions.DeltaError, match="in quotes"):
        lazydelta.DeltaTable(tmp_path).partitions(where="year >= 2021")


def test_datafusions_own_registration_says_what_to_call(tmp_path: Path) -> None:
    lazydelta.write_deltalake(tmp_path, ROWS)
    with pytest.raises(UnsupportedOperationError, match=r"register_table\(ctx, name, table\)"):
        datafusion.SessionContext().register_table("t", lazydelta.DeltaTable(tmp_path))


def test_what_our_writer_does_not_do_is_refused_by_name(tmp_path: Path) -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"writer_properties": lazydelta.WriterProperties(compression="BROTLI")}, "BROTLI"),
        ({"writer_properties": lazydelta.WriterProperties(statistics_truncate_length=5)}, "truncate_length"),
        ({"post_commithook_properties": lazydelta.PostCommitHookProperties(cleanup_expired_logs=True)}, "cleanup"),
    ]
    for keywords, name in refused:
        with pytest.raises(UnsupportedOperationError, match=name):
            lazydelta.write_deltalake(tmp_path, ROWS, **keywords)
    senseless: list[dict[str, Any]] = [
        {"mode": "nonsense"},
        {"schema_mode": "nonsense"},
        {"predicate": "day = 'a'"},
        {"mode": "append", "schema_mode": "overwrite"},
        {"commit_properties": lazydelta.CommitProperties(max_commit_retries=-1)},
    ]
    for keywords in senseless:
        with pytest.raises(OptionError):
            lazydelta.write_deltalake(tmp_path, ROWS, **keywords)
    with pytest.raises(WriteError, match="no Parquet file"):
        lazydelta.convert_to_deltalake(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("compression", ["SNAPPY", "zstd", "GZIP", "UNCOMPRESSED"])
def test_files_are_compressed_as_asked(tmp_path: Path, compression: str) -> None:
    properties = lazydelta.WriterProperties(compression=compression)
    assert properties.compression == deltalake.WriterProperties(compression=compression).compression  # type: ignore[arg-type]
    lazydelta.write_deltalake(tmp_path, ROWS, writer_properties=properties)
    (file,) = tmp_path.glob("*.parquet")
    written = pa.parquet.ParquetFile(file).metadata.row_group(0).column(0).compression
    assert written == compression.upper()


@pytest.mark.parametrize("package", BOTH, ids=lambda package: package.__name__)
def test_properties_of_columns_that_ask_for_nothing_are_no_obstacle(tmp_path: Path, package: ModuleType) -> None:
    nothing = package.ColumnProperties(encoding=None)
    properties = package.WriterProperties(default_column_properties=nothing, column_properties={"id": nothing})
    package.write_deltalake(tmp_path, ROWS, writer_properties=properties)
    assert rows_of(tmp_path) == plain(ROWS)


@pytest.mark.parametrize("package", BOTH, ids=lambda package: package.__name__)
def test_two_instances_of_an_application_do_not_overwrite_each_others_notes(table: Path, package: ModuleType) -> None:
    def noted(app_id: str, version: int) -> Any:
        return package.CommitProperties(app_transactions=[package.Transaction(app_id, version)])

    first, second, third = (package.DeltaTable(table) for _ in range(3))
    package.write_deltalake(first, ROWS, mode="append", commit_properties=noted("job", 1))
    with pytest.raises(package.exceptions.CommitFailedError):
        package.write_deltalake(second, ROWS, mode="append", commit_properties=noted("job", 1))
    package.write_deltalake(second, ROWS, mode="append", commit_properties=noted("other", 1))
    package.write_deltalake(third, ROWS, mode="append")
    first.update_incremental()
    package.write_deltalake(first, ROWS, mode="append", commit_properties=noted("job", 2))
    package.write_deltalake(
        table, ROWS, mode="append", commit_properties=noted("job", 1)
    )  # who names a place saw nothing
    assert len(rows_of(table)) == 6 * len(ROWS)
    assert deltalake.DeltaTable(table).transaction_version("job") == 1


def test_an_application_that_is_recorded_while_it_writes_is_a_conflict(table: Path) -> None:
    job = lazydelta.CommitProperties(app_transactions=[lazydelta.Transaction("job", 1)])

    def rows() -> Iterator[pa.RecordBatch]:
        lazydelta.write_deltalake(table, ROWS, mode="append", commit_properties=job)  # the other one is faster
        yield from ROWS.to_batches()

    slow = pa.RecordBatchReader.from_batches(ROWS.schema, rows())
    with pytest.raises(exceptions.CommitFailedError, match="'job' has committed"):
        lazydelta.write_deltalake(table, slow, mode="append", commit_properties=job)
    assert len(rows_of(table)) == 2 * len(ROWS)


@pytest.mark.parametrize("package", BOTH, ids=lambda package: package.__name__)
def test_a_table_is_created_as_by_deltalake(tmp_path: Path, package: ModuleType) -> None:
    schema = package.Schema([package.Field("id", "long"), package.Field("day", "string")])
    made = package.DeltaTable.create(
        tmp_path,
        schema,
        partition_by="day",
        name="n",
        configuration={"delta.appendOnly": "false"},
        commit_properties=package.CommitProperties(custom_metadata={"userName": "me"}),
    )
    assert (made.version(), made.schema(), made.metadata().partition_columns) == (0, schema, ["day"])
    assert made.metadata().configuration == {"delta.appendOnly": "false"}
    assert made.history()[0]["userName"] == "me"
    for mode in ("error", "append"):
        with pytest.raises(package.exceptions.DeltaError):
            package.DeltaTable.create(tmp_path, schema, mode=mode)
    assert package.DeltaTable.create(tmp_path, schema, mode="ignore").version() == 0
    package.write_deltalake(tmp_path, ROWS.select(["id", "day"]), mode="append")
    other = package.Schema([package.Field("x", "double")])
    replaced = package.DeltaTable.create(tmp_path, other, mode="overwrite")
    assert (replaced.version(), replaced.schema(), replaced.file_uris()) == (2, other, [])
    assert replaced.history()[0]["operation"] == "CREATE OR REPLACE TABLE"
    with pytest.raises((package.exceptions.DeltaError, ValueError)):
        package.DeltaTable.create(tmp_path / "x", schema, configuration={"nonsense": "1"})


@pytest.mark.parametrize("package", BOTH, ids=lambda package: package.__name__)
def test_the_last_parameters_of_create_may_be_given_by_position(tmp_path: Path, package: ModuleType) -> None:
    schema = package.Schema([package.Field("id", "long")])
    noted = package.CommitProperties(custom_metadata={"userName": "me"})
    first = (tmp_path, schema, "error", None, None, None, {"nonsense": "1"}, None)
    warned: Any = {"expected_warning": DeprecationWarning, "match": "positionally"}
    with pytest.raises(TypeError, match="multiple values for 'commit_properties'"), pytest.warns(**warned):
        package.DeltaTable.create(*first, noted, commit_properties=noted)
    with pytest.raises(TypeError, match="unexpected positional"), pytest.warns(**warned):
        package.DeltaTable.create(*first, noted, None, False, 4)  # noqa: FBT003
    with pytest.warns(DeprecationWarning, match="positionally"):
        made = package.DeltaTable.create(*first, noted, None, False)  # noqa: FBT003
    assert (made.history()[0]["userName"], made.metadata().configuration) == ("me", {"nonsense": "1"})


# --- keeping a table


def test_a_checkpoint_that_is_asked_for_is_read_by_both(table: Path) -> None:
    lazydelta.write_deltalake(table, ROWS, mode="append")
    lazydelta.DeltaTable(table, version=0).create_checkpoint()
    lazydelta.DeltaTable(table).create_checkpoint()
    names = sorted(path.name for path in (table / "_delta_log").glob("*.checkpoint.parquet"))
    assert names == [f"{version:020}.checkpoint.parquet" for version in (0, 1)]
    (table / "_delta_log" / f"{0:020}.json").unlink()
    assert len(rows_of(table)) == 12
    assert lazydelta.DeltaTable(table).count() == 12


def test_a_sidecar_follows_a_checkpoint_unless_it_is_left_out(
    table: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log = table / "_delta_log"
    lazydelta.DeltaTable(table).create_checkpoint(sidecar=False)
    lazydelta.DeltaTable(table, options={"delta.sidecar.enabled": False}).create_checkpoint()
    assert not (log / "_sidecars").exists()
    lazydelta.DeltaTable(table).create_checkpoint()
    assert (log / "_sidecars" / "v0.manifest.json").exists()
    lazydelta.write_deltalake(table, ROWS, mode="append")
    lazydelta.DeltaTable(table).create_checkpoint()
    stream = lazydelta.DeltaTable(table).files()
    assert len(stream.collect()) == len(pa.table(deltalake.DeltaTable(table).get_add_actions()))
    assert stream.metrics.sidecar == "version 1, by its manifest"

    def fail(*_: object, **__: object) -> None:
        raise LazyDeltaError("the folder is full")

    monkeypatch.setattr("lazydelta.maintenance.after_commit.refresh_at", fail)
    lazydelta.write_deltalake(table, ROWS, mode="append")
    lazydelta.DeltaTable(table).create_checkpoint()
    assert (log / f"{2:020}.checkpoint.parquet").exists()
    assert "its sidecar is not: the folder is full" in caplog.text


def test_the_log_is_cleaned_as_the_table_says(tmp_path: Path) -> None:
    import os  # noqa: PLC0415

    keep = {"delta.logRetentionDuration": "interval 0 days"}
    lazydelta.write_deltalake(tmp_path, ROWS, configuration=keep)
    for _ in range(3):
        lazydelta.write_deltalake(tmp_path, ROWS, mode="append")
    log = tmp_path / "_delta_log"
    for version in range(4):
        os.utime(log / f"{version:020}.json", (1_000_000 + version, 1_000_000 + version))
    lazydelta.DeltaTable(tmp_path, version=2).create_checkpoint()
    lazydelta.DeltaTable(tmp_path).cleanup_metadata()
    assert sorted(path.name for path in log.glob("*.json")) == [f"{version:020}.json" for version in (2, 3)]
    assert lazydelta.DeltaTable(tmp_path).count() == 24


def test_large_types_reach_into_all_parts_of_a_column(tmp_path: Path) -> None:
    inner = pa.struct([("bytes", pa.binary()), ("texts", pa.list_(pa.string()))])
    schema = pa.schema([("id", pa.int64()), ("map", pa.map_(pa.string(), inner)), ("text", pa.string())])
    rows = [{"id": 1, "map": [("key", {"bytes": b"b", "texts": ["t"]})], "text": "x"}, {"id": 2}]
    deltalake.write_deltalake(tmp_path, pa.Table.from_pylist(rows, schema=schema))
    mine, other = (each.DeltaTable(tmp_path).to_pyarrow_dataset(as_large_types=True) for each in BOTH)
    assert mine.schema == other.schema
    assert mine.to_table().schema == other.schema
    assert mine.to_table().to_pylist() == other.to_table().to_pylist()


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int8(), pa.array([1, 100], pa.int64())),
        (pa.int8(), pa.array([1, 1000], pa.int32())),
        (pa.int8(), pa.array(["1", "2"])),
        (pa.int8(), pa.array(["hello", "2"])),
        (pa.float64(), pa.array([1, 2], pa.int64())),
    ],
)
def test_values_of_another_type_are_written_if_the_column_holds_each(
    tmp_path: Path, kind: pa.DataType, values: pa.Array
) -> None:
    found: list[Any] = []
    for package in BOTH:
        root = tmp_path / package.__name__
        package.write_deltalake(root, pa.table({"n": pa.array([7], kind)}))
        try:
            package.write_deltalake(root, pa.table({"n": values}), mode="append", schema_mode="merge")
        except Exception as error:  # noqa: BLE001 - the reason is compared
            found.append(str(error).partition("Cast error: ")[2][:24])
        else:
            found.append(sorted(lazydelta.DeltaTable(root).to_pyarrow_table()["n"].to_pylist()))
    assert found[0] == found[1]
    assert found[0]


def test_a_predicate_with_a_number_or_a_column_that_is_not_there_is_deltalakes(tmp_path: Path) -> None:
    for package in BOTH:
        root = tmp_path / package.__name__
        package.write_deltalake(root, pa.table({"p": ["1", "01", "2"], "v": [1, 2, 3]}))
        package.write_deltalake(root, pa.table({"p": ["1"], "v": [9]}), mode="overwrite", predicate="p = 1")
        assert sorted(lazydelta.DeltaTable(root).to_pyarrow_table()["v"].to_pylist()) == [2, 3, 9]
        with pytest.raises(package.exceptions.DeltaError, match=r"No field named q\."):
            package.write_deltalake(root, pa.table({"p": ["1"], "v": [9]}), mode="overwrite", predicate="q = 1")


def test_an_overwrite_of_rows_has_change_data_even_if_it_replaces_whole_files(tmp_path: Path) -> None:
    for package in BOTH:
        root, enabled = tmp_path / package.__name__, {"delta.enableChangeDataFeed": "true"}
        package.write_deltalake(root, pa.table({"p": ["a", "b"], "v": [1, 5]}), partition_by="p", configuration=enabled)
        package.write_deltalake(root, pa.table({"p": ["b"], "v": [6]}), mode="overwrite", predicate="v > 3")
        changes = pa.table(pq.read_table(root / "_change_data"))
        assert sorted(zip(changes["_change_type"].to_pylist(), changes["v"].to_pylist(), strict=True)) == [
            ("delete", 5),
            ("insert", 6),
        ]
