"""The dataset: every method, and every function of PyArrow that takes a dataset, gives right rows or our error."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from pyarrow import acero

from lazydelta import DeltaTable, kql, write_arrow
from lazydelta.engines.polars import scan
from lazydelta.errors import LazyDeltaError, OptionError, ScanError, UnknownColumnError
from lazydelta.rows.dataset import engine_dataset
from lazydelta.sidecar import build
from lazydelta.storage import observe
from tests.rows.made_table import MadeTable, make_rich_table, make_table
from tests.rows.watching import hand_out_one_file_a_pull, row_threads, watch

WHERE = (pc.field("n") > 3) & pc.field("s").is_valid()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeTable:
    return make_rich_table(tmp_path_factory.mktemp("rich"), seed=21, files=8, rows=50)


@pytest.fixture
def dataset(made: MadeTable) -> Any:
    return DeltaTable(made.uri).to_pyarrow_dataset()


def shown(table: pa.Table | list[dict[str, Any]]) -> list[str]:
    return sorted(map(repr, table.to_pylist() if isinstance(table, pa.Table) else table))


def passing(made: MadeTable) -> list[dict[str, Any]]:
    return [row for row in made.rows if row["n"] is not None and row["n"] > 3 and row["s"] is not None]


def checked_methods() -> dict[str, Any]:
    """One check for each public name of a dataset: it gets the dataset, a plain one of the same rows, and the rows."""
    names = ["id", "s"]
    return {
        "schema": lambda ours, plain, _: ours.schema == plain.schema,
        "partition_expression": lambda ours, *_: ours.partition_expression.equals(pc.scalar(value=True)),
        "partitioning": lambda ours, *_: ours.partitioning is None,
        "format": lambda ours, *_: isinstance(ours.format, pads.ParquetFileFormat),
        "files": lambda ours, _, made: sorted(Path(each).name for each in ours.files) == sorted(made.files),
        "filesystem": lambda ours, *_: _refuses(lambda: ours.filesystem.open_input_file("any")),
        "from_paths": lambda ours, *_: _refuses(lambda: type(ours).from_paths(["a"], ours.schema, ours.format)),
        "scanner": lambda ours, plain, _: (
            shown(ours.scanner(columns=names, filter=WHERE).to_table()) == shown(plain.to_table(names, filter=WHERE))
        ),
        "to_batches": lambda ours, plain, _: (
            shown(pa.Table.from_batches(ours.to_batches(filter=WHERE), ours.schema))
            == shown(plain.to_table(filter=WHERE))
        ),
        "to_table": lambda ours, plain, _: (
            shown(ours.to_table(columns=names, filter=WHERE)) == shown(plain.to_table(columns=names, filter=WHERE))
        ),
        "count_rows": lambda ours, plain, _: (
            (ours.count_rows(), ours.count_rows(filter=WHERE)) == (plain.count_rows(), plain.count_rows(filter=WHERE))
        ),
        "head": lambda ours, plain, _: (
            ours.head(7).num_rows == 7 and set(shown(ours.head(7))) <= set(shown(plain.to_table()))
        ),
        "take": lambda ours, *_: (
            ours.take([5, 0, 5]).to_pylist() == [ours.take(range(6)).to_pylist()[place] for place in (5, 0, 5)]
        ),
        "filter": lambda ours, plain, _: (
            shown(ours.filter(WHERE).filter(pc.field("id") > 9).to_table())
            == shown(plain.filter(WHERE).filter(pc.field("id") > 9).to_table())
        ),
        "get_fragments": lambda ours, plain, _: all(
            [
                shown(pa.concat_tables([each.to_table() for each in ours.get_fragments()])) == shown(plain.to_table()),
                sum(each.count_rows() for each in ours.get_fragments(filter=WHERE)) == plain.count_rows(filter=WHERE),
                next(ours.get_fragments()).head(3).num_rows == 3,
                next(ours.get_fragments()).take([2]).num_rows == 1,
                next(ours.get_fragments()).physical_schema == plain.schema,
                sum(batch.num_rows for each in ours.get_fragments() for batch in each.to_batches(columns=["id"]))
                == plain.count_rows(),
                sorted(each.path for each in ours.get_fragments()) == sorted(ours.files),
            ]
        ),
        "sort_by": lambda ours, plain, _: (
            repr(ours.sort_by("id").to_table().to_pylist()) == repr(plain.sort_by("id").to_table().to_pylist())
        ),
        "join": lambda ours, plain, _: _join(ours) == _join(plain),
        "join_asof": lambda ours, plain, _: _join_asof(ours) == _join_asof(plain),
        "replace_schema": lambda ours, *_: (
            ours.replace_schema(pa.schema([("n", pa.int64()), ("id", pa.int64())])).to_table().schema.names
            == ["n", "id"]
        ),
    }


def _refuses(call: Any) -> bool:
    with pytest.raises(LazyDeltaError):
        call()
    return True


def _join(dataset: Any) -> list[str]:
    other = pads.dataset(pa.table({"id": [1, 2, 3], "more": ["a", "b", "c"]}))
    few = dataset.replace_schema(pa.schema([("id", pa.int64()), ("s", pa.string())]))
    return shown(few.join(other, "id").to_table())


def _join_asof(dataset: Any) -> list[str]:
    other = pads.dataset(pa.table({"id": [1, 20, 30], "k": [1, 1, 1], "more": ["a", "b", "c"]}))
    few = dataset.filter(pc.field("n") == 1).replace_schema(pa.schema([("id", pa.int64()), ("n", pa.int32())]))
    left = pads.dataset(few.sort_by("id").to_table()) if not hasattr(dataset, "scan_rows") else few
    try:
        return shown(left.join_asof(other, on="id", by=["n"], tolerance=-5, right_on="id", right_by=["k"]).to_table())
    except pa.ArrowInvalid:
        return []  # types of keys differ: PyArrow's own refusal, the same for both


@pytest.mark.parametrize("name", sorted(checked_methods()))
def test_a_method_gives_what_a_plain_dataset_of_the_rows_gives(made: MadeTable, dataset: Any, name: str) -> None:
    assert checked_methods()[name](dataset, pads.dataset(made.table()), made)


def test_no_method_of_pyarrows_datasets_is_left_out() -> None:
    public = {name for name in dir(pads.FileSystemDataset) if not name.startswith("_")}
    assert public == set(checked_methods())


def test_scanners_and_fragments_have_the_methods_of_pyarrows(dataset: Any) -> None:
    scanner, fragment = dataset.scanner(), next(dataset.get_fragments())
    makers = {"from_batches", "from_dataset", "from_fragment"}
    assert {name for name in dir(pads.Scanner) if not name.startswith("_")} - makers <= set(dir(scanner))
    assert {name for name in dir(pads.Fragment) if not name.startswith("_")} <= set(dir(fragment))
    assert sum(each.record_batch.num_rows for each in scanner.scan_batches()) == scanner.count_rows()
    assert scanner.projected_schema == scanner.dataset_schema == dataset.schema
    assert scanner.to_reader().read_all().num_rows == dataset.count_rows()


def test_a_fragment_is_one_file_which_is_opened_when_the_fragment_is_read(made: MadeTable, dataset: Any) -> None:
    opened: list[str] = []
    with observe(lambda request: opened.append(request.path.rpartition("/")[2])):
        fragments = list(dataset.get_fragments())
        assert not {each for each in opened if each.endswith(".parquet")} & set(made.files)
        rows = pickle.loads(pickle.dumps(fragments[0])).to_table(columns=["id"])  # noqa: S301 - our own
    name = Path(fragments[0].path).name
    assert {each for each in opened if each in made.files} == {name}
    assert 0 < rows.num_rows < dataset.count_rows()
    assert len(fragments) == len(made.files)


def test_a_filter_leaves_out_fragments_and_rows(tmp_path: Path) -> None:
    for start in (0, 10, 20):
        write_arrow(tmp_path, pa.table({"n": list(range(start, start + 10))}))
    dataset = DeltaTable(tmp_path).to_pyarrow_dataset()
    fragments = list(dataset.get_fragments(filter=pc.field("n") > 14))
    assert len(fragments) == 2
    assert sorted(each.count_rows() for each in fragments) == [5, 10]
    tagged = list(dataset.scanner(columns=["n"], filter=pc.field("n") > 14).scan_batches())
    assert {each.fragment.path for each in tagged} == {each.path for each in fragments}
    assert sorted(pa.concat_arrays([each.record_batch["n"] for each in tagged]).to_pylist()) == list(range(15, 30))


def test_columns_are_read_as_dictionaries_on_request(tmp_path: Path) -> None:
    write_arrow(tmp_path, pa.table({"s": ["a", "b", "a"], "n": [1, 2, 3]}))
    table = DeltaTable(tmp_path)
    options = pads.ParquetReadOptions(dictionary_columns={"s"})
    found = table.to_pyarrow_dataset(parquet_read_options=options).to_table()
    assert found.schema.field("s").type == pa.dictionary(pa.int32(), pa.string())
    assert found.column("s").to_pylist() == ["a", "b", "a"]
    assert found.schema.field("n").type == pa.int64()
    unknown = pads.ParquetReadOptions(dictionary_columns={"nobody"})
    with pytest.raises(OptionError, match="nobody"):
        table.to_pyarrow_dataset(parquet_read_options=unknown)


def functions_that_take_a_dataset(dataset: Any, folder: Path) -> dict[str, Any]:
    """Return calls that go past the dataset's methods, with what they may do."""
    return {
        "Scanner.from_dataset": lambda: pads.Scanner.from_dataset(dataset).to_table(),
        "dataset([…])": lambda: pads.dataset([dataset, dataset]).to_table(),
        "UnionDataset": lambda: pads.UnionDataset(dataset.schema, [dataset]).count_rows(),
        "acero scan": lambda: acero.Declaration("scan", acero.ScanNodeOptions(dataset)).to_table(),
        "Dataset.to_table": lambda: pads.Dataset.to_table(dataset),
        "Dataset.count_rows": lambda: pads.Dataset.count_rows(dataset),
        "Dataset.sort_by": lambda: pads.Dataset.sort_by(dataset, "id").to_table(),
        "Dataset.get_fragments": lambda: pa.concat_tables(
            [each.to_table() for each in pads.Dataset.get_fragments(dataset)]
        ),
        "write_dataset": lambda: _written(dataset, folder),
    }


