"""Operations of random histories, as lazydelta does them and as DuckDB does, and the process that is killed in them."""

from __future__ import annotations

import importlib
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import duckdb
import pyarrow as pa

from lazydelta import DeltaTable, write_arrow
from tests.support.points import Points

__all__ = ["Killable", "Operation", "applied", "do", "is_blind_append", "operation"]

Operation = dict[str, Any]

SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("x", pa.string()), ("p", pa.string())])
_CONDITIONS = ("n > 3", "id % 2 = 0", "x = 'b'", "p = 'a'", "n IS NULL", "p = 'b' AND id < 6", "true")
_WITHOUT_ARITHMETIC = tuple(each for each in _CONDITIONS if "%" not in each)
_IMPORTED_LATE = (
    "lazydelta.deltalake_names.altering",
    "lazydelta.deltalake_names.maintenance",
    "lazydelta.deltalake_names.merging",
    "lazydelta.predicates.sql.translation",
    "lazydelta.rows.dataset",
    "lazydelta.stats.similar_json",
    "pyarrow.acero",
    "pyroaring",
    "sqlglot.dialects.duckdb",
    "sqlglot.optimizer.annotate_types",
)
_MATCHED = ("update", "delete", "set")
_MERGED = (None, "t.n > 3", "s.n < t.n", "t.x = 'b'")


def operation(dice: random.Random, versions: list[int], columns: list[str], *, hard_vacuum: bool) -> Operation:
    """Return a random operation on a table that has these versions and these columns of its own."""
    kinds = ["append"] * 4 + ["merge"] * 4 + ["delete"] * 3 + ["update"] * 3 + ["overwrite", "replace", "restore"]
    kinds += ["compact", "z_order", "vacuum", "checkpoint", "add_column", "property"]
    kind = dice.choice(kinds)
    found: Operation = {"kind": kind}
    if kind in {"append", "merge", "overwrite", "replace"}:
        ids = dice.sample(range(12), dice.randint(1, 6))
        found["rows"] = [_row(dice, each, partition="a" if kind == "replace" else None) for each in ids]
    if kind in {"delete", "update"}:
        found["where"] = dice.choice(_WITHOUT_ARITHMETIC)
    if kind == "update":
        found["set"] = dice.choice([{"n": dice.randint(0, 9)}, {"x": "u"}, {"p": dice.choice("ab")}, {"n": None}])
    if kind == "merge":
        count = dice.randint(0, 2)
        found["matched"] = [
            # DuckDB refuses clauses that follow one without a condition.
            (dice.choice(_MATCHED), dice.choice(_MERGED if number + 1 == count else _MERGED[1:]))
            for number in range(count)
        ]
        found["inserts"] = dice.choice([True, True, False]) or not found["matched"]
        found["by_source"] = dice.choice([None, None, "delete", "set"])
    if kind == "restore":
        found["version"] = dice.choice(versions)
    if kind == "vacuum":
        found["hard"] = hard_vacuum
    if kind == "add_column":
        found["column"] = f"c{len(columns)}"
    return found


def _row(dice: random.Random, number: int, *, partition: str | None) -> list[Any]:
    return [number, dice.choice([None, *range(8)]), dice.choice([None, "a", "b"]), partition or dice.choice("ab")]


def is_blind_append(one: Operation) -> bool:
    """Return whether an operation depends on nothing, so that it may also be taken to follow one that it preceded."""
    return bool(one["kind"] == "append")


def _rows(one: Operation) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in one["rows"]], SCHEMA)


def do(root: Path, one: Operation) -> None:
    """Let lazydelta do an operation on the newest version."""
    kind = one["kind"]
    if kind == "append":
        write_arrow(root, _rows(one))
    elif kind == "overwrite":
        write_arrow(root, _rows(one), mode="overwrite")
    elif kind == "replace":
        write_arrow(root, _rows(one), mode="overwrite", overwrite_where="p = 'a'")
    elif kind == "merge":
        _merge(root, one)
    else:
        table = DeltaTable(root)
        calls: dict[str, Any] = {
            "delete": lambda: table.delete(one["where"]),
            "update": lambda: table.update(new_values=one["set"], predicate=one["where"]),
            "restore": lambda: table.restore(one["version"]),
            "compact": table.optimize.compact,
            "z_order": lambda: table.optimize.z_order(["id", "n"]),
            "checkpoint": table.create_checkpoint,
            "vacuum": lambda: table.vacuum(
                0 if one["hard"] else None, dry_run=False, enforce_retention_duration=not one["hard"]
            ),
            "add_column": lambda: table.alter.add_columns(pa.field(one["column"], pa.int64())),
            "property": lambda: table.alter.set_table_properties({"delta.logRetentionDuration": "interval 9 days"}),
        }
        calls[kind]()


