"""Flight errors: a class that gRPC knows, the message, and the original class and hint as JSON.

PyArrow sends the traceback of any exception that is not a Flight error, including local paths. No other exception may
therefore reach the client: unexpected ones become an internal error without details.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

import pyarrow as pa
import pyarrow.flight as fl

from lazydelta.client.wire import error_in_json
from lazydelta.errors import (
    AccessDeniedError,
    DeadlineError,
    KqlError,
    LazyDeltaError,
    QueryError,
    ServeError,
    ServerBusyError,
    StreamClosedError,
    TicketError,
    UnauthenticatedError,
)

__all__ = ["InvalidStatement", "Refusal", "refusal", "statement_refusal", "told"]

Refusal: TypeAlias = "Callable[[BaseException], Exception]"
"""Converts an exception into a Flight error."""

logger = logging.getLogger(__name__)

_KINDS: tuple[tuple[type[LazyDeltaError], type], ...] = (
    (UnauthenticatedError, fl.FlightUnauthenticatedError),
    (TicketError, fl.FlightUnauthorizedError),
    (AccessDeniedError, fl.FlightServerError),
    (ServerBusyError, fl.FlightUnavailableError),
    (DeadlineError, fl.FlightTimedOutError),
    (StreamClosedError, fl.FlightCancelledError),
)
_LONGEST = 2000


class InvalidStatement(pa.ArrowInvalid):  # type: ignore[misc]
    """An invalid statement: gRPC's INVALID_ARGUMENT, which no Flight error maps to.

    PyArrow appends the formatted traceback of such an error, with local paths, unless formatting it fails. In that case
    it appends the name of the class.
    """

    @property
    def __cause__(self) -> BaseException | None:
        raise AttributeError(name="__cause__", obj=self)


def statement_refusal(refused: Refusal, error: BaseException) -> Exception:
    """Return the error for a client of Flight SQL, with the SQLSTATE of an error that the client caused."""
    told = refused(error)
    if not isinstance(error, QueryError | KqlError):
        return told
    return InvalidStatement(f"{told} [SQLSTATE 42000]")


def refusal(error: BaseException, cleaned: Callable[[str], str] = str) -> Exception:
    """Return the error for a client. ``cleaned`` removes from a message what clients may not see."""
    refused: Exception
    if isinstance(error, fl.FlightError | InvalidStatement) and isinstance(error, Exception):
        return error
    if not isinstance(error, LazyDeltaError):
        logger.error("an internal error while serving", exc_info=error)
        told = ServeError("The server failed for a reason of its own", hint="its log has the details")
        refused = fl.FlightInternalError(str(told), error_in_json(told, str(told.args[0])))
        return refused
    message = cleaned(str(error.args[0]))
    message = message if len(message) <= _LONGEST else f"{message[:_LONGEST]}…"
    kind = next((flight for ours, flight in _KINDS if isinstance(error, ours)), fl.FlightServerError)
    words = f"{message} ({error.hint})" if error.hint else message
    refused = kind(words, error_in_json(error, message))
    return refused


@contextmanager
def told(refused: Refusal) -> Iterator[None]:
    """Convert exceptions raised in the block into Flight errors."""
    try:
        yield
    except GeneratorExit:
        raise
    except BaseException as error:  # noqa: BLE001 - no exception may pass unconverted
        raise refused(error) from None
