"""How a function is declared: one entry with its signature, its documentation, and how DuckDB computes it.

A signature such as ``strrep(value: text, times: long, delimiter: string = '') -> string`` gives the name, the kinds of
the arguments and the kind of the result. There are three ways to compute a function:

- ``template``: an SQL expression with ``{argument}`` placeholders;
- ``rows``: a Python function of one row, for what DuckDB cannot compute. Dynamic values are decoded JSON;
- ``built``: a Python function that returns the SQL, for functions whose result kind depends on the arguments.

Python functions are registered in DuckDB by the first query that uses them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import msgspec
import pyarrow as pa

from lazydelta.kql.binding.types import NUMBERS, Complain, Typed, as_kind, call, converted, described, literal, to_text

__all__ = ["Argument", "Function", "Given", "PythonFunction", "built", "rows", "template"]

_MANY = 64
_MOST_KNOWN = 4096
_SIGNATURE = re.compile(r"(\w+)\((.*)\) -> (\w+)")
_ARGUMENT = re.compile(r"(\w+)(\?)?: (\w+(?:\|\w+)*)(\.\.\.)?(?: = (.+))?")
# The kinds of arguments beside Kusto's types.
_CLASSES = {
    "number": NUMBERS,
    "whole": ("int", "long"),
    "text": ("string", "bool", "int", "long", "real", "decimal", "datetime", "timespan", "dynamic", "guid"),
    "any": ("string", "bool", "int", "long", "real", "decimal", "datetime", "timespan", "dynamic", "guid"),
    "json": ("string", "bool", "int", "long", "real", "decimal", "datetime", "timespan", "dynamic", "guid"),
    "real": NUMBERS,
    "long": ("int", "long"),
    "regex": ("string",),
    "type": ("type",),
}
# How the values of a kind reach a Python function, and how its result becomes a value of the kind.
_PYTHON_TYPES = {
    "bool": ("BOOLEAN", pa.bool_()),
    "int": ("INTEGER", pa.int32()),
    "long": ("BIGINT", pa.int64()),
    "real": ("DOUBLE", pa.float64()),
    "string": ("VARCHAR", pa.string()),
    "dynamic": ("VARCHAR", pa.string()),
    "guid": ("VARCHAR", pa.string()),
    "decimal": ("VARCHAR", pa.string()),
    "datetime": ("BIGINT", pa.int64()),
    "timespan": ("BIGINT", pa.int64()),
}
_PASSED_AS = {"text": "string", "regex": "string", "json": "dynamic", "whole": "long", "number": "real"}


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument: ``kinds`` are Kusto's types or a class such as ``number``; ``default`` is SQL."""

    name: str
    kinds: tuple[str, ...]
    optional: bool = False
    repeated: bool = False
    default: str | None = None

    def accepts(self, value: Typed) -> bool:
        """Return whether a value may be passed. A dynamic value is converted."""
        if value.kind == "dynamic":
            return "type" not in self.kinds
        return any(value.kind in _CLASSES.get(kind, (kind,)) for kind in self.kinds)

    @property
    def shown(self) -> str:
        """The argument as the documentation shows it."""
        text = self.name + ("..." if self.repeated else "")
        return f"[{text}]" if self.optional else text


@dataclass(frozen=True, slots=True)
class PythonFunction:
    """A function over Arrow arrays that DuckDB calls as ``name``; ``result`` is a DuckDB type."""

    name: str
    result: str
    compute: Callable[..., pa.Array]


