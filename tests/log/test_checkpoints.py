"""Checkpoints of every kind and of every writer's dialect give the same files, streamed."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from lazydelta import DeltaTable
from lazydelta.errors import CorruptLogError
from lazydelta.log.checkpoint import reader
from lazydelta.log.checkpoint.columns import read_batches
from lazydelta.log.segment import load_segment
from lazydelta.testing.make_table import make_table
from tests.log.support import FIELDS, Log, add, metadata, name_of, paths, protocol, remove, requests
from tests.log.support_reads import LocalReads
from tests.oracle.observe import observed_facts
from tests.oracle.replay import replay

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.oracle.checkpoints import CheckpointWriter

MB = 1 << 20
LAST = 6
PARTITIONED = [*FIELDS, {"name": "day", "type": "date", "nullable": True, "metadata": {}}]
VECTOR = {
    "storageType": "u",
    "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^",
    "offset": 4,
    "sizeInBytes": 40,
    "cardinality": 2,
}

KINDS: dict[str, Callable[[CheckpointWriter], list[Path]]] = {
    "classic": lambda writer: writer.classic(),
    "two parts": lambda writer: writer.multipart(2),
    "nine parts": lambda writer: writer.multipart(9),
    "v2 parquet": lambda writer: writer.v2(main="parquet", sidecars=0),
    "v2 parquet with sidecars": lambda writer: writer.v2(main="parquet", sidecars=3),
    "v2 json": lambda writer: writer.v2(main="json", sidecars=0),
    "v2 json with sidecars": lambda writer: writer.v2(main="json", sidecars=3),
    "v2 of classic name": lambda writer: writer.v2(main="classic", sidecars=0),
    "v2 of classic name with sidecars": lambda writer: writer.v2(main="classic", sidecars=3),
}


@pytest.fixture(autouse=True)
def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Open every table as a fresh process would: what another test has read is not remembered."""
    monkeypatch.setenv("DELTA_CACHE_SIZE", "0")


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Return a log with partitions, deletion vectors, removes, a transaction, a domain and files without stats."""
    log = Log(tmp_path)
    state = metadata(fields=PARTITIONED)
    state["metaData"]["partitionColumns"] = ["day"]
    log.commit(0, protocol("v2Checkpoint", "deletionVectors"), state)
    for version in range(1, LAST):
        files = [add(f"day=2026-02-0{version}/f{version}{letter}", size=version, records=version) for letter in "abcd"]
        for file in files:
            file["add"]["partitionValues"] = {"day": f"2026-02-0{version}"}
        files[1]["add"]["partitionValues"] = {"day": None}
        files[2]["add"]["deletionVector"] = VECTOR
        del files[3]["add"]["stats"]
        log.commit(version, *files, {"txn": {"appId": "app", "version": version}})
    domain = {"domainMetadata": {"domain": "d", "configuration": "{}", "removed": False}}
    log.commit(LAST, remove("day=2026-02-01/f1a"), domain)
    return log


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stats", ["json", "struct", "both"])
@pytest.mark.each_value
def test_every_kind_of_checkpoint_gives_the_files_of_its_version(kind: str, stats: str, log: Log) -> None:
    expected = replay(log.folder, LAST)
    KINDS[kind](log.writer(LAST, stats=stats))
    log.delete(*range(LAST + 1))
    table = DeltaTable(log.root)
    assert observed_facts(table) == expected.facts
    assert {file.tier for file in table.files()} == {3}
    assert {file.version for file in table.files()} == {None}
    assert (table.transaction_version("app"), table.domain_metadata()) == (LAST - 1, {"d": "{}"})
    assert table.metadata().partition_columns == ["day"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_tail_masks_the_files_of_every_kind_of_checkpoint(kind: str, log: Log) -> None:
    KINDS[kind](log.writer(LAST))
    replaced = add("day=2026-02-03/f3a", size=777)
    replaced["add"]["partitionValues"] = {"day": "2026-02-03"}
    log.commit(LAST + 1, remove("day=2026-02-02/f2a"), replaced)
    expected = replay(log.folder, LAST + 1).facts
    log.delete(*range(LAST + 1))
    for strategy in ("forward", "reverse"):
        files = DeltaTable(log.root).files(strategy=strategy)
        assert paths(files) == sorted(fact.path for fact in expected)
    assert observed_facts(DeltaTable(log.root)) == expected


@pytest.mark.parametrize("kind", ["v2 parquet with sidecars", "v2 json with sidecars"])
def test_the_sidecars_of_a_v2_checkpoint_are_not_opened_for_its_state(kind: str, log: Log) -> None:
    _, *sidecars = KINDS[kind](log.writer(LAST))
    with requests() as seen:
        table = DeltaTable(log.root)
        assert table.transaction_version("app") == LAST - 1
    assert not {f"_sidecars/{path.name}" for path in sidecars} & set(seen.gets)
    with requests() as seen:
        table.files().collect()
    assert {f"_sidecars/{path.name}" for path in sidecars} <= set(seen.gets)


def test_a_v2_checkpoint_may_name_sidecars_by_their_path_in_the_log(log: Log) -> None:
    main, sidecar = log.writer(LAST).v2(main="json", sidecars=1)
    text = main.read_text(encoding="utf-8")
    main.write_text(text.replace(sidecar.name, f"_delta_log/_sidecars/{sidecar.name}"), encoding="utf-8")
    expected = replay(log.folder, LAST).facts
    log.delete(*range(LAST + 1))
    assert observed_facts(DeltaTable(log.root)) == expected


@pytest.mark.parametrize(
    "path", ["../x.parquet", "_sidecars/../../x.parquet", "other/x.parquet", "x.json", "a\0.parquet"]
)
def test_a_sidecar_elsewhere_is_refused(path: str, log: Log) -> None:
    main, sidecar = log.writer(LAST).v2(main="json", sidecars=1)
    text = main.read_text(encoding="utf-8")
    main.write_text(text.replace(sidecar.name, path.replace("\0", "\\u0000")), encoding="utf-8")
    with pytest.raises(CorruptLogError, match="sidecar"):
        DeltaTable(log.root).files().collect()


def test_a_sidecar_that_is_gone_is_an_error_that_names_it(log: Log) -> None:
    _, sidecar = log.writer(LAST).v2(main="parquet", sidecars=1)
    sidecar.unlink()
    with pytest.raises(CorruptLogError, match=sidecar.name) as caught:
        DeltaTable(log.root).files().collect()
    assert caught.value.version == LAST


def test_removes_in_a_checkpoint_are_no_files(tmp_path: Path) -> None:
    log = Log(tmp_path).commits(0, 3)
    log.commit(4, *[remove(f"f{version}") for version in range(4)], add("only"))
    log.checkpoint(4)
    assert paths(DeltaTable(tmp_path).files()) == ["only"]


def test_a_checkpoint_without_files_is_an_empty_table(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.commit(0, protocol(), metadata())
    log.checkpoint(0)
    log.delete(0)
    table = DeltaTable(tmp_path)
    assert table.files().collect() == []
    assert table.to_pyarrow_table().num_rows == 0


# --- statistics and partition values with native types


def test_native_statistics_are_used_where_there_is_no_text(tmp_path: Path) -> None:
    log = Log(tmp_path).commits(0, 3)
    low = add("low", records=5)
    low["add"]["stats"] = low["add"]["stats"].replace('"id": 9', '"id": 2')
    log.commit(4, low)
    log.writer(4, stats="struct").classic()
    log.delete(*range(5))
    table = DeltaTable(tmp_path)
    assert paths(table.files("id > 2")) == ["f0", "f1", "f2", "f3"]
    stats = {file.path: file.stats for file in table.files()}
    assert stats["low"] == {"numRecords": 5, "minValues": {"id": 1}, "maxValues": {"id": 2}, "nullCount": {"id": 0}}


@pytest.mark.parametrize("parsed", [True, False])
def test_partition_predicates_hold_with_and_without_native_partition_values(parsed: bool, log: Log) -> None:  # noqa: FBT001
    writer = log.writer(LAST)
    writer.parsed_partitions = parsed
    writer.classic()
    log.delete(*range(LAST + 1))
    found = paths(DeltaTable(log.root).files([("day", ">=", "2026-02-05")]))
    assert found == [f"day=2026-02-05/f5{letter}" for letter in "acd"]


# --- dialects


def rewritten(path: Path, change: Callable[[pa.Field, pa.Array], pa.Array]) -> None:
    """Write a checkpoint again with fields of its ``add`` column changed."""
    table = pq.read_table(path)
    adds = table["add"].combine_chunks()
    fields = [adds.type.field(index) for index in range(adds.type.num_fields)]
    arrays = [change(field, adds.field(index)) for index, field in enumerate(fields)]
    struct = pa.StructArray.from_arrays(
        arrays,
        fields=[pa.field(field.name, array.type) for field, array in zip(fields, arrays, strict=True)],
        mask=adds.is_null(),
    )
    pq.write_table(table.set_column(table.schema.get_field_index("add"), "add", struct), path)


def cast(names: set[str], type_: pa.DataType) -> Callable[[pa.Field, pa.Array], pa.Array]:
    """Return a change of the named fields to another type."""
    return lambda field, array: array.cast(type_) if field.name in names else array


@pytest.mark.parametrize("strategy", ["forward", "reverse"])
@pytest.mark.parametrize("rows", [None, 999, 1_000, 4_000])
@pytest.mark.each_value
def test_partition_values_are_compared_alike_in_row_groups_of_any_size(
    tmp_path: Path, strategy: str, rows: int | None
) -> None:
    """Each row group has codes of its own for them."""
    make_table(tmp_path, files=10_000, hours=30, row_group_size=rows, seed=3)
    table = DeltaTable(tmp_path)
    expected: dict[str, list[str]] = {}
    for file in table.files():
        expected.setdefault(str(file.partition_values["_event_hour"]), []).append(file.path)
    assert len(expected) == 30
    for hour in (min(expected), max(expected)):
        found = table.files([("_event_hour", "=", hour)], strategy=strategy).collect()
        assert sorted(file.path for file in found) == sorted(expected[hour])
        assert {file.partition_values["_event_hour"] for file in found} == {hour}


def coded(maps: pa.MapArray) -> pa.MapArray:
    """Return the maps with keys and values as codes."""
    keys, items = maps.keys.dictionary_encode(), maps.items.dictionary_encode()
    return pa.MapArray.from_arrays(maps.offsets, keys, items)


TEXT = {"path", "stats"}
MAP_OF_LARGE = pa.map_(pa.large_string(), pa.large_string())
WIDE_VECTOR = pa.struct(
    {
        "storageType": pa.large_string(),
        "pathOrInlineDv": pa.large_string(),
        "offset": pa.int64(),
        "sizeInBytes": pa.int64(),
        "cardinality": pa.int64(),
    }
)
DIALECTS: dict[str, Callable[[pa.Field, pa.Array], pa.Array]] = {
    "large strings": cast(TEXT, pa.large_string()),
    "dictionaries": lambda field, array: array.dictionary_encode() if field.name in TEXT else array,
    "binary text": cast(TEXT, pa.binary()),
    "32-bit sizes": cast({"size"}, pa.int32()),
    "unsigned sizes": cast({"size"}, pa.uint64()),
    "maps of large strings": cast({"partitionValues"}, MAP_OF_LARGE),
    "maps of bytes": cast({"partitionValues"}, pa.map_(pa.binary(), pa.binary())),
    "maps of dictionaries": lambda field, array: coded(array) if field.name == "partitionValues" else array,
    "wide deletion vectors": cast({"deletionVector"}, WIDE_VECTOR),
}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_writers_may_choose_other_widths_and_encodings(dialect: str, log: Log) -> None:
    expected = replay(log.folder, LAST).facts
    (path,) = log.writer(LAST).classic()
    rewritten(path, DIALECTS[dialect])
    log.delete(*range(LAST + 1))
    table = DeltaTable(log.root)
    assert observed_facts(table) == expected
    for strategy in ("forward", "reverse"):  # partition values that are compared are read in another way
        found = table.files([("day", "=", "2026-02-05")], strategy=strategy).collect()
        assert sorted(file.path for file in found) == [f"day=2026-02-05/f5{letter}" for letter in "acd"]
        assert {file.partition_values["day"] for file in found} == {"2026-02-05"}


def test_a_deletion_vector_of_nulls_is_none(tmp_path: Path) -> None:
    """Some writers give every row a struct whose fields are all null."""
    log = Log(tmp_path).commits(0, 2)
    (path,) = log.checkpoint(2)

    def nulls(field: pa.Field, array: pa.Array) -> pa.Array:
        if field.name != "deletionVector":
            return array
        fields = [field.type.field(index) for index in range(field.type.num_fields)]
        return pa.StructArray.from_arrays([pa.nulls(len(array), each.type) for each in fields], fields=fields)

    rewritten(path, nulls)
    assert [file.deletion_vector for file in DeltaTable(tmp_path).files()] == [None, None, None]


@pytest.mark.parametrize("statistics", [True, False])
def test_deletion_vectors_are_found_wherever_they_are_and_left_unread_where_there_are_none(
    statistics: bool,  # noqa: FBT001
    log: Log,
) -> None:
    expected = replay(log.folder, LAST).facts
    (path,) = log.writer(LAST).classic()
    table = pq.read_table(path)
    pq.write_table(table, path, row_group_size=1, write_statistics=statistics)
    log.delete(*range(LAST + 1))
    assert observed_facts(DeltaTable(log.root)) == expected
    assert len([fact for fact in expected if fact.dv_id is not None]) == LAST - 1


def test_a_checkpoint_may_have_row_groups_of_any_size(log: Log) -> None:
    expected = replay(log.folder, LAST).facts
    (path,) = log.writer(LAST).classic()
    pq.write_table(pq.read_table(path), path, row_group_size=1)
    assert observed_facts(DeltaTable(log.root)) == expected
    pq.write_table(pq.read_table(path), path, data_page_size=64)
    assert observed_facts(DeltaTable(log.root)) == expected


@pytest.mark.parametrize(
    ("name", "type_"), [("path", pa.int64()), ("size", pa.string()), ("modificationTime", pa.float64())]
)
def test_a_column_of_a_wrong_type_is_an_error_that_names_it(name: str, type_: pa.DataType, log: Log) -> None:
    (path,) = log.writer(LAST).classic()
    rewritten(path, lambda field, array: pa.nulls(len(array), type_) if field.name == name else array)
    with pytest.raises(CorruptLogError, match=rf"{path.name}.*add\.{name}"):
        DeltaTable(log.root).files().collect()


def test_a_checkpoint_that_is_no_parquet_is_an_error_that_names_it(log: Log) -> None:
    path = log.write(name_of(LAST, "checkpoint.parquet"), b"PAR1 rubbish PAR1")
    with pytest.raises(CorruptLogError, match=path.name) as caught:
        DeltaTable(log.root).files().collect()
    assert caught.value.version == LAST


def test_a_checkpoint_of_deltalake_is_read(tmp_path: Path) -> None:
    for index in range(12):
        rows = pa.table({"a": [index, index + 1], "p": ["x", f"y{index}"]})
        deltalake.write_deltalake(tmp_path, rows, mode="append", partition_by=["p"])
    theirs = deltalake.DeltaTable(tmp_path)
    theirs.create_checkpoint()
    adds: Any = pa.table(theirs.get_add_actions(flatten=True))
    ours = DeltaTable(tmp_path)
    assert {file.tier for file in ours.files()} == {3}
    expected = sorted(
        zip(adds["path"].to_pylist(), adds["size_bytes"].to_pylist(), adds["num_records"].to_pylist(), strict=True)
    )
    assert sorted((file.path, file.size, file.num_records) for file in ours.files()) == expected


# --- streaming


@pytest.fixture(scope="module", params=["forward", "reverse"])
def strategy(request: pytest.FixtureRequest) -> str:
    """Return each strategy."""
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def one_group(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a table of 200,000 files whose checkpoint is one row group of 41 MB."""
    root = tmp_path_factory.mktemp("group")
    make_table(root, files=200_000)
    (path,) = (root / "_delta_log").glob("*.checkpoint.parquet")
    assert pq.ParquetFile(path).num_row_groups == 1
    assert path.stat().st_size > 30 * MB
    return root


