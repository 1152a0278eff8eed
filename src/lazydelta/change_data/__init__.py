"""Change data: which rows each version inserted, updated and deleted."""

from __future__ import annotations

from lazydelta.change_data.change_reader import ChangeReader
from lazydelta.change_data.changed_files import check_enabled
from lazydelta.change_data.version_range import VersionRange

__all__ = ["ChangeReader", "VersionRange", "check_enabled"]
