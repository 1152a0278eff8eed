"""Every error lazydelta raises, in one tree.

    LazyDeltaError
    ├── OptionError                 an option, argument or URI that makes no sense
    ├── StorageError                the store said no
    │   ├── ObjectNotFoundError
    │   ├── ObjectExistsError       put-if-absent lost the race
    │   ├── ObjectChangedError      if-match failed: the object is not the one we knew
    │   ├── AccessDeniedError       missing, wrong or expired credentials
    │   └── StorageTimeoutError
    ├── TableNotFoundError          no Delta log at this place
    ├── LogError                    the log is there and cannot be trusted
    │   ├── CorruptLogError         an object of the log does not parse or contradicts itself
    │   ├── MissingCommitError      a gap in the commits
    │   ├── VersionNotFoundError    cleaned up, or never written
    │   └── ChecksumMismatchError   the version checksum disagrees with the replayed state
    ├── UnsupportedFeatureError     the table needs a feature that we do not implement
    ├── UnsupportedOperationError   deltalake can do it and we do not
    ├── PredicateError              a predicate that cannot be understood
    │   ├── UnknownColumnError
    │   ├── KqlError                a KQL query that cannot be understood or run
    │   └── QueryError              an engine refuses the text of a query
    ├── DataFileError               a data file or deletion vector is missing or unreadable
    │   └── ExternalLocationError   the log leads to an account or bucket that was not allowed
    ├── MemoryLimitError            it does not fit into the memory budget
    ├── ScanError                   the scan may not go on
    │   ├── FallbackDisabledError   the tripwire fired and `enable_fallback` is off
    │   ├── RetentionGuardError     the caller's guard refused the scan's floor
    │   ├── StreamClosedError       the stream was used again after it ended
    │   ├── StreamSharedError       two threads read one stream at the same time
    │   └── StreamStoppedError      a table that is followed was changed in a way that asks for a decision
    ├── ServeError                  a server of tables refuses, or cannot be reached
    │   ├── UnauthenticatedError    no token, or one that is not known
    │   ├── TicketError             a ticket that is forged, damaged, expired, or for somebody else
    │   ├── PositionLostError       a ticket's place in the stream is no more: begin again
    │   ├── ServerBusyError         a budget is used up, or the server is about to end
    │   ├── DeadlineError           the time that was given for an answer is over
    │   └── ServerUnreachableError  the connection broke, and no attempt brought it back
    └── WriteError                  a write that may not or cannot happen; nothing was committed
        ├── CommitConflictError     another writer was faster, and this write does not fit behind it
        ├── SchemaMismatchError     the data does not have the table's columns and types
        └── TableExistsError        a table is where a new one was to be

Some are also what Python, and deltalake, call them: an argument that makes no sense and a predicate that is none are a
``ValueError``, a table that is not there a ``FileNotFoundError``, an operation that we do not have a
``NotImplementedError``.

A message says what failed, on which object, and what to do next. The facts are attributes as well, and they
survive pickling, because Spark workers raise these errors.
"""

from __future__ import annotations

__all__ = [
    "AccessDeniedError",
    "ChecksumMismatchError",
    "CommitConflictError",
    "CorruptLogError",
    "DataFileError",
    "DeadlineError",
    "ExternalLocationError",
    "FallbackDisabledError",
    "KqlError",
    "LazyDeltaError",
    "LogError",
    "MemoryLimitError",
    "MissingCommitError",
    "ObjectChangedError",
    "ObjectExistsError",
    "ObjectNotFoundError",
    "OptionError",
    "PositionLostError",
    "PredicateError",
    "QueryError",
    "RetentionGuardError",
    "ScanError",
    "SchemaMismatchError",
    "ServeError",
    "ServerBusyError",
    "ServerUnreachableError",
    "StorageError",
    "StorageTimeoutError",
    "StreamClosedError",
    "StreamSharedError",
    "StreamStoppedError",
    "TableExistsError",
    "TableNotFoundError",
    "TicketError",
    "UnauthenticatedError",
    "UnknownColumnError",
    "UnsupportedFeatureError",
    "UnsupportedOperationError",
    "VersionNotFoundError",
    "WriteError",
]


class LazyDeltaError(Exception):
    """Root of every error raised by lazydelta.

    ``path`` names the object concerned, ``version`` the table version, ``hint`` what to do next; each is None
    where it does not apply. Subclasses add facts of their own as keyword-only attributes with defaults, so that
    the default pickling of exceptions (class, message, ``__dict__``) rebuilds them whole.
    """

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        version: int | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.path = path
        self.version = version
        self.hint = hint

    def __str__(self) -> str:
        message = str(self.args[0])
        return f"{message} ({self.hint})" if self.hint else message


class OptionError(LazyDeltaError, ValueError):
    """An option, argument or URI that makes no sense."""


