"""Many texts of statistics read at once, where one writer made them alike: column by column, without an object a text.

A decoder goes through each text on its own and makes a Python object of every value. Texts of one shape (see
``text_shape``) have their values between the same literals, so that NumPy can compare the literals of thousands of
texts, and then take the values of a column from all of them. Whatever is not proven to be of the shape, down to the
last byte, is left to the decoder: here nothing is guessed.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lazydelta.stats.text_shape import DELIMITER, Shape, Slot

__all__ = ["AlikeTexts", "Scratch"]

_Path = tuple[str, ...]
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
    """Memory that is used again for the next texts: new pages would have to be cleared by the system each time."""

    def __init__(self) -> None:
        self._rooms: dict[int, _Bytes] = {}

    def room(self, number: int, size: int) -> _Bytes:
        """Return so many bytes, with whatever is in them."""
        if number not in self._rooms or len(self._rooms[number]) < size:
            self._rooms[number] = np.empty(size, np.uint8)
        return self._rooms[number][:size]


class AlikeTexts:
    """Texts that were looked at for one shape; ``proven`` says which of them have it. None of them need have it."""

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
        if not good.all():  # What is not of the shape so far has no places to look at.
            self._rows = rows[good]
            self._starts = [starts[good] for starts in self._starts]
            self._ends = [ends[good] for ends in self._ends]
        self._good: _Flags = np.ones(len(self._rows), np.bool_)
        for number, slot in enumerate(shape.slots):
            self._check(number, slot)
        self.proven[self._rows[self._good]] = True

    @classmethod
    def of(cls, texts: pa.StringArray, scratch: Scratch, shape: Shape) -> AlikeTexts:
        """Read texts, of which none is null, as far as they have this shape.

        What was read with the same ``scratch`` before must not be looked at any more.
        """
        _, offsets, values = texts.buffers()
        ends = np.frombuffer(offsets, np.int32, len(texts) + 1, texts.offset * 4).astype(np.int64)
        data = np.frombuffer(values, np.uint8)[ends[0] : ends[-1]]
        ends -= ends[0]
        laid = _Texts.of(data, ends, max(map(len, shape.literals)), scratch)
        rows, positions = laid.delimited(shape.delimiters, scratch)
        return cls(laid, shape, positions, rows, len(texts))

    def has(self, path: _Path, *, text: bool) -> bool | None:
        """Tell whether these texts have such a value; None if they have something else, or nothing, in its place."""
        number = self._slots.get(path)
        if number is not None:
            return True if self._shape.slots[number].is_text == text else None
        return False if self.constant(path) is None and not self._is_held(path) else None

    def constant(self, path: _Path) -> bool | None:
        """Return the value that is the same in all, None for null and for what they do not have."""
        return self._shape.constants.get(path)

    def _is_held(self, path: _Path) -> bool:
        """Tell whether the path leads to an object, or through something that is no object: no value can be there."""
        if path in self._shape.objects:
            return True
        parents = [path[:depth] for depth in range(1, len(path))]
        return any(each in self._slots or self.constant(each) is not None for each in parents)

    def texts(self, path: _Path) -> pa.StringArray:
        """Return the values of a slot of texts, of the texts that are proven; ArrowException if one is no text."""
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
        """Return the values of a slot of numbers, of the texts that are proven, as texts with zeros before them.

        Where all have one digit they are numbers already. None if ``whole`` ones are asked for and some are not.
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
        """Compare what stands between the values, and note where these are."""
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
    """Texts end to end, with room before and behind them to look at more bytes than they have."""

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
        """Return which texts have so many delimiters, and where these are: a column for each of the texts."""
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
        """Return so many bytes from each place on: a row for each."""
        if not width:
            return np.zeros((len(starts), 0), np.uint8)
        # Items that overlap: one begins at each byte.
        count, kind = len(self.data) - width + 1, np.dtype(f"V{width}")
        every: npt.NDArray[Any] = np.ndarray((count,), kind, buffer=self.data, strides=(1,))
        return every[starts].view(np.uint8).reshape(-1, width)

    def match(self, starts: _Positions, literal: bytes) -> _Flags:
        """Tell which places have these bytes."""
        # Whole words are compared, the last one as far as the literal goes.
        padded = literal.ljust(-(-len(literal) // _WORD) * _WORD, b"\0")
        expected = np.frombuffer(padded, np.uint64)
        found = self.windows(starts, len(padded)).view(np.uint64)
        used = np.frombuffer(b"\xff" * len(literal) + bytes(len(padded) - len(literal)), np.uint64)[-1]
        good: _Flags = (found[:, -1] & used) == expected[-1]
        for number, word in enumerate(expected[:-1]):
            good &= found[:, number] == word
        return good


class _Number(msgspec.Struct, frozen=True):
    """What one slot of numbers has: ``digits`` are characters, a row for each text, or values of one digit each."""

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
        # One column more than there are digits, for the sign; whole words of them, to count dots by.
        width = -(-(int(lengths.max()) + 1) // _WORD) * _WORD
        found = texts.windows(ends - width, width)
        words = found.view(np.uint64)
        for number, inside in enumerate(_masks(width)):
            mask = inside[lengths]
            words[:, number] = (words[:, number] & mask) | (~mask & _ZEROS)
        digit = (found - np.uint8(_ZERO)) <= _NINE - _ZERO
        dots = found == _DOT
        fine = _all_of(digit | dots)
        # JSON has no zeros before a number, and digits on both sides of a dot.
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
            # The decoder takes -0 for an integer, which has no sign.
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
    """Return which bytes of windows belong to values at their end: for each word, by the length of the value."""
    inside = np.arange(width)[::-1] < np.arange(width + 1)[:, None]
    words = (inside * np.uint8(0xFF)).astype(np.uint8).view(np.uint64)
    return [np.ascontiguousarray(words[:, number]) for number in range(words.shape[1])]


# Word by word: NumPy goes through rows of two or three as slowly as through long ones.


def _all_of(flags: _Flags) -> _Flags:
    """Tell which rows have nothing but true; rows are whole words."""
    words = flags.view(np.uint64)
    every: _Flags = words[:, 0] == _ONES
    for number in range(1, words.shape[1]):
        every &= words[:, number] == _ONES
    return every


def _count_of(flags: _Flags) -> npt.NDArray[np.uint64]:
    """Count what is true in each row; rows are whole words."""
    counts = (flags.view(np.uint64) * _ONES) >> np.uint64(56)
    total: npt.NDArray[np.uint64] = counts[:, 0]
    for number in range(1, counts.shape[1]):
        total = total + counts[:, number]
    return total
