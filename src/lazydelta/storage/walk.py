"""``Walk``: everything below a store's root, streamed, for those who look for what nobody refers to.

What a walk yields may be deleted afterwards, so it never leaves the root: symbolic links are neither followed nor
yielded. A link may be the name under which a log knows a file of this very folder, so where links lead to is told.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from lazydelta.storage.store import ObjectInfo

__all__ = ["Hides", "Walk", "is_hidden", "walk_folder"]

Hides: TypeAlias = Callable[[str], bool]
"""Told the path of a folder or object; whether the walk passes it by, with all that is below."""


class Walk:
    """An iterator over objects; complete only when it was pulled to its end.

    ``linked`` are the paths below the root that symbolic links lead to, ``empty`` folders that hold nothing, each with
    the time of its last change (epoch milliseconds). Object stores have neither. ``folders`` are those that a walk of
    one level only has met and not entered.
    """

    def __init__(self, objects: Iterator[ObjectInfo] | None = None) -> None:
        self.linked: list[str] = []
        self.empty: list[tuple[str, int]] = []
        self.folders: list[str] = []
        self._objects: Iterator[ObjectInfo] = iter(()) if objects is None else objects

    def over(self, objects: Iterator[ObjectInfo]) -> Walk:
        """Return this walk over ``objects``, which fill its lists as they are pulled."""
        self._objects = objects
        return self

    def __iter__(self) -> Iterator[ObjectInfo]:
        return self._objects


def is_hidden(path: str, hides: Hides) -> str | None:
    """Return the first folder or object on the way to ``path`` that is hidden, None if none is."""
    end = -1
    while True:
        end = path.find("/", end + 1)
        so_far = path if end < 0 else path[:end]
        if hides(so_far):
            return so_far
        if end < 0:
            return None


def walk_folder(
    root: str,
    hides: Hides,
    info_of: Callable[[str, os.stat_result], ObjectInfo],
    walk: Walk,
    *,
    below: str = "",
    deep: bool = True,
) -> Iterator[ObjectInfo]:
    """Yield the files below a folder of a file system, or of ``below`` in it, folder by folder in no order."""
    real = os.path.realpath(root)
    waiting, enters = [below], True
    while waiting and enters:
        folder, enters = waiting.pop(), deep
        place = f"{root}/{folder}" if folder else root
        count = 0
        try:
            changed = os.stat(place).st_mtime_ns // 1_000_000  # noqa: PTH116
            with os.scandir(place) as entries:
                for entry in entries:
                    count += 1
                    path = f"{folder}/{entry.name}" if folder else entry.name
                    if not _is_text(entry.name) or hides(path):
                        continue
                    if entry.is_symlink():
                        _note_link(real, entry.path, walk)
                    elif entry.is_dir(follow_symlinks=False):
                        waiting.append(path)
                    else:
                        # A file deleted since the folder was read is simply not there any more.
                        with contextlib.suppress(FileNotFoundError):
                            found = entry.stat(follow_symlinks=False)
                            if stat.S_ISREG(found.st_mode):
                                yield info_of(path, found)
        except (FileNotFoundError, NotADirectoryError):
            continue  # gone, or replaced since it was listed
        if count == 0 and folder:
            walk.empty.append((folder, changed))
    walk.folders += waiting


def _is_text(name: str) -> bool:
    # A log names files by text: what is no text was put there by somebody else.
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _note_link(real_root: str, link: str, walk: Walk) -> None:
    target = os.path.realpath(link)
    if target == real_root or target.startswith(f"{real_root}/"):
        walk.linked.append(target[len(real_root) + 1 :])
