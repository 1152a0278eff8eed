"""``StagedFiles``: files written for a commit, until it is known whether the commit refers to them.

Only this module deletes files that a commit may refer to. Every writer stages its files here and hands them to an
attempt before making it: a transaction for data files, a manifest for the parts of a sidecar. From then on the files
belong to the attempt. After an interrupt (Ctrl-C, ``MemoryError``), a lost response or a failure in a later step, the
clean-up code cannot tell from its own variables whether the commit has landed. So it asks the attempt, which looks at
the store. Files are deleted only if it is certain that no commit refers to them or will. Otherwise they stay, and
VACUUM deletes them if they are unreferenced.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol, Self, TypeAlias

from lazydelta.errors import LazyDeltaError
from lazydelta.runtime.threads import all_in_parallel
from lazydelta.storage.store import Store

__all__ = ["Attempt", "NamedFiles", "StagedFiles", "delete_paths"]

_log = logging.getLogger(__name__)
_PARALLEL_DELETES = 16

NamedFiles: TypeAlias = Callable[[Collection[str]], Collection[str]]
"""Returns the files among those given that any commit refers to. Raises a lazydelta error if it cannot tell."""


class Attempt(Protocol):
    """An attempt to make files part of a table."""

    def is_ruled_out(self) -> bool:
        """Return whether it is certain that the attempt has not succeeded and never will."""


class StagedFiles:
    """Unreferenced files. Leaving the context deletes them unless an attempt owns or may own them.

    Calls ``named`` as well before it deletes files that other processes may have committed.
    """

    def __init__(self, store: Store, paths: Iterable[str] = (), *, named: NamedFiles | None = None) -> None:
        self._store, self._named = store, named
        self._paths = dict.fromkeys(paths)
        self._attempts: list[Attempt] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()

    @property
    def paths(self) -> list[str]:
        """Return the paths of the files relative to the root of the store."""
        return list(self._paths)

    def stage(self, paths: Iterable[str]) -> None:
        """Take ownership of files that were written, or are about to be."""
        self._paths.update(dict.fromkeys(paths))

    def offer_to(self, attempt: Attempt) -> None:
        """Hand the files to an attempt. Must be called before the attempt is made."""
        self._attempts.append(attempt)

    def discard(self, paths: Iterable[str] | None = None) -> None:
        """Delete all files, or some of them, unless a commit refers or may refer to them. Best effort."""
        chosen = list(self._paths if paths is None else paths)
        if not chosen or not all(each.is_ruled_out() for each in self._attempts):
            return
        named: Collection[str] = ()
        if self._named is not None:
            try:
                named = self._named(chosen)
            except LazyDeltaError as error:
                _log.warning("%d files stay in %s, as its log does not tell: %s", len(chosen), self._store.uri, error)
                return
        delete_paths(self._store, [path for path in chosen if path not in named])
        for path in chosen:
            self._paths.pop(path, None)


def delete_paths(store: Store, paths: Sequence[str]) -> None:
    """Delete files that no version of the table refers to. Best effort."""

    def delete(path: str) -> None:
        try:
            store.delete(path)
        except LazyDeltaError as error:
            _log.warning("could not delete %s, which no version of the table refers to: %s", path, error)

    if paths:
        all_in_parallel(delete, paths, threads=_PARALLEL_DELETES, name="lazydelta-delete")
