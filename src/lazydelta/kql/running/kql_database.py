"""Where queries run: in one database for all those of a program, or, for strangers, in a locked one for each.

DuckDB counts memory by database, so who has to bound what a single query may take gives it one of its own.
"""

from __future__ import annotations

import functools
import os
from typing import Any, Protocol

import duckdb

from lazydelta.kql.meaning.operations.macros import MACROS
from lazydelta.row_scan.reading_pool import ReadingPool

__all__ = ["OWN_MEMORY", "KqlDatabases", "LimitedDatabases"]

_SETTINGS = (
    "SET GLOBAL TimeZone = 'UTC'",
    "SET GLOBAL error_on_division_by_zero = false",
    "SET GLOBAL ieee_floating_point_ops = true",
    "SET GLOBAL preserve_insertion_order = true",
    "SET autoinstall_known_extensions = false",
    "SET autoload_known_extensions = false",
)
# Ten megabytes unless told otherwise, which are dozens of files that somebody who wants a look does not need.
_READ_AHEAD = "SET streaming_buffer_size = '64KB'"
# A query reads the tables that it was given and nothing else.
_SHUT = "SET enable_external_access = false"
_LOCKED = (
    "SET allow_community_extensions = false",
    "SET allow_persistent_secrets = false",
    # A name that DuckDB does not know would be looked for among the variables of this program.
    "SET GLOBAL python_enable_replacements = false",
    # What does not fit into memory is an error: a stranger's query writes no files.
    "SET temp_directory = ''",
)


class KqlDatabases(Protocol):
    """Where queries run."""

    @property
    def is_limited(self) -> bool:
        """Whether a query that needs more memory than it may have is an error that tells so."""

    def connection(self) -> Any:
        """Return a connection for one query, which closes it."""

    def pool(self) -> ReadingPool | None:
        """Return the threads and the memory that all scans of one query read with; None leaves it to each of them."""


class _OwnMemory:
    """The database that all queries of this process share: making one takes longer than most queries."""

    is_limited = False

    def connection(self) -> Any:
        # Readers and temporary tables belong to the cursor, so queries do not see each other's.
        cursor = _shared(os.getpid()).cursor()
        cursor.execute(_READ_AHEAD)
        return cursor

    def pool(self) -> ReadingPool | None:
        return None


OWN_MEMORY: KqlDatabases = _OwnMemory()
"""One database for all queries of a program, which may take what the program may."""


class LimitedDatabases:
    """A locked database for each query, with ``memory`` bytes in DuckDB.

    ``reading_memory`` is for rows of the query's tables that were read ahead, of all its scans together.
    """

    is_limited = True

    def __init__(self, *, memory: int, reading_memory: int, threads: int) -> None:
        self._config = {"threads": threads, "memory_limit": f"{memory}B"}
        self._reading_memory = reading_memory

    def connection(self) -> Any:
        """Return a connection to a database that nobody else uses, nor ever has."""
        return _made(self._config, _READ_AHEAD, *_LOCKED, _SHUT, "SET lock_configuration = true")

    def pool(self) -> ReadingPool:
        """Return the threads and the memory that all scans of one query read with."""
        return ReadingPool.for_store(self._reading_memory, remote=True)


def _made(config: dict[str, Any], *further: str) -> Any:
    database = duckdb.connect(":memory:", config=config)
    # In one transaction: they are many, and each would be one by itself.
    macros = "; ".join(f"CREATE MACRO {head} AS {body}" for head, body in MACROS.items())
    database.execute(f"BEGIN; {macros}; COMMIT")
    for setting in (*_SETTINGS, *further):
        database.execute(setting)
    return database


@functools.lru_cache(maxsize=1)
def _shared(_process: int) -> Any:
    """Open the database of a process; a forked child may not use its parent's threads, hence the process as a key."""
    return _made({}, _SHUT)