@dataclass(frozen=True, slots=True)
class Given:
    """A call: function name, arguments, the query's time in ticks, and a function that creates errors.

    ``columns`` are those in scope. ``known`` returns the value of an expression without columns as a literal, and
    ``define`` registers a Python function. ``settings`` are the options of ``set`` statements.
    """

    name: str
    values: tuple[Typed, ...]
    complain: Complain
    now: int
    columns: tuple[Typed, ...] = ()
    known: Callable[[Typed], Typed | None] = lambda _: None
    define: Callable[[PythonFunction], None] = lambda _: None
    settings: Mapping[str, Typed] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.values)

    def text(self, index: int) -> str:
        """Return SQL for an argument of any type, converted to a string."""
        return to_text(self.values[index])

    def string(self, index: int) -> str:
        """Return SQL for an argument that must be a string. A dynamic value is converted."""
        return self.text(self._of(index, "string", "dynamic"))

    def whole(self, index: int) -> str:
        """Return SQL for an integer argument."""
        return self.as_kind(self._of(index, "int", "long", "dynamic"), "long")

    def timestamp(self, index: int) -> str:
        """Return SQL for a datetime argument."""
        return self.as_kind(self._of(index, "datetime", "dynamic"), "datetime")

    def condition(self, index: int) -> str:
        """Return SQL for a boolean argument."""
        return self.as_kind(self._of(index, "bool", "dynamic"), "bool")

    def constant(self, index: int, *kinds: str) -> Any:
        """Return the value of an argument that must be a constant."""
        value = self.literal(index)
        self._of(index, *kinds)
        if value is None or value.value is None:
            message = f"argument {index + 1} of {self.name}() must be a constant"
            raise self.complain(message, "write its value")
        return value.value

    def literal(self, index: int) -> Typed | None:
        """Return an argument as a constant, or None if it depends on the rows."""
        value = self.values[index]
        return value if value.is_literal else None if value.refs else self.known(value)

    def of(self, kind: str, sql: str, *, name: str | None = None) -> Typed:
        """Return the call as an expression."""
        return call(kind, self.name, sql, self.values, name=name)

    def as_kind(self, index: int, kind: str) -> str:
        """Return SQL for an argument in a kind of signatures."""
        return _sql_as(self.values[index], kind)

    def _of(self, index: int, *kinds: str) -> int:
        if self.values[index].kind not in kinds:
            self.refuse(index, " or ".join(each for each in kinds if each != "dynamic" or len(kinds) == 1))
        return index

    def refuse(self, index: int, expected: str) -> NoReturn:
        """Raise an error about the type of an argument."""
        found = described(self.values[index].kind)
        message = f"argument {index + 1} of {self.name}() is {found}, and should be {expected}"
        raise self.complain(message, None)


@dataclass(frozen=True, slots=True)
class Function:
    """A function: its signature, one line of documentation, and its builder.

    ``naming`` makes the name of its column from that of the first argument, ``prunes`` is set if conditions on it prune
    files, and ``several`` returns the columns of a call that stands alone, for functions that may have more than one.
    """

    name: str
    arguments: tuple[Argument, ...]
    result: str
    about: str
    build: Callable[[Given], Typed]
    naming: str | None = None
    prunes: bool = False
    several: Callable[[Given], list[Typed]] | None = None

    @property
    def least(self) -> int:
        """The smallest number of arguments."""
        return sum(not each.optional for each in self.arguments)

    @property
    def most(self) -> int:
        """The largest number of arguments."""
        repeated = bool(self.arguments) and self.arguments[-1].repeated
        return _MANY * 2 if repeated else len(self.arguments)

    @property
    def signature(self) -> str:
        """The function as the documentation shows it."""
        return f"{self.name}({', '.join(each.shown for each in self.arguments)})"

    def argument(self, index: int) -> Argument:
        """Return the declaration of an argument."""
        return self.arguments[min(index, len(self.arguments) - 1)]

    def call(self, given: Given) -> Typed:
        """Return the expression of a call."""
        for index, value in enumerate(given.values):
            declared = self.argument(index)
            if not declared.accepts(value):
                given.refuse(index, " or ".join(declared.kinds))
        bound = self.build(given)
        first = given.values[0].name if given.values else None
        if self.naming is None or bound.name is not None or first is None:
            return bound
        return replace(bound, name=self.naming.format(first))


