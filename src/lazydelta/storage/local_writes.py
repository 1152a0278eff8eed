"""Files that become visible whole: written under another name, on the disk before their own one where it matters."""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from typing import TYPE_CHECKING, TypeAlias

from lazydelta.storage.local_reads import READ_FLAGS
from lazydelta.storage.temporary import TEMPORARY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["Publish", "durably", "write_file"]

Publish: TypeAlias = "Callable[[str, str], None]"
"""Gives a file that is written its name: ``os.replace``, or ``os.link`` where nothing may have that name."""


def write_file(file: str, chunks: Iterable[bytes], publish: Publish) -> int:
    """Write a file under a temporary name in its folder, publish it, and return its size; a failure leaves nothing."""
    folder, name = os.path.split(file)
    temporary = os.path.join(folder, f"{TEMPORARY}{uuid.uuid4().hex}-{name[:100]}")  # noqa: PTH118
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        fd = os.open(temporary, flags, 0o666)
    except FileNotFoundError:
        os.makedirs(folder, exist_ok=True)  # noqa: PTH103
        fd = os.open(temporary, flags, 0o666)
    size = 0
    try:
        with os.fdopen(fd, "wb", buffering=0) as target:
            for chunk in chunks:
                view = memoryview(chunk)
                size += view.nbytes
                while view.nbytes:
                    view = view[target.write(view) :]
        publish(temporary, file)
    finally:
        # Still there after a hard link and after any failure; gone after a rename.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)  # noqa: PTH108
    return size


def _flush(path: str) -> None:
    """Wait until a file or folder is on the disk, where the file system can promise that at all."""
    fd = os.open(path, READ_FLAGS)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):
            raise
    finally:
        os.close(fd)


def durably(file: str, publish: Publish) -> Publish:
    """Return ``publish`` such that what it made survives the loss of power, content before name.

    Commits and the data files that they name are written this way: an acknowledged commit must not lose its content.
    """
    # A folder that does not exist yet will be an entry of its parent, which has to survive as well.
    folders = [os.path.dirname(file)]  # noqa: PTH120
    while not os.path.exists(folders[-1]):  # noqa: PTH110
        folders.append(os.path.dirname(folders[-1]))  # noqa: PTH120

    def publish_durably(temporary: str, name: str) -> None:
        _flush(temporary)
        publish(temporary, name)
        for folder in folders:
            _flush(folder)

    return publish_durably
