"""The listing of a VACUUM: what lies below the table's root, by one walk or by one for each of many folders.

A job as plain data with its verbs, for whatever carries it: ``folders`` goes down from the root as far as it takes to
have enough of them to share out, and lists what lies above; ``below`` lists all that a folder holds. Together they show
just what one walk of the root shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeAlias

import msgspec

from lazydelta.maintenance.vacuum.orphans import Orphan
from lazydelta.maintenance.vacuum.table_names import TableNames
from lazydelta.storage import Store, Walk

__all__ = ["Listed", "Lister", "ListingJob", "in_one_walk"]

_LISTED_AT_ONCE = 1000


class Listed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Some of what a listing has shown: ``count`` files, of which ``old`` were there before the cutoff.

    ``linked`` and ``nested`` are folders that VACUUM spares, because a link leads there or because they have a log of
    their own; ``empty`` are folders that have held nothing since before the cutoff.
    """

    count: int
    old: tuple[Orphan, ...]
    linked: tuple[str, ...] = ()
    nested: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ListingJob:
    """What is to be listed, and what of it may go: files that are older than ``cutoff`` (epoch milliseconds).

    ``levels`` is how deep partition folders are, ``kept`` how many files the log refers to.
    """

    store: Store
    names: TableNames
    cutoff: int
    levels: int
    kept: int

    def carrying_credentials(self) -> ListingJob:
        """Return one whose pickles hold the credentials of its store."""
        return replace(self, store=self.store.carrying_credentials())

    def below(self, folder: str = "") -> Iterator[Listed]:
        """List everything below a folder; what is known only at the end comes last."""
        yield from self._listed(self.store.walk(self.names.hides, below=folder))

    def folders(self, enough: int) -> tuple[list[str], list[Listed]]:
        """Return folders to be listed by themselves, ``enough`` of them if there are, and what is in none of them.

        A table without partition folders has none: one listing is all that shows its files.
        """
        found, above = [""], list[Listed]()
        for _ in range(self.levels):
            if len(found) >= enough:
                break
            entered, found = found, []
            for folder in entered:
                walk = self.store.walk(self.names.hides, below=folder, deep=False)
                above += self._listed(walk)
                found += walk.folders
        return found, above

    def _listed(self, walk: Walk) -> Iterator[Listed]:
        objects = iter(walk)
        while page := list(islice(objects, _LISTED_AT_ONCE)):
            old = tuple(Orphan(each.path, each.size) for each in page if each.last_modified < self.cutoff)
            yield Listed(len(page), old)
        # Only now is it known what the walk has met on its way.
        empty = tuple(folder for folder, changed in walk.empty if changed < self.cutoff)
        yield Listed(0, (), tuple(walk.linked), tuple(sorted(self.names.nested)), empty)


Lister: TypeAlias = Callable[[ListingJob], Iterator[Listed]]
"""Lists all of a job, in any order; what has failed is an error, as nothing may be overlooked."""


def in_one_walk(job: ListingJob) -> Iterator[Listed]:
    """List in this process, one page after the other."""
    return job.below()