def _declared(signature: str) -> tuple[str, tuple[Argument, ...], str]:
    match = _SIGNATURE.fullmatch(signature)
    assert match is not None, signature  # noqa: S101 - a mistake in the table
    name, inside, result = match.groups()
    arguments = []
    for text in re.split(r", (?=\w+\??: )", inside) if inside else ():
        found = _ARGUMENT.fullmatch(text)
        assert found is not None, signature  # noqa: S101 - as above
        argument, optional, kinds, repeated, default = found.groups()
        is_optional = optional is not None or default is not None
        arguments.append(Argument(argument, tuple(kinds.split("|")), is_optional, repeated is not None, default))
    return name, tuple(arguments), result


def built(
    signature: str, about: str, build: Callable[[Given], Typed], *, named: bool | str = False, prunes: bool = False
) -> Function:
    """Declare a function whose SQL is built by a Python function.

    ``named`` is set if a column of it is named after the first argument, or how it is named, such as ``type_{}``.
    """
    name, arguments, result = _declared(signature)
    return Function(name, arguments, result, about, build, _naming(named), prunes)


def _naming(named: bool | str) -> str | None:  # noqa: FBT001 - as declared
    return named if isinstance(named, str) else "{}" if named else None


def template(signature: str, about: str, sql: str, *, named: bool | str = False) -> Function:
    """Declare a function by an SQL template with the names of the arguments, converted to their kinds.

    The result ``same`` is the kind of the first argument, where an int becomes a long.
    """
    name, arguments, result = _declared(signature)

    def build(given: Given) -> Typed:
        parts = {
            each.name: _argument_sql(given, index, each) if index < len(given) else each.default or "NULL"
            for index, each in enumerate(arguments)
        }
        kind = result
        if result == "same":
            kind = "long" if given.values[0].kind == "int" else given.values[0].kind
            parts[arguments[0].name] = given.as_kind(0, kind) if kind == "long" else given.values[0].sql
        made = f"({sql.format(**parts)})"
        return given.of(kind, f"coalesce({made}, '')" if kind == "string" else made)

    return Function(name, arguments, result, about, build, _naming(named))


def rows(signature: str, about: str, function: Callable[..., Any], *, named: bool | str = False) -> Function:
    """Declare a function by a Python function of one row: values as Python values, null as None.

    Datetimes are microseconds since 1970, timespans are ticks, dynamic values are decoded JSON.
    """
    name, arguments, result = _declared(signature)

    def build(given: Given) -> Typed:
        sql = _passed(given, arguments)
        compute = _by_rows(function, tuple(_passed_kind(each) for each in arguments), result)
        defined = PythonFunction(f"kql_py_{name}", _PYTHON_TYPES[result][0], compute)
        return _defined_call(given, defined, sql, result)

    return Function(name, arguments, result, about, build, _naming(named))


def _repeats(arguments: tuple[Argument, ...]) -> bool:
    return bool(arguments) and arguments[-1].repeated


def _passed_kind(argument: Argument) -> str:
    """Return the kind in which a Python function gets an argument."""
    first = argument.kinds[0]
    return _PASSED_AS.get(first, "dynamic" if first == "any" else first)


def _passed(given: Given, arguments: tuple[Argument, ...]) -> list[str]:
    """Return SQL for the arguments of a Python function. Missing ones are null."""
    sql = [
        _passed_sql(value, _passed_kind(arguments[min(index, len(arguments) - 1)]))
        for index, value in enumerate(given.values)
    ]
    missing = [] if _repeats(arguments) else arguments[len(given) :]
    return sql + [each.default or f"CAST(NULL AS {_PYTHON_TYPES[_passed_kind(each)][0]})" for each in missing]


def _passed_sql(value: Typed, kind: str) -> str:
    sql = _sql_as(value, kind)
    if kind in {"dynamic", "guid", "decimal"}:
        return f"CAST({sql} AS VARCHAR)"
    return f"epoch_us({sql})" if kind == "datetime" else sql


