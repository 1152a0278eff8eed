"""What engines pull, what they leave behind, and what they say when something is wrong."""

from __future__ import annotations

import gc
import json
import multiprocessing
import pickle
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import polars as pl
import pyarrow as pa
import pytest

import lazydelta
from lazydelta import DeltaTable, QueryBuilder
from lazydelta.engines import datafusion as our_datafusion
from lazydelta.engines import duckdb as our_duckdb
from lazydelta.engines import polars as our_polars
from lazydelta.engines.sql import SqlResult
from lazydelta.errors import OptionError, QueryError, TableNotFoundError
from lazydelta.kql.execution.tables import KqlTables
from lazydelta.predicates.polars_expression import pruning_predicate
from lazydelta.rows.flow import ReadingPool
from lazydelta.rows.scanner import RowFragment
from lazydelta.rows.stream import RowStream
from lazydelta.runtime import database
from lazydelta.runtime.threads import start_thread
from lazydelta.sidecar.handle import snapshot_of
from tests.rows.made_table import MadeTable, make_rich_table, make_table
from tests.rows.watching import hand_out_one_file_a_pull, no_threads_are_left, watch

ROWS = 3000


@pytest.fixture(scope="module")
def forty(tmp_path_factory: pytest.TempPathFactory) -> MadeTable:
    return make_table(tmp_path_factory.mktemp("forty"), files=40, rows=ROWS)


def limited_duckdb(made: MadeTable, limit: int, where: str) -> int:
    with duckdb.connect() as con:
        our_duckdb.register(con, "t", made.uri)
        return int(con.sql(f"SELECT * FROM t {where} LIMIT {limit}").to_arrow_reader().read_all().num_rows)


def limited_function(made: MadeTable, limit: int, where: str) -> int:
    with duckdb.connect() as con:
        found = our_duckdb.query(con, f"SELECT * FROM delta('{made.uri}') {where} LIMIT {limit}")
        return int(found.to_arrow_reader().read_all().num_rows)


def limited_datafusion(made: MadeTable, limit: int, where: str) -> int:
    builder = QueryBuilder().register("t", DeltaTable(made.uri))
    return int(builder.execute(f"SELECT * FROM t {where} LIMIT {limit}").read_all().num_rows)


def limited_polars(made: MadeTable, limit: int, where: str) -> int:
    frame = DeltaTable(made.uri).to_polars()
    if where:
        frame = frame.filter(pl.col("id") >= 0)
    return frame.head(limit).collect(engine="streaming").height


def limited_polars_in_memory(made: MadeTable, limit: int, where: str) -> int:
    """Without a filter only: with one, Polars' engine in memory reads to the end, which the documentation says."""
    return DeltaTable(made.uri).to_polars().head(limit).collect(engine="in-memory").height


def limited_pyarrow(made: MadeTable, limit: int, where: str) -> int:
    return int(DeltaTable(made.uri).to_pyarrow_dataset().head(limit).num_rows)


LIMITED: dict[str, Callable[[MadeTable, int, str], int]] = {
    "duckdb": limited_duckdb,
    "duckdb delta()": limited_function,
    "datafusion": limited_datafusion,
    "polars streaming": limited_polars,
    "polars in memory": limited_polars_in_memory,
    "pyarrow": limited_pyarrow,
}


@pytest.mark.parametrize("where", ["", "WHERE id >= 0"])
@pytest.mark.parametrize("engine", LIMITED)
def test_a_limit_of_one_file_pulls_at_most_three(
    forty: MadeTable, monkeypatch: pytest.MonkeyPatch, engine: str, where: str
) -> None:
    pulled = hand_out_one_file_a_pull(monkeypatch)
    with watch() as watched:
        assert LIMITED[engine](forty, 100, where) == 100
        assert no_threads_are_left()
        requests = len(watched.requests)
    assert len(pulled) <= 3, pulled
    assert len(watched.requests) == requests


@pytest.mark.parametrize("where", ["", "WHERE id >= 0"])
@pytest.mark.parametrize("engine", LIMITED)
def test_a_limit_of_ten_files_pulls_at_most_thirteen(
    forty: MadeTable, monkeypatch: pytest.MonkeyPatch, engine: str, where: str
) -> None:
    pulled = hand_out_one_file_a_pull(monkeypatch)
    assert LIMITED[engine](forty, 10 * ROWS, where) == 10 * ROWS
    assert no_threads_are_left()
    assert 10 <= len(pulled) <= 13, len(pulled)


