"""What a job left that failed for good before its table was there: data files of ours in a folder without a log.

Nothing tells a table's folder from any other then. So nothing goes but files with the names that our writers give, in
the folder or in partition folders, and temporary files of ours; and nothing at all where there is a log.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from lazydelta.errors import OptionError
from lazydelta.handle import TableHandle
from lazydelta.log.names import LOG
from lazydelta.log.properties import TableProperties
from lazydelta.log.travel import milliseconds
from lazydelta.maintenance.vacuum.vacuuming import VacuumResult
from lazydelta.storage import TEMPORARY, Store
from lazydelta.write.uploads import delete_paths

__all__ = ["vacuum_without_log"]

_UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_OURS = re.compile(
    rf"(?:[^/]+=[^/]*/)*(?:part-\d{{5,}}-{_UUID}\.c000(?:\.[a-z]+)?\.parquet|{re.escape(TEMPORARY)}[^/]*)"
)


def vacuum_without_log(
    handle: TableHandle,
    *,
    retention: timedelta | None = None,
    dry_run: bool = True,
    enforce_retention: bool = True,
    now: datetime | None = None,
) -> VacuumResult:
    """Delete data files of ours that are older than the retention (7 days) from a folder that is no table."""
    promised = TableProperties().deleted_file_retention
    duration = promised if retention is None else retention
    if duration < timedelta() or (enforce_retention and duration < promised):
        message = f"A retention of {duration} is shorter than {promised}: a job may still be about to commit"
        raise OptionError(message, hint="ask for more, or switch the check off: enforce_retention")
    store = handle.store
    cutoff = milliseconds((now or datetime.now(UTC)) - duration)
    result = VacuumResult(-1, dry_run, duration / timedelta(hours=1), cutoff)
    _refuse_log(store)
    for info in store.walk(lambda path: path.rpartition("/")[2] == LOG):
        result.listed += 1
        if info.last_modified < cutoff and _OURS.fullmatch(info.path):
            result.paths.append(info.path)
            result.size_bytes += info.size
    if not dry_run:
        _refuse_log(store)  # whoever created the table meanwhile may have named these files
        delete_paths(store, result.paths)
    return result


def _refuse_log(store: Store) -> None:
    if next(iter(store.list(LOG)), None) is not None:
        message = f"There is a log at {store.uri}, which says what may go"
        raise OptionError(message, path=store.uri, hint="vacuum the table instead")