def _defined_call(given: Given, function: PythonFunction, sql: list[str], result: str) -> Typed:
    given.define(function)
    made = f"{function.name}({', '.join(sql)})"
    wrapped = {
        "dynamic": f"CAST({made} AS JSON)",
        "guid": f"TRY_CAST({made} AS UUID)",
        "decimal": f"TRY_CAST({made} AS DECIMAL(38,0))",
        "datetime": f"kql_dated(make_timestamp({made}))",
        "string": f"coalesce({made}, '')",
    }
    return given.of(result, wrapped.get(result, made))


def _by_rows(function: Callable[..., Any], kinds: tuple[str, ...], result: str) -> Callable[..., pa.Array]:
    """Return a function over arrays that calls another for each row, and keeps some results for equal rows."""
    last = len(kinds) - 1
    known: dict[tuple[Any, ...], Any] = {}

    def one(row: tuple[Any, ...]) -> Any:
        values = (
            msgspec.json.decode(value) if value is not None and kinds[min(index, last)] == "dynamic" else value
            for index, value in enumerate(row)
        )
        made = function(*values)
        return _json(made) if result == "dynamic" else made

    def compute(*arrays: Any) -> pa.Array:
        # Columns repeat their values more often across batches than within one.
        if len(known) > _MOST_KNOWN:
            known.clear()
        made = []
        for row in zip(*(each.to_pylist() for each in arrays), strict=True):
            # Another thread may clear it at any time.
            value = known.get(row, known)
            if value is known:
                known[row] = value = one(row)
            made.append(value)
        return pa.array(made, _PYTHON_TYPES[result][1])

    return compute


def _json(value: Any) -> str | None:
    return None if value is None else msgspec.json.encode(_finite(value)).decode()


def _finite(value: Any) -> Any:
    """Return a value with the numbers that JSON does not have as strings, which is how Kusto writes them."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return {key: _finite(each) for key, each in value.items()} if isinstance(value, dict) else value


def _argument_sql(given: Given, index: int, argument: Argument) -> str:
    if argument.repeated:
        return ", ".join(_sql_as(given.values[each], argument.kinds[0]) for each in range(index, len(given)))
    value = given.values[index]
    exact = next((kind for kind in argument.kinds if kind == value.kind), argument.kinds[0])
    return _sql_as(value, exact)


def _sql_as(value: Typed, kind: str) -> str:
    """Return SQL for a value in a kind of signatures."""
    kind = _PASSED_AS.get(kind, kind)
    if kind in {"any", value.kind}:
        return value.sql
    if kind == "string":
        return to_text(value)
    if kind == "dynamic":
        return converted(value, "dynamic")
    if value.kind == "dynamic":
        return from_text(to_text(value), kind, loose=True)
    if value.is_literal and value.value is None:
        return literal(kind, None).sql
    return as_kind(value, kind)


def from_text(text: str, kind: str, *, loose: bool = False) -> str:
    """Return SQL that converts a string to a kind, or to null. If ``loose``, a whole number may have a fraction."""
    whole = f"kql_long({text})"
    if loose:
        whole = f"coalesce({whole}, TRY_CAST(trunc(TRY_CAST({text} AS DOUBLE)) AS BIGINT))"
    return {
        "string": text,
        "dynamic": f"kql_parse_json({text})",
        "long": whole,
        "int": f"TRY_CAST({whole} AS INTEGER)",
        "real": f"kql_real({text})",
        "bool": f"kql_bool({text})",
        "datetime": f"kql_timestamp({text})",
        "timespan": f"kql_span({text})",
        "decimal": f"TRY_CAST(nullif(trim({text}), '') AS DECIMAL(38,18))",
        "guid": f"TRY_CAST({text} AS UUID)",
    }[kind]
