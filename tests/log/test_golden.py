"""Tables of the Delta compatibility suite: the rows it expects, the errors it asks for, nothing skipped in silence."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lazydelta import DeltaTable
from lazydelta.errors import CorruptLogError, LazyDeltaError, LogError, TableNotFoundError, UnsupportedFeatureError
from lazydelta.warned import ChecksumWarning
from tests.oracle.observe import observed_facts
from tests.oracle.replay import replay
from tests.oracle.rows import plain_rows, plain_types
from tests.support.golden import golden_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

TABLES = golden_names("tables") or ["absent"]
MORE = golden_names("more") or ["absent"]

# Tables that no reader may open: the error that is due, and what it must name.
REFUSED: dict[str, tuple[type[LazyDeltaError], str]] = {
    "tables/deltalog-invalid-protocol-version": (UnsupportedFeatureError, "99"),
    "tables/deltalog-state-reconstruction-from-checkpoint-missing-metadata": (LogError, "metaData"),
    "tables/deltalog-state-reconstruction-without-protocol": (LogError, "protocol"),
    "tables/no-delta-log-folder": (TableNotFoundError, "no-delta-log-folder"),
}
# Tables whose log breaks the protocol: it replays, or the error names what is wrong with it.
LOG_ONLY = {
    "tables/data-reader-absolute-paths-escaped-chars": "metaData",  # there is no metaData action at all
    "tables/deltalog-commit-info": "schemaString",  # its metaData has no schemaString
    "tables/update-deleted-directory": "schemaString",  # the same, in commit and checkpoint
}
# Tables without rows to compare, and the fact about the table that is the reason.
WITHOUT_ROWS = {
    "tables/canonicalized-paths-normal-a": "no file is active",
    "tables/canonicalized-paths-special-b": "no file is active",
    "tables/checkpoint": "its data file is one byte long",
    "more/300k-add-files-100-col-partitioned": "its data files do not exist",
    "more/app-txn-with-last-updated": "its data files do not exist",
    "more/with_checkpoint_no_last_checkpoint": "its data files do not exist",
}
# Tables whose checkpoint kept no statistics, so that row counts are in superseded commits only.
WITHOUT_STATISTICS = {"more/parquet_row_group_skipping"}
# Columns of which the suite's expectation contradicts the table's own log.
CONTRADICTED: dict[str, dict[str, str]] = {
    "tables/data-reader-partition-values": {
        "as_timestamp": "the log says 11:11:11 without a zone, which is UTC; the rows were written down at UTC-7"
    },
}


# Its checksum was made up, to have everything that a checksum can have.
LYING_CHECKSUM = {"more/crc-full"}


def _warned(names: Iterable[str]) -> list[Any]:
    ignored = pytest.mark.filterwarnings("ignore::lazydelta.warned.ChecksumWarning")
    return [pytest.param(name, marks=ignored if name in LYING_CHECKSUM else ()) for name in names]


def test_a_checksum_that_was_made_up_is_warned_of(unpack_golden: Callable[[str], Path]) -> None:
    with pytest.warns(ChecksumWarning, match="counts 10 files of 5259 bytes, the log gives 0"):
        DeltaTable(str(location(unpack_golden("more/crc-full")))).files().collect()


def location(folder: Path) -> Path:
    """Return the table inside an unpacked archive."""
    return folder / "delta" if (folder / "delta").is_dir() else folder


def expected_rows(folder: Path) -> pa.Table:
    """Read the rows that the suite expects."""
    paths = [path for path in (folder / "expected").rglob("*.parquet") if not path.name.startswith((".", "_"))]
    assert paths, f"the archive of {folder.name} has no expected rows"
    return pa.concat_tables([pq.ParquetFile(path).read() for path in paths], promote_options="default")


def peer_rows(path: Path) -> pa.Table:
    """Read the rows with deltalake's query engine, which applies deletion vectors and column mapping."""
    table = deltalake.DeltaTable(str(path))
    return pa.table(deltalake.QueryBuilder().register("t", table).execute("select * from t"))


