"""Partition values: the log writes them as text, the table has them typed."""

from __future__ import annotations

import pyarrow as pa

from lazydelta.arrays import typed_scalar
from lazydelta.errors import CorruptLogError
from lazydelta.types.schema import DataType
from lazydelta.types.text import stored_value

__all__ = ["partition_value"]


def partition_value(text: str | None, data_type: DataType, *, column: str, path: str) -> pa.Scalar:
    """Return the typed value of ``text``, which the log has for partition column ``column`` of file ``path``.

    Absent and empty text are null for every type, as the protocol says. Timestamps without a zone are taken as UTC.
    """
    arrow = data_type.to_arrow()
    if not text:
        return pa.nulls(1, arrow)[0]
    value = stored_value(text, data_type, approximate=True)
    if value is None:
        message = f"The partition value {text[:200]!r} of column {column!r} of file {path} is not a {data_type}"
        raise CorruptLogError(message, path=path, hint="the log names a value that its schema does not allow")
    return typed_scalar(value, arrow)
