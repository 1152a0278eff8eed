"""Commits one after the other: none is left out without somebody being told.

Whoever follows a table has to see every commit. One that is not there was cleaned up, or is not there yet, or is lost:
the three are told apart here, because they ask for different things to be done.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from lazydelta.errors import MissingCommitError, VersionNotFoundError
from lazydelta.log.names import LOG, MAX_VERSION, LogFile, commit_name
from lazydelta.log.reverse_commits import ReverseCommitReader, TailCommit
from lazydelta.log.segment import list_commits
from lazydelta.storage import Store

__all__ = ["commits_in_order", "earliest_commit", "read_in_order"]

_LISTED_AHEAD = 128


def commits_in_order(
    store: Store, first: int, last: int | None = None, ratified: Iterable[LogFile] = ()
) -> Iterator[LogFile]:
    """Yield the commits ``first`` to ``last``, or as far as there are any; the log is listed while they are taken.

    ``ratified`` are commits that a catalog knows of, which stand before those that are listed. A first commit that was
    cleaned up is an error that names the earliest; so is one that is missing while later ones are there.
    """
    known = {file.version: file for file in ratified}
    end = MAX_VERSION if last is None else last
    expected = first
    for listed in list_commits(store, first, end):
        while expected < listed.version:
            if expected not in known:
                raise _not_there(store, expected, listed.version)
            yield known[expected]
            expected += 1
        yield known.get(expected, listed)
        expected += 1
    while expected in known and expected <= end:
        yield known[expected]
        expected += 1
    if last is not None and expected <= last:
        raise _not_there(store, expected, last)


def earliest_commit(store: Store) -> int | None:
    """Return the version of the first commit that the log still has, None if it has none."""
    first = next(list_commits(store, 0), None)
    return None if first is None else first.version


def read_in_order(store: Store, files: Iterator[LogFile], *, parallelism: int | None = None) -> Iterator[TailCommit]:
    """Yield commits with their actions, some of them fetched while others are taken."""
    while some := list(islice(files, _LISTED_AHEAD)):
        reader = ReverseCommitReader(store, some[::-1], parallelism=parallelism)
        try:
            yield from reader
        finally:
            reader.close()


def _not_there(store: Store, version: int, later: int) -> VersionNotFoundError | MissingCommitError:
    earliest = earliest_commit(store)
    if earliest is None or earliest > version:
        message = f"The commit of version {version} of {store.uri} was cleaned up, so what it changed is not known"
        hint = "no commit is left: begin with the newest version"
        if earliest is not None:
            hint = f"the earliest that is left is {earliest}; what came before it is in the files of that version"
        return VersionNotFoundError(
            message, path=store.uri, version=version, earliest=earliest, latest=later, hint=hint
        )
    message = f"Commit {version} is missing from the log of {store.uri}, though version {later} is there"
    hint = "wait for the store's listing to settle and try again, or restore the commit from a backup"
    return MissingCommitError(message, path=f"{LOG}/{commit_name(version)}", version=version, hint=hint)
