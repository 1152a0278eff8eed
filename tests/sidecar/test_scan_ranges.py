"""A scan divided into ranges: together they hold each file once, whatever happens to the sidecar meanwhile."""

from __future__ import annotations

import pickle
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from lazydelta import DeltaTable
from lazydelta.errors import ObjectChangedError
from lazydelta.predicates import parse_predicate
from lazydelta.scan.base import BasePlace, ScanRange, divided
from lazydelta.scan.file import data_files
from lazydelta.scan.request import ScanRequest
from lazydelta.sidecar.building.build import build
from lazydelta.sidecar.format.columns import FOLDER
from lazydelta.sidecar.handle import Snapshot, TableHandle
from lazydelta.sidecar.reading.discovery import shared_cache
from tests.oracle.random_log import random_log
from tests.oracle.replay import Key
from tests.scan.hand_log import key
from tests.scan.predicates import predicate_for, written
from tests.scan.typed_log import typed_log
from tests.sidecar.conftest import Form, Split
from tests.sidecar.sidecars import hourly
from tests.sidecar.test_property import SIZES, build_some

pytestmark = pytest.mark.filterwarnings("ignore::lazydelta.PredicateWarning")


def keys_of(snapshot: Snapshot, within: ScanRange, where: Any = None) -> list[Key]:
    """Return the files of a range as a worker finds them, which has its own copy of everything."""
    copy, within = pickle.loads(pickle.dumps((snapshot, within)))  # noqa: S301 - made here
    request = ScanRequest.of(copy.schema, where=where)
    batches = copy.scan(request, within=within).batches()
    return [key(file) for batch in batches for file in data_files(batch, copy.store, copy.schema)]


def ranges_of(snapshot: Snapshot, where: Any, files: int) -> list[ScanRange]:
    """Divide a scan."""
    predicate = parse_predicate(where, snapshot.schema)
    return divided(snapshot.segment, snapshot.places(predicate, files), files)


@pytest.mark.parametrize("chunk", [0, 1, *(pytest.param(each, marks=pytest.mark.slow) for each in range(2, 6))])
def test_ranges_of_random_logs_hold_each_file_of_the_whole_scan_once(
    chunk: int, split: Split, form: Form, tmp_path: Path
) -> None:
    """With sidecars and without, tails, removes, deletion vectors, predicates: what one scan finds, each file once."""
    rng = random.Random(chunk)
    several = by_sidecar = 0
    for seed in range(60_000 + chunk * 3, 60_000 + (chunk + 1) * 3):
        log = random_log(seed, tmp_path / str(seed))
        form(seed)
        split(*rng.choice(SIZES))
        build_some(log, rng)
        for version in sorted({log.latest, rng.choice(log.readable)}):
            shared_cache.clear()
            handle = TableHandle.open(log.path)
            snapshot, expected = handle.snapshot(version), log.expected(version)
            for where in (None, written(predicate_for(rng, expected), "dict")):
                ranges = ranges_of(snapshot, where, rng.choice([1, 3, 1000]))
                found = Counter(each for within in ranges for each in keys_of(snapshot, within, where))
                whole = {key(file) for file in DeltaTable(log.path, version=version).files(where)}
                story = (seed, version, where, log.notes)
                assert max(found.values(), default=1) == 1, story
                assert set(found) == whole, story
                if where is None:
                    assert set(found) == set(expected.files), story
                several += len(ranges) > 1
                by_sidecar += any(each.place is not None and each.place.files_of_it is not None for each in ranges)
    assert several > 2
    assert by_sidecar


