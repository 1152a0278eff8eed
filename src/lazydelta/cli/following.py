"""``files --follow``: the changes of a table's files, printed as the versions come."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from lazydelta.cli.values import records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lazydelta.cli.values import Record
    from lazydelta.delta_table import DeltaTable

__all__ = ["followed"]


def followed(
    table: DeltaTable,
    since: int | None,
    *,
    interval: float,
    limit: int | None = None,
    wait: Callable[[float], None] = time.sleep,
) -> Iterator[Iterator[Record]]:
    """Yield the changes after ``since``, or after the version that the table is at, and go on with later versions.

    A version is printed whole before the log is looked at again, every ``interval`` seconds; it ends at ``limit``
    changes, or never.
    """
    last = table.version() if since is None else since
    left = limit
    while left is None or left > 0:
        for batch in table.changes(last):
            found = batch if left is None else batch.slice(0, left)
            yield records(found)
            if left is not None and (left := left - found.num_rows) == 0:
                return
        last = table.version()
        wait(interval)
        table.update_incremental()
