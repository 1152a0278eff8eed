"""Round trips to the first file and to one hour, over tails short and long, with a version checksum and without."""

from __future__ import annotations

import time
from itertools import product
from typing import TYPE_CHECKING

import pytest

from lazydelta import DeltaTable
from lazydelta.sidecar.building.build import build
from lazydelta.sidecar.reading.discovery import shared_cache
from lazydelta.storage import observe
from lazydelta.testing import make_table
from tests.scan.hand_log import publish
from tests.sidecar.conftest import set_sizes
from tests.support.latency import LatencyProxy

if TYPE_CHECKING:
    from lazydelta.scan.stream import FileStream
    from lazydelta.storage import Request
    from tests.support.azurite import Azurite

# What is asked for together must be asked for before the first answer, also on a busy machine.
pytestmark = pytest.mark.xdist_group("tail round trips")  # the tables are put to the store once

LATENCY = 0.4
FILES = 4_000
ONE_HOUR = "_event_hour = '2026021012'"
# tail, checksum: the most round trips to the first file of the tail, and to all files of one hour.
PROMISED = {
    (10, True): (2, 3),
    (10, False): (3, 4),
    (150, True): (3, 5),
    (150, False): (5, 6),
}


@pytest.fixture(scope="module")
def tables(azurite: Azurite, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, bool], str]:
    """Put tables with sidecars on a real Azurite, by the length of their tail and whether they have a checksum."""
    found = {}
    for tail, checksum in product((10, 150), (True, False)):
        folder = tmp_path_factory.mktemp("tails")
        make_table(folder, files=FILES, hours=48, tail=tail, adds_per_commit=2, checksum=checksum)
        with pytest.MonkeyPatch.context() as patch:
            set_sizes(patch, 500, 4)
            build(folder)
        name = azurite.container(f"tail-trips-{tail}-{str(checksum).lower()}")
        uri = f"abfss://{name}@{azurite.account}.dfs.core.windows.net/table"
        found[tail, checksum] = publish(folder, uri, azurite.storage_options())
    return found


def trips(azurite: Azurite, uri: str, where: str | None, *, first: bool) -> tuple[int, FileStream, list[Request]]:
    """Return the round trips of a cold query, its stream, and its requests."""
    shared_cache.clear()
    asked: list[Request] = []
    with LatencyProxy(azurite.port, LATENCY) as proxy, observe(asked.append):
        options = azurite.storage_options() | {
            "azure_storage_endpoint": f"http://127.0.0.1:{proxy.port}/{azurite.account}",
        }
        began = time.perf_counter()
        table = DeltaTable(uri, storage_options=options)
        stream = table.files(where, limit=3) if first else table.files(where)
        files = [next(stream)] if first else list(stream)
        ended = time.perf_counter()
        stream.close()
        assert files
        return proxy.round_trips(began, ended), stream, asked


@pytest.mark.parametrize("kind", PROMISED, ids=lambda kind: f"tail {kind[0]}, {'with' if kind[1] else 'no'} checksum")
def test_round_trips_do_not_grow_with_the_tail(
    azurite: Azurite, tables: dict[tuple[int, bool], str], kind: tuple[int, bool]
) -> None:
    tail, checksum = kind
    first, hour = PROMISED[kind]
    found, _, asked = trips(azurite, tables[kind], None, first=True)
    assert found <= first
    commits = [each.path for each in asked if each.path.endswith(".json") and "_sidecars" not in each.path]
    assert len(commits) == len(set(commits)), "each commit is fetched once"
    # The ten that follow the checkpoint are asked for beside the listing, the newest ones for the scan.
    assert len(commits) <= (20 if checksum else tail)
    assert [each for each in asked if ".checkpoint.parquet" in each.path and each.length is None] == []
    found, stream, asked = trips(azurite, tables[kind], ONE_HOUR, first=False)
    assert found <= hour
    assert stream.metrics.tier == 1
    commits = [each.path for each in asked if each.path.endswith(".json") and "_sidecars" not in each.path]
    assert len(commits) == len(set(commits)) == tail
