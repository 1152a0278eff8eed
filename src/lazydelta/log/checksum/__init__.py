"""The version checksum ``N.crc``: what it says, how it is read, added up, written and checked."""

from __future__ import annotations

from lazydelta.log.checksum.version_checksum import VersionChecksum, read_checksum

__all__ = ["VersionChecksum", "read_checksum"]