def _written(dataset: Any, folder: Path) -> pa.Table:
    pads.write_dataset(dataset.replace_schema(pa.schema([("id", pa.int64())])), folder, format="parquet")
    return pq.read_table(folder)


@pytest.mark.parametrize("name", sorted(functions_that_take_a_dataset(None, Path())))
def test_whoever_goes_past_us_gets_all_rows_or_our_error(
    made: MadeTable, dataset: Any, name: str, tmp_path: Path
) -> None:
    call = functions_that_take_a_dataset(dataset, tmp_path)[name]
    if name not in {"Dataset.to_table", "Dataset.count_rows", "write_dataset"}:
        with pytest.raises(ScanError, match="tried to read a Delta table directly"):
            call()
    else:
        found = call()
        assert (found if isinstance(found, int) else found.num_rows) == len(made.rows)


def test_writing_the_dataset_writes_every_row(made: MadeTable, dataset: Any, tmp_path: Path) -> None:
    assert sorted(_written(dataset, tmp_path)["id"].to_pylist()) == sorted(row["id"] for row in made.rows)


def test_columns_may_be_nested_repeated_none_or_expressions(made: MadeTable, dataset: Any) -> None:
    plain = pads.dataset(made.table())
    for columns in (["place.name", "id"], ["id", "id"], {"twice": pc.field("id") * 2, "hour": pc.field("hour")}):
        ours, theirs = dataset.to_table(columns=columns), plain.to_table(columns=columns)
        assert ours.schema.names == theirs.schema.names
        assert sorted(map(repr, zip(*ours.to_pydict().values(), strict=True))) == sorted(
            map(repr, zip(*theirs.to_pydict().values(), strict=True))
        )
    assert dataset.to_table(columns=[]).num_rows == len(made.rows)
    assert dataset.to_table(columns={"one": pc.scalar(1)})["one"].to_pylist() == [1] * len(made.rows)


