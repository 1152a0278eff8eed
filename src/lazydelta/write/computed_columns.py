"""Columns that a table computes: generated columns, defaults, and identity columns.

Their expressions are Spark SQL. The forms that Delta documents for partitions by time are evaluated here, with a few
others whose results are the same in Spark; an expression with anything else is refused by name before a row is written.
Timestamps are read in UTC, as by a Spark session whose time zone is UTC.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import pyarrow as pa

from lazydelta.errors import SchemaMismatchError, UnsupportedFeatureError, WriteError
from lazydelta.protocol.properties import Key
from lazydelta.protocol.schema import NameIndex, TableSchema
from lazydelta.runtime import compute as pc
from lazydelta.runtime.arrays import typed_scalar
from lazydelta.write.evolution import Conformer
from lazydelta.write.identity import IdentitySequence, identity_columns

__all__ = ["GENERATED", "ComputedColumns", "Expression", "generated_columns"]

GENERATED, DEFAULT = Key.GENERATION, "CURRENT_DEFAULT"
_NAIVE = pa.timestamp("us")


def generated_columns(table: TableSchema) -> list[str]:
    """Return the names of the generated columns."""
    return [each.name for each in table.fields if GENERATED in each.metadata]


class ComputedColumns:
    """The columns of a table whose values follow from its metadata. Raises for expressions that are not supported.

    A generated column is computed if the rows lack it, and compared if they have it. A default fills a column that the
    rows lack. An identity column that they lack gets the next values of its sequence; ``task`` is the index of the
    task that writes the rows, if there are several. ``made`` has the columns that the caller makes, with their
    expressions.
    """

    def __init__(self, table: TableSchema, made: Mapping[str, str] | None = None, task: int | None = None) -> None:
        described = any(field.metadata for field in table.fields)  # few tables have such columns
        names = {each.name.lower(): each.name for each in table.fields} if described else {}
        self._generated: dict[str, Expression] = {}
        self._defaults: dict[str, Expression] = {}
        self._identities = identity_columns(table)
        self.sequence = IdentitySequence(table, task) if self._identities else None
        for each in table.fields if described else ():
            generation, default = each.metadata.get(GENERATED), each.metadata.get(DEFAULT)
            if isinstance(generation, str) and made and each.name in made:
                _check_same(each.name, generation, made[each.name])
            elif isinstance(generation, str):
                self._generated[each.name] = Expression(each.name, generation, "generatedColumns", names)
            elif isinstance(default, str):
                self._defaults[each.name] = Expression(each.name, default, "allowColumnDefaults", {})

    @property
    def names(self) -> frozenset[str]:
        """Return the columns that are computed if rows lack them."""
        return frozenset(self._generated.keys() | self._defaults.keys() | self._identities.keys())

    def __bool__(self) -> bool:
        return bool(self._generated or self._defaults or self._identities)

    def check_inserted(self, given: Sequence[str]) -> None:
        """Raise if new rows with these columns have values of an identity column where they may not."""
        names = NameIndex(given)
        for name, is_explicit in self._identities.items():
            if names.positions(name) and not is_explicit:
                message = f"The identity column {name!r} is GENERATED ALWAYS, and takes no values from writers"
                raise SchemaMismatchError(message, hint="omit it; it gets the next values of its sequence")

    def check_updated(self, changed: Sequence[str]) -> None:
        """Raise if an update changes an identity column."""
        for name in self._identities.keys() & set(changed):
            raise SchemaMismatchError(f"The identity column {name!r} is never updated", hint="omit it")

    def given(self, table: pa.Schema, data: Sequence[str]) -> pa.Schema:
        """Return the columns of the table without those that are computed because the data lacks them."""
        names = NameIndex(data)
        return pa.schema([each for each in table if each.name not in self.names or names.positions(each.name)])

    def added(self, rows: pa.RecordBatch, table: pa.Schema) -> pa.RecordBatch:
        """Return the rows with the columns of the table that they lack, and check generated columns that they have."""
        made: dict[str, pa.Array] = {}
        for name, expression in self._defaults.items():
            if name not in rows.schema.names:
                made[name] = expression.values(rows, table.field(name))
        if self.sequence is not None:
            lacking = [name for name in self._identities if name not in rows.schema.names]
            made |= self.sequence.values(lacking, rows.num_rows)
        rows = _with(rows, made, table)
        made = {}
        for name, expression in self._generated.items():
            values = expression.values(rows, table.field(name))
            if name in rows.schema.names:
                _check(rows.column(name), values, expression)
            else:
                made[name] = values
        return _with(rows, made, table)


def _check_same(column: str, generation: str, made: str) -> None:
    """Raise unless a generated column is what the alignment to time makes of it, spaces and quotes aside."""
    if _plain(generation) != _plain(made):
        message = f"The generated column {column!r} is {generation}, and its time boundary makes it {made}"
        raise SchemaMismatchError(message, hint="omit timestamp_column; the column is computed")


def _plain(text: str) -> str:
    name, paren, rest = re.sub("[ `]", "", text).replace('"', "'").partition("(")
    return name.lower() + paren + rest


def _with(rows: pa.RecordBatch, made: dict[str, pa.Array], table: pa.Schema) -> pa.RecordBatch:
    if not made:
        return rows
    known = {**dict(zip(rows.schema.names, rows.columns, strict=True)), **made}
    found = pa.RecordBatch.from_arrays([known[each.name] for each in table if each.name in known], schema=pa.schema(
        [each.with_nullable(True) if each.name in made else each for each in table if each.name in known]  # noqa: FBT003
    ))  # fmt: skip
    # Raises for nulls in columns that may have none.
    return Conformer(pa.schema([each for each in table if each.name in known]), found.schema)(found)


def _check(given: pa.Array, computed: pa.Array, expression: Expression) -> None:
    if pa.types.is_dictionary(given.type):
        given = given.dictionary_decode()
    same = pc.or_(pc.fill_null(pc.equal(given, computed), False), pc.and_(pc.is_null(given), pc.is_null(computed)))  # noqa: FBT003
    wrong = len(given) - same.true_count
    if wrong:
        message = (
            f"Invalid data found: {wrong} rows failed validation check. The generated column {expression.column!r}"
        )
        hint = "nothing was committed; omit the column, and it is computed"
        raise WriteError(f"{message} is {expression.text}, and they have other values in it", hint=hint)


class Expression:
    """An expression of a column, parsed. ``names`` maps lower-case names to the columns that it may use."""

    def __init__(self, column: str, text: str, feature: str, names: dict[str, str]) -> None:
        self.column, self.text = column, text
        self._now = time.time_ns() // 1000
        self._feature = feature
        try:
            self._tree = _Parser(text, names, with_time=not names).whole()
        except _UnsupportedError as error:
            raise self._refused(str(error)) from None

    def values(self, rows: pa.RecordBatch, field: pa.Field) -> pa.Array:
        """Return the value of each row, in the type of its column."""
        try:
            found = self._tree(_Rows(rows, self._now))
            return _broadcast(_cast(found, field.type), rows.num_rows, field.type)
        except _UnsupportedError as error:
            raise self._refused(str(error)) from None
        except pa.ArrowException as error:
            message = f"The column {self.column!r} is computed as {self.text}, which fails: {error}"
            raise WriteError(message, hint="nothing was committed; correct the rows") from error

    def _refused(self, why: str) -> UnsupportedFeatureError:
        message = f"The column {self.column!r} is computed as {self.text}, which lazydelta does not evaluate: {why}"
        return UnsupportedFeatureError(message, features=(self._feature,), hint="write the table with Delta-Spark")


class _UnsupportedError(Exception):
    """An expression that is not evaluated here, and why."""


@dataclass(frozen=True, slots=True)
class _Rows:
    rows: pa.RecordBatch
    now: int


_Node = Callable[[_Rows], Any]

# Parsing. A generation expression is one expression of Spark SQL, without queries and aggregates.

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d*)?|\.\d+)(?P<suffix>[LSYD]\b)?|(?P<text>'(?:[^'\\]|'')*'|\"(?:[^\"\\]|\"\")*\")"
    r"|(?P<name>[A-Za-z_]\w*|`(?:[^`]|``)+`)|(?P<sign>\|\||[-+*(),.]))",
    re.IGNORECASE,
)
_INT32 = 1 << 31
_INT64 = 1 << 63


class _Parser:
    def __init__(self, text: str, names: dict[str, str], *, with_time: bool) -> None:
        self._names, self._with_time = names, with_time
        self._tokens = list(_tokens(text))
        self._at = 0

    def whole(self) -> _Node:
        node = self._sum()
        if self._at < len(self._tokens):
            raise _UnsupportedError(f"{self._tokens[self._at][1]!r} is not known")
        return node

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._at] if self._at < len(self._tokens) else ("end", "its end")

    def _takes(self, *signs: str) -> str | None:
        kind, text = self._peek()
        if kind in {"sign", "name"} and text.lower() in signs:
            self._at += 1
            return text.lower()
        return None

    def _expect(self, sign: str) -> None:
        if self._takes(sign) is None:
            raise _UnsupportedError(f"{self._peek()[1]!r} is where {sign!r} is expected")

    def _sum(self) -> _Node:
        node = self._product()
        while (sign := self._takes("+", "-", "||")) is not None:
            node = (
                _CALLS["concat"]([node, self._product()]) if sign == "||" else _arithmetic(sign, node, self._product())
            )
        return node

    def _product(self) -> _Node:
        node = self._unary()
        while self._takes("*") is not None:
            node = _arithmetic("*", node, self._unary())
        return node

    def _unary(self) -> _Node:
        if self._takes("-") is not None:
            kind, text = self._peek()
            if kind == "number":
                self._at += 1
                return _number(f"-{text}")
            return _arithmetic("-", _constant(typed_scalar(0, pa.int32())), self._unary())
        return self._atom()

    def _atom(self) -> _Node:
        kind, text = self._peek()
        self._at += 1
        if kind == "number":
            return _number(text)
        if kind == "text":
            return _constant(typed_scalar(_unquoted(text), pa.string()))
        if kind == "sign" and text == "(":
            node = self._sum()
            self._expect(")")
            return node
        if kind != "name":
            raise _UnsupportedError(f"{text!r} is not known")
        if text[0] != "`":
            found = self._word(text.lower())
            if found is not None:
                return found
        return self._column(text)

    def _word(self, word: str) -> _Node | None:
        if word in {"true", "false"}:
            return _constant(pa.scalar(word == "true"))
        if word == "null":
            return _constant(pa.scalar(None))
        if word == "date" and self._peek()[0] == "text":
            literal = _constant(typed_scalar(_unquoted(self._peek()[1]), pa.string()))
            self._at += 1
            return lambda rows: _cast(literal(rows), pa.date32())
        if word in {"current_timestamp", "current_date", "now"} and self._with_time:
            if self._takes("(") is not None:
                self._expect(")")
            return _today if word == "current_date" else _present
        if self._takes("(") is None:
            return None
        return self._cast_call() if word == "cast" else self._call(word)

    def _cast_call(self) -> _Node:
        node = self._sum()
        self._expect("as")
        name = self._peek()[1].lower()
        self._at += 1
        self._expect(")")
        kind = _TYPES.get(name)
        if kind is None:
            raise _UnsupportedError(f"a cast to {name} is not known")
        return lambda rows: _cast(node(rows), kind)

    def _call(self, name: str) -> _Node:
        arguments: list[_Node] = []
        while self._takes(")") is None:
            arguments.append(self._sum())
            if self._takes(",") is None:
                self._expect(")")
                break
        make = _CALLS.get(name)
        if make is None:
            raise _UnsupportedError(f"the function {name} is not known")
        return make(arguments)

    def _column(self, text: str) -> _Node:
        path = [text]
        while self._takes(".") is not None:
            kind, text = self._peek()
            if kind != "name":
                raise _UnsupportedError(f"{text!r} is not known")
            path.append(text)
            self._at += 1
        parts = [each[1:-1].replace("``", "`") if each[0] == "`" else each for each in path]
        name = self._names.get(parts[0].lower())
        if name is None:
            raise _UnsupportedError(f"there is no column {parts[0]!r}")

        def column(rows: _Rows) -> pa.Array:
            if name not in rows.rows.schema.names:
                raise _UnsupportedError(f"the column {name!r} is computed, too")
            found = rows.rows.column(name)
            if pa.types.is_dictionary(found.type):
                found = found.dictionary_decode()
            for part in parts[1:]:
                found = _child(found, part)
            return found

        return column


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    at, end = 0, len(text.rstrip())
    while at < end:
        found = _TOKEN.match(text, at)
        if found is None:
            raise _UnsupportedError(f"{text[at:].strip()[:20]!r} is not known")
        kind = next(each for each in ("number", "text", "name", "sign") if found[each] is not None)
        yield kind, found[kind] + ((found["suffix"] or "").upper() if kind == "number" else "")
        at = found.end()


def _unquoted(text: str) -> str:
    return text[1:-1].replace(2 * text[0], text[0])


def _child(array: pa.Array, name: str) -> pa.Array:
    index = -1 if not pa.types.is_struct(array.type) else array.type.get_field_index(name)
    if index < 0:
        raise _UnsupportedError(f"there is no field {name!r}")
    return pc.struct_field(array, [index])


# Evaluation. A node is a function from rows to an array or, for constants, a scalar.


def _constant(value: pa.Scalar) -> _Node:
    return lambda _rows: value


def _number(text: str) -> _Node:
    digits, suffix = (text[:-1], text[-1]) if text[-1].isalpha() else (text, "")
    if suffix == "D" or "." in digits:
        # Spark reads it as a decimal, and as a double where one is asked for: both are the number that is written.
        return _constant(typed_scalar(float(digits), pa.float64()))
    value = int(digits)
    kind = {"L": pa.int64(), "S": pa.int16(), "Y": pa.int8()}.get(suffix)
    if not -_INT64 <= value < _INT64:
        raise _UnsupportedError(f"{digits} is larger than a long")
    return _constant(typed_scalar(value, kind or (pa.int32() if -_INT32 <= value < _INT32 else pa.int64())))


def _present(rows: _Rows) -> pa.Scalar:
    return typed_scalar(rows.now, pa.int64()).cast(_NAIVE).cast(pa.timestamp("us", "UTC"))


def _today(rows: _Rows) -> pa.Scalar:
    return typed_scalar(rows.now // 86_400_000_000, pa.int32()).cast(pa.date32())


def _broadcast(value: Any, length: int, kind: pa.DataType) -> pa.Array:
    if not isinstance(value, pa.Scalar):
        return value
    return pa.repeat(value, length) if value.is_valid else pa.nulls(length, kind)


_TYPES: dict[str, pa.DataType] = {
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": _NAIVE,
    "string": pa.string(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "double": pa.float64(),
}


def _cast(value: Any, kind: pa.DataType) -> Any:
    """Return a value in another type, where Spark gives the same."""
    had, types = value.type, pa.types
    if had == kind:
        return value
    if types.is_null(had):
        return pa.scalar(None, kind)
    is_constant, found = isinstance(value, pa.Scalar), None
    if types.is_timestamp(had) or types.is_date(had):
        found = _cast_time(value, kind)
    elif types.is_decimal(kind) and (types.is_integer(had) or (types.is_floating(had) and is_constant)):
        found = value.cast(pa.string()).cast(kind)
    elif types.is_string(had) and types.is_date(kind) and is_constant:
        found = _date(value.as_py())
    elif _is_exact(had, kind, is_constant=is_constant):
        found = value.cast(kind)
    if found is None:
        raise _UnsupportedError(f"a cast of {had} to {kind} is not known")
    return found


def _cast_time(value: Any, kind: pa.DataType) -> Any:
    types = pa.types
    if types.is_timestamp(kind):
        return _naive(value).cast(pa.int64()).cast(kind)
    if types.is_date(kind):
        return _floor(value, "day").cast(pa.date32())
    return value.cast(kind) if types.is_date(value.type) and types.is_string(kind) else None


def _is_exact(had: pa.DataType, kind: pa.DataType, *, is_constant: bool) -> bool:
    """Return whether Arrow casts as Spark does, or fails."""
    types = pa.types
    if types.is_integer(had):
        return bool(types.is_integer(kind) or types.is_string(kind) or types.is_floating(kind))
    if types.is_floating(had):
        return bool(types.is_floating(kind) and (is_constant or kind.bit_width > had.bit_width))
    return bool(types.is_boolean(had) and types.is_string(kind)) or bool(
        types.is_decimal(had) and types.is_decimal(kind)
    )


def _date(text: str | None) -> pa.Scalar:
    try:
        days = None if text is None else (date.fromisoformat(text) - date(1970, 1, 1)).days
    except ValueError:
        raise _UnsupportedError(f"{text!r} is not a date") from None
    return typed_scalar(days, pa.int32()).cast(pa.date32())


def _naive(value: Any) -> Any:
    """Return timestamps without a time zone (their digits in UTC): dates are midnights."""
    kind = value.type
    if pa.types.is_date(kind):
        return value.cast(_NAIVE)
    if not pa.types.is_timestamp(kind):
        raise _UnsupportedError(f"a function of time gets {kind}")
    return value if kind.tz is None else value.cast(pa.int64()).cast(_NAIVE)


def _floor(value: Any, unit: str) -> Any:
    return pc.floor_temporal(_naive(value), unit=unit, week_starts_monday=True)


def _arithmetic(sign: str, left: _Node, right: _Node) -> _Node:
    function = {"+": pc.add_checked, "-": pc.subtract_checked, "*": pc.multiply_checked}[sign]

    def compute(rows: _Rows) -> Any:
        one, other = left(rows), right(rows)
        kinds = (one.type, other.type)
        if all(pa.types.is_integer(each) for each in kinds):
            wide = max(kinds, key=lambda each: each.bit_width)
            return function(one.cast(wide), other.cast(wide))
        if all(pa.types.is_float64(each) for each in kinds) and not all(
            isinstance(each, pa.Scalar) for each in (one, other)
        ):
            return function(one, other)
        raise _UnsupportedError(f"{sign} of {kinds[0]} and {kinds[1]} is not known")

    return compute


def _literal(node: _Node, what: str) -> Any:
    """Return the value of a constant argument."""
    try:
        value = node(_Rows(pa.RecordBatch.from_arrays([], names=[]), 0))
    except _UnsupportedError:
        value = None
    if not isinstance(value, pa.Scalar) or not value.is_valid:
        raise _UnsupportedError(f"{what} is not a constant")
    return value.as_py()


def _one(function: Callable[[Any], Any]) -> Callable[[list[_Node]], _Node]:
    """Return the maker of a function with one argument."""

    def make(arguments: list[_Node]) -> _Node:
        if len(arguments) != 1:
            raise _UnsupportedError(f"a function has {len(arguments)} arguments instead of 1")
        node = arguments[0]
        return lambda rows: function(node(rows))

    return make


def _part(name: str, **options: Any) -> Callable[[list[_Node]], _Node]:
    return _one(lambda value: getattr(pc, name)(_naive(value), **options).cast(pa.int32()))


_UNITS = {
    **dict.fromkeys(("year", "yyyy", "yy"), "year"),
    "quarter": "quarter",
    **dict.fromkeys(("month", "mon", "mm"), "month"),
    "week": "week",
    **dict.fromkeys(("day", "dd"), "day"),
    **{each: each for each in ("hour", "minute", "second", "millisecond", "microsecond")},
}


def _date_trunc(arguments: list[_Node]) -> _Node:
    unit, node = _unit(arguments, 0)

    def compute(rows: _Rows) -> Any:
        value = node(rows)
        found = _floor(value, unit)
        is_ntz = pa.types.is_timestamp(value.type) and value.type.tz is None
        return found if is_ntz else found.cast(pa.int64()).cast(pa.timestamp("us", "UTC"))

    return compute


def _trunc(arguments: list[_Node]) -> _Node:
    unit, node = _unit(arguments, 1)
    if unit not in {"year", "quarter", "month", "week"}:
        raise _UnsupportedError(f"trunc by {unit} is null")
    return lambda rows: _floor(node(rows), unit).cast(pa.date32())


def _unit(arguments: list[_Node], at: int) -> tuple[str, _Node]:
    if len(arguments) != 2:  # noqa: PLR2004 - the unit and the value
        raise _UnsupportedError(f"a function has {len(arguments)} arguments instead of 2")
    name = str(_literal(arguments[at], "the unit")).lower()
    if name not in _UNITS:
        raise _UnsupportedError(f"the unit {name!r} is not known")
    return _UNITS[name], arguments[1 - at]


_PATTERN = re.compile(r"(?P<run>([A-Za-z])\2*)|'(?P<quoted>[^']+)'|(?P<plain>[^A-Za-z'\[\]{}#]+)")
_FORMATS = {"yyyy": "%Y", "MM": "%m", "dd": "%d", "HH": "%H", "mm": "%M", "ss": "%S", "DDD": "%j"}


def _date_format(arguments: list[_Node]) -> _Node:
    if len(arguments) != 2:  # noqa: PLR2004 - the value and the format
        raise _UnsupportedError(f"date_format has {len(arguments)} arguments instead of 2")
    given, made, at = str(_literal(arguments[1], "the format")), "", 0
    while at < len(given):
        found = _PATTERN.match(given, at)
        if found is None or (found["run"] is not None and found["run"] not in _FORMATS):
            raise _UnsupportedError(f"the format {given!r} has other parts than {', '.join(_FORMATS)}")
        made += _FORMATS[found["run"]] if found["run"] else (found["quoted"] or found["plain"]).replace("%", "%%")
        at = found.end()
    node = arguments[0]
    return lambda rows: pc.strftime(_floor(node(rows), "second").cast(pa.timestamp("s")), format=made)


def _substring(arguments: list[_Node]) -> _Node:
    if len(arguments) not in {2, 3}:
        raise _UnsupportedError(f"substring has {len(arguments)} arguments")
    start = _literal(arguments[1], "the start")
    length = _literal(arguments[2], "the length") if len(arguments) == 3 else None  # noqa: PLR2004
    if not isinstance(start, int) or start < 0 or (length is not None and (not isinstance(length, int) or length < 0)):
        raise _UnsupportedError("substring counts from the end")
    start = max(start, 1)  # Spark takes 0 for the first character
    stop, node = None if length is None else start - 1 + length, arguments[0]

    def compute(rows: _Rows) -> Any:
        value = node(rows)
        if not pa.types.is_string(value.type):
            raise _UnsupportedError(f"substring of {value.type} is not known")
        return pc.utf8_slice_codeunits(value, start=start - 1, stop=stop)

    return compute


def _concat(arguments: list[_Node]) -> _Node:
    def compute(rows: _Rows) -> Any:
        parts = [_cast(each(rows), pa.string()) for each in arguments]
        return pc.binary_join_element_wise(*parts, typed_scalar("", pa.string()), null_handling="emit_null")

    return compute


def _coalesce(arguments: list[_Node]) -> _Node:
    def compute(rows: _Rows) -> Any:
        parts = [each(rows) for each in arguments]
        if len({each.type for each in parts}) != 1:
            raise _UnsupportedError("coalesce has arguments of several types")
        return pc.coalesce(*parts)

    return compute


def _length(value: Any) -> Any:
    if not pa.types.is_string(value.type):
        raise _UnsupportedError(f"the length of {value.type} is not known")
    return pc.utf8_length(value)


_CALLS: dict[str, Callable[[list[_Node]], _Node]] = {
    "year": _part("year"),
    "quarter": _part("quarter"),
    "month": _part("month"),
    "day": _part("day"),
    "dayofmonth": _part("day"),
    "dayofyear": _part("day_of_year"),
    "dayofweek": _part("day_of_week", count_from_zero=False, week_start=7),
    "weekofyear": _part("iso_week"),
    "hour": _part("hour"),
    "minute": _part("minute"),
    "second": _part("second"),
    "to_date": _one(lambda value: _cast(_naive(value), pa.date32())),
    "date": _one(lambda value: _cast(_naive(value), pa.date32())),
    "date_trunc": _date_trunc,
    "trunc": _trunc,
    "date_format": _date_format,
    "substring": _substring,
    "substr": _substring,
    "concat": _concat,
    "coalesce": _coalesce,
    "length": _one(_length),
    "char_length": _one(_length),
}
