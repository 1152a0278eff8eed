"""A column of JSON objects as one buffer that a decoder can go through from document to document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from lazydelta import compute as pc
from lazydelta.arrays import typed_array

if TYPE_CHECKING:
    import numpy.typing as npt  # its docstrings are made at import

__all__ = ["end_to_end"]

_OPENS, _CLOSES, _QUOTES = b"{"[0], b"}"[0], b'"'[0]
_FIRST_LETTER, _LAST_LETTER, _LOWER = b"a"[0], b"z"[0], 0x20
_SHORTEST = len('{"a"}')


def end_to_end(texts: pa.Array) -> tuple[memoryview, npt.NDArray[Any]] | None:
    """Return all texts in one buffer and where each begins, null as ``{}``; None if one is not made like an object.

    If some texts in a row decode into as many objects, then each of them is one object: none can run over into the
    text that follows.
    """
    if texts.null_count == 0 and len(texts):
        values, offsets = _parts(texts)
        if _cannot_run_over(values, offsets):
            return values, offsets
    empty, newline, nothing = pc.cast(typed_array(["{}", "\n", ""], pa.string()), pa.large_string())
    filled = pc.fill_null(pc.cast(texts, pa.large_string()), empty)  # 64-bit offsets: it may become more than 2 GB
    if not (pc.all(pc.starts_with(filled, "{")).as_py() and pc.all(pc.ends_with(filled, "}")).as_py()):
        return None
    # An object that does not end with its text is inside a string there, and no string in JSON holds a newline.
    return _parts(pc.binary_join_element_wise(filled, nothing, newline))


def _parts(texts: pa.Array) -> tuple[memoryview, npt.NDArray[Any]]:
    kind = np.dtype(np.int64 if pa.types.is_large_string(texts.type) else np.int32)
    _, offsets, values = texts.buffers()
    found = np.frombuffer(offsets, kind, len(texts) + 1, texts.offset * kind.itemsize)
    return memoryview(b"" if values is None else values), found


def _cannot_run_over(values: memoryview, offsets: npt.NDArray[Any]) -> bool:
    """Tell whether texts that follow one another without a newline are told apart all the same.

    They are if each begins with ``{"`` and a letter. An object that does not end with its text is inside a string
    there; the next text would end that string with its quotation mark, and no letter may follow it.
    """
    starts, ends = offsets[:-1], offsets[1:]
    if (ends - starts).min() < _SHORTEST:
        return False
    byte_at = np.frombuffer(values, np.uint8).take
    letters = byte_at(starts + 2) | _LOWER
    return bool(
        (byte_at(starts) == _OPENS).all()
        and (byte_at(starts + 1) == _QUOTES).all()
        and ((letters >= _FIRST_LETTER) & (letters <= _LAST_LETTER)).all()
        and (byte_at(ends - 1) == _CLOSES).all()
    )