def assert_same_rows(ours: pa.Table, theirs: pa.Table, without: dict[str, str]) -> None:
    """Compare types by column and rows in any order."""
    dropped = [name for name in without if name in theirs.schema.names]
    ours, theirs = ours.drop_columns(dropped), theirs.drop_columns(dropped)
    assert plain_types(ours.schema) == plain_types(theirs.schema)
    assert plain_rows(ours) == plain_rows(theirs)


def test_every_exception_names_a_table_of_the_suite(golden_dir: Path) -> None:
    """No exception outlives its table."""
    assert golden_dir.is_dir()
    assert {*REFUSED, *LOG_ONLY, *WITHOUT_ROWS, *WITHOUT_STATISTICS, *CONTRADICTED, *LYING_CHECKSUM} <= {*TABLES, *MORE}


@pytest.mark.parametrize("name", _warned([*TABLES, *MORE]))
def test_active_files_equal_a_plain_replay(name: str, unpack_golden: Callable[[str], Path]) -> None:
    """Every table that may be opened lists what its commits say, whatever its checkpoints look like."""
    path = location(unpack_golden(name))
    if name in REFUSED:
        error, named = REFUSED[name]
        with pytest.raises(error) as caught:
            DeltaTable(str(path)).files().collect()
        assert named in str(caught.value)
        return
    if name in LOG_ONLY:
        try:
            paths = [file.path for file in DeltaTable(str(path)).files()]
        except CorruptLogError as error:
            assert LOG_ONLY[name] in str(error)  # noqa: PT017 (a right answer is as good)
        else:
            assert sorted(paths) == sorted(add["path"] for add in replay(path / "_delta_log").files.values())
        return
    expected = replay(path / "_delta_log")
    table = DeltaTable(str(path))
    assert table.version() == expected.version
    wanted = expected.facts
    if name in WITHOUT_STATISTICS:
        wanted = [fact._replace(num_records=None) for fact in wanted]
    assert observed_facts(table) == wanted


@pytest.mark.parametrize("name", [name for name in TABLES if name not in {*REFUSED, *LOG_ONLY, *WITHOUT_ROWS}])
def test_rows_equal_what_the_suite_expects(name: str, unpack_golden: Callable[[str], Path]) -> None:
    """The rows of the latest version are those that the suite's authors wrote down."""
    folder = unpack_golden(name)
    ours = DeltaTable(str(location(folder))).to_pyarrow_table()
    assert_same_rows(ours, expected_rows(folder), CONTRADICTED.get(name, {}))


@pytest.mark.parametrize("name", _warned([name for name in MORE if name not in WITHOUT_ROWS]))
def test_rows_equal_those_of_another_reader(name: str, unpack_golden: Callable[[str], Path]) -> None:
    """Where the suite wrote no rows down, an independent engine says what they are."""
    path = location(unpack_golden(name))
    assert_same_rows(DeltaTable(str(path)).to_pyarrow_table(), peer_rows(path), {})


@pytest.mark.parametrize("name", ["tables/canonicalized-paths-normal-a", "tables/canonicalized-paths-special-b"])
def test_a_remove_hides_an_add_that_spells_its_path_otherwise(name: str, unpack_golden: Callable[[str], Path]) -> None:
    """`/x`, `file:/x` and `file:///x` are one file."""
    assert list(DeltaTable(str(location(unpack_golden(name)))).files()) == []


def test_a_partition_timestamp_without_zone_is_utc(unpack_golden: Callable[[str], Path]) -> None:
    """Where the suite's rows contradict its log, the log is right."""
    table = DeltaTable(str(location(unpack_golden("tables/data-reader-partition-values")))).to_pyarrow_table()
    timestamp = dt.datetime(2021, 9, 8, 11, 11, 11, tzinfo=dt.UTC)
    assert sorted(table["as_timestamp"].to_pylist(), key=repr) == [None, timestamp, timestamp]


def test_one_of_fifteen_files_survives_the_checkpoint_table(unpack_golden: Callable[[str], Path]) -> None:
    """The suite's checkpoint table has one active file of 15 ever added."""
    table = DeltaTable(str(location(unpack_golden("tables/checkpoint"))))
    assert [file.path for file in table.files()] == ["15"]
