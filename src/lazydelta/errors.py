"""Every error that lazydelta raises, in one tree.

    LazyDeltaError
    ├── OptionError                 an invalid option, argument or URI
    │   └── MissingExtraError       a package is not installed; the hint is the command that installs it
    ├── StorageError                the store refused or failed a request
    │   ├── ObjectNotFoundError
    │   ├── ObjectExistsError       put-if-absent lost the race
    │   ├── ObjectChangedError      if-match failed: the object has changed
    │   ├── AccessDeniedError       missing, wrong or expired credentials
    │   └── StorageTimeoutError
    ├── TableNotFoundError          no Delta log at this location
    ├── LogError                    the log exists but cannot be trusted
    │   ├── CorruptLogError         an object of the log does not parse or contradicts itself
    │   ├── MissingCommitError      a gap in the commits
    │   ├── VersionNotFoundError    cleaned up, or never written
    │   └── ChecksumMismatchError   the version checksum disagrees with the replayed state
    ├── UnsupportedFeatureError     the table needs a feature that lazydelta does not implement
    ├── UnsupportedOperationError   an operation that deltalake has and lazydelta does not
    ├── PredicateError              an invalid predicate
    │   ├── UnknownColumnError
    │   ├── KqlError                a KQL query that is invalid or cannot be run
    │   └── QueryError              an engine refuses a query string
    ├── DataFileError               a data file or deletion vector is missing or unreadable
    │   └── ExternalLocationError   the log names an account or bucket that is not allowed
    ├── MemoryLimitError            the memory budget is too small
    ├── ScanError                   the scan cannot continue
    │   ├── FallbackDisabledError   metadata or protocol changed in the tail and `enable_fallback` is off
    │   ├── RetentionGuardError     the caller's guard refused the scan's floor
    │   ├── IncompleteScanError     the scan was interrupted before it delivered everything
    │   ├── StreamClosedError       the stream was used again after it ended
    │   ├── StreamSharedError       two threads read one stream at the same time
    │   └── StreamStoppedError      a followed table changed in a way that needs a decision
    ├── ServeError                  a table server refuses a request, or cannot be reached
    │   ├── UnauthenticatedError    no token, or an unknown one
    │   ├── TicketError             a ticket that is forged, damaged, expired or issued to another user
    │   ├── PositionLostError       a ticket's position in the stream no longer exists: start again
    │   ├── ServerBusyError         a budget is exhausted, or the server is shutting down
    │   ├── DeadlineError           the deadline has passed
    │   └── ServerUnreachableError  the connection broke, and all retries failed
    └── WriteError                  a write that is not allowed or not possible; nothing was committed
        ├── CommitConflictError     another writer committed first, and this write conflicts with it
        ├── SchemaMismatchError     the data does not have the table's columns and types
        └── TableExistsError        a table already exists at this location

Some also derive from the built-in exceptions that Python and deltalake use: an invalid argument or predicate is a
``ValueError``, a missing table a ``FileNotFoundError``, a missing package an ``ImportError``, and an unsupported
operation a ``NotImplementedError``.

A message says what failed, on which object, and what to do next. The same facts are attributes. They survive pickling,
because Spark workers raise these errors.
"""

from __future__ import annotations

from importlib.util import find_spec

