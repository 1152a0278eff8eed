"""Whether a version is what its checksum says."""

from __future__ import annotations

from lazydelta.errors import ChecksumMismatchError
from lazydelta.log.checksum.version_checksum import VersionChecksum
from lazydelta.log.names import LogFile

__all__ = ["compare_totals"]


def compare_totals(
    checksum: VersionChecksum, file: LogFile, *, num_files: int, size: int
) -> ChecksumMismatchError | None:
    """Compare a complete scan with the checksum; return the error to raise or to log where they disagree."""
    if (checksum.num_files, checksum.table_size_bytes) == (num_files, size):
        return None
    message = (
        f"{file.path} counts {checksum.num_files} files of {checksum.table_size_bytes} bytes, "
        f"the log gives {num_files} files of {size} bytes"
    )
    return ChecksumMismatchError(
        message,
        path=file.path,
        version=file.version,
        hint="the log or its checksum was damaged; set the option checksum='off' to read on regardless",
    )
