"""Statistics of files that were listed without them, read when somebody asks after all.

One way for all that files are read from: whoever lists files without statistics says how to read the statistics of
just these rows, and nothing else of the files can change by it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pyarrow as pa

from lazydelta.log.file_batch import FileBatch

__all__ = ["StatsColumns", "with_later_stats"]

StatsColumns = Mapping[str, pa.Array | None]
"""``json_stats`` and ``parsed_stats``, as far as there are any."""


def with_later_stats(files: FileBatch, read: Callable[[], StatsColumns]) -> FileBatch:
    """Return the files with a way to their statistics; ``read`` returns these for the same rows in the same order."""

    def load() -> FileBatch:
        columns: dict[str, Any] = dict(read())
        return msgspec.structs.replace(files, **columns, load_stats=None)

    return msgspec.structs.replace(files, load_stats=load)
