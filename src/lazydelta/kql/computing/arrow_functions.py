"""How DuckDB calls a function that Python computes: registered when a query names it, and given Arrow columns.

The binder writes such a call as ``py_<name>_<number of arguments>(…)``. ``ComputedConnection`` finds these names in the
SQL that it runs and registers the functions first; the module of a function, and the libraries that it needs, are
imported at that time. DuckDB keeps a function for the whole database, so a later query finds it there.

Nothing here or in the modules of the functions may hold DuckDB's module: DuckDB holds the functions until the process
ends, and would report the cycle as a leak.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa

from lazydelta.kql.binding.computed import COMPUTED, Computed
from lazydelta.kql.functions.declaration import PythonFunction

__all__ = ["ComputedConnection", "UnfitError", "arrow_function"]

_CALL = re.compile(r"\bpy_([a-z0-9_]+)_(\d+)\(")
_SQL = {"bool": "BOOLEAN", "int": "INTEGER", "long": "BIGINT", "real": "DOUBLE", "measure": "DOUBLE"}
_ARROW = {"bool": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "real": pa.float64()}

Decode: TypeAlias = Callable[[pa.ChunkedArray], list[Any]]


class UnfitError(Exception):
    """An argument for which the function has no value: the result is null."""


class ComputedConnection:
    """A DuckDB connection that registers the Python functions of a statement before it runs the statement.

    ``define`` registers one in the database.
    """

    def __init__(self, connection: Any, define: Callable[[PythonFunction], None]) -> None:
        self._connection = connection
        self.define = define
        self._known: set[str] = set()

    def sql(self, text: str) -> Any:
        """Return a statement as a relation."""
        self._register(text)
        return self._connection.sql(text)

    def execute(self, text: str, *parameters: Any) -> Any:
        """Run a statement."""
        self._register(text)
        return self._connection.execute(text, *parameters)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def _register(self, text: str) -> None:
        for name, count in set(_CALL.findall(text)):
            sql_name = f"py_{name}_{count}"
            declared = COMPUTED.get(name)
            if sql_name in self._known or declared is None:
                continue
            self._known.add(sql_name)
            compute = arrow_function(name, len(declared.kinds(int(count))))
            self.define(PythonFunction(sql_name, _result_sql(declared), compute))


def _result_sql(declared: Computed) -> str:
    if not declared.columns:
        return _SQL.get(declared.gives, "VARCHAR")
    fields = (f"f{index} {_SQL.get(kind, 'VARCHAR')}" for index, (_, kind) in enumerate(declared.columns))
    return f"STRUCT({', '.join(fields)})"


@functools.cache
def arrow_function(name: str, count: int) -> Callable[..., pa.Array]:
    """Return a function of Arrow columns, made from the Python function of that name.

    A function of whole columns (``declared.by_column``) gets NumPy arrays of reals and returns one; any other gets the
    values of one row. A row in which a required argument is null has a null
    result; an optional one that is null is None, like one that was left out.
    """
    declared = COMPUTED[name]
    module = importlib.import_module(f"lazydelta.kql.computing.{declared.module}")
    function = getattr(module, declared.function or name)
    if declared.by_column:
        return functools.partial(_by_column, function, declared.gives)
    decoders = [_decoder(kind) for kind in declared.kinds(count)]
    return functools.partial(
        _by_row, function, count if declared.strict else declared.least, decoders, _encoder(declared)
    )


def _by_column(function: Callable[..., Any], kind: str, *columns: pa.ChunkedArray) -> pa.Array:
    numbers = [column.combine_chunks().to_numpy(zero_copy_only=False) for column in columns]
    made = function(*numbers)
    # A masked array has results that are null for arguments that are not.
    own = [made.mask] if hasattr(made, "mask") else []
    missing = functools.reduce(lambda one, other: one | other, (*own, *(_is_null(column) for column in columns)))
    return pa.array(getattr(made, "data", made) if own else made, _ARROW[kind], mask=missing)


def _is_null(column: pa.ChunkedArray) -> Any:
    return column.combine_chunks().is_null().to_numpy(zero_copy_only=False)


def _by_row(
    function: Callable[..., Any],
    required: int,
    decoders: Sequence[Decode],
    encode: Callable[[list[Any]], pa.Array],
    *columns: pa.ChunkedArray,
) -> pa.Array:
    rows = zip(*(decode(column) for decode, column in zip(decoders, columns, strict=True)), strict=True)
    return encode([_value(function, required, row) for row in rows])


def _value(function: Callable[..., Any], required: int, row: tuple[Any, ...]) -> Any:
    if any(each is None for each in row[:required]):
        return None
    try:
        return function(*row)
    except UnfitError:
        return None


class _Memo(dict[str, Any]):
    """JSON texts and their values: a constant argument is parsed once a batch."""

    def __missing__(self, text: str) -> Any:
        self[text] = value = msgspec.json.decode(text)
        return value


def _decoder(kind: str) -> Decode:
    if kind not in {"dynamic", "any"}:
        return pa.ChunkedArray.to_pylist  # type: ignore[no-any-return]

    def decoded(column: pa.ChunkedArray) -> list[Any]:
        memo = _Memo()
        return [None if text is None else memo[text] for text in column.to_pylist()]

    return decoded


def _encoder(declared: Computed) -> Callable[[list[Any]], pa.Array]:
    if not declared.columns:
        return functools.partial(_encoded, declared.gives)
    kinds = [kind for _, kind in declared.columns]

    def encode(rows: list[Any]) -> pa.Array:
        none = (None,) * len(kinds)
        columns: Iterable[tuple[Any, ...]] = zip(*(none if row is None else row for row in rows), strict=True)
        arrays = [_encoded(kind, list(values)) for kind, values in zip(kinds, columns, strict=True)]
        return pa.StructArray.from_arrays(arrays, [f"f{index}" for index in range(len(kinds))])

    return encode


def _encoded(kind: str, values: list[Any]) -> pa.Array:
    if kind == "dynamic":
        return pa.array([None if each is None else _json(each) for each in values], pa.string())
    if kind == "string":
        # A string is never null in KQL.
        return pa.array(["" if each is None else each for each in values], pa.string())
    return pa.array(values, _ARROW[kind])


_ENCODER = msgspec.json.Encoder()


def _json(value: Any) -> str:
    return _ENCODER.encode(value).decode()
