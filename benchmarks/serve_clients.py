"""How many statements a second a server answers with 4 clients and with 32, and how long the slowest one waits.

    python benchmarks/serve_clients.py [SECONDS]

Each client has a connection of its own and counts the rows of one small table, again and again. A refusal is counted
apart. The last line is the ratio that matters: with more clients than processors the throughput should not fall.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl

from lazydelta import write_arrow
from lazydelta.server.config import LimitSettings
from lazydelta.server.flight import FlightServer, drain
from lazydelta.server.flight_sql.messages import packed
from lazydelta.server.tables import ServedTables, TablePlace
from lazydelta.server.ticket import TicketSigner

_COUNT = packed("CommandStatementQuery", query="SELECT count(*), sum(id) FROM t WHERE id > 10")


def _ask(client: Any) -> None:
    info = client.get_flight_info(fl.FlightDescriptor.for_command(_COUNT))
    client.do_get(info.endpoints[0].ticket).read_all()


def measure(location: str, clients: int, seconds: float) -> tuple[float, float, int]:
    """Return the answers a second, the longest wait and the refusals."""
    answers, refused, waits = [0] * clients, [0] * clients, [0.0] * clients
    until = time.monotonic() + seconds

    def ask_on(me: int) -> None:
        with fl.connect(location) as client:
            while (began := time.monotonic()) < until:
                try:
                    _ask(client)
                    answers[me] += 1
                except fl.FlightUnavailableError:
                    refused[me] += 1
                waits[me] = max(waits[me], time.monotonic() - began)

    threads = [threading.Thread(target=ask_on, args=(me,)) for me in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(answers) / seconds, max(waits), sum(refused)


def main(seconds: float = 12.0) -> None:
    """Print both figures and their ratio, with the default limits of a server."""
    with tempfile.TemporaryDirectory() as folder:
        write_arrow(folder, pa.table({"id": range(100_000)}), maintain=False)
        limits = LimitSettings()
        server = FlightServer(
            "grpc://127.0.0.1:0",
            ServedTables({"t": TablePlace(folder)}),
            TicketSigner(os.urandom(32)),
            budgets=limits.budgets(),
            limits=limits.of_requests(),
            sql=limits.of_statements(),
        )
        location = f"grpc://127.0.0.1:{server.port}"
        measure(location, 4, 2.0)  # the processes start
        rates: dict[int, list[float]] = {}
        for clients in (4, 32, 4, 32):
            rate, wait, refused = measure(location, clients, seconds)
            rates.setdefault(clients, []).append(rate)
            print(f"{clients:3} clients: {rate:6.1f} answers/s, longest wait {wait:.2f} s, {refused} refused")
        print(f"32 clients get {sum(rates[32]) / sum(rates[4]):.2f} of the throughput of 4")
        drain(server, 0)


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
