"""Random tables and what is done to them, with the rows that must come out."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa

import lazydelta
from lazydelta.protocol.arrow_types import has_timestamp_ntz
from tests.write.peers import Condition

# Not among them: __HIVE_DEFAULT_PARTITION__, which Polars takes for null because it reads values from folder names.
ODD = [
    None,
    "",
    " ",
    "a b",
    "100%",
    "%2F",
    "a/b",
    "a=b",
    "a:b",
    "..",
    ".",
    "ä",
    "日本語",
    "😀",
    "it's",
    '"',
    "\\",
    "a+b&c#d?e",
    "x\ty\n",
    "\x01",
    "z" * 200,
]
PRIMITIVES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int8(): st.integers(-(2**7), 2**7 - 1),
    pa.int16(): st.integers(-(2**15), 2**15 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats() | st.sampled_from([0.0, -0.0, 1.5]),
    pa.bool_(): st.booleans(),
    pa.string(): st.sampled_from([each for each in ODD if each is not None])
    | st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40),
    pa.binary(): st.binary(max_size=5),
    pa.date32(): st.dates(dt.date(1, 1, 1), dt.date(9999, 12, 31)),
    pa.timestamp("us", "UTC"): st.datetimes(timezones=st.just(dt.UTC)),
    pa.timestamp("us"): st.datetimes(),
    pa.decimal128(9, 2): st.decimals(-9999999, 9999999, places=2),
    pa.decimal128(38, 10): st.integers(-(10**38) + 1, 10**38 - 1).map(lambda unscaled: Decimal(f"{unscaled}E-10")),
}
COMPARABLE = [kind for kind in PRIMITIVES if not pa.types.is_binary(kind)]
NAMES = ["id", "Größe", "a-b%c", "Case", "_x"]


@st.composite
def kinds(draw: st.DrawFn, depth: int = 2) -> pa.DataType:
    """Draw a type: mostly primitive, sometimes nested."""
    choice = draw(st.integers(0, 9)) if depth else 9
    if choice == 0:
        return pa.list_(pa.field("element", draw(kinds(depth - 1))))
    if choice == 1:
        return pa.map_(pa.string(), draw(kinds(depth - 1)))
    if choice == 2:
        names = draw(st.lists(st.sampled_from(["x", "y", "ß"]), min_size=1, max_size=3, unique=True))
        return pa.struct([(name, draw(kinds(depth - 1))) for name in names])
    return draw(st.sampled_from(list(PRIMITIVES)))


def values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Return values of a type, nulls among them."""
    if kind in PRIMITIVES:
        present: st.SearchStrategy[Any] = PRIMITIVES[kind]
    elif pa.types.is_struct(kind):
        present = st.fixed_dictionaries({part.name: values(part.type) for part in kind})
    elif pa.types.is_map(kind):
        present = st.dictionaries(st.sampled_from("abc"), values(kind.item_type), max_size=2).map(
            lambda pairs: list(pairs.items())
        )
    else:
        present = st.lists(values(kind.value_type), max_size=3)
    return st.none() | present


@dataclass
class World:
    """A table on disk and the rows that it should have."""

    path: Path
    schema: pa.Schema
    partition_by: list[str]
    rows: list[dict[str, Any]] = field(default_factory=list)

    def expected(self, where: Condition | None = None) -> pa.Table:
        """Return the rows as a table; an empty partition value is null."""
        rows = [{name: self._read(name, row.get(name)) for name in self.schema.names} for row in self.rows]
        kept = [row for row in rows if where is None or where.holds(row[where.column])]
        return pa.Table.from_pylist(kept, schema=self.schema)

    def _read(self, name: str, value: Any) -> Any:
        return None if name in self.partition_by and value in ("", b"") else value


@st.composite
def worlds(draw: st.DrawFn, path: Path) -> World:
    """Draw a table, and write its history with ``write_arrow``."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True))
    parts = draw(st.lists(st.sampled_from(["p", "üq"]), max_size=2, unique=True))
    fields = [pa.field(name, draw(kinds())) for name in names]
    fields += [pa.field(name, draw(st.sampled_from([pa.string(), *COMPARABLE]))) for name in parts]
    world = World(path, pa.schema(fields), parts)
    for number in range(draw(st.integers(1, 4))):
        step = "append" if number == 0 else draw(st.sampled_from(["append", "append", "grow", "overwrite", "replace"]))
        _do(draw, world, step)
    return world


def _do(draw: st.DrawFn, world: World, step: str) -> None:
    options: dict[str, Any] = {}
    if step == "grow":
        name = f"new{len(world.schema)}"
        # Wall clocks take a table feature that a table has from its creation or not at all.
        kind = draw(kinds().filter(lambda kind: not has_timestamp_ntz(pa.schema([("c", kind)]))))
        world.schema = world.schema.append(pa.field(name, kind))
        options["schema_mode"] = "merge"
    rows = draw(st.lists(_row(world.schema), min_size=0 if world.rows else 1, max_size=5))
    if step == "overwrite":
        options["mode"] = "overwrite"
        world.rows = []
    elif step == "replace" and world.partition_by:
        name = world.partition_by[0]
        present = [row[name] for row in world.rows if row[name] is not None]
        present = [each for each in present if each == each and each not in ("", b"")]  # noqa: PLR0124 - not NaN
        if present:
            chosen = draw(st.sampled_from(present))
            rows = [row | {name: chosen} for row in rows]
            world.rows = [row for row in world.rows if row[name] != chosen]
            options |= {"mode": "overwrite", "overwrite_where": [(name, "=", chosen)]}
    table = pa.Table.from_pylist(rows, schema=world.schema)
    cut = draw(st.integers(0, 5))
    batches = [*table.slice(0, cut).to_batches(), *table.slice(cut).to_batches()]
    lazydelta.write_arrow(
        world.path,
        pa.Table.from_batches(batches, schema=world.schema),
        partition_by=world.partition_by or None,
        compression=draw(st.sampled_from(["zstd", "snappy", "gzip", "none"])),
        **options,
    )
    world.rows += rows


def _row(schema: pa.Schema) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({each.name: values(each.type) for each in schema})


@st.composite
def conditions(draw: st.DrawFn, world: World) -> Condition | None:
    """Draw a comparison of one of the table's columns with a value that is in it, or near; None if none can be."""
    columns = [each for each in world.schema if each.type in COMPARABLE]
    if not columns:
        return None
    column = draw(st.sampled_from(columns))
    present = [row[column.name] for row in world.rows if row.get(column.name) is not None]
    anything = PRIMITIVES[column.type].filter(lambda value: value == value)  # noqa: PLR0124 - not NaN
    value = draw(st.sampled_from(present) | anything if present else anything)
    if value != value:  # noqa: PLR0124 - NaN
        return None
    return Condition(column.name, column.type, draw(st.sampled_from(["=", "!=", "<", "<=", ">", ">="])), value)
