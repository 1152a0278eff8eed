"""How a server ends: it takes no more streams, lets those that run come to their end, and then ends the rest.

A stream that has to end is told so, with the ticket of its last batch in the client's hands, so that it goes on at the
next server.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lazydelta.serve.flight_server import FlightServer

__all__ = ["drain", "until_told"]

_AFTER_NOTICE_SECONDS = 5.0


def drain(server: FlightServer, seconds: float) -> bool:
    """End a server; tell whether gRPC has ended with it.

    It has not where a client takes nothing of what is on its way to it: gRPC waits for such a client for good. Its scan
    has ended all the same, and nothing is lost when the process ends.
    """
    server.refuse_streams()
    if not server.budgets.wait_until_idle(seconds):
        server.end_streams()
        server.budgets.wait_until_idle(_AFTER_NOTICE_SECONDS)
    ending = threading.Thread(target=server.shutdown, name="lazydelta-serve-end", daemon=True)
    ending.start()
    ending.join(_AFTER_NOTICE_SECONDS)
    if server.sql is not None:
        server.sql.close()
    return not ending.is_alive()


@contextmanager
def until_told() -> Iterator[threading.Event]:
    """Give an event that SIGTERM and SIGINT set; a second signal ends the process as it always does."""
    told = threading.Event()
    before: dict[int, Any] = {}

    def tell(number: int, _frame: object) -> None:
        told.set()
        signal.signal(number, before[number])

    for each in (signal.SIGTERM, signal.SIGINT):
        before[each] = signal.signal(each, tell)
    try:
        yield told
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