def _merge(root: Path, one: Operation) -> None:
    merger = DeltaTable(root).merge(_rows(one), "s.id = t.id", "s", "t")
    for action, condition in one["matched"]:
        if action == "update":
            merger = merger.when_matched_update({name: f"s.{name}" for name in SCHEMA.names}, predicate=condition)
        elif action == "set":
            merger = merger.when_matched_update({"n": "t.n + 100", "x": "s.x"}, predicate=condition)
        else:
            merger = merger.when_matched_delete(predicate=condition)
    if one["inserts"]:
        merger = merger.when_not_matched_insert({name: f"s.{name}" for name in SCHEMA.names})
    if one["by_source"] == "delete":
        merger = merger.when_not_matched_by_source_delete(predicate="t.n > 5")
    elif one["by_source"] == "set":
        merger = merger.when_not_matched_by_source_update({"x": "'gone'"}, predicate="t.n > 5")
    merger.execute()


def applied(oracle: duckdb.DuckDBPyConnection, states: dict[int, pa.Table], rows: pa.Table, one: Operation) -> pa.Table:
    """Return the rows after an operation, as DuckDB computes them. ``states`` are the rows of each version."""
    kind = one["kind"]
    if kind == "restore":
        return states[one["version"]]
    if kind in {"compact", "z_order", "checkpoint", "vacuum", "property"}:
        return rows
    oracle.register("given", rows)
    oracle.execute("CREATE OR REPLACE TEMP TABLE t AS SELECT * FROM given")
    names = ", ".join(SCHEMA.names)
    if "rows" in one:
        oracle.register("s", _rows(one))
    if kind in {"overwrite", "replace"}:
        oracle.execute("DELETE FROM t" if kind == "overwrite" else "DELETE FROM t WHERE p = 'a'")
    if kind in {"append", "overwrite", "replace"}:
        oracle.execute(f"INSERT INTO t ({names}) SELECT {names} FROM s")
    elif kind == "delete":
        oracle.execute(f"DELETE FROM t WHERE {one['where']}")
    elif kind == "update":
        [(column, value)] = one["set"].items()
        oracle.execute(f"UPDATE t SET {column} = ? WHERE {one['where']}", [value])
    elif kind == "add_column":
        oracle.execute(f"ALTER TABLE t ADD COLUMN {one['column']} BIGINT")
    else:
        oracle.execute(_merge_text(one))
    found: pa.Table = oracle.sql("SELECT * FROM t").to_arrow_table()
    return found


def _merge_text(one: Operation) -> str:
    doings = {
        "update": "UPDATE SET " + ", ".join(f"{name} = s.{name}" for name in SCHEMA.names),
        "set": "UPDATE SET n = t.n + 100, x = s.x",
        "delete": "DELETE",
    }
    clauses = [
        f"WHEN MATCHED {'' if condition is None else f'AND {condition} '}THEN {doings[action]}"
        for action, condition in one["matched"]
    ]
    if one["inserts"]:
        names = SCHEMA.names
        clauses.append(
            f"WHEN NOT MATCHED THEN INSERT ({', '.join(names)}) VALUES ({', '.join(f's.{each}' for each in names)})"
        )
    if one["by_source"] is not None:
        doing = "DELETE" if one["by_source"] == "delete" else "UPDATE SET x = 'gone'"
        clauses.append(f"WHEN NOT MATCHED BY SOURCE AND t.n > 5 THEN {doing}")
    return f"MERGE INTO t USING s ON s.id = t.id {' '.join(clauses)}"


class Killable:
    """Does operations in children of a process that has no threads, and kills them at counted requests."""

    def __init__(self) -> None:
        root = str(Path(__file__).resolve().parents[2])
        program = "from tests.write.history_work import serve; serve()"
        self._process = subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root
        )

    def do(self, root: Path, one: Operation, at: int) -> bool:
        """Do an operation, and return whether it came to its end before request number ``at``."""
        if self._process.stdin is None or self._process.stdout is None:
            raise AssertionError("the process has pipes")
        self._process.stdin.write(json.dumps([str(root), one, at]) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline().strip()
        if answer not in {"done", "killed"}:
            message = f"{one} ended with {answer!r}"
            raise AssertionError(message)
        return answer == "done"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(30)
        if self._process.stdout is not None:
            self._process.stdout.close()


def serve() -> None:
    """Fork a child for each operation that is asked for, which need not import again what operations import."""
    for name in _IMPORTED_LATE:
        importlib.import_module(name)
    for line in sys.stdin:
        root, one, at = json.loads(line)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                with Points("request", at).counting():
                    do(Path(root), one)
                status = 0
            except BaseException as error:  # noqa: BLE001 - the child ends here
                sys.stderr.write(f"{error!r}\n")
            finally:
                os._exit(status)
        _, ended = os.waitpid(child, 0)
        sys.stdout.write("done\n" if ended == 0 else "killed\n" if os.WIFSIGNALED(ended) else "failed\n")
        sys.stdout.flush()
