"""Small real tables: no matching row is lost, no other row comes, and where the statistics decide they are followed.

Every file's rows are read back with pyarrow alone and judged one by one in Python.
"""

from __future__ import annotations

import datetime as dt
import json
import random
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lazydelta import DeltaTable
from tests.oracle.replay import replay
from tests.predicates import worlds
from tests.scan.hand_log import HandLog, paths
from tests.scan.judging import Fact, Facts, may_keep
from tests.scan.predicates import FORMS, is_expression, written
from tests.scan.typed_log import COLUMNS
from tests.support.rounds import quick

if TYPE_CHECKING:
    from pathlib import Path

    from tests.predicates.worlds import Node, Row

# Some expressions are opaque, which is not what these tests are about.
pytestmark = pytest.mark.filterwarnings("ignore::lazydelta.PredicateWarning")

SCHEMA = worlds.schema()
FILES = 30
STRATEGIES = ("auto", "reverse", "forward")
NOON = dt.datetime(2026, 2, 8, 12, tzinfo=dt.UTC)
# Columns whose logged bounds are the values themselves.
EXACT = ["i", "tiny", "s", "d", "m", "n.i", "p", "q", "r", "u", "v"]  # bounds of booleans are not believed
KINDS = {**worlds.TYPES, **worlds.PARTITIONS, "n.i": "long"}


@dataclass(frozen=True)
class RealTable:
    """A table on disk and, by path as logged, the rows that its files hold."""

    path: Path
    rows: dict[str, list[Row]]

    def open(self) -> DeltaTable:
        """Open the newest version."""
        return DeltaTable(self.path)


def arrow(rows: list[Row], first_row: int) -> pa.Table:
    """Return rows as an Arrow table with a number for each row."""
    numbers = pa.array(range(first_row, first_row + len(rows)), pa.int64())
    return worlds.to_table(rows, SCHEMA).append_column("row", numbers)


def read_back(table: Path) -> dict[str, list[Row]]:
    """Read every active file with pyarrow; partition values come from the log, an empty one is null."""
    found: dict[str, list[Row]] = {}
    for add in replay(table / "_delta_log").files.values():
        data = pq.ParquetFile(table / unquote(add["path"])).read().to_pylist()
        shared = {name: _partition(text, name) for name, text in add["partitionValues"].items()}
        found[add["path"]] = [
            {**{name: value for name, value in row.items() if name != "n"}, "n.i": row["n"]["i"], **shared}
            for row in data
        ]
    return found


def _partition(text: str | None, name: str) -> Any:
    if text in (None, ""):
        return None
    match worlds.PARTITIONS[name]:
        case "integer":
            return int(text)
        case "date":
            return dt.date.fromisoformat(text)
        case "timestamp":
            return dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC)
        case "string":
            return text
    return Decimal(text)


def by_deltalake(table: Path) -> None:
    """Write with deltalake: decimals through doubles, its own cuts of strings and timestamps; a checkpoint midway."""
    rng = random.Random(1)
    for number in range(FILES):
        rows = worlds.rows(rng, rng.randint(1, 6))
        # deltalake writes -0.003 as a partition value that it cannot read.
        rows = [row | {"v": None if row["v"] is None else abs(row["v"])} for row in rows]
        data = arrow(rows, number * 10)
        deltalake.write_deltalake(table, data, mode="append", partition_by=list(worlds.PARTITIONS))
        if number == FILES // 2:
            deltalake.DeltaTable(table).create_checkpoint()


def by_hand(table: Path) -> None:
    """Write with pyarrow, and log statistics as Delta-Spark, as delta-rs, exactly, in part, or not at all."""
    rng = random.Random(2)
    nested = {"type": "struct", "fields": [{"name": "i", "type": "long", "nullable": True, "metadata": {}}]}
    columns = {**worlds.TYPES, **worlds.PARTITIONS, "n": nested, "row": "long"}
    log = HandLog(table, columns, partitions=list(worlds.PARTITIONS), features=["timestampNtz"])
    for number in range(FILES):
        rows = worlds.rows(rng, rng.randint(1, 6))
        name = f"part-{number:03d}.parquet"
        data = arrow(rows, number * 10)
        pq.write_table(data.drop_columns(list(worlds.PARTITIONS)), table / name)
        texts = {column: worlds.partition_text(rows[0][column]) for column in worlds.PARTITIONS}
        action: dict[str, Any] = {
            "path": name,
            "partitionValues": {
                column: rng.choice([None, ""]) if text is None else text for column, text in texts.items()
            },
            "size": (table / name).stat().st_size,
            "modificationTime": 1,
            "dataChange": True,
        }
        stats = worlds.logged(rng, rows)
        log.commit({"add": action | ({} if stats is None else {"stats": stats})})


