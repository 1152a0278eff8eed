"""What a query costs where there is a sidecar: requests, bytes and round trips, counted."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lazydelta import DeltaTable
from lazydelta.sidecar.building.build import build
from lazydelta.sidecar.reading.discovery import shared_cache
from lazydelta.storage import Request, observe
from lazydelta.testing import make_table
from tests.scan.hand_log import publish
from tests.sidecar.conftest import set_sizes
from tests.sidecar.sidecars import DISABLED, Place, rows
from tests.support.azurite import Azurite
from tests.support.latency import LatencyProxy

FILES = 1_000_000
HOURS = 720
ONE_HOUR = "_event_hour = '2026021012'"
NO_HOUR = "_event_hour = '1999010100'"
# What is asked for together must be asked for before the first answer, also on a busy machine.
LATENCY = 0.3
MEGABYTE = 1_000_000


class Cost:
    """The requests of one query on a local table."""

    def __init__(self, table: Path) -> None:
        self._table = table
        self.requests: list[Request] = []

    def of(self, text: str, verb: str = "GET") -> list[Request]:
        """Return the requests of a verb for objects whose path holds ``text``."""
        return [each for each in self.requests if each.verb == verb and text in each.path]

    @property
    def row_groups(self) -> list[Request]:
        """The reads of a sidecar's Parquet files but those of footers, which lie at their end."""
        return [each for each in self.of(".parquet") if "_sidecars" in each.path and not self._is_footer(each)]

    @property
    def footers(self) -> list[Request]:
        """The reads of footers."""
        return [each for each in self.of("_sidecars/") if each.path.endswith(".parquet") and self._is_footer(each)]

    @property
    def bytes_read(self) -> int:
        """How many bytes the reads asked for, as far as the objects have them."""
        total = 0
        for each in self.requests:
            if each.verb == "GET":
                left = (self._table / each.path).stat().st_size - (each.start or 0)
                total += left if each.length is None else min(each.length, left)
        return total

    def _is_footer(self, request: Request) -> bool:
        assert request.start is not None
        assert request.length is not None
        return request.start + request.length == (self._table / request.path).stat().st_size


@contextmanager
def costs(table: Path) -> Iterator[Cost]:
    """Count the requests of a block."""
    cost = Cost(table)
    with observe(cost.requests.append):
        yield cost


