from __future__ import annotations

import time
from pathlib import Path

import pytest

from lazydelta import DeltaTable
from lazydelta.storage import open_store
from lazydelta.testing.make_table import make_table
from tests.support.azurite import Azurite
from tests.support.latency import LatencyProxy

# What is asked for together must be asked for before the first answer, also on a busy machine.
LATENCY = 0.3


@pytest.fixture(scope="module")
def table(azurite: Azurite, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Put a table of 5,000 files, a tail of eight commits and a checksum on a real Azurite."""
    folder = tmp_path_factory.mktemp("round-trips")
    make_table(folder, files=5_000, tail=8, checksum=True)
    name = azurite.container("round-trips")
    uri = f"abfss://{name}@{azurite.account}.dfs.core.windows.net/table"
    store = open_store(uri, azurite.storage_options())
    for file in sorted(Path(folder / "_delta_log").iterdir()):
        store.put(f"_delta_log/{file.name}", file.read_bytes())
    return uri


def test_the_first_file_of_the_tail_takes_two_round_trips(azurite: Azurite, table: str) -> None:
    """The hint; then the listing with the commits and the checksum beside it: nothing waits for a third answer."""
    with LatencyProxy(azurite.port, LATENCY) as proxy:
        options = azurite.storage_options() | {
            "azure_storage_endpoint": f"http://127.0.0.1:{proxy.port}/{azurite.account}",
        }
        began = time.perf_counter()
        # Forward would open the base beside the tail; its requests would count although nothing waits for them.
        stream = DeltaTable(table, storage_options=options).files(strategy="reverse")
        first = next(iter(stream))
        ended = time.perf_counter()
        stream.close()
        assert first.version == DeltaTable(table, storage_options=azurite.storage_options()).version()
        assert proxy.round_trips(began, ended) == 2