@pytest.fixture(scope="module", params=[by_deltalake, by_hand], ids=lambda each: each.__name__.removeprefix("by_"))
def real(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RealTable:
    """Make a table of thirty files by each writer."""
    table = tmp_path_factory.mktemp("real")
    request.param(table)
    rows = read_back(table)
    assert len(rows) == FILES
    return RealTable(table, rows)


def matching(node: Node, rows: list[Row]) -> set[int]:
    """Return the numbers of the rows that pass."""
    return {row["row"] for row in rows if worlds.judge(node, row) is True}


def story(node: Node, form: str) -> tuple[str, Any]:
    return form, node


@pytest.mark.parametrize("seed", quick(range(8), 1))
def test_every_file_with_a_matching_row_is_found(seed: int, real: RealTable) -> None:
    """Hundreds of predicates of every form and type, nested and negated."""
    rng = random.Random(seed)
    table = real.open()
    pruned = kept = 0
    for number in range(150):
        columns = [COLUMNS[number % len(COLUMNS)], *rng.sample(COLUMNS, 2)]
        node = worlds.predicate(rng, columns[: rng.randint(1, 3)], depth=rng.choice([0, 1, 3]))
        form = rng.choice([form for form in FORMS if not is_expression(form)])
        found = set(paths(table.files(written(node, form), strategy=rng.choice(STRATEGIES))))
        needed = {path for path, rows in real.rows.items() if matching(node, rows)}
        assert needed <= found, (story(node, form), {path: real.rows[path] for path in needed - found})
        kept += len(found)
        pruned += FILES - len(found)
    assert pruned > 1000
    assert kept > 1000


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.each_value
def test_not_equal_keeps_every_file_with_another_value(column: str, real: RealTable) -> None:
    rng = random.Random(column)
    table = real.open()
    for _ in range(12):
        values = [row[column] for rows in real.rows.values() for row in rows if row[column] is not None]
        node: Node = ("cmp", column, "!=", rng.choice(values))
        if rng.random() < 0.5:
            node = ("not", ("in", column, rng.choices(values, k=2)))
        found = set(paths(table.files(written(node, "dict"))))
        assert {path for path, rows in real.rows.items() if matching(node, rows)} <= found, node


@pytest.mark.parametrize("seed", quick(range(3), 1))
def test_reading_rows_gives_exactly_the_matching_ones(seed: int, real: RealTable) -> None:
    """`to_pyarrow_table` and `rows` filter after pruning, by the same predicate and nothing else."""
    rng = random.Random(100 + seed)
    table = real.open()
    for number in range(25):
        node = worlds.predicate(rng, rng.sample(COLUMNS, rng.randint(1, 3)), depth=rng.choice([0, 1, 2]))
        form = rng.choice([form for form in FORMS if not is_expression(form)])
        where = written(node, form)
        if number % 2:
            got = table.to_pyarrow_table(columns=["row"], filters=where)["row"].to_pylist()
        else:
            got = [row for batch in table.rows(columns=["row"], where=where) for row in batch.column("row").to_pylist()]
        expected = sorted(row for rows in real.rows.values() for row in matching(node, rows))
        assert sorted(got) == expected, story(node, form)


def test_an_expression_of_pyarrow_filters_as_pyarrow_does(real: RealTable) -> None:
    """The expression is the caller's, with PyArrow's own rules for types; pruning must not take a row from it."""
    rng = random.Random(7)
    table = real.open()
    whole = table.to_pyarrow_table()
    assert whole.num_rows == sum(map(len, real.rows.values()))
    for _ in range(25):
        node = worlds.predicate(rng, rng.sample([*EXACT, "t", "f"], 2), depth=1)
        try:
            expression = worlds.to_expression(node)
            expected = sorted(whole.filter(expression)["row"].to_pylist())
        except (pa.ArrowException, OverflowError):
            continue  # PyArrow itself has no such literal or comparison
        assert sorted(table.to_pyarrow_table(filters=expression)["row"].to_pylist()) == expected, node


def exact_facts(rows: list[Row]) -> Facts:
    """Return what perfect statistics would say of a file."""
    facts = {}
    for column, kind in KINDS.items():
        values = [row[column] for row in rows if row[column] is not None and row[column] == row[column]]
        nulls = sum(row[column] is None for row in rows)
        facts[column] = Fact(
            kind,
            min(values, default=None),
            max(values, default=None),
            all_null=nulls == len(rows),
            no_null=nulls == 0,
            partition=column in worlds.PARTITIONS,
        )
    return Facts(facts, len(rows))


@pytest.mark.parametrize("column", quick(EXACT, 6))
def test_pruning_is_exact_where_the_statistics_are(column: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A file stays if and only if its true range allows a match."""
    table = _exact_table(tmp_path_factory)
    opened = table.open()
    rng = random.Random(column)
    facts = {path: exact_facts(rows) for path, rows in table.rows.items()}
    pruned = 0
    for _ in range(40):
        node = worlds.predicate(rng, [column], depth=rng.choice([0, 0, 1]))
        found = set(paths(opened.files(written(node, "dict"), strategy=rng.choice(STRATEGIES))))
        allowed = {path for path, known in facts.items() if may_keep(node, known)}
        assert found == allowed, (node, [facts[path].columns[column] for path in found ^ allowed])
        pruned += FILES - len(found)
    assert pruned > 100


_made: dict[str, RealTable] = {}


def _exact_table(factory: pytest.TempPathFactory) -> RealTable:
    """Return a table by deltalake, made once for all columns: what it logs of these types is exact."""
    if "table" not in _made:
        path = factory.mktemp("exact")
        by_deltalake(path)
        _made["table"] = RealTable(path, read_back(path))
    return _made["table"]


@dataclass(frozen=True)
class Column:
    """One column, a file for each list of values, and the rows that predicates find."""

    type: str
    files: list[list[Any]]


def one_column(table: Path, column: Column, writer: str) -> None:
    """Write a table with the columns ``x`` and ``row``; ``hand`` logs no statistics but what the test adds later."""
    log = None
    if writer == "hand":
        log = HandLog(table, {"x": column.type, "row": "long"})
    for number, values in enumerate(column.files):
        data = pa.table(
            {
                "x": pa.array(values, worlds_type(column.type)),
                "row": pa.array(range(number * 10, number * 10 + len(values)), pa.int64()),
            }
        )
        if log is None:
            deltalake.write_deltalake(table, data, mode="append")
            continue
        pq.write_table(data, table / f"{number}.parquet")
        size = (table / f"{number}.parquet").stat().st_size
        stats = worlds._dump({"numRecords": len(values), **_bounds(values)})
        action = {"path": f"{number}.parquet", "partitionValues": {}, "size": size, "modificationTime": 1}
        log.commit({"add": action | {"dataChange": True, "stats": stats}})


def worlds_type(kind: str) -> pa.DataType:
    """Return the Arrow type of a Delta type."""
    from tests.oracle.replay import arrow_type  # noqa: PLC0415

    return arrow_type(kind)


def _bounds(values: list[Any]) -> dict[str, Any]:
    """Return statistics as Delta-Spark logs them: timestamps cut to milliseconds, strings to 32 characters, no NaN."""
    present = [value for value in values if value is not None and value == value]  # noqa: PLR0124
    nulls = {"nullCount": {"x": sum(value is None for value in values)}}
    if not present:
        return nulls
    low, high = (worlds._logged(each, "spark", up=up) for each, up in ((min(present), False), (max(present), True)))
    return {"minValues": {"x": low}, "maxValues": {"x": high}, **nulls}


INF, NAN = float("inf"), float("nan")
MS = dt.timedelta(milliseconds=1)
US = dt.timedelta(microseconds=1)
LONG = "x" * 32
AWKWARD: dict[str, tuple[Column, list[str]]] = {
    "timestamps below a millisecond": (
        Column("timestamp", [[NOON, NOON + 400 * US], [NOON + 999 * US], [NOON + MS + US], [NOON - US], [None, NOON]]),
        [f"x {op} TIMESTAMP '2026-02-08 {t}'" for op in worlds.OPS for t in ("12:00:00.000400", "12:00:00.000999")]
        + [f"x {op} TIMESTAMP '2026-02-08 {t}'" for op in worlds.OPS for t in ("12:00:00", "11:59:59.999999")],
    ),
    "nan and infinities": (
        Column("double", [[1.0, NAN], [NAN, NAN], [INF, 1.0], [-INF, 2.0], [None, NAN], [-0.0], [0.0, 3.0], [None]]),
        [
            f"x {op} {value}"
            for op in worlds.OPS
            for value in ("1.0", "0.0", "3.0", "'Infinity'", "'-Infinity'", "'NaN'")
        ]
        + [f"NOT (x {op} {value})" for op in ("<", ">=", "=") for value in ("1.0", "100.0", "'Infinity'")]
        + ["x IN (1.0, 2.0)", "x NOT IN (1.0)", "x IS NULL", "x IS NOT NULL"],
    ),
    "single floats": (
        Column("float", [[0.25, NAN], [1.5], [INF], [None, -2.5], [3e38]]),
        [f"x {op} {value}" for op in worlds.OPS for value in ("0.25", "1.5", "-2.5", "1e39", "'Infinity'")],
    ),
    "strings of 40 characters": (
        Column(
            "string",
            [
                [LONG + "a" * 8],
                [LONG + "zzzzzzzz"],
                [LONG + "😀" * 8],
                ["é" * 40],
                [LONG],
                ["x" * 31],
                [None, "😀" * 40],
            ],
        ),
        [f"x {op} '{LONG}{rest}'" for op in worlds.OPS for rest in ("", "aaaaaaaa", "b", "zzzzzzzz", "😀")]
        + [f"x {op} '{value}'" for op in worlds.OPS for value in ("é" * 40, "😀" * 40, "😀" * 31, "x" * 31)]
        + [f"x LIKE '{LONG}{rest}%'" for rest in ("", "a", "z", "😀")]
        + [f"x NOT LIKE '{LONG}%'", f"x NOT IN ('{LONG}', 'y')", f"x IN ('{LONG}aaaaaaaa', '{'é' * 40}')"],
    ),
    "decimals of 18 digits": (
        Column(
            "decimal(18,2)",
            [
                [Decimal("90071992547409.93")],
                [Decimal("9007199254740993.99"), Decimal("9007199254740993.98")],
                [Decimal("-9999999999999999.99")],
                [Decimal("0.01"), None],
                [Decimal("123456789012345.67"), Decimal("123456789012345.68")],
            ],
        ),
        [
            f"x {op} {value}"
            for op in worlds.OPS
            for value in (
                "90071992547409.93",
                "90071992547409.92",
                "9007199254740993.99",
                "9007199254740993.98",
                "-9999999999999999.99",
                "123456789012345.675",
                "0.01",
            )
        ],
    ),
    "nulls": (
        Column("long", [[None, None], [None, 1], [1, 1], [2, 3], [None, -5]]),
        [f"x {op} {value}" for op in worlds.OPS for value in (1, 2, -5, 100)]
        + ["x IS NULL", "x IS NOT NULL", "NOT (x IS NULL)", "x IN (1, NULL)", "x NOT IN (1, NULL)", "x NOT IN (1)"]
        + ["x = NULL", "NOT (x = 1)", "NOT (x = 1 OR x IS NULL)"],
    ),
    "booleans": (
        Column("boolean", [[True, True], [False], [True, False], [None, True], [None]]),
        ["x = true", "x != true", "x = false", "x != false", "NOT (x = true)", "x IN (true, false)", "x IS NULL", "x"],
    ),
    "dates": (
        Column("date", [[NOON.date()], [NOON.date(), dt.date(1969, 12, 31)], [dt.date(9999, 12, 31)], [None]]),
        [
            f"x {op} DATE '{day}'"
            for op in worlds.OPS
            for day in ("2026-02-08", "1969-12-31", "9999-12-31", "0001-01-01")
        ],
    ),
}


@pytest.mark.parametrize("writer", ["deltalake", "hand"])
@pytest.mark.parametrize(("column", "predicates"), AWKWARD.values(), ids=AWKWARD)
@pytest.mark.each_value
def test_awkward_values_are_found_and_read_exactly(
    column: Column, predicates: list[str], writer: str, tmp_path: Path
) -> None:
    """DuckDB, which shares no code with us, says which rows match; their files are found and just they are read."""
    import duckdb  # noqa: PLC0415

    one_column(tmp_path, column, writer)
    table = DeltaTable(tmp_path)
    whole = pa.concat_tables(
        [pq.ParquetFile(tmp_path / add["path"]).read() for add in replay(tmp_path / "_delta_log").files.values()]
    )
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    connection.register("whole", whole)
    for predicate in predicates:
        theirs = connection.execute(f"SELECT row FROM whole WHERE {_for_duckdb(predicate, column)}").fetchall()
        expected = sorted(row for (row,) in theirs)
        assert sorted(table.to_pyarrow_table(filters=predicate)["row"].to_pylist()) == expected, predicate
    connection.close()


def _for_duckdb(predicate: str, column: Column) -> str:
    """Write a predicate for DuckDB, which has to be told that a text is a number; NaN is the largest to both of us."""
    if column.type not in {"double", "float"}:
        return predicate
    kind = {"double": "DOUBLE", "float": "FLOAT"}[column.type]
    for special in ("'NaN'", "'Infinity'", "'-Infinity'"):
        predicate = predicate.replace(special, f"{special}::{kind}")
    return predicate


def test_timestamps_on_whole_milliseconds_prune_exactly(tmp_path: Path) -> None:
    """A logged maximum stands for the millisecond that it begins: only "above it" is still open."""
    column = Column("timestamp", [[NOON + number * MS, NOON + (number + 1) * MS] for number in range(0, 20, 2)])
    one_column(tmp_path, column, "hand")
    table = DeltaTable(tmp_path)
    for number in range(-1, 22):
        value = NOON + number * MS
        for op in ("=", "<", "<=", ">", ">="):
            node: Node = ("cmp", "x", op, value)
            expected = [
                f"{index}.parquet"
                for index, (low, high) in enumerate(column.files)
                if _reaches(low, high + 999 * US, op, value)
            ]
            assert sorted(paths(table.files(written(node, "dict")))) == expected, node


def _reaches(low: Any, high: Any, op: str, value: Any) -> bool:
    if op == "=":
        return bool(low <= value <= high)
    return bool(worlds.OPS[op](low if "<" in op else high, value))


def test_partition_values_of_every_kind_prune_exactly(tmp_path: Path) -> None:
    """String, date and integer partitions with null and empty values, and values that look like something else."""
    columns = {"s": "string", "d": "date", "n": "integer", "row": "long"}
    log = HandLog(tmp_path, columns, partitions=["s", "d", "n"])
    texts: list[tuple[str | None, str | None, str | None]] = [
        ("a", "2026-02-08", "1"),
        ("10", "2026-02-09", "10"),
        ("9", None, "9"),
        (None, "1969-12-31", "-1"),
        ("", "2026-02-08", ""),
        ("NULL", "", None),
        ("a'b%", "2026-02-10", "2147483647"),
    ]
    for number, values in enumerate(texts):
        pq.write_table(pa.table({"row": pa.array([number], pa.int64())}), tmp_path / f"{number}.parquet")
        partition = dict(zip("sdn", values, strict=True))
        size = (tmp_path / f"{number}.parquet").stat().st_size
        action = {"path": f"{number}.parquet", "partitionValues": partition, "size": size, "modificationTime": 1}
        log.commit({"add": action | {"dataChange": True}})
    table = DeltaTable(tmp_path)
    cases: dict[str, list[int]] = {
        "s = 'a'": [0],
        "s < 'a'": [1, 2, 5],
        "s != 'a'": [1, 2, 5, 6],
        "s IS NULL": [3, 4],
        "s IS NOT NULL": [0, 1, 2, 5, 6],
        "s = ''": [],
        "s IN ('9', '10')": [1, 2],
        "s LIKE 'a%'": [0, 6],
        "NOT (s LIKE 'a%')": [1, 2, 5],
        "s = 'NULL'": [5],
        "s = 'a''b%'": [6],
        "d = DATE '2026-02-08'": [0, 4],
        "d > DATE '2026-02-08'": [1, 6],
        "d IS NULL": [2, 5],
        "d < DATE '1970-01-01'": [3],
        "n >= 9": [1, 2, 6],
        "n < 0": [3],
        "n IS NULL": [4, 5],
        "n != 1": [1, 2, 3, 6],
        "n NOT IN (1, 10)": [2, 3, 6],
        "n BETWEEN 1 AND 9": [0, 2],
        "s = 'a' AND n = 2": [],
        "s = 'a' OR n = -1": [0, 3],
        "n > 2147483647": [],
    }
    for where, expected in cases.items():
        names = [f"{number}.parquet" for number in expected]
        for strategy in STRATEGIES:
            assert sorted(paths(table.files(where, strategy=strategy))) == names, where
        assert sorted(table.to_pyarrow_table(filters=where)["row"].to_pylist()) == expected, where


def test_a_table_written_by_deltalake_answers_the_same_before_and_after_a_checkpoint(tmp_path: Path) -> None:
    """The statistics go through the checkpoint's columns and lose nothing on the way."""
    rng = random.Random(3)
    for number in range(12):
        data = arrow(worlds.rows(rng, 4), number * 10)
        deltalake.write_deltalake(tmp_path, data, mode="append", partition_by=["p", "q"])
    nodes = [worlds.predicate(rng, rng.sample(COLUMNS, 2), depth=1) for _ in range(60)]
    before = [sorted(paths(DeltaTable(tmp_path).files(written(node, "dict")))) for node in nodes]
    deltalake.DeltaTable(tmp_path).create_checkpoint()
    after = [sorted(paths(DeltaTable(tmp_path).files(written(node, "dict")))) for node in nodes]
    assert json.dumps(before) == json.dumps(after)
    assert 0 < sum(map(len, before)) < 60 * 12
