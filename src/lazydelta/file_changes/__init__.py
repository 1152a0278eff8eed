"""Which files each version added and removed, in the order of the log."""

from __future__ import annotations

from lazydelta.file_changes.change_stream import ChangeStream
from lazydelta.file_changes.changes_schema import CHANGES_SCHEMA
from lazydelta.file_changes.commit_sequence import commits_in_order, earliest_commit

__all__ = ["CHANGES_SCHEMA", "ChangeStream", "commits_in_order", "earliest_commit"]