class StorageError(LazyDeltaError):
    """The store refused or failed a request."""


class ObjectNotFoundError(StorageError):
    """The object does not exist."""


class ObjectExistsError(StorageError):
    """Put-if-absent found the object already there."""


class ObjectChangedError(StorageError):
    """The object is not the one whose etag we knew."""


class AccessDeniedError(StorageError):
    """Credentials are missing, wrong, expired or not sufficient."""


class StorageTimeoutError(StorageError):
    """The store did not answer in time."""


class TableNotFoundError(LazyDeltaError, FileNotFoundError):
    """There is no Delta log at this place."""


class LogError(LazyDeltaError):
    """The log cannot be trusted."""


class CorruptLogError(LogError):
    """An object of the log does not parse, or contradicts itself."""


class MissingCommitError(LogError):
    """A commit between two others is not there."""


class VersionNotFoundError(LogError):
    """The version was cleaned up or never written; ``earliest`` and ``latest`` give the range there is."""

    def __init__(
        self,
        message: str,
        *,
        earliest: int | None = None,
        latest: int | None = None,
        path: str | None = None,
        version: int | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, path=path, version=version, hint=hint)
        self.earliest = earliest
        self.latest = latest


class ChecksumMismatchError(LogError):
    """The version checksum disagrees with the state that the log gives."""


class UnsupportedFeatureError(LazyDeltaError):
    """The table needs features that we do not implement; ``features`` names them."""

    def __init__(
        self,
        message: str,
        *,
        features: tuple[str, ...] = (),
        path: str | None = None,
        version: int | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, path=path, version=version, hint=hint)
        self.features = features


class UnsupportedOperationError(LazyDeltaError, NotImplementedError):
    """Something that deltalake does and lazydelta does not; both may share a table."""


class PredicateError(LazyDeltaError, ValueError):
    """A predicate that cannot be understood."""


class UnknownColumnError(PredicateError):
    """The predicate or projection names a column that the table does not have."""


class KqlError(PredicateError):
    """A KQL query that cannot be understood or run; ``line`` and ``column`` count from 1.

    ``excerpt`` is the line with a caret below the place, for those who print more than one line.
    """

    def __init__(
        self,
        message: str,
        *,
        line: int | None = None,
        column: int | None = None,
        excerpt: str | None = None,
        path: str | None = None,
        version: int | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, path=path, version=version, hint=hint)
        self.line = line
        self.column = column
        self.excerpt = excerpt


class QueryError(PredicateError):
    """A query that an engine refuses, or that we may not hand to it."""


class DataFileError(LazyDeltaError):
    """A data file or deletion vector is missing or unreadable."""


class ExternalLocationError(DataFileError):
    """The log names a file outside the table's own account or bucket, and nobody has allowed to look there."""


class MemoryLimitError(LazyDeltaError):
    """Something cannot be read or written within the memory budget; nothing of it was loaded."""


class ScanError(LazyDeltaError):
    """The scan may not go on."""


class FallbackDisabledError(ScanError):
    """Metadata or protocol changed in the tail and falling back was forbidden."""


class RetentionGuardError(ScanError):
    """The caller's retention guard refused the floor of the scan."""


class StreamClosedError(ScanError):
    """A stream is single use; this one has ended or was closed."""


class StreamSharedError(ScanError):
    """A stream is read by one thread at a time; the other one goes on."""


class StreamStoppedError(ScanError):
    """A table that is followed was changed in a way of which somebody has to say what it means for the stream.

    ``version`` is the one that did it; everything before it was handed out.
    """


class ServeError(LazyDeltaError):
    """A server of tables refuses a request, or it cannot be reached."""


class UnauthenticatedError(ServeError):
    """The request has no token, or one that the server does not know."""


class TicketError(ServeError):
    """A ticket that this server did not sign, or that has expired, or that was made for somebody else."""


class PositionLostError(ServeError):
    """The files come in another order by now, so that nobody can tell where a ticket's rest begins."""


class ServerBusyError(ServeError):
    """The server has no room for another stream now; another moment may be better."""


class DeadlineError(ServeError):
    """The time that was given for an answer is over."""


class ServerUnreachableError(ServeError):
    """The connection to the server broke and could not be made again."""


class WriteError(LazyDeltaError):
    """A write that may not or cannot happen; nothing of it was committed."""


class CommitConflictError(WriteError):
    """Another writer committed first, and what it did rules out what we wanted to do.

    ``version`` is the other writer's version and ``winner`` its commit.
    """

    @property
    def winner(self) -> str | None:
        """The path of the commit that was faster."""
        return self.path


class SchemaMismatchError(WriteError):
    """The data does not have the columns and types of the table."""


class TableExistsError(WriteError):
    """A table is where a new one was to be."""
