"""Errors of ours as Flight has them.

PyArrow sends the trace of any exception that is not one of Flight's own, with the paths of this machine. So nothing
else may leave: what is no error of ours becomes an internal error that says nothing. Flight has no class for a wrong
query; it is a plain error of the server, with our message.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from pyarrow import flight

from lazydelta.errors import LazyDeltaError, StorageTimeoutError, StreamClosedError

__all__ = ["Refusal", "flight_error", "told"]

Refusal: TypeAlias = "Callable[[BaseException], Exception]"
"""What makes an error of Flight of an error."""

_log = logging.getLogger(__name__)
_LONGEST = 2000


def flight_error(error: BaseException) -> Exception:
    """Return what a client is told of an error."""
    found: Exception
    if isinstance(error, flight.FlightError):
        found = error
    elif not isinstance(error, LazyDeltaError):
        _log.error("an internal error of Flight SQL", exc_info=error)
        found = flight.FlightInternalError("The server failed for a reason of its own (its log has the details)")
    elif isinstance(error, StreamClosedError):
        found = flight.FlightCancelledError(str(error)[:_LONGEST])
    elif isinstance(error, StorageTimeoutError):
        found = flight.FlightTimedOutError(str(error)[:_LONGEST])
    else:
        found = flight.FlightServerError(str(error)[:_LONGEST])
    return found


@contextmanager
def told(refusal: Refusal) -> Iterator[None]:
    """Raise what leaves the block as an error of Flight."""
    try:
        yield
    except GeneratorExit:
        raise
    except BaseException as error:  # noqa: BLE001 - none may leave as it is
        raise refusal(error) from None
