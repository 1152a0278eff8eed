"""Arrow arrays from NumPy buffers, for the reason given in ``file_batch``: no conversion that imports pandas."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["boolean_array", "flags", "numpy_of"]


def boolean_array(values: npt.NDArray[np.bool_]) -> pa.BooleanArray:
    """Wrap a mask."""
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, pa.py_buffer(np.packbits(values, bitorder="little"))])


def numpy_of(values: pa.Array) -> npt.NDArray[np.int64]:
    """View an int64 array without nulls."""
    return np.frombuffer(values.buffers()[1], np.int64, len(values), values.offset * 8)


def flags(values: pa.BooleanArray) -> npt.NDArray[np.bool_]:
    """Return a boolean array without nulls as a mask."""
    bits = np.frombuffer(values.buffers()[1], np.uint8)
    return np.unpackbits(bits, bitorder="little")[values.offset : values.offset + len(values)].astype(np.bool_)