def test_a_dataset_pickles_with_its_filter_and_version(made: MadeTable, dataset: Any) -> None:
    again = pickle.loads(pickle.dumps(dataset.filter(WHERE)))  # noqa: S301 - our own
    assert shown(again.to_table()) == shown(passing(made))


def test_a_pickled_dataset_is_read_in_another_process(made: MadeTable, dataset: Any, tmp_path: Path) -> None:
    (tmp_path / "dataset").write_bytes(pickle.dumps(dataset.filter(WHERE)))
    code = "import pickle, sys; print(pickle.load(open(sys.argv[1], 'rb')).count_rows())"
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "dataset"], capture_output=True, check=True)
    assert int(done.stdout) == len(passing(made))


def test_deltalakes_parameters(made: MadeTable) -> None:
    table = DeltaTable(made.uri)
    with pytest.warns(DeprecationWarning, match="partitions"):
        by_hour = table.to_pyarrow_dataset(partitions=[("hour", "=", "2026021023")])
    assert shown(by_hour.to_table()) == shown([row for row in made.rows if row["hour"] == "2026021023"])
    large = table.to_pyarrow_dataset(as_large_types=True)
    assert large.schema.field("s").type == pa.large_string()
    assert large.to_table(columns=["s"]).schema.field("s").type == pa.large_string()
    with pytest.raises(OptionError, match="filesystem"):
        table.to_pyarrow_dataset(filesystem=object())
    with pytest.raises(UnknownColumnError):
        table.to_pyarrow_dataset(schema=pa.schema([("nothing", pa.int64())]))


