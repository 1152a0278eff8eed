"""The shape of a text of statistics: what is the same in all texts that one writer makes of one table.

A shape is a text cut into what stands between its values (literals) and the values themselves (slots). Another text has
the same shape if its literals are these very bytes, in the same order; then it says the same of the same columns, and
only the values have to be read. Whatever needs more than that to be understood has no shape: blanks, escapes, lists,
exponents, and names that come twice.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

import msgspec

__all__ = ["DELIMITER", "Shape", "Slot", "shape_of"]

DELIMITER = b',"'
"""What stands between two members: no string without escapes has it inside."""

_Path = tuple[str, ...]
_CONSTANTS = {b"true": True, b"false": False, b"null": None}


@cache
def _token() -> re.Pattern[bytes]:
    # Not at the import: most processes read no statistics.
    return re.compile(rb'"[^"\\\x00-\x1f]*"|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?|true|false|null|[{}:,]')


class Slot(msgspec.Struct, frozen=True):
    """A place for one value: its path, and whether it is in quotation marks."""

    path: _Path
    is_text: bool


class Shape(msgspec.Struct, frozen=True):
    """``literals`` before, between and behind ``slots``; ``constants`` are the values among the literals.

    ``objects`` are the paths of what holds members.
    """

    literals: tuple[bytes, ...]
    slots: tuple[Slot, ...]
    constants: dict[_Path, bool | None]
    objects: frozenset[_Path]

    @property
    def delimiters(self) -> int:
        """How many delimiters a text of this shape has."""
        return sum(literal.count(DELIMITER) for literal in self.literals)


class _ShapelessError(Exception):
    """A text that a shape does not describe."""


def shape_of(text: bytes) -> Shape | None:
    """Return the shape of a text, None if it has none."""
    tokens = _token().findall(text)
    if b"".join(tokens) != text:
        return None
    try:
        shape = _Walk(tokens).shape()
    except (_ShapelessError, UnicodeDecodeError, RecursionError):
        return None
    # A value that ends in a comma would be taken for a delimiter.
    return shape if shape.slots and text.count(DELIMITER) == shape.delimiters else None


class _Walk:
    def __init__(self, tokens: Sequence[bytes]) -> None:
        self._tokens = tokens
        self._at = 0
        self._literal: list[bytes] = []
        self._literals: list[bytes] = []
        self._slots: list[Slot] = []
        self._constants: dict[_Path, bool | None] = {}
        self._objects: set[_Path] = set()

    def shape(self) -> Shape:
        self._object(())
        if self._at != len(self._tokens):
            raise _ShapelessError
        literals = (*self._literals, b"".join(self._literal))
        return Shape(literals, tuple(self._slots), self._constants, frozenset(self._objects))

    def _next(self) -> bytes:
        if self._at == len(self._tokens):
            raise _ShapelessError
        self._at += 1
        return self._tokens[self._at - 1]

    def _take(self, token: bytes) -> None:
        if self._next() != token:
            raise _ShapelessError
        self._literal.append(token)

    def _object(self, path: _Path) -> None:
        self._take(b"{")
        self._objects.add(path)
        names: set[str] = set()
        if self._at < len(self._tokens) and self._tokens[self._at] == b"}":
            self._take(b"}")
            return
        while True:
            key = self._next()
            name = key[1:-1].decode()
            if key[:1] != b'"' or name in names:
                raise _ShapelessError
            names.add(name)
            self._literal.append(key)
            self._take(b":")
            self._value((*path, name))
            end = self._next()
            self._literal.append(end)
            if end == b"}":
                return
            if end != b",":
                raise _ShapelessError

    def _value(self, path: _Path) -> None:
        token = self._next()
        if token == b"{":
            self._at -= 1
            self._object(path)
        elif token in _CONSTANTS:
            self._literal.append(token)
            self._constants[path] = _CONSTANTS[token]
        elif token[:1] == b'"':
            self._literal.append(b'"')
            self._slot(Slot(path, is_text=True))
            self._literal.append(b'"')
        elif token in {b"}", b":", b","}:
            raise _ShapelessError
        else:
            self._slot(Slot(path, is_text=False))

    def _slot(self, slot: Slot) -> None:
        self._slots.append(slot)
        self._literals.append(b"".join(self._literal))
        self._literal = []
