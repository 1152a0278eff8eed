"""Which versions somebody asks for, by number and by time, and the commits that they were."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from lazydelta.errors import OptionError, VersionNotFoundError
from lazydelta.log.actions import Metadata
from lazydelta.log.names import LogFile
from lazydelta.log.properties import is_true
from lazydelta.log.segment import list_commits
from lazydelta.log.travel import commit_info, milliseconds
from lazydelta.storage import Store

__all__ = ["ChangeCommit", "VersionRange", "commit_time"]


@dataclass(frozen=True, slots=True)
class ChangeCommit:
    """A commit, and when it was made in epoch milliseconds."""

    file: LogFile
    timestamp: int


@dataclass(frozen=True, slots=True)
class VersionRange:
    """Versions from ``first`` to ``last``, both included, as far as they were committed within two moments."""

    first: int = 0
    last: int | None = None
    since: int | None = None
    until: int | None = None
    may_be_outside: bool = False

    @classmethod
    def of(
        cls,
        first: int,
        last: int | None,
        since: str | datetime | None,
        until: str | datetime | None,
        *,
        may_be_outside: bool = False,
    ) -> VersionRange:
        """Check a range as a caller gives it; moments are texts in ISO 8601."""
        given: tuple[tuple[str, object], ...] = (("starting_version", first), ("ending_version", last))
        for name, version in given:
            if version is not None and (isinstance(version, bool) or not isinstance(version, int) or version < 0):
                raise OptionError(f"{name}={version!r} is not a table version", hint="versions are numbers from 0")
        if last is not None and first > last:
            message = f"Invalid version. Start version {first} is greater than end version {last}"
            raise OptionError(message, hint="exchange them")
        return cls(
            first,
            last,
            None if since is None else milliseconds(since),
            None if until is None else milliseconds(until),
            may_be_outside,
        )

    def commits(self, store: Store, metadata: Metadata, newest: int) -> list[ChangeCommit]:
        """Return the commits of the range, oldest first, of a table whose newest version to be looked at is given.

        Commits that the log no longer has are an error: changes would be missing without anybody noticing.
        """
        last = newest if self.last is None else min(self.last, newest)
        if self.first > last:
            return self._outside(store, f"Invalid table version: {self.first}", newest)
        files = list(list_commits(store, self.first, last))
        # Who asks by time has no first version in mind.
        if not files or (files[0].version != self.first and self.since is None):
            message = f"Invalid table version: {self.first}"
            hint = "its commit was cleaned up; begin with a later version, or with starting_timestamp"
            raise VersionNotFoundError(message, path=store.uri, version=self.first, latest=newest, hint=hint)
        return self._within(store, metadata, files, newest)

    def _within(self, store: Store, metadata: Metadata, files: list[LogFile], newest: int) -> list[ChangeCommit]:
        in_commit = is_true(metadata, "delta.enableInCommitTimestamps")
        found = [ChangeCommit(file, commit_time(store, file, in_commit=in_commit)) for file in files]
        since, until = self.since, self.until
        if since is not None and all(each.timestamp < since for each in found):
            return self._outside(store, "The starting timestamp is greater than latest commit timestamp", newest)
        kept = [each for each in found if since is None or each.timestamp >= since]
        return [each for each in kept if until is None or each.timestamp <= until]

    def _outside(self, store: Store, message: str, newest: int) -> list[ChangeCommit]:
        if self.may_be_outside:
            return []
        hint = f"the newest version is {newest}; allow_out_of_range=True gives no rows instead"
        raise VersionNotFoundError(message, path=store.uri, latest=newest, hint=hint)


def commit_time(store: Store, file: LogFile, *, in_commit: bool) -> int:
    """Return when a commit was made: as it says itself, else as the store says."""
    info = commit_info(store, file)
    names: Iterator[str] = iter(("inCommitTimestamp", "timestamp") if in_commit else ("timestamp",))
    return next((info[name] for name in names if isinstance(info.get(name), int)), file.info.last_modified)
