"""Fresh interpreters are asked what they have loaded: this one has loaded everything already.

No time is asserted. What is loaded decides on it, and memory is compared with PyArrow's own in the same run.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import lazydelta
from lazydelta import sidecar
from lazydelta.runtime import compute
from lazydelta.sidecar.handle import TableHandle
from lazydelta.write.checkpoint.writer import write_checkpoint

OPTIONAL = {"datafusion", "deltalake", "duckdb", "lark", "pandas", "polars", "pyspark", "substrait"}
EDGES = {"click", "rich", "sqlglot"}
# PyArrow's functions with their docstrings; the client of object stores and the event loop that it works on; what
# writes tables and builds sidecars. A program that opens a local table needs none of them.
FOR_OTHERS = {
    "asyncio",
    "lazydelta.maintenance",
    "lazydelta.sidecar.building",
    "lazydelta.spark",
    "lazydelta.write",
    "numpy.typing",
    "obstore",
    "pyarrow.compute",
    "pyarrow.dataset",
}
HEAVY = OPTIONAL | EDGES | FOR_OTHERS
# How much more memory than PyArrow with its Parquet reader.
RATIO = 1.3

_REPORT = (
    "\nimport json, resource, sys\n"
    "print(json.dumps([sorted(sys.modules), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss]), file=sys.stderr)\n"
)


def _loaded_by(program: str) -> tuple[set[str], int]:
    child = subprocess.run(
        [sys.executable, "-c", program + _REPORT], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False
    )
    assert child.returncode == 0, child.stderr.decode()
    modules, peak = json.loads(child.stderr.splitlines()[-1])
    return {prefix for name in modules for prefix in _prefixes(name)}, peak


def _prefixes(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[: end + 1]) for end in range(len(parts))]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a table of two hours, with a sidecar for the first and a commit behind it."""
    path = tmp_path_factory.mktemp("light") / "table"
    rows = pa.table({"hour": ["2026021016", "2026021017"], "value": [1, 2]})
    lazydelta.write_arrow(path, rows, partition_by=["hour"])
    write_checkpoint(TableHandle.open(path).store)
    sidecar.build(path)
    lazydelta.write_arrow(path, rows)
    return path


def test_what_opens_a_table_is_light() -> None:
    """In modules, and in memory: at most 1.3 times what the Parquet reader of PyArrow takes."""
    loaded, peak = _loaded_by("from lazydelta import DeltaTable")
    assert "lazydelta.table.delta_table" in loaded
    assert loaded & HEAVY == set()
    _, theirs = _loaded_by("import pyarrow.parquet")
    assert peak <= RATIO * theirs


def test_finding_the_files_of_an_hour_stays_light(table: Path) -> None:
    program = (
        f"import lazydelta; print(len(list(lazydelta.DeltaTable({str(table)!r}).files([('hour', '=', '2026021016')]))))"
    )
    loaded, _ = _loaded_by(program)
    assert "lazydelta.sidecar.reading.row_groups" in loaded
    assert loaded & HEAVY == set()


@pytest.mark.parametrize("output", [[], ["--json"]], ids=["text", "json"])
def test_the_command_that_finds_them_loads_click_and_no_more(table: Path, output: list[str]) -> None:
    command = ["lazydelta", "files", str(table), "--where", '{"hour": "2026021016"}', *output]
    program = (
        f"import sys; sys.argv = {command!r}\n"
        "from lazydelta.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
    )
    loaded, _ = _loaded_by(program)
    assert "lazydelta.sidecar.reading.row_groups" in loaded
    assert loaded & HEAVY == {"click"}


def test_the_help_of_the_command_loads_no_command() -> None:
    loaded, _ = _loaded_by(
        "import sys\n"
        "from lazydelta.cli.app import cli\n"
        "try: cli(['files', '--help'], prog_name='lazydelta')\n"
        "except SystemExit as end: assert not end.code\n"
    )
    assert "lazydelta.cli.table_commands" in loaded
    assert "lazydelta.cli.sidecar" not in loaded
    assert loaded & HEAVY == {"click"}


