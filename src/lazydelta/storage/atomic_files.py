"""Local files that become visible as a whole: written under a temporary name, flushed if durable, then renamed.

All operations are relative to an open folder, reached from the table root one name at a time and never through a
symbolic link. A folder replaced by a link, even between a listing and a delete, causes an error and never leads out
of the table. The root itself may be a link, because the user named it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import os
import stat
import sys
import time
import uuid
from typing import TYPE_CHECKING, TypeAlias

from lazydelta.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


__all__ = [
    "READ_FLAGS",
    "TEMPORARY",
    "flush",
    "opened_folder",
    "publish_absent",
    "publish_over",
    "readable",
    "temporaries",
    "write_file",
]

# A FIFO or device in place of a file must not block the reader: it is opened without waiting, then rejected.
READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


# Temporary files of local writers: hidden from listings, and removed a day after their last write.


TEMPORARY = ".lazydelta-"
"""Name prefix of files that are being written; see ``FileStore``."""

# No live writer leaves its temporary file untouched for this long, whatever it is waiting for.
_STALE_SECONDS = 24 * 3600
_MAX_REMEMBERED = 10_000
_tidied: set[str] = set()


def temporaries(folder: str | int, most: int | None = None) -> list[tuple[str, os.stat_result]]:
    """Return the temporary files in a folder (a path or a descriptor), looking at no more than ``most`` entries."""
    found = []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in itertools.islice(entries, most):
            if entry.name.startswith(TEMPORARY):
                # Already removed: its writer is still running.
                with contextlib.suppress(FileNotFoundError):
                    info = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(info.st_mode):
                        found.append((entry.name, info))
    return found


def tidy(folder: str, fd: int) -> None:
    """Remove orphaned temporary files of killed writers, once for each folder that this process writes to.

    ``fd`` is the folder, open for reading.
    """
    if folder in _tidied:
        return
    if len(_tidied) >= _MAX_REMEMBERED:
        _tidied.clear()
    _tidied.add(folder)
    stale = time.time() - _STALE_SECONDS
    # The object itself has been written. Tidying may fail, and another writer tries again.
    with contextlib.suppress(OSError):
        for name, info in temporaries(fd, _MAX_REMEMBERED):
            if info.st_mtime < stale:
                os.unlink(name, dir_fd=fd)


Publish: TypeAlias = "Callable[[str, str, int], None]"
"""Gives a written file its final name in an open folder: ``publish_over`` or ``publish_absent``."""

# Search permission on a folder is enough; it need not be readable.
_ENTER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ROOT = _ENTER & ~os.O_NOFOLLOW
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# Errors of file systems without hard links: FUSE, exFAT, some network mounts.
_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
_NO_RENAME = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
# Linux's renameat2 and macOS's renameatx_np, each with the flag that refuses to replace an existing file.
_RENAME = {"linux": ("renameat2", 1), "darwin": ("renameatx_np", 4)}.get(sys.platform)


@contextlib.contextmanager
def opened_folder(root: str, folder: str, *, make: bool = False) -> Iterator[int]:
    """Open a folder below ``root``, and close it at the end. With ``make``, create it if it does not exist."""
    if make and not os.path.isdir(root):  # noqa: PTH112
        _make_root(root)
    fd = os.open(root, _ROOT)
    try:
        for name in (each for each in folder.split("/") if each not in {"", "."}):
            # Swapped before it is closed: an interrupt between these lines must not close a number twice, because
            # another thread may have got it for its own file.
            fd, outer = _entered(fd, name, f"{root}/{folder}", make=make), fd
            os.close(outer)
        yield fd
    finally:
        os.close(fd)


def _entered(fd: int, name: str, place: str, *, make: bool) -> int:
    try:
        return os.open(name, _ENTER, dir_fd=fd)
    except FileNotFoundError:
        if not make:
            raise
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP) and _is_link(fd, name):
            message = f"{name!r} in {place} is a symbolic link, and nothing is written or deleted through it"
            raise StorageError(message, path=place, hint="mount the folder there instead of using a link") from None
        raise
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, dir_fd=fd)
        flush(".", fd)
    return _entered(fd, name, place, make=False)


def _is_link(fd: int, name: str) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return stat.S_ISLNK(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode)
    return False


def _make_root(root: str) -> None:
    # A new folder becomes an entry of its parent, which has to survive a crash as well.
    above = [os.path.dirname(root)]  # noqa: PTH120
    while not os.path.exists(above[-1]):  # noqa: PTH110
        above.append(os.path.dirname(above[-1]))  # noqa: PTH120
    os.makedirs(root, exist_ok=True)  # noqa: PTH103
    for folder in above:
        flush(folder)


@contextlib.contextmanager
def readable(fd: int) -> Iterator[int]:
    """Reopen an open folder for operations that need read access: locks, listings, flushes."""
    again = os.open(".", READ_FLAGS | os.O_DIRECTORY, dir_fd=fd)
    try:
        yield again
    finally:
        os.close(again)


def write_file(root: str, path: str, chunks: Iterable[bytes], publish: Publish, *, durable: bool = False) -> int:
    """Write a file under a temporary name, publish it and return its size. A failure leaves no file.

    A ``durable`` file survives a power loss: its content is flushed before its name. Commits and the data files that
    they name are durable, because an acknowledged commit must not lose its content.
    """
    folder, _, name = path.rpartition("/")
    temporary, size = f"{TEMPORARY}{uuid.uuid4().hex}-{name[:100]}", 0
    with opened_folder(root, folder, make=True) as fd:
        try:
            with os.fdopen(os.open(temporary, _CREATE, 0o666, dir_fd=fd), "wb", buffering=0) as target:
                for chunk in chunks:
                    view = memoryview(chunk)
                    size += view.nbytes
                    while view.nbytes:
                        view = view[target.write(view) :]
            if durable:
                flush(temporary, fd)
            publish(temporary, name, fd)
            if durable:
                flush(".", fd)
        finally:
            # It still exists after a hard link or a failure, but not after a rename.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=fd)
        with contextlib.suppress(OSError), readable(fd) as listed:
            tidy(f"{root}/{folder}", listed)
    return size


def publish_over(temporary: str, name: str, fd: int) -> None:
    """Give a file its name, replacing any existing file."""
    os.replace(temporary, name, src_dir_fd=fd, dst_dir_fd=fd)


def publish_absent(temporary: str, name: str, fd: int) -> None:
    """Give a file its name unless that exists, atomically: one of several writers succeeds.

    Uses a hard link or, if there are none, a rename that refuses to replace, which the kernel does under the same lock.
    A file system with neither cannot hold a table that is written to: creating the file under its final name and
    filling it would show a partial commit to readers, and leave it there after a crash.
    """
    try:
        os.link(temporary, name, src_dir_fd=fd, dst_dir_fd=fd, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
    else:
        return
    failed = _rename_absent(temporary, name, fd)
    if failed in _NO_RENAME:
        message = f"{name} cannot be created: the file system has neither hard links nor renames that replace nothing"
        hint = "without one of them two writers could overwrite each other's commits; move the table to another disk"
        raise StorageError(message, path=name, hint=hint)
    if failed:
        raise OSError(failed, os.strerror(failed), name)


def _rename_absent(temporary: str, name: str, fd: int) -> int:
    """Rename a file unless the name is taken. Return the system's error number, 0 on success."""
    rename = None if _RENAME is None else getattr(ctypes.CDLL(None, use_errno=True), _RENAME[0], None)
    if rename is None or _RENAME is None:
        return errno.ENOSYS
    rename.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    if rename(fd, os.fsencode(temporary), fd, os.fsencode(name), _RENAME[1]) == 0:
        return 0
    return ctypes.get_errno()


def flush(path: str, fd: int | None = None) -> None:
    """Wait until a file or folder is on disk, if the file system can guarantee that."""
    opened = os.open(path, READ_FLAGS, dir_fd=fd)
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):
            raise
    finally:
        os.close(opened)
