"""Parse common SQL without sqlglot: 0.003 s of CPU instead of 0.077 s and 10 MB for the first condition of a process.

Supports comparisons, AND, OR, NOT, IN, BETWEEN, IS NULL, LIKE, literals, casts, intervals and the functions that
lazydelta evaluates. For anything else `parse_plain` returns None and sqlglot parses the condition, and also words the
error for invalid SQL. This parser never guesses and never raises.
"""

from __future__ import annotations

import re
from decimal import Decimal as PyDecimal
from typing import NamedTuple

from lazydelta.predicates.sql.syntax import (
    Arithmetic,
    Between,
    Call,
    Cast,
    Comparison,
    Junction,
    Literal,
    Membership,
    Name,
    Negation,
    Negative,
    NullTest,
    Pattern,
    Syntax,
    TruthTest,
)
from lazydelta.predicates.sql.terms import CONDITION_FUNCTIONS, KNOWN_FUNCTIONS
from lazydelta.protocol.time import parse_timespan, timespan_of, unit_name

__all__ = ["parse_plain"]

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<text>'(?:[^']|'')*'(?!'))
      | (?P<quoted>`(?:[^`]|``)+`(?!`) | "(?:[^"]|"")+"(?!"))
      | (?P<number>(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)(?![\w.])
      | (?P<word>[^\W\d]\w*)(?![\w'"`$@\#])
      | (?P<comment>--|/\*)
      | (?P<symbol>(?:<=>|<>|!=|==|<=|>=|[=<>])(?![=<>!~]) | [+\-*(),.])
      | (?P<end>$)
    )""",
    re.VERBOSE,
)
_DEEPEST = 40
_COMPARISONS = {"=": "=", "==": "=", "!=": "!=", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">=", "<=>": "<=>"}
_TYPES = {
    "date": "DATE",
    "timestamp": "TIMESTAMP",
    "timestamp_ntz": "TIMESTAMP",
    "timestamp_ltz": "TIMESTAMP",
    "string": "STRING",
    "varchar": "STRING",
    "int": "INT",
    "integer": "INT",
    "bigint": "BIGINT",
    "long": "BIGINT",
    "smallint": "SMALLINT",
    "tinyint": "TINYINT",
    "double": "DOUBLE",
    "boolean": "BOOLEAN",
}
# Keywords that start a construct of their own, or separate two.
_RESERVED = frozenset(
    "all and any array as asc between by case cast collate current_catalog current_role "  # noqa: SIM905 - easier to read as words
    "current_schema current_time current_timezone current_user default desc distinct div else end escape except "
    "exists extract false from full global group having ilike in inner intersect interval is join lateral like limit "
    "map natural not notnull null offset on or order over prior qualify regexp rlike row select similar some struct "
    "table then tinyint to top true try_cast union unique unnest using values when where window with xor".split()
)
_TIMESTAMPS = frozenset({"current_date", "current_timestamp"})


class _UnknownFormError(Exception):
    """Internal to this module: the condition contains something unsupported."""


class _Token(NamedTuple):
    kind: str
    value: str


def parse_plain(text: str) -> Syntax | None:
    """Parse a condition; None if it contains anything unsupported."""
    try:
        return _Parser(_tokens(text)).whole()
    except (_UnknownFormError, RecursionError):
        return None


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    position = 0
    while True:
        match = _TOKEN.match(text, position)
        if match is None or match.lastgroup == "comment":
            raise _UnknownFormError
        kind, position = str(match.lastgroup), match.end()
        value = match[kind]
        if kind == "text":
            value = value[1:-1].replace("''", "'")
        elif kind == "quoted":
            mark = value[0]
            value = value[1:-1].replace(mark * 2, mark)
        found.append(_Token(kind, value))
        if kind == "end":
            return found


class _Parser:
    """Parses tokens by precedence: OR, AND, NOT, comparisons, sums, products, signs."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._position = 0
        self._depth = 0

    def whole(self) -> Syntax:
        """Parse all tokens as one condition."""
        node = self._either()
        if self._next.kind != "end" or not _is_condition(node):
            raise _UnknownFormError
        return node

    @property
    def _next(self) -> _Token:
        return self._tokens[self._position]

    def _word(self, ahead: int = 0) -> str:
        """Return the next word in lower case, or an empty string if the next token is not a word."""
        position = min(self._position + ahead, len(self._tokens) - 1)
        token = self._tokens[position]
        return token.value.lower() if token.kind == "word" else ""

    def _take(self) -> _Token:
        token = self._next
        if token.kind == "end":
            raise _UnknownFormError
        self._position += 1
        return token

    def _takes_word(self, word: str) -> bool:
        if self._word() != word:
            return False
        self._position += 1
        return True

    def _takes_symbol(self, symbol: str) -> bool:
        if self._next.kind != "symbol" or self._next.value != symbol:
            return False
        self._position += 1
        return True

    def _need(self, *, word: str = "", symbol: str = "") -> None:
        if not (self._takes_word(word) if word else self._takes_symbol(symbol)):
            raise _UnknownFormError

    def _either(self) -> Syntax:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise _UnknownFormError
        parts = [self._both()]
        while self._takes_word("or"):
            parts.append(self._both())
        self._depth -= 1
        return parts[0] if len(parts) == 1 else Junction("or", tuple(parts))

    def _both(self) -> Syntax:
        parts = [self._negated()]
        while self._takes_word("and"):
            parts.append(self._negated())
        return parts[0] if len(parts) == 1 else Junction("and", tuple(parts))

    def _negated(self) -> Syntax:
        times = 0
        while self._takes_word("not"):
            times += 1
            if times > _DEEPEST:
                raise _UnknownFormError
        node = self._condition()
        for _ in range(times):
            node = Negation(node)
        return node

    def _condition(self) -> Syntax:
        left = self._sum()
        token = self._next
        if token.kind == "symbol" and token.value in _COMPARISONS:
            self._take()
            return Comparison(_COMPARISONS[token.value], _value(left), _value(self._sum()))
        if self._takes_word("is"):
            negated = self._takes_word("not")
            word = self._take().value.lower() if self._next.kind == "word" else ""
            if word not in {"null", "true", "false"}:
                raise _UnknownFormError
            found = NullTest(_value(left)) if word == "null" else TruthTest(_value(left), word == "true")
            return Negation(found) if negated else found
        negated = self._word() == "not" and self._word(1) in {"in", "between", "like"}
        if negated:
            self._take()
        test = self._test(left)
        return left if test is None else Negation(test) if negated else test

    def _test(self, left: Syntax) -> Syntax | None:
        if self._takes_word("in"):
            self._need(symbol="(")
            values = [_value(self._sum())]
            while self._takes_symbol(","):
                values.append(_value(self._sum()))
            self._need(symbol=")")
            return Membership(_value(left), tuple(values))
        if self._takes_word("between"):
            low = _value(self._sum())
            self._need(word="and")
            return Between(_value(left), low, _value(self._sum()))
        if self._takes_word("like"):
            pattern = _value(self._sum())
            escape = _value(self._sum()) if self._takes_word("escape") else None
            return Pattern(_value(left), pattern, escape)
        return None

    def _sum(self) -> Syntax:
        node = self._product()
        while self._next.kind == "symbol" and self._next.value in {"+", "-"}:
            op = self._take().value
            node = Arithmetic(op, _value(node), _value(self._product()))
        return node

    def _product(self) -> Syntax:
        node = self._signed()
        while self._takes_symbol("*"):
            node = Arithmetic("*", _value(node), _value(self._signed()))
        return node

    def _signed(self) -> Syntax:
        times = 0
        while self._takes_symbol("-"):
            times += 1
        node = self._primary()
        if times > 1:
            raise _UnknownFormError
        return Negative(_value(node)) if times else node

    def _primary(self) -> Syntax:
        if self._takes_symbol("("):
            node = self._either()
            self._need(symbol=")")
            return node
        token = self._take()
        if token.kind == "text":
            if self._next.kind == "text":
                raise _UnknownFormError
            return Literal(token.value)
        if token.kind == "number":
            return Literal(_number(token.value))
        if token.kind == "quoted":
            return self._name(token)
        if token.kind != "word":
            raise _UnknownFormError
        return self._of_word(token)

    def _of_word(self, token: _Token) -> Syntax:
        word = token.value.lower()
        following = self._next
        called = following.kind == "symbol" and following.value == "("
        if word in {"true", "false", "null"}:
            return Literal(None if word == "null" else word == "true")
        if word in {"date", "timestamp"} and following.kind == "text":
            return Cast(Literal(self._take().value), word.upper())
        if word == "interval" and following.kind in {"text", "number"}:
            return self._interval()
        if called and word == "cast":
            return self._cast()
        if called and word == "extract":
            return self._extract()
        if word in _TIMESTAMPS and not called:
            return Call(word)
        if called:
            return self._call(word)
        if word in _RESERVED:
            raise _UnknownFormError
        return self._name(token)

    def _name(self, first: _Token) -> Name:
        tokens = [first]
        while self._takes_symbol("."):
            tokens.append(self._take())
            kind, value = tokens[-1]
            if kind not in {"word", "quoted"} or (kind == "word" and value.lower() in _RESERVED):
                raise _UnknownFormError
        if self._next.kind in {"text", "quoted"} or (self._next.kind, self._next.value) == ("symbol", "("):
            raise _UnknownFormError  # A string prefix, or a method.
        return Name(tuple(token.value for token in tokens), any(token.kind == "quoted" for token in tokens))

    def _interval(self) -> Syntax:
        token = self._take()
        if token.kind == "text" and unit_name(self._word()) is None:
            span = parse_timespan(token.value)
        else:
            amount = token.value.strip()
            if not re.fullmatch(r"[+-]?[0-9]+(\.[0-9]+)?", amount) or not self._word():
                raise _UnknownFormError
            span = timespan_of(PyDecimal(amount), self._take().value)
        if span is None or self._next.kind in {"text", "number"}:
            raise _UnknownFormError
        return Literal(span)

    def _cast(self) -> Syntax:
        self._need(symbol="(")
        node = _value(self._either())
        self._need(word="as")
        kind = _TYPES.get(self._word())
        self._take()
        self._need(symbol=")")
        if kind is None:
            raise _UnknownFormError
        return Cast(node, kind)

    def _extract(self) -> Syntax:
        self._need(symbol="(")
        unit = self._word()
        self._take()
        self._need(word="from")
        node = _value(self._either())
        self._need(symbol=")")
        return Call("extract", (Literal(unit), node))

    def _call(self, word: str) -> Syntax:
        if word not in KNOWN_FUNCTIONS:
            raise _UnknownFormError
        self._need(symbol="(")
        arguments: list[Syntax] = []
        if not self._takes_symbol(")"):
            arguments.append(_value(self._either()))
            while self._takes_symbol(","):
                arguments.append(_value(self._either()))
            self._need(symbol=")")
        return Call(word, tuple(arguments))


def _is_condition(node: Syntax) -> bool:
    """Return whether a node may be boolean. If it is a value, sqlglot reports the error."""
    if isinstance(node, Junction):
        return all(map(_is_condition, node.parts))
    if isinstance(node, Negation):
        return _is_condition(node.part)
    if isinstance(node, Literal):
        return node.value is None or isinstance(node.value, bool)
    if isinstance(node, Call):
        return node.name in CONDITION_FUNCTIONS
    return not isinstance(node, Arithmetic | Negative | Cast)


def _number(text: str) -> int | PyDecimal:
    try:
        return int(text) if text.isdecimal() else PyDecimal(text)
    except (ArithmeticError, ValueError) as error:
        raise _UnknownFormError from error


def _value(node: Syntax) -> Syntax:
    """Return a node where a value is required. A condition there is not supported."""
    if isinstance(node, Junction | Negation | Comparison | Membership | Between | NullTest | TruthTest | Pattern):
        raise _UnknownFormError
    return node
