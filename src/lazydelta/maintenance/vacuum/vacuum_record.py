"""The record of a VACUUM in the log: a commit before it and one after it, as Delta-Spark and deltalake write them.

They change nothing about the table. They tell whoever finds a file missing when and by whom it was deleted, and the
first of them proves that the log can be written to before anything is gone.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from lazydelta.errors import CommitConflictError, UnsupportedFeatureError
from lazydelta.handle import TableHandle
from lazydelta.log.features.writable import check_writable
from lazydelta.log.snapshot import Snapshot
from lazydelta.maintenance.vacuum.vacuum_rules import Retention
from lazydelta.write.commit_note import CommitNote
from lazydelta.write.transaction import CommitResult, Transaction

__all__ = ["VacuumRecord"]

_log = logging.getLogger(__name__)
_ATTEMPTS = 5
_MILLISECOND = timedelta(milliseconds=1)


class VacuumRecord:
    """Writes the two commits; on tables with features that we do not write there are none."""

    def __init__(self, handle: TableHandle, snapshot: Snapshot, note: CommitNote) -> None:
        self._handle = handle
        self._note = note
        self.last: CommitResult | None = None
        try:
            check_writable(snapshot.protocol, snapshot.metadata, path=handle.uri)
        except UnsupportedFeatureError as error:
            self._writes = False
            _log.info("The VACUUM of %s is not recorded in its log: %s", handle.uri, error)
        else:
            self._writes = True

    def begin(self, retention: Retention, *, enforced: bool, files: int, size: int) -> None:
        """Say what is going to be deleted."""
        parameters: dict[str, Any] = {"retentionCheckEnabled": enforced}
        if retention.asked is not None:
            parameters["specifiedRetentionMillis"] = retention.duration // _MILLISECOND
        parameters["defaultRetentionMillis"] = retention.promised // _MILLISECOND
        self._commit("VACUUM START", parameters, {"numFilesToDelete": files, "sizeOfDataToDelete": size})

    def end(self, *, deleted: int, folders: int, complete: bool) -> None:
        """Say what was deleted."""
        parameters = {"status": "COMPLETED" if complete else "FAILED"}
        self._commit("VACUUM END", parameters, {"numDeletedFiles": deleted, "numVacuumedDirectories": folders})

    def _commit(self, operation: str, parameters: Mapping[str, Any], metrics: Mapping[str, int]) -> None:
        if not self._writes:
            return
        for remaining in reversed(range(_ATTEMPTS)):
            with Transaction.begin(self._handle, operation=operation, parameters=parameters) as transaction:
                transaction.note = self._note
                transaction.metrics = {key: str(value) for key, value in metrics.items()}
                try:
                    self.last = transaction.commit()
                except CommitConflictError:
                    # Other metadata came in between, to which a record is as welcome as to those before.
                    if not remaining:
                        raise
                else:
                    return