@pytest.fixture(scope="session")
def million(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """Make a table of a million files with a sidecar and a tail of five commits; one for all test processes."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "million"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            make_table(folder / "table", files=FILES, hours=HOURS, tail=5, checksum=True)
            build(folder / "table")
            (folder / "done").touch()
    return folder / "table"


@pytest.mark.timeout(400)
def test_a_cold_query_for_one_hour_of_a_million_files(million: Path) -> None:
    """Hint; listing and manifest and commits; row group and footer: at most a megabyte, and no checkpoint."""
    with costs(million) as cost:
        stream = DeltaTable(million).files(ONE_HOUR)
        found = [file.path for file in stream]
    assert cost.bytes_read <= MEGABYTE
    assert stream.metrics.tier == 1
    assert abs(len(found) - FILES / HOURS) < 10
    assert len(set(found)) == len(found)
    assert [len(cost.of(text)) for text in ("_last_checkpoint", ".manifest.json", ".crc")] == [1, 1, 1]
    assert len(cost.of("", "LIST")) == 1
    assert cost.of("checkpoint.parquet") == []
    assert cost.of("", "HEAD") == []
    assert len(cost.row_groups) <= 2
    assert len(cost.footers) <= 2
    # What nothing waits for is asked for together: after the first byte range of the sidecar come only such.
    first = min(cost.requests.index(each) for each in (*cost.row_groups, *cost.footers))
    assert all("_sidecars" in each.path for each in cost.requests[first:] if ".json" not in each.path)


@pytest.mark.timeout(400)
def test_an_hour_that_is_nowhere_never_touches_the_sidecar(million: Path) -> None:
    """The manifest alone rules it out; so does a range of time."""
    for where in (NO_HOUR, "timestamp < '1999-01-01T00:00:00Z'"):
        shared_cache.clear()
        with costs(million) as cost:
            stream = DeltaTable(million).files(where)
            assert stream.collect() == []
        assert cost.row_groups == cost.footers == []
        assert cost.of("checkpoint.parquet") == []
        assert stream.metrics.row_groups_pruned == FILES // 10_000


@pytest.mark.timeout(400)
def test_a_limit_of_a_hundred_reads_one_row_group(million: Path) -> None:
    """Fifty files are in the tail, and the newest row group has the rest many times over."""
    with costs(million) as cost:
        stream = DeltaTable(million).files(limit=100)
        assert len(stream.collect()) == 100
    assert stream.metrics.row_groups_read == 1
    assert len(cost.row_groups) == 1
    assert len(cost.footers) == 1
    assert cost.bytes_read <= MEGABYTE


@pytest.mark.timeout(400)
def test_a_pinned_table_reads_row_groups_only(million: Path) -> None:
    """The second query on the same table asks for no listing, no manifest, no footer and no commit."""
    table = DeltaTable(million)
    first = [file.path for file in table.files(ONE_HOUR)]
    with costs(million) as cost:
        again = [file.path for file in table.files(ONE_HOUR)]
    assert again == first
    assert cost.requests == cost.row_groups
    assert 1 <= len(cost.row_groups) <= 2


@pytest.mark.timeout(400)
def test_a_fresh_open_with_a_warm_cache_makes_one_listing(million: Path) -> None:
    """Another open in the same process: one LIST says that nothing has changed, and row groups are read."""
    first = [file.path for file in DeltaTable(million).files(ONE_HOUR)]
    with costs(million) as cost:
        again = [file.path for file in DeltaTable(million).files(ONE_HOUR)]
    assert again == first
    assert len(cost.of("", "LIST")) == 1
    assert len(cost.requests) == 1 + len(cost.row_groups)


@pytest.mark.timeout(400)
def test_a_predicate_on_time_prunes_like_the_hour(million: Path) -> None:
    """A range of the event timestamp reads the row groups of those hours, and only that column's statistics."""
    with costs(million) as cost:
        stream = DeltaTable(million).files("timestamp >= '2026-02-10T22:00:00Z'")
        found = [file.path for file in stream]
    assert 0 <= len(found) - 2 * (FILES // HOURS) <= 60  # and some of the fifty files of the tail
    assert stream.metrics.row_groups_read <= 2
    assert cost.bytes_read <= MEGABYTE
    assert cost.of("checkpoint.parquet") == []


@pytest.mark.timeout(400)
def test_a_megabyte_is_enough_for_any_hour(million: Path) -> None:
    """The first and the last hour, and one at the edge of a part."""
    for hour in ("2026011200", "2026011505", "2026012000", "2026013123", "2026021023"):
        shared_cache.clear()
        with costs(million) as cost:
            stream = DeltaTable(million).files(f"_event_hour = '{hour}'")
            count = sum(batch.num_rows for batch in stream.batches())
        assert abs(count - FILES / HOURS) < 60
        assert cost.bytes_read <= MEGABYTE, hour


# Round trips, on a store that has them.


@pytest.fixture(scope="module")
def remote(azurite: Azurite, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Make a table of 20,000 files with a sidecar of many row groups and a tail of eight commits, on a real Azurite."""
    folder = tmp_path_factory.mktemp("sidecar-round-trips")
    make_table(folder, files=20_000, hours=48, tail=8, checksum=True)
    with pytest.MonkeyPatch.context() as patch:
        set_sizes(patch, 1000, 4)
        build(folder)
    uri = f"abfss://{azurite.container('sidecar-trips')}@{azurite.account}.dfs.core.windows.net/table"
    return Place(publish(folder, uri, azurite.storage_options()), azurite.storage_options())


@pytest.mark.parametrize("strategy", ["auto", "reverse", "forward"])
def test_the_first_file_of_the_base_takes_three_round_trips(azurite: Azurite, remote: Place, strategy: str) -> None:
    """Cold: the hint; the listing with manifest, commits and checksum beside it; row group and footer together."""
    with LatencyProxy(azurite.port, LATENCY) as proxy:
        options = azurite.storage_options() | {
            "azure_storage_endpoint": f"http://127.0.0.1:{proxy.port}/{azurite.account}",
        }
        began = time.perf_counter()
        stream = DeltaTable(remote.uri, storage_options=options).files(ONE_HOUR, strategy=strategy)
        first = next(stream)
        ended = time.perf_counter()
        stream.close()
        assert first.tier == 1
        assert proxy.round_trips(began, ended) <= 3


@pytest.mark.parametrize("strategy", ["reverse", "forward"])
def test_a_warm_cache_takes_one_round_trip_before_row_groups(azurite: Azurite, remote: Place, strategy: str) -> None:
    """A fresh open of a table that this process knows: one LIST, then row groups."""
    with LatencyProxy(azurite.port, LATENCY) as proxy:
        options = azurite.storage_options() | {
            "azure_storage_endpoint": f"http://127.0.0.1:{proxy.port}/{azurite.account}",
        }
        DeltaTable(remote.uri, storage_options=options).files(ONE_HOUR).collect()
        began = time.perf_counter()
        stream = DeltaTable(remote.uri, storage_options=options).files(ONE_HOUR, strategy=strategy)
        first = next(stream)
        ended = time.perf_counter()
        stream.close()
        assert first.tier == 1
        assert proxy.round_trips(began, ended) <= 2


def test_a_remote_table_gives_the_same_files_with_and_without_its_sidecar(remote: Place) -> None:
    for where in (ONE_HOUR, NO_HOUR, "timestamp >= '2026-02-10T21:00:00Z'", None):
        shared_cache.clear()
        found, metrics = rows(remote.open(), where)
        assert found == rows(remote.open(**DISABLED), where)[0]
        assert metrics.tier == 1