def take(table: DeltaTable, count: int, strategy: str) -> None:
    """Pull some files and break."""
    with table.files(strategy=strategy) as files:
        for index, _ in enumerate(files, 1):
            if index == count:
                break


def test_a_row_group_is_not_read_whole_for_its_first_files(
    one_group: Path, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path,) = (one_group / "_delta_log").glob("*.checkpoint.parquet")
    table = DeltaTable(one_group)
    reads = LocalReads.watch(monkeypatch)
    take(table, 10, strategy)
    assert 0 < sum(end - start for start, end in reads.of(path)) < 6 * MB


def test_an_object_store_is_asked_for_a_few_blocks_for_the_first_files(one_group: Path, strategy: str) -> None:
    uri = Log(one_group).in_memory()
    table = DeltaTable(uri)
    with requests() as seen:
        take(table, 10, strategy)
    (path,) = {request.path for request in seen if request.path.endswith(".checkpoint.parquet")}
    assert 0 < sum(end - start for start, end in seen.ranges(path)) < 10 * MB


def test_breaking_out_of_a_scan_opens_one_part_of_many(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.commit(0, protocol(), metadata(), *[add(f"f{index}") for index in range(400)])
    parts = log.writer(0, seed=random.Random(3).randrange(99)).multipart(8)
    table = DeltaTable(tmp_path)
    with requests() as seen:
        take(table, 10, "reverse")
    assert {name for name in seen.gets if "checkpoint" in name} == {parts[0].name}


@pytest.mark.parametrize("files", [1_000, 4_000])
def test_row_groups_of_files_are_not_read_for_other_actions(files: int, tmp_path: Path) -> None:
    """However many there are: their statistics say that they hold no such action."""
    log = Log(tmp_path)
    log.commit(0, protocol(), metadata(), *(add(f"f{number}") for number in range(files)))
    log.commit(1, {"txn": {"appId": "a", "version": 5}})
    (path,) = log.checkpoint(1)
    log.delete(0, 1)
    assert pq.ParquetFile(path).metadata.num_row_groups > files // 200
    uri = log.in_memory()
    with requests() as seen:
        table = DeltaTable(uri)
        assert table.transaction_version("a") == 5
        assert table.domain_metadata() == {}
    assert len(seen.ranges(f"_delta_log/{path.name}")) <= 12


@pytest.mark.parametrize("last", [False, True])
def test_a_row_group_is_not_read_on_behind_the_last_such_action(
    last: bool,  # noqa: FBT001
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its statistics say how many there are. Wherever they are, each of them is found."""
    log = Log(tmp_path)
    log.commit(0, protocol(), metadata(), *(add(f"f{number}") for number in range(30_000)))
    log.commit(1, {"txn": {"appId": "a", "version": 5}}, {"txn": {"appId": "b", "version": 6}})
    (path,) = log.checkpoint(1)
    rows = pq.read_table(path)
    state = rows.filter(pc.is_null(pc.struct_field(rows["add"], "path")))
    files = rows.filter(pc.is_valid(pc.struct_field(rows["add"], "path")))
    pq.write_table(pa.concat_tables([files, state] if last else [state, files]), path, row_group_size=len(rows))
    log.delete(0, 1)
    decoded = 0

    def counting(*args: Any) -> Iterator[pa.RecordBatch]:
        nonlocal decoded
        for batch in read_batches(*args):
            decoded += len(batch)
            yield batch

    monkeypatch.setattr(reader, "read_batches", counting)
    checkpoint = load_segment(log.store).checkpoint
    assert checkpoint is not None
    found = list(reader.CheckpointReader(log.store, checkpoint).actions("protocol", "metaData", "txn"))
    assert sorted(line.txn.app_id for line in found if line.txn is not None) == ["a", "b"]
    assert len(found) == 4
    assert (decoded == len(rows)) is last
    assert last or decoded <= reader.BATCH_SIZE