@pytest.mark.parametrize("logs", [2, pytest.param(12, marks=pytest.mark.slow)])
def test_ranges_of_typed_logs_hold_each_file_once_although_the_sidecar_is_lost(
    logs: int, split: Split, tmp_path: Path
) -> None:
    """Divided by a sidecar sorted by values of every type, and read from the checkpoint: the same files."""
    rng = random.Random(5)
    lost = 0
    for seed in range(7000, 7000 + logs):
        log = typed_log(seed, tmp_path / str(seed)).log
        split(*rng.choice(((1, 1000), (2, 3), (3, 1))))
        build_some(log, rng)
        shared_cache.clear()
        handle = TableHandle.open(log.path)
        snapshot = handle.snapshot(log.latest)
        ranges = ranges_of(snapshot, None, rng.choice([3, 6]))
        for path in (log.path / FOLDER).glob("v*"):
            if rng.random() < 0.7:
                path.unlink()
                lost += 1
        shared_cache.clear()
        found = Counter(each for within in ranges for each in keys_of(snapshot, within))
        assert max(found.values(), default=1) == 1, (seed, log.notes)
        assert set(found) == set(log.expected(log.latest).files), (seed, log.notes)
    assert lost


def test_a_range_reads_its_own_row_groups_and_no_others(split: Split, tmp_path: Path) -> None:
    """Row groups of the sidecar are read once by all ranges together."""
    split(10, 1000)
    hourly(tmp_path)
    build(str(tmp_path))
    handle = TableHandle.open(tmp_path)
    snapshot = handle.snapshot()
    places = snapshot.places(None, 1)
    assert len(places) > 3
    read = 0
    for each in places:
        scanner = snapshot.scan(ScanRequest.of(snapshot.schema), within=ScanRange(each))
        assert sum(len(batch) for batch in scanner.batches()) <= each.files
        read += scanner.metrics.row_groups_read
    assert read == sum(each.stop - each.start for each in places)


def test_a_predicate_leaves_places_out(split: Split, tmp_path: Path) -> None:
    """The manifest's ranges decide before anything is divided."""
    split(10, 1000)
    hourly(tmp_path)
    build(str(tmp_path))
    handle = TableHandle.open(tmp_path)
    snapshot = handle.snapshot()
    where = parse_predicate("hour = '2026021007'", snapshot.schema)
    few = snapshot.places(where, 1)
    assert 0 < sum(each.files for each in few) < sum(each.files for each in snapshot.places(None, 1))


@pytest.mark.parametrize(("limit", "shares"), [(1, 5), (4, 3), (9, 2), (10, 1)])
def test_slices_of_one_place_share_large_files(limit: int, shares: int, tmp_path: Path) -> None:
    """A file is in as many slices as it has shares, with another share in each, and in no other slice."""
    hourly(tmp_path)
    handle = TableHandle.open(tmp_path)
    snapshot = handle.snapshot()
    files = {key(file): file for file in DeltaTable(tmp_path).files()}
    assert {file.size for file in files.values()} == {10}
    ranges = [
        ScanRange(each.place, number, 5, share_bytes=limit)
        for each in divided(snapshot.segment, snapshot.places(None, 10_000), 10_000)
        for number in range(5)
    ]
    found: dict[Key, list[tuple[int, int] | None]] = {}
    for within in ranges:
        for name in keys_of(snapshot, within):
            found.setdefault(name, []).append(within.share_of(files[name].path, files[name].size))
    expected = [None] if shares == 1 else [(number, shares) for number in range(shares)]
    assert {name: sorted(each, key=str) for name, each in found.items()} == dict.fromkeys(files, expected)


def test_places_of_huge_files_have_more_slices_than_files(tmp_path: Path) -> None:
    """And not more than help: each of them is a task."""
    hourly(tmp_path)
    handle = TableHandle.open(tmp_path)
    snapshot = handle.snapshot()
    places = snapshot.places(None, 1)
    files = sum(each.files for each in places)
    assert len(divided(snapshot.segment, places, 0.25, share_bytes=1)) >= 4 * files
    assert len(divided(snapshot.segment, places, 1e-9, share_bytes=1)) <= 10_000 + len(places) + 1


def test_a_checkpoint_that_is_not_the_one_divided_by_is_an_error_and_not_other_files(tmp_path: Path) -> None:
    """Its row groups may hold anything by now."""
    hourly(tmp_path)
    handle = TableHandle.open(tmp_path)
    snapshot = handle.snapshot()
    within = ScanRange(BasePlace("_delta_log/00000000000000000003.checkpoint.parquet", 0, 1, 5))
    with pytest.raises(ObjectChangedError, match="scan again"):
        keys_of(snapshot, within)
