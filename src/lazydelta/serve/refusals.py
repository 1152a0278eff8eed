"""Errors as Flight has them: a class that gRPC knows, our message, and our class and hint as JSON beside it.

PyArrow sends the trace of any exception that is not one of Flight's own, with the paths of this machine. So nothing
else may leave: what is no error of ours becomes an internal error that says nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import pyarrow.flight as fl

from lazydelta.errors import (
    AccessDeniedError,
    DeadlineError,
    LazyDeltaError,
    ServeError,
    ServerBusyError,
    StreamClosedError,
    TicketError,
    UnauthenticatedError,
)
from lazydelta.wire import error_in_json

__all__ = ["refusal"]

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


def refusal(error: BaseException, cleaned: Callable[[str], str] = str) -> Exception:
    """Return what a client is told of an error; ``cleaned`` takes out of a message what clients are not told."""
    refused: Exception
    if isinstance(error, fl.FlightError) and isinstance(error, Exception):
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
