"""Build Arrow values from Python values without pandas.

If pandas is installed, the first ``pa.scalar`` or ``pa.array`` of a process imports it: a second and 48 MB in the
middle of a scan. Building from buffers does not. Values have the form that Arrow stores: days for dates, microseconds
for timestamps, the unscaled integer for decimals.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    import numpy.typing as npt  # builds its docstrings on import

__all__ = [
    "Stored",
    "bitmap",
    "boolean_array",
    "flags",
    "from_numpy",
    "int64_array",
    "nested",
    "numpy_of",
    "one_array",
    "string_array",
    "typed_array",
    "typed_scalar",
]

Stored: TypeAlias = int | float | bool | str | bytes
"""A value as Arrow stores it. The Arrow type determines which of these it is."""

_TYPECODES = {1: "b", 2: "h", 4: "i", 8: "q"}
_DECIMAL_BYTES = 16
_MOST_TEXT = 2**31 - 1


def typed_scalar(value: Stored | None, kind: pa.DataType) -> pa.Scalar:
    """Return ``value`` as a scalar of ``kind``."""
    return typed_array([value], kind)[0]


def typed_array(values: Sequence[Stored | None], kind: pa.DataType) -> pa.Array:
    """Return ``values`` as an array of ``kind``; None is null.

    Raises OverflowError if an integer does not fit, and TypeError if a value has the wrong Python type.
    """
    if _is_text(kind):
        with suppress(TypeError):  # A None among them. Most lists have none, so this avoids searching them.
            return _variable(values, kind, None)
    validity = None
    if None in values:
        if values.count(None) == len(values):
            return pa.nulls(len(values), kind)
        validity = bitmap([value is not None for value in values])
    if pa.types.is_boolean(kind):
        return pa.Array.from_buffers(kind, len(values), [validity, bitmap([bool(value) for value in values])])
    if _is_text(kind):
        return _variable(values, kind, validity)
    if pa.types.is_decimal128(kind):
        packed = b"".join(_integer(value).to_bytes(_DECIMAL_BYTES, "little", signed=True) for value in values)
        return pa.Array.from_buffers(kind, len(values), [validity, pa.py_buffer(packed)])
    if pa.types.is_floating(kind):
        code = "f" if kind.bit_width == 32 else "d"  # noqa: PLR2004 - the width of float32
    else:
        code = _TYPECODES[kind.bit_width // 8]
    plain: Any = values if validity is None else [0 if value is None else value for value in values]
    data: array[Any] = array(code, plain)
    return pa.Array.from_buffers(kind, len(values), [validity, pa.py_buffer(data)])


def bitmap(flags: Sequence[bool] | npt.NDArray[np.bool_]) -> pa.Buffer:
    """Pack flags into the bits that Arrow uses for booleans and for validity."""
    return pa.py_buffer(np.packbits(np.frombuffer(bytes(flags), np.uint8), bitorder="little"))


def string_array(values: Sequence[str | None]) -> pa.StringArray:
    """Return strings as an array; None is null."""
    return typed_array(values, pa.string())


def int64_array(values: Sequence[int | None]) -> pa.Int64Array:
    """Return integers as an array; None is null."""
    return typed_array(values, pa.int64())


def from_numpy(values: npt.NDArray[np.generic], kind: pa.DataType | None = None) -> pa.Array:
    """Wrap NumPy numbers as an int64 array, or as another type of the same width, without nulls."""
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(kind or pa.int64(), len(values), [None, data])


def boolean_array(values: npt.NDArray[np.bool_]) -> pa.BooleanArray:
    """Wrap a mask as a boolean array."""
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, pa.py_buffer(np.packbits(values, bitorder="little"))])


def numpy_of(values: pa.Array) -> npt.NDArray[np.int64]:
    """Return a NumPy view of an int64 array without nulls."""
    return np.frombuffer(values.buffers()[1], np.int64, len(values), values.offset * 8)


def flags(values: pa.BooleanArray) -> npt.NDArray[np.bool_]:
    """Return a boolean array without nulls as a mask."""
    bits = np.frombuffer(values.buffers()[1], np.uint8)
    return np.unpackbits(bits, bitorder="little")[values.offset : values.offset + len(values)].astype(np.bool_)


def one_array(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return a column as one array, copying only if it has several chunks."""
    if not isinstance(values, pa.ChunkedArray):
        return values
    return values.chunk(0) if values.num_chunks == 1 else values.combine_chunks()


def nested(leaves: Sequence[tuple[tuple[str, ...], pa.Array]], mask: pa.Array | None = None) -> pa.StructArray:
    """Nest arrays by their paths, without copying."""
    groups: dict[str, list[tuple[tuple[str, ...], pa.Array]]] = {}
    for path, values in leaves:
        groups.setdefault(path[0], []).append((path[1:], values))
    children = [nested(below) if below[0][0] else below[0][1] for below in groups.values()]
    return pa.StructArray.from_arrays(children, names=list(groups), mask=mask)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _variable(values: Sequence[Stored | None], kind: pa.DataType, validity: pa.Buffer | None) -> pa.Array:
    parts: Any = values if validity is None else [value or "" for value in values]
    if pa.types.is_string(kind) and (joined := "".join(parts)).isascii():
        data = joined.encode()  # All at once: pure ASCII, so every string has as many bytes as characters.
    else:
        # Strings that JSON let through are stored as they came, unpaired surrogates included.
        parts = [value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value for value in parts]
        data = b"".join(parts)
    if len(data) > _MOST_TEXT:
        message = f"{len(data)} bytes of text exceed the capacity of an array"
        raise OverflowError(message)
    if len(parts) == 1:
        return pa.Array.from_buffers(kind, 1, [validity, pa.py_buffer(array("i", (0, len(data)))), pa.py_buffer(data)])
    offsets = np.zeros(len(parts) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, parts), np.int32, len(parts)), out=offsets[1:])
    return pa.Array.from_buffers(kind, len(values), [validity, pa.py_buffer(offsets), pa.py_buffer(data)])


def _integer(value: Stored | None) -> int:
    if value is None:
        return 0
    if not isinstance(value, int):
        message = f"an unscaled integer is needed, not {type(value).__name__}"
        raise TypeError(message)
    return value
