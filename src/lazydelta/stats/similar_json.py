"""Ranges from JSON statistics of the same shape, and from the decoder for all others.

Both give the same result for every string: ambiguous values are left to the decoder. All ranges of 40,000 strings
with ten columns take 0.124 s of CPU instead of 0.22 s.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lazydelta.protocol.schema import Column, Decimal, Struct
from lazydelta.protocol.values import cast_decimals, from_text
from lazydelta.runtime import compute as pc
from lazydelta.runtime.arrays import from_numpy, typed_array, typed_scalar
from lazydelta.runtime.threads import give_way
from lazydelta.stats.collector import has_range
from lazydelta.stats.ranges import ColumnRange, Ranges, narrowed_floats

__all__ = ["parse_similar", "shape_of"]


# ``Shape``: the constant part of the JSON statistics that one writer produces for one table.


DELIMITER = b',"'
"""Separates two members: no JSON string without escapes contains it."""

_CONSTANTS = {b"true": True, b"false": False, b"null": None}


@cache
def _token() -> re.Pattern[bytes]:
    # Not compiled at import: most processes read no statistics.
    return re.compile(rb'"[^"\\\x00-\x1f]*"|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?|true|false|null|[{}:,]')


class Slot(msgspec.Struct, frozen=True):
    """The slot of one value: its path, and whether it is quoted."""

    path: _Path
    is_text: bool


class Shape(msgspec.Struct, frozen=True):
    """``literals`` before, between and after ``slots``; ``constants`` are the values among the literals.

    A shape is a string split into its values (slots) and the bytes between them (literals). Another string has the same
    shape if it has the same literals in the same order. It then describes the same columns, and only the values have to
    be read. Strings that need real parsing have no shape: whitespace, escapes, lists, exponents, duplicate names.
    ``objects`` are the paths of JSON objects.
    """

    literals: tuple[bytes, ...]
    slots: tuple[Slot, ...]
    constants: dict[_Path, bool | None]
    objects: frozenset[_Path]

    @property
    def delimiters(self) -> int:
        """The number of delimiters in a string of this shape."""
        return sum(literal.count(DELIMITER) for literal in self.literals)


class _ShapelessError(Exception):
    """A string that no shape describes."""


def shape_of(text: bytes) -> Shape | None:
    """Return the shape of a string, None if it has none."""
    tokens = _token().findall(text)
    if b"".join(tokens) != text:
        return None
    try:
        shape = _ShapeBuilder(tokens).shape()
    except (_ShapelessError, UnicodeDecodeError, RecursionError):
        return None
    # A value that ends in a comma would be mistaken for a delimiter.
    return shape if shape.slots and text.count(DELIMITER) == shape.delimiters else None


class _ShapeBuilder:
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


# ``SimilarStrings``: read strings of the same shape in bulk, column by column, without a Python object per value.


_Positions = npt.NDArray[np.int64]
_Bytes = npt.NDArray[np.uint8]
_Flags = npt.NDArray[np.bool_]

_WORD = 8
_LONGEST_NUMBER, _LONGEST_TEXT = 22, 96
_ZERO, _NINE, _DOT, _MINUS, _QUOTE, _BACKSLASH, _BLANK = b'09.-"\\ '
_NOT_ASCII = 0x80
_COMMA = DELIMITER[0]
_ONES, _ZEROS = np.uint64(0x0101010101010101), np.uint64(0x3030303030303030)


class Scratch:
    """Reusable memory for the next strings: new pages would have to be zeroed by the system each time."""

    def __init__(self) -> None:
        self._rooms: dict[int, _Bytes] = {}

    def room(self, number: int, size: int) -> _Bytes:
        """Return this many uninitialized bytes."""
        if number not in self._rooms or len(self._rooms[number]) < size:
            self._rooms[number] = np.empty(size, np.uint8)
        return self._rooms[number][:size]


class SimilarStrings:
    """Strings that were matched against one shape; ``proven`` says which of them have it, possibly none.

    A decoder parses each string on its own and creates a Python object for every value. Strings of one shape have their
    values between the same literals, so NumPy can compare the literals of thousands of strings and then extract a
    column from all of them. Any string that does not match the shape byte for byte is left to the decoder.
    """

    def __init__(self, texts: _Texts, shape: Shape, positions: _Positions, rows: _Positions, total: int) -> None:
        self._texts = texts
        self._shape = shape
        self._slots = {slot.path: number for number, slot in enumerate(shape.slots)}
        self._rows = rows
        self._starts: list[_Positions] = []
        self._ends: list[_Positions] = []
        self._numbers: dict[int, _Number] = {}
        self._windows: dict[int, _Bytes] = {}
        self.proven: _Flags = np.zeros(total, np.bool_)
        good = self._literals_match(positions)
        if not good.all():  # Rows that do not match have no value positions.
            self._rows = rows[good]
            self._starts = [starts[good] for starts in self._starts]
            self._ends = [ends[good] for ends in self._ends]
        self._good: _Flags = np.ones(len(self._rows), np.bool_)
        for number, slot in enumerate(shape.slots):
            self._check(number, slot)
        self.proven[self._rows[self._good]] = True

    @classmethod
    def of(cls, texts: pa.StringArray, scratch: Scratch, shape: Shape) -> SimilarStrings:
        """Match non-null strings against this shape.

        Results of earlier calls with the same ``scratch`` are no longer valid.
        """
        _, offsets, values = texts.buffers()
        ends = np.frombuffer(offsets, np.int32, len(texts) + 1, texts.offset * 4).astype(np.int64)
        data = np.frombuffer(values, np.uint8)[ends[0] : ends[-1]]
        ends -= ends[0]
        laid = _Texts.of(data, ends, max(map(len, shape.literals)), scratch)
        rows, positions = laid.delimited(shape.delimiters, scratch)
        return cls(laid, shape, positions, rows, len(texts))

    def has(self, path: _Path, *, text: bool) -> bool | None:
        """Return whether the strings have such a value; None if they have something else in its place."""
        number = self._slots.get(path)
        if number is not None:
            return True if self._shape.slots[number].is_text == text else None
        return False if self.constant(path) is None and not self._is_held(path) else None

    def constant(self, path: _Path) -> bool | None:
        """Return the value that all strings share; None for null and for missing values."""
        return self._shape.constants.get(path)

    def _is_held(self, path: _Path) -> bool:
        """Return whether the path is an object, or passes through a value that is not: it cannot hold a value."""
        if path in self._shape.objects:
            return True
        parents = [path[:depth] for depth in range(1, len(path))]
        return any(each in self._slots or self.constant(each) is not None for each in parents)

    def texts(self, path: _Path) -> pa.StringArray:
        """Return the values of a string slot for the proven strings; raise ArrowException if one is not valid UTF-8."""
        number = self._slots[path]
        lengths, found = self._ends[number] - self._starts[number], self._windows[number]
        if not self._good.all():
            lengths, found = lengths[self._good], found[self._good]
        inside = _inside(lengths, found.shape[1])
        data = found if inside is None else found[inside]
        offsets = np.zeros(len(lengths) + 1, np.int32)
        np.cumsum(lengths, out=offsets[1:])
        array = pa.StringArray.from_buffers(
            len(lengths), pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data).reshape(-1))
        )
        if (data >= _NOT_ASCII).any():
            array.validate(full=True)
        return array

    def numbers(self, path: _Path, *, whole: bool) -> pa.StringArray | pa.Int64Array | None:
        """Return the values of a number slot for the proven strings, as strings with leading zeros.

        If all have one digit, they are already integers. None if ``whole`` and some are not integers.
        """
        known = self._numbers[self._slots[path]]
        if whole and known.has_dots is not None and known.has_dots[self._good].any():
            return None
        digits = known.digits if self._good.all() else known.digits[self._good]
        if digits.ndim == 1:
            return pa.Array.from_buffers(pa.int64(), len(digits), [None, pa.py_buffer(digits.astype(np.int64))])
        offsets = np.arange(0, digits.size + 1, digits.shape[1], dtype=np.int32)
        return pa.StringArray.from_buffers(len(digits), pa.py_buffer(offsets), pa.py_buffer(digits.reshape(-1)))

    def _literals_match(self, positions: _Positions) -> _Flags:
        """Compare the literals between the values, and record the positions of the values."""
        good: _Flags = np.ones(len(self._rows), np.bool_)
        last = len(self._shape.literals) - 1
        column = 0
        for number, literal in enumerate(self._shape.literals):
            if number == 0:
                at = self._texts.starts[self._rows]
            elif number == last and DELIMITER not in literal:
                at = self._texts.ends[self._rows] - len(literal)
            else:
                at = positions[column] - literal.index(DELIMITER)
            column += literal.count(DELIMITER)
            good &= self._texts.match(at, literal)
            if number:
                self._ends.append(at)
            if number < last:
                self._starts.append(at + len(literal))
            else:
                good &= at + len(literal) == self._texts.ends[self._rows]
        return good

    def _check(self, number: int, slot: Slot) -> None:
        starts, ends = self._starts[number], self._ends[number]
        lengths = ends - starts
        if slot.is_text:
            self._good &= (lengths >= 0) & (lengths <= _LONGEST_TEXT)
            width = int(lengths[self._good].max(initial=0))
            found = self._windows[number] = self._texts.windows(starts, width)
            odd = (found == _QUOTE) | (found == _BACKSLASH) | (found < _BLANK)
            if odd.any():
                inside = _inside(lengths, width)
                self._good &= ~(odd if inside is None else odd & inside).any(axis=1)
            return
        if (lengths == 1).all():
            known = _Number.of_one_digit(self._texts, starts)
        else:
            self._good &= (lengths >= 1) & (lengths <= _LONGEST_NUMBER)
            known = _Number.read(self._texts, starts, ends, np.where(self._good, lengths, 1))
        self._good &= known.good
        self._numbers[number] = known


class _Texts(msgspec.Struct, frozen=True):
    """Concatenated strings, with padding at both ends for reads beyond them."""

    data: _Bytes
    starts: _Positions
    ends: _Positions

    @classmethod
    def of(cls, data: _Bytes, ends: _Positions, longest: int, scratch: Scratch) -> _Texts:
        room = longest + _LONGEST_TEXT + _WORD
        laid = scratch.room(0, len(data) + 2 * room)
        laid[:room] = laid[room + len(data) :] = 0
        laid[room : room + len(data)] = data
        return cls(laid, ends[:-1] + room, ends[1:] + room)

    def delimited(self, count: int, scratch: Scratch) -> tuple[_Positions, _Positions]:
        """Return the strings with this many delimiters, and their positions: a column for each string."""
        commas, quotes = (scratch.room(number, len(self.data) - 1).view(np.bool_) for number in (1, 2))
        np.equal(self.data[:-1], _COMMA, out=commas)
        np.equal(self.data[1:], _QUOTE, out=quotes)
        found = np.flatnonzero(np.logical_and(commas, quotes, out=commas))
        if len(found) == count * len(self.starts):
            places = found.reshape(-1, count)
            if not count or ((places[:, 0] >= self.starts).all() and (places[:, -1] < self.ends).all()):
                return np.arange(len(self.starts)), np.ascontiguousarray(places.T)
        first = np.searchsorted(found, self.starts)
        rows = np.flatnonzero(np.searchsorted(found, self.ends) - first == count)
        return rows, found[first[rows] + np.arange(count)[:, None]]

    def windows(self, starts: _Positions, width: int) -> _Bytes:
        """Return this many bytes from each position: a row for each."""
        if not width:
            return np.zeros((len(starts), 0), np.uint8)
        # Overlapping items: one begins at each byte.
        count, kind = len(self.data) - width + 1, np.dtype(f"V{width}")
        every: npt.NDArray[Any] = np.ndarray((count,), kind, buffer=self.data, strides=(1,))
        return every[starts].view(np.uint8).reshape(-1, width)

    def match(self, starts: _Positions, literal: bytes) -> _Flags:
        """Return which positions have these bytes."""
        # Whole words are compared, the last one masked to the literal.
        padded = literal.ljust(-(-len(literal) // _WORD) * _WORD, b"\0")
        expected = np.frombuffer(padded, np.uint64)
        found = self.windows(starts, len(padded)).view(np.uint64)
        used = np.frombuffer(b"\xff" * len(literal) + bytes(len(padded) - len(literal)), np.uint64)[-1]
        good: _Flags = (found[:, -1] & used) == expected[-1]
        for number, word in enumerate(expected[:-1]):
            good &= found[:, number] == word
        return good


class _Number(msgspec.Struct, frozen=True):
    """The values of a number slot: ``digits`` are characters, a row per string, or one-digit values."""

    digits: _Bytes
    good: _Flags
    has_dots: _Flags | None

    @classmethod
    def of_one_digit(cls, texts: _Texts, starts: _Positions) -> _Number:
        values = texts.data[starts] - np.uint8(_ZERO)
        return cls(values, values <= _NINE - _ZERO, None)

    @classmethod
    def read(cls, texts: _Texts, starts: _Positions, ends: _Positions, lengths: _Positions) -> _Number:
        first = texts.data[starts]
        negative = first == _MINUS
        if negative.any():
            lengths, leading = lengths - negative, texts.data[starts + negative]
            behind = texts.data[starts + negative + 1]
        else:
            leading, behind = first, texts.data[starts + 1]
        # One more column than digits, for the sign; padded to whole words, to count dots.
        width = -(-(int(lengths.max()) + 1) // _WORD) * _WORD
        found = texts.windows(ends - width, width)
        words = found.view(np.uint64)
        for number, inside in enumerate(_masks(width)):
            mask = inside[lengths]
            words[:, number] = (words[:, number] & mask) | (~mask & _ZEROS)
        digit = (found - np.uint8(_ZERO)) <= _NINE - _ZERO
        dots = found == _DOT
        fine = _all_of(digit | dots)
        # JSON allows no leading zeros and requires digits on both sides of a dot.
        fine &= (leading - np.uint8(_ZERO)) <= _NINE - _ZERO
        fine &= (leading != _ZERO) | (lengths == 1) | (behind == _DOT)
        fine &= digit[:, -1]
        has_dots: _Flags | None = None
        if dots.any():
            count = _count_of(dots)
            fine &= count <= 1
            has_dots = count > 0
        if not fine.all():
            found[~fine] = _ZERO
        if negative.any():
            # The decoder reads -0 as an integer, which has no sign.
            fine &= ~(negative & (lengths == 1) & (leading == _ZERO))
            found[negative, 0] = _MINUS
        return cls(found, fine, has_dots)


def _inside(lengths: _Positions, width: int) -> _Flags | None:
    """Return which bytes of windows of this width belong to values of these lengths; None if all do."""
    if (lengths == width).all():
        return None
    return np.arange(width, dtype=np.uint8) < lengths.astype(np.uint8)[:, None]


@cache
def _masks(width: int) -> list[npt.NDArray[np.uint64]]:
    """Return masks of the bytes that belong to right-aligned values: for each word, by the length of the value."""
    inside = np.arange(width)[::-1] < np.arange(width + 1)[:, None]
    words = (inside * np.uint8(0xFF)).astype(np.uint8).view(np.uint64)
    return [np.ascontiguousarray(words[:, number]) for number in range(words.shape[1])]


# Word by word: NumPy takes as long for rows of two or three as for long ones.


def _all_of(flags: _Flags) -> _Flags:
    """Return which rows are all true; rows are whole words."""
    words = flags.view(np.uint64)
    every: _Flags = words[:, 0] == _ONES
    for number in range(1, words.shape[1]):
        every &= words[:, number] == _ONES
    return every


def _count_of(flags: _Flags) -> npt.NDArray[np.uint64]:
    """Count the true values in each row; rows are whole words."""
    counts = (flags.view(np.uint64) * _ONES) >> np.uint64(56)
    total: npt.NDArray[np.uint64] = counts[:, 0]
    for number in range(1, counts.shape[1]):
        total = total + counts[:, number]
    return total


_Path = tuple[str, ...]
_TEXTS_AT_ONCE, _BYTES_AT_ONCE = 4096, 8 << 20
_LEAST_TEXTS = 256  # below this, the calls take longer than the decoder
_SHAPES, _LOOKED_AT = 3, 4


class _UnlikeError(Exception):
    """A column has values that only the decoder can read."""


def parse_similar(
    stats: pa.Array,
    columns: Sequence[Column],
    decoded: Callable[[pa.Array], Ranges],
    *,
    only_bounds: bool,
    most_slots: int,
) -> Ranges:
    """Return the ranges of ``columns``, using ``decoded`` for the strings that do not share a shape.

    Strings with more than ``most_slots`` values are left to the decoder.
    """
    if stats.null_count or len(stats) < _LEAST_TEXTS or stats.type != pa.string():
        return decoded(stats)
    at_once = min(_TEXTS_AT_ONCE, max(1, len(stats) * _BYTES_AT_ONCE // max(1, stats.nbytes)))
    if at_once < _LEAST_TEXTS:
        return decoded(stats)
    found: list[Ranges] = []
    places: list[npt.NDArray[np.int64]] = []
    unlike: list[npt.NDArray[np.int64]] = []
    scratch, shapes = Scratch(), list[Shape]()
    for start in range(0, len(stats), at_once):
        left = np.arange(start, min(start + at_once, len(stats)))
        for number in range(_SHAPES):
            # The strings that do not match may share another shape: a column of nulls has no bounds.
            shape = shapes[number] if number < len(shapes) else _shape(stats, left)
            if shape is None or len(shape.slots) > most_slots:
                break
            if number == len(shapes):
                shapes.append(shape)
            texts = SimilarStrings.of(_taken(stats, left), scratch, shape)
            ranges = _ranges_or_none(texts, columns, only_bounds=only_bounds)
            if ranges is not None:
                found.append(ranges)
                places.append(left[texts.proven])
                left = left[~texts.proven]
            if len(left) < _LEAST_TEXTS:
                break
        unlike.append(left)
        give_way()
    rest = np.concatenate(unlike)
    if len(rest):
        if not found:
            return decoded(stats)
        found.append(decoded(_taken(stats, rest)))
        places.append(rest)
    return _joined(found, np.concatenate(places))


def _taken(stats: pa.Array, rows: npt.NDArray[np.int64]) -> pa.Array:
    if len(rows) and rows[-1] - rows[0] + 1 == len(rows):
        return stats.slice(int(rows[0]), len(rows))
    return pc.take(stats, from_numpy(rows))


def _shape(stats: pa.Array, rows: npt.NDArray[np.int64]) -> Shape | None:
    """Return the shape of the first string or of another sample: an escape in one says nothing about the rest."""
    for row in rows[:: -(-len(rows) // _LOOKED_AT)]:
        shape = shape_of(stats[int(row)].as_buffer().to_pybytes())
        if shape is not None:
            return shape
    return None


def _ranges_or_none(texts: SimilarStrings, columns: Sequence[Column], *, only_bounds: bool) -> Ranges | None:
    """Return the ranges of the matching strings; None if there are none, or if the decoder has to read them."""
    count = int(texts.proven.sum())
    if not count:
        return None
    try:
        return _ranges(texts, count, columns, only_bounds=only_bounds)
    except (_UnlikeError, pa.ArrowException):
        return None


def _ranges(texts: SimilarStrings, count: int, columns: Sequence[Column], *, only_bounds: bool) -> Ranges:
    found: dict[_Path, ColumnRange] = {}
    for column in columns:
        path = column.physical_path
        if isinstance(column.type, Struct):
            continue
        low = high = nulls = None
        if has_range(column):
            low = _bounds(texts, count, ("minValues", *path), column)
            high = _bounds(texts, count, ("maxValues", *path), column)
        if not only_bounds:
            nulls = _integers(texts, count, ("nullCount", *path))
        if low is not None or nulls is not None:
            found[path] = ColumnRange(low, high, nulls)
    if only_bounds:
        return Ranges(count, columns=found)
    return Ranges(count, _integers(texts, count, ("numRecords",)), _flag(texts, count, ("tightBounds",)), found)


def _bounds(texts: SimilarStrings, count: int, path: _Path, column: Column) -> pa.Array:
    target = column.type.to_arrow()
    if pa.types.is_boolean(target):
        return _flag(texts, count, path)
    if pa.types.is_integer(target):
        return _narrowed(_integers(texts, count, path), target)
    if isinstance(column.type, Decimal):
        digits = _digits(texts, path, whole=False)
        if digits is None:
            return pa.nulls(count, target)
        return pc.cast(digits, target) if pa.types.is_integer(digits.type) else cast_decimals(digits, target)
    if pa.types.is_floating(target):
        digits = _digits(texts, path, whole=False)
        return pa.nulls(count, target) if digits is None else narrowed_floats(_doubles(digits), target)
    if not _has(texts, path, text=True):
        return pa.nulls(count, target)
    return from_text(texts.texts(path), column.type)


def _doubles(digits: pa.Array) -> pa.Array:
    doubles = pc.cast(digits, pa.float64())
    if not pc.all(pc.is_finite(doubles)).as_py():
        raise _UnlikeError
    return doubles


def _integers(texts: SimilarStrings, count: int, path: _Path) -> pa.Array:
    digits = _digits(texts, path, whole=True)
    return pa.nulls(count, pa.int64()) if digits is None else pc.cast(digits, pa.int64())


def _narrowed(values: pa.Array, target: pa.DataType) -> pa.Array:
    if target == pa.int64():
        return values
    limit = 2 ** (target.bit_width - 1)
    low, high = typed_array([-limit, limit - 1], pa.int64())
    fits = pc.and_(pc.greater_equal(values, low), pc.less_equal(values, high))
    if fits.null_count == 0 and fits.true_count == len(fits):
        return pc.cast(values, target)
    return pc.cast(pc.if_else(fits, values, typed_scalar(None, pa.int64())), target)


def _digits(texts: SimilarStrings, path: _Path, *, whole: bool) -> pa.Array | None:
    """Return the numbers of a slot, None if the strings have none; anything else is left to the decoder."""
    if not _has(texts, path, text=False):
        return None
    digits = texts.numbers(path, whole=whole)
    if digits is None:
        raise _UnlikeError
    return digits


def _flag(texts: SimilarStrings, count: int, path: _Path) -> pa.BooleanArray:
    value = texts.constant(path)
    if value is None:
        if texts.has(path, text=False) is not False:
            raise _UnlikeError
        return pa.nulls(count, pa.bool_())
    return typed_array([value] * count, pa.bool_())


def _has(texts: SimilarStrings, path: _Path, *, text: bool) -> bool:
    has = texts.has(path, text=text)
    if has is None:
        raise _UnlikeError
    return has


def _joined(found: Sequence[Ranges], places: npt.NDArray[np.int64]) -> Ranges:
    """Merge ranges whose rows belong at these positions."""
    in_order = bool((np.diff(places) > 0).all())
    order = None if in_order else from_numpy(np.argsort(places, kind="stable"))

    def join(arrays: Sequence[pa.Array | None]) -> pa.Array | None:
        known = [array for array in arrays if array is not None]
        if len(known) != len(arrays):
            return None
        whole = pa.concat_arrays(known) if len(known) > 1 else known[0]
        return whole if order is None else pc.take(whole, order)

    columns = {
        path: ColumnRange(
            join([each.columns[path].min for each in found]),
            join([each.columns[path].max for each in found]),
            join([each.columns[path].null_count for each in found]),
        )
        for path in found[0].columns
    }
    return Ranges(
        len(places),
        join([each.num_records for each in found]),
        join([each.tight_bounds for each in found]),
        columns,
    )