def test_polars_gets_the_first_batches_in_small_frames_and_later_ones_whole(forty: MadeTable) -> None:
    """Its streaming engine asks for some frames more than it needs, of whatever size."""
    snapshot = snapshot_of(DeltaTable(forty.uri))
    frames = list(our_polars._PolarsSource(snapshot)(["id"], pl.col("id") >= 0, None, None))
    assert [frame.height for frame in frames] == [ROWS // 8] * 8 * 16 + [ROWS] * 24
    assert pl.concat(frames)["id"].sort().to_list() == list(range(40 * ROWS))
    # One that was told of the limit keeps it by itself.
    few = list(our_polars._PolarsSource(snapshot)(["id"], None, 10, None))
    assert [frame.height for frame in few] == [10]


# --- queries that end before their rows do


def begun_duckdb(made: MadeTable) -> Iterator[Any]:
    with duckdb.connect() as con:
        our_duckdb.register(con, "t", made.uri)
        reader = con.sql("SELECT * FROM t").to_arrow_reader()
        reader.read_next_batch()
        yield
        del reader


def begun_datafusion(made: MadeTable) -> Iterator[Any]:
    reader = QueryBuilder().register("t", DeltaTable(made.uri)).execute("SELECT * FROM t")
    reader.read_next_batch()
    yield
    del reader


def begun_stream(made: MadeTable) -> Iterator[Any]:
    reader = pa.RecordBatchReader.from_stream(DeltaTable(made.uri))
    reader.read_next_batch()
    yield
    del reader


def begun_dataset(made: MadeTable) -> Iterator[Any]:
    batches = DeltaTable(made.uri).to_pyarrow_dataset().to_batches()
    next(batches)
    yield
    del batches


@pytest.mark.parametrize("begun", [begun_duckdb, begun_datafusion, begun_stream, begun_dataset])
def test_a_query_that_is_dropped_leaves_no_thread_and_makes_no_request(
    forty: MadeTable, begun: Callable[[MadeTable], Iterator[Any]]
) -> None:
    query = begun(forty)
    next(query)
    assert next(query, None) is None
    assert no_threads_are_left()
    with watch() as watched:
        gc.collect()
    assert watched.requests == []


# --- DuckDB's delta(…)


def test_delta_stands_for_a_table_wherever_a_table_may(tmp_path: Path) -> None:
    made = make_table(tmp_path / "it's a table", files=3, rows=10)
    place = made.uri.replace("'", "''")
    queries = {
        f"SELECT count(*) FROM delta('{place}')": 30,
        f"SELECT count(*) FROM delta('{place}') WHERE delta.id > 5": 24,
        f"SELECT count(*) FROM delta('{place}', version := 2)": 20,
        f"SELECT count(*) FROM DELTA('{place}') AS a JOIN delta('{place}') AS b ON a.id = b.id": 30,
        f"WITH c AS (FROM delta('{place}')) SELECT count(*) FROM c WHERE id IN (SELECT id FROM delta('{place}'))": 30,
        f"SELECT count(*) FROM (SELECT * FROM delta('{place}') UNION ALL SELECT * FROM delta('{place}')) q": 60,
        f"SELECT (SELECT max(id) FROM delta('{place}'))": 29,
        "SELECT 'delta(''nothing'')' = 'x'": False,
        f"SELECT sum(a) FROM delta('{place}') AS t(a, b, c)": sum(range(30)),
    }
    with duckdb.connect() as con:
        for sql, expected in queries.items():
            assert our_duckdb.query(con, sql).fetchall()[0][0] == expected, sql
        assert our_duckdb.tables_of(con, f"SELECT * FROM delta('{place}') AS a, delta('x') AS b") == [made.uri, "x"]


@pytest.mark.parametrize(
    ("sql", "what"),
    [
        ("SELEC 1", "cannot read"),
        ("CREATE TABLE x AS SELECT 1", "cannot read"),
        ("SELECT 1; SELECT 2", "2 statements"),
        ("SELECT * FROM delta()", "names no table"),
        ("SELECT * FROM delta(1)", "URI of a table"),
        ("SELECT * FROM delta('a' || 'b')", "URI of a table"),
        ("SELECT * FROM delta('a', b := 1)", "URI of a table"),
        ("SELECT nothing FROM (SELECT 1 AS one)", "refuses"),
    ],
)
def test_a_query_that_makes_no_sense_is_an_error_of_ours(sql: str, what: str) -> None:
    with duckdb.connect() as con, pytest.raises(QueryError, match=what):
        our_duckdb.query(con, sql).fetchall()


def test_a_table_that_is_not_there_is_named(tmp_path: Path) -> None:
    with duckdb.connect() as con, pytest.raises(TableNotFoundError):
        our_duckdb.query(con, f"SELECT * FROM delta('{tmp_path}')")
    with pytest.raises(OptionError, match="URI or a DeltaTable"):
        our_polars.scan(42)


def test_a_join_shares_one_pool_and_its_memory(forty: MadeTable, tmp_path: Path) -> None:
    other = make_table(tmp_path, files=10, rows=ROWS)
    with duckdb.connect() as con, ReadingPool(3, 2 << 20) as pool:
        sql = f"SELECT count(*) FROM delta('{forty.uri}') AS a JOIN delta('{other.uri}') AS b ON a.id = b.id"
        assert our_duckdb.query(con, sql, pool=pool).fetchall()[0][0] == 10 * ROWS
        assert 1 <= pool.most_at_once <= 3
        # Two scans, each with one batch that is decoded whatever the budget.
        assert pool.peak <= (2 << 20) + 2 * (4 << 20)
        assert pool.held == 0


def test_the_function_of_datafusion_and_a_refused_query(forty: MadeTable) -> None:
    from datafusion import SessionContext  # noqa: PLC0415 - slow to import

    ctx = our_datafusion.register_function(SessionContext())
    assert ctx.sql(f"SELECT max(id) AS m FROM delta('{forty.uri}')").to_pydict() == {"m": [40 * ROWS - 1]}
    with pytest.raises(QueryError, match="refuses"):
        QueryBuilder().execute("SELECT nothing FROM nowhere")


def test_names_in_queries_are_as_they_are_written_as_in_deltalake(tmp_path: Path) -> None:
    deltalake.write_deltalake(tmp_path, pa.table({"dayOfYear": [1, 2]}))
    sql = "SELECT max(tbl.dayOfYear) AS m FROM tbl"
    for builder, package in ((QueryBuilder, lazydelta), (deltalake.QueryBuilder, deltalake)):
        found = builder({"datafusion.execution.batch_size": "7"}).register("tbl", package.DeltaTable(str(tmp_path)))
        assert found.execute(sql).read_all()["m"].to_pylist() == [2]
    folded = QueryBuilder({"datafusion.sql_parser.enable_ident_normalization": "true"})
    with pytest.raises(QueryError, match="dayofyear"):
        folded.register("tbl", lazydelta.DeltaTable(tmp_path)).execute(sql)
    with pytest.raises(QueryError, match="bogus_option"):
        QueryBuilder({"datafusion.execution.bogus_option": "1"})


# --- Polars' predicates


def test_polars_predicates_prune_files(forty: MadeTable) -> None:
    with watch() as watched:
        found = DeltaTable(forty.uri).to_polars().filter(pl.col("id").is_between(4000, 4010)).collect()
    assert found["id"].to_list() == list(range(4000, 4011))
    assert watched.files == {forty.files[1]}


def test_what_polars_means_otherwise_prunes_nothing(forty: MadeTable) -> None:
    schema = DeltaTable(forty.uri)._snapshot.schema
    for predicate in (pl.col("id") + 1 > 5, pl.col("id").cast(pl.Float64) > 5.5, pl.col("id") < 2.0**60):
        assert pruning_predicate(predicate.meta.serialize(format="json"), schema) is None
    part = (pl.col("id") > 5) & (pl.col("id") + 1 > 5)
    assert str(pruning_predicate(part.meta.serialize(format="json"), schema)) == "id > 5"
    either = (pl.col("id") > 5) | (pl.col("id") + 1 > 5)
    assert pruning_predicate(either.meta.serialize(format="json"), schema) is None
    assert pruning_predicate(json.dumps({"Unheard": "of"}), schema) is None


# --- pieces


def test_fragments_hold_every_row_once_and_are_of_about_one_size(tmp_path: Path) -> None:
    made = make_rich_table(tmp_path, seed=3, files=12, rows=40)
    table = DeltaTable(made.uri)
    pieces = table.fragments(4)
    assert len(pieces) == 4
    assert max(piece.size for piece in pieces) <= 2 * min(piece.size for piece in pieces)
    rows = [row for piece in pieces for row in piece.to_table().to_pylist()]
    assert sorted(map(repr, rows)) == sorted(map(repr, made.rows))
    assert sum(piece.count_rows() for piece in pieces) == len(made.rows)
    few = table.fragments(100, columns=["id"], where="n > 3")
    assert sorted(row["id"] for piece in few for row in pa.table(piece).to_pylist()) == sorted(
        row["id"] for row in made.rows if row["n"] is not None and row["n"] > 3
    )
    with pytest.raises(OptionError, match="pieces"):
        table.fragments(0)


def count_in_process(piece: RowFragment) -> int:
    return int(piece.to_table().num_rows)


def test_fragments_travel_to_other_processes(tmp_path: Path) -> None:
    made = make_table(tmp_path, files=6, rows=10)
    pieces = DeltaTable(made.uri).fragments(3, where="id >= 5")
    assert all(isinstance(pickle.loads(pickle.dumps(piece)), RowFragment) for piece in pieces)  # noqa: S301
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert sum(pool.map(count_in_process, pieces)) == 55


def test_an_estimate_is_made_by_the_log_alone(tmp_path: Path) -> None:
    made = make_table(tmp_path, files=6, rows=10)
    table = DeltaTable(made.uri)
    with watch() as watched:
        found = table.estimate("id >= 25")
        assert watched.files == set()
    assert (found.files, found.rows) == (4, 40)
    assert found.size == sum((tmp_path / path).stat().st_size for path in made.files[2:])
    assert table.count_rows("id >= 25") == 35


@pytest.mark.parametrize("call", ["sql", "kql"])
def test_ctrl_c_in_the_middle_of_a_query_stays_ctrl_c(
    forty: MadeTable, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DuckDB reads the table in the calling thread, and makes an error of its own of what is raised there."""

    def stop(_: RowStream) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(RowStream, "_next", stop)
    table = DeltaTable(forty.uri)
    with pytest.raises(KeyboardInterrupt):
        (table.sql("SELECT * FROM self") if call == "sql" else table.kql("self | where true")).read_all()


def test_ctrl_c_while_a_query_in_kql_is_set_up_stays_ctrl_c(forty: MadeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """DuckDB asks a table for its schema when it is registered."""

    class Interrupted:
        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            raise KeyboardInterrupt

    monkeypatch.setattr(KqlTables, "reader", lambda *_: Interrupted())
    with pytest.raises(KeyboardInterrupt):
        DeltaTable(forty.uri).kql("self | where true")


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_while_a_database_is_opened_stays_ctrl_c() -> None:
    """A long statement in place of the short ones with which every database begins, so that the signal meets it."""
    timer = threading.Timer(0.3, signal.raise_signal, [signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        # With several threads DuckDB itself may wait for ever; see `run_interruptibly`.
        database.connect("SELECT sum(a.range * b.range) FROM range(10_000_000) a, range(1_000_000) b", threads=1)
    timer.join()


def test_a_query_that_was_interrupted_before_it_had_anything_closes_in_silence() -> None:
    SqlResult.__new__(SqlResult).__del__()


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("has_begun", [True, False])
def test_ctrl_c_while_the_thread_of_a_query_starts_ends_the_query(
    forty: MadeTable, monkeypatch: pytest.MonkeyPatch, *, has_begun: bool
) -> None:
    begun = threading.Event()

    def interrupted(run: Callable[[], None], name: str) -> None:
        def running() -> None:
            begun.set()
            run()

        if has_begun:
            start_thread(running, name)
            begun.wait()
        raise KeyboardInterrupt

    monkeypatch.setattr(database, "start_thread", interrupted)
    with pytest.raises(KeyboardInterrupt):
        DeltaTable(forty.uri).sql("SELECT sum(b.range) FROM self, range(1_000_000_000_000) b")


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("call", ["sql", "kql"])
def test_ctrl_c_ends_a_query_of_several_threads(forty: MadeTable, call: str) -> None:
    """Several times, because DuckDB itself waited for its threads for ever about every third time."""
    table = DeltaTable(forty.uri)
    numbers = "range r from 1 to 100000000 step 1 | extend k = 1"
    in_sql = "SELECT sum(b.range) FROM self, range(1_000_000_000_000) b"
    in_kql = f"self | extend k = 1 | join kind=inner ({numbers}) on k | summarize sum(r)"
    for _ in range(5):
        timer = threading.Timer(0.2, signal.raise_signal, [signal.SIGINT])
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            (table.sql(in_sql) if call == "sql" else table.kql(in_kql)).read_all()
        timer.join()