__all__ = [
    "AccessDeniedError",
    "ChecksumMismatchError",
    "CommitConflictError",
    "CorruptLogError",
    "DataFileError",
    "DeadlineError",
    "ExternalLocationError",
    "FallbackDisabledError",
    "IncompleteScanError",
    "KqlError",
    "LazyDeltaError",
    "LogError",
    "MemoryLimitError",
    "MissingCommitError",
    "MissingExtraError",
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

    ``path`` names the object concerned, ``version`` the table version, and ``hint`` what to do next; each is None if it
    does not apply. ``committed`` is what a call with several commits had done before it failed: OPTIMIZE reports the
    metrics of the commits that succeeded. Subclasses add their own facts as keyword-only attributes with defaults, so
    that the default pickling of exceptions (class, message, ``__dict__``) restores them completely.
    """

    committed: object = None

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
    """An invalid option, argument or URI."""


class MissingExtraError(OptionError, ImportError):
    """A package of an extra is not installed."""


class StorageError(LazyDeltaError):
    """The store refused or failed a request. ``is_full`` tells that a local disk had no room for what was written."""

    is_full = False


class ObjectNotFoundError(StorageError):
    """The object does not exist."""


class ObjectExistsError(StorageError):
    """Put-if-absent found the object already there."""


class ObjectChangedError(StorageError):
    """The object's etag has changed."""


class AccessDeniedError(StorageError):
    """Credentials are missing, wrong, expired or insufficient."""


class StorageTimeoutError(StorageError):
    """The store did not answer in time."""


class TableNotFoundError(LazyDeltaError, FileNotFoundError):
    """There is no Delta log at this location."""


class LogError(LazyDeltaError):
    """The log cannot be trusted."""


class CorruptLogError(LogError):
    """An object of the log does not parse, or contradicts itself."""


class MissingCommitError(LogError):
    """A commit between two others is missing."""


class VersionNotFoundError(LogError):
    """The version was cleaned up or never written; ``earliest`` and ``latest`` give the available range."""

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
    """The version checksum disagrees with the replayed state of the log."""


class UnsupportedFeatureError(LazyDeltaError):
    """The table needs features that lazydelta does not implement; ``features`` names them."""

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
    """An operation that deltalake has and lazydelta does not; both can be used on the same table."""


class PredicateError(LazyDeltaError, ValueError):
    """An invalid predicate."""


class UnknownColumnError(PredicateError):
    """The predicate or projection names a column that the table does not have; ``column`` is its name."""

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        version: int | None = None,
        hint: str | None = None,
        column: str | None = None,
    ) -> None:
        super().__init__(message, path=path, version=version, hint=hint)
        self.column = column


class KqlError(PredicateError):
    """A KQL query that is invalid or cannot be run; ``line`` and ``column`` count from 1.

    ``excerpt`` is the line with a caret below the position, for callers that print more than one line. ``is_syntax``
    says that the text could not be parsed.
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
        self.is_syntax = False


class QueryError(PredicateError):
    """A query that an engine refuses, or that lazydelta must not pass to it.

    ``line`` and ``column`` count from 1 and are None where the engine does not tell a position.
    """

    line: int | None = None
    column: int | None = None


class DataFileError(LazyDeltaError):
    """A data file or deletion vector is missing or unreadable."""


class ExternalLocationError(DataFileError):
    """The log names a file outside the table's own account or bucket, and this location is not allowed."""


class MemoryLimitError(LazyDeltaError):
    """The memory budget is too small for an object to be read or written; nothing of it was loaded."""


class ScanError(LazyDeltaError):
    """The scan cannot continue."""


class FallbackDisabledError(ScanError):
    """Metadata or protocol changed in the tail and fallback is disabled."""


class RetentionGuardError(ScanError):
    """The caller's retention guard refused the floor of the scan."""


class IncompleteScanError(ScanError):
    """A scan was interrupted and ended before it delivered everything; the result is incomplete."""


class StreamClosedError(ScanError):
    """A stream can be read only once; this one has ended or was closed."""


class StreamSharedError(ScanError):
    """Only one thread at a time can read a stream; the other thread continues."""


class StreamStoppedError(ScanError):
    """A followed table changed in a way that needs a decision by the caller.

    ``version`` is the version with the change; everything before it was delivered.
    """


class ServeError(LazyDeltaError):
    """A table server refuses a request, or cannot be reached."""


class UnauthenticatedError(ServeError):
    """The request has no token, or one that the server does not know."""


class TicketError(ServeError):
    """A ticket that this server did not sign, that has expired, or that was issued to another user."""


class PositionLostError(ServeError):
    """The order of the files has changed, so the position of a ticket can no longer be found."""


class ServerBusyError(ServeError):
    """The server has no capacity for another stream now; try again later."""


class DeadlineError(ServeError):
    """The deadline of the request has passed."""


class ServerUnreachableError(ServeError):
    """The connection to the server broke and could not be restored."""


class WriteError(LazyDeltaError):
    """A write that is not allowed or not possible; nothing was committed."""


class CommitConflictError(WriteError):
    """Another writer committed first, and its changes conflict with this write.

    ``version`` is the other writer's version and ``winner`` its commit.
    """

    @property
    def winner(self) -> str | None:
        """The path of the commit that won."""
        return self.path


class SchemaMismatchError(WriteError):
    """The data does not have the columns and types of the table."""


class TableExistsError(WriteError):
    """A table already exists at this location."""


def require(extra: str, *modules: str) -> None:
    """Raise ``MissingExtraError`` if a module of an extra is not installed; does not import any of them."""
    for name in modules:
        try:
            found = find_spec(name)
        except ModuleNotFoundError:  # the parent package is missing too
            found = None
        if found is None:
            package = name.replace("google.", "")
            raise MissingExtraError(f"{package} is not installed", hint=f"pip install 'lazydelta[{extra}]'")