def test_a_file_pruning_predicate_leaves_whole_files_out(tmp_path: Path) -> None:
    made = make_table(tmp_path, files=4, rows=10)
    found = DeltaTable(made.uri).to_pyarrow_dataset(file_pruning_predicate="id = 15").to_table()
    assert sorted(found["id"].to_pylist()) == list(range(10, 20))


def test_the_table_is_a_stream_that_others_pull(made: MadeTable) -> None:
    table = DeltaTable(made.uri)
    with watch() as watched:
        reader = pa.RecordBatchReader.from_stream(table)
        assert watched.requests == []
    assert shown(reader.read_all()) == shown(made.rows)
    assert shown(pa.table(table)) == shown(made.rows)
    assert shown(table.to_pyarrow_reader(["id"], "n > 3 and s is not null", limit=10**6).read_all()) == shown(
        [{"id": row["id"]} for row in passing(made)]
    )


def test_head_stops_early_and_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_table(tmp_path, files=40, rows=20)
    pulled = hand_out_one_file_a_pull(monkeypatch)
    assert DeltaTable(made.uri).to_pyarrow_dataset().head(10).num_rows == 10
    assert len(pulled) <= 3
    assert row_threads() == []


def test_signatures_take_what_deltalake_takes() -> None:
    ours = inspect.signature(DeltaTable.to_pyarrow_dataset).parameters
    theirs = ["partitions", "filesystem", "parquet_read_options", "schema", "as_large_types", "file_pruning_predicate"]
    assert list(ours)[1:] == [*theirs, "where"]
    assert ours["where"].kind is inspect.Parameter.KEYWORD_ONLY


def test_a_dataset_for_engines_is_one_fragment_even_where_no_file_may_match(tmp_path: Path) -> None:
    """DataFusion asks for all of them to plan a query: a table of millions would be listed first."""
    write_arrow(tmp_path, pa.table({"n": [1, 2, 3]}))
    nothing = pc.field("n") < 0
    fragments = list(engine_dataset(tmp_path).get_fragments(filter=nothing))
    assert [each.to_table().num_rows for each in fragments] == [0]
    assert list(DeltaTable(tmp_path).to_pyarrow_dataset().get_fragments(filter=nothing)) == []


def test_rows_are_numbered_in_one_order_wherever_files_are_found(tmp_path: Path) -> None:
    """Commits come newest first, a checkpoint as it is stored, a sidecar by time: no position may depend on that.

    By ``take``, by Polars where it is asked for, and by functions of KQL that number rows.
    """
    made = make_table(tmp_path / "t", files=6, rows=5)
    places = [0, 7, 29]
    expected = [made.rows[place]["id"] for place in places]  # files were named in the order of their rows

    def taken(**filters: Any) -> list[int]:
        dataset = DeltaTable(made.uri).to_pyarrow_dataset()
        found: list[int] = dataset.take(places, **filters)["id"].to_pylist()
        if not filters:
            numbered = scan(made.uri, maintain_order=True).with_row_index("r").filter(pl.col("r").is_in(places))
            assert numbered.collect()["id"].to_list() == found
            for asked in ("serialize r = row_number(0)", "where id >= 0 | serialize | extend r = row_number(0)"):
                rows = kql.query(f"T | {asked} | where r in (0, 7, 29) | project id", {"T": made.uri})
                assert rows.to_arrow()["id"].to_pylist() == found
        return found

    assert taken() == expected
    DeltaTable(made.uri).create_checkpoint()
    assert taken() == expected
    build(made.uri)
    assert taken() == expected
    assert taken(filter=pc.field("id") >= 0) == expected