def test_a_query_loads_nothing_of_ours_that_the_import_has_not(table: Path) -> None:
    """A first scan after the import loads no further modules, except those for SQL conditions."""
    loaded, _ = _loaded_by(
        "import sys, lazydelta\n"
        "before = set(sys.modules)\n"
        f"table = lazydelta.DeltaTable({str(table)!r})\n"
        "assert [b.num_rows for b in table.files([('hour', '=', '2026021016')], limit=1).batches()] == [1]\n"
        "assert sum(b.num_rows for b in table.files([('hour', '=', '2026021016')]).batches()) == 2\n"
        "more = {name for name in set(sys.modules) - before if name.startswith('lazydelta')}\n"
        "assert not more, more\n"
    )
    assert "lazydelta.predicates.sql" not in loaded


# What a query needs and no more; a module costs a fifth of a millisecond.
MOST_MODULES = 96

_MADE = """
import re, sys
{program}
ours = {{name: module for name, module in sys.modules.items() if name.split(".")[0] == "lazydelta"}}
globals_of_ours = [(name + "." + key, value) for name, module in ours.items() for key, value in vars(module).items()]
patterns = [key for key, value in globals_of_ours if isinstance(value, re.Pattern)]
dataclasses = [key for key, value in globals_of_ours if "__dataclass_fields__" in getattr(value, "__dict__", ())]
assert not dataclasses, dataclasses
assert len(patterns) <= {patterns}, patterns
assert len(ours) <= {modules}, len(ours)
"""


def test_the_import_makes_no_dataclass_and_few_patterns() -> None:
    """A dataclass is half a millisecond of generated code: 75 of them took as long as all modules together."""
    loaded, _ = _loaded_by(_MADE.format(program="import lazydelta", patterns=3, modules=MOST_MODULES))
    assert "lazydelta.predicates.tree" in loaded


def test_plain_sql_makes_none_either(table: Path) -> None:
    program = f"""
import lazydelta
found = lazydelta.DeltaTable({str(table)!r}).files("hour = '2026021016' AND value > 0").collect()
assert len(found) == 2, found
"""
    loaded, _ = _loaded_by(_MADE.format(program=program, patterns=5, modules=MOST_MODULES + 11))
    assert "lazydelta.predicates.sql.plain_sql" in loaded
    assert "sqlglot" not in loaded


def test_opening_an_object_store_loads_the_client() -> None:
    """The other half: what is left out above is there when it is needed."""
    loaded, _ = _loaded_by("from lazydelta.sidecar.handle import TableHandle; TableHandle.open('memory://light/table')")
    assert "obstore" in loaded


def test_every_function_taken_from_the_registry_is_one_that_pyarrow_generates() -> None:
    """What PyArrow writes by hand does more than the function of its name; those are taken from it."""
    import pyarrow.compute as pc  # noqa: PLC0415 - the peer

    source = "\n".join(path.read_text(encoding="utf-8") for path in Path(lazydelta.__file__).parent.rglob("*.py"))
    used = {name for name in vars(pc) if f"pc.{name}(" in source}
    assert {"equal", "cast", "fill_null", "take"} <= used
    by_hand = {name for name in used if not hasattr(getattr(pc, name), "__arrow_compute_function__")}
    assert by_hand <= compute._BY_HAND


def test_to_pandas_without_pandas_says_what_to_install(table: Path) -> None:
    program = (
        "import sys, lazydelta\n"
        "sys.modules['pandas'] = None\n"
        "from lazydelta.errors import OptionError\n"
        f"table = lazydelta.DeltaTable({str(table)!r})\n"
        "try: table.to_pandas()\n"
        "except OptionError as error: assert \"pip install 'lazydelta[pandas]'\" in str(error), error\n"
        "else: raise AssertionError\n"
    )
    _loaded_by(program)
