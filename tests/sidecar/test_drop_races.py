"""``drop`` at every point of a build or refresh: both end well, and what is left is a whole sidecar or none."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lazydelta import sidecar
from lazydelta.errors import ObjectChangedError
from lazydelta.sidecar import BuildResult
from lazydelta.sidecar.format.columns import FOLDER, manifest_path
from lazydelta.sidecar.format.manifest import Manifest
from lazydelta.sidecar.reading.discovery import shared_cache
from lazydelta.storage import observe
from tests.scan.hand_log import HandLog, publish
from tests.sidecar.refreshed import COLUMNS, HOURS, file_in, gone_from, same
from tests.sidecar.sidecars import Place, rows
from tests.support.rounds import quick

if TYPE_CHECKING:
    from lazydelta.storage import Request
    from tests.sidecar.conftest import Split


def forced(uri: str) -> BuildResult:
    """Build although there is a good sidecar."""
    return sidecar.build(uri, force=True)


WORK: dict[str, Callable[[str], BuildResult]] = {
    "build": sidecar.build,
    "forced build": forced,
    "refresh": sidecar.refresh,
}


@pytest.fixture
def table(tmp_path: Path, split: Split) -> Path:
    """Make a table with a sidecar of four parts, and a newer checkpoint whose sidecar shares most of them."""
    split(5, 2)
    log = HandLog(tmp_path / "made", COLUMNS, partitions=["hour"])
    log.commit(*(file_in(HOURS[number // 10], number) for number in range(40)))
    log.checkpoint()
    assert sidecar.build(tmp_path / "made").num_parts == 4
    log.commit(gone_from(HOURS[1], 13), file_in(HOURS[1], 900))
    log.checkpoint()
    return tmp_path / "made"


class DropsAt:
    """An observer that drops the sidecar just before the n-th request of a piece of work that concerns the sidecar.

    What is read of the log in between does not notice a drop.
    """

    def __init__(self, uri: str, number: int) -> None:
        self.uri, self.left, self.dropped, self.busy = uri, number, False, False

    def __call__(self, request: Request) -> None:
        """Count, and drop when it is time; the requests of the drop itself do not count."""
        if self.busy or not request.path.startswith(FOLDER):
            return
        self.left -= 1
        if self.left == 0:
            self.busy = True
            try:
                sidecar.drop(self.uri)
            finally:
                self.busy, self.dropped = False, True


def copied(table: Path, kind: str = "memory") -> Place:
    """Return a copy of the table, in memory or on disk."""
    shared_cache.clear()
    name = uuid.uuid4().hex
    if kind == "local":
        return Place(str(shutil.copytree(table, table.parent / name)))
    return Place(publish(table, f"memory://{name}/table"))


def assert_whole_or_none(place: Place) -> bool:
    """Check that what is there is whole, and that scans are right; tell whether there is a sidecar."""
    shared_cache.clear()
    left = place.sidecars()
    expected = place.answer()
    found, metrics = rows(place.open())
    assert found == expected
    manifests = [path for path in left if path.endswith(".json")]
    for path in manifests:
        parts = {part.file for part in Manifest.decode(place.store.get(path)).parts}
        assert parts <= set(left), (path, parts - set(left))
    if manifests:
        same(place, (None,))
        return True
    assert not left
    assert metrics.tier == 3
    return False


@pytest.mark.parametrize(
    ("name", "before", "kind", "step"),
    [
        ("refresh", "an older sidecar", "local", 4),
        pytest.param("refresh", "an older sidecar", "local", 1, marks=pytest.mark.slow),
        pytest.param("build", "nothing", "memory", 1, marks=pytest.mark.slow),
        pytest.param("build", "a sidecar", "local", 1, marks=pytest.mark.slow),
        pytest.param("forced build", "a sidecar", "memory", 1, marks=pytest.mark.slow),
        pytest.param("refresh", "an older sidecar", "memory", 1, marks=pytest.mark.slow),
        pytest.param("refresh", "a sidecar", "local", 1, marks=pytest.mark.slow),
    ],
)
def test_a_drop_before_any_request_of_the_work_leaves_a_whole_sidecar_or_none(
    name: str, before: str, kind: str, step: int, table: Path
) -> None:
    """The last writer wins: after a drop in the middle the build restores what is missing."""
    number, outcomes = 0, set()
    while True:
        number += step
        place = copied(table, kind)
        if before == "nothing":
            sidecar.drop(place.uri)
        if before == "a sidecar":
            sidecar.build(place.uri)
        shared_cache.clear()
        hook = DropsAt(place.uri, number)
        with observe(hook):
            result = WORK[name](place.uri)
        if not hook.dropped:
            break
        assert result.version == 1
        outcomes.add(assert_whole_or_none(place))
        assert number < 500
    assert number > 5
    assert True in outcomes


@pytest.mark.parametrize("name", quick(["build", "refresh"], 1))
def test_work_done_whole_before_any_request_of_a_drop_leaves_a_whole_sidecar_or_none(name: str, table: Path) -> None:
    """The drop looks again: what was written while it deleted is dropped too, and nothing is left in pieces."""
    number = 0
    while True:
        number += 1
        place = copied(table)
        left, busy = number, False

        def hook(request: Request, place: Place = place) -> None:
            nonlocal left, busy
            if busy:
                return
            left -= 1
            if left == 0:
                busy = True
                WORK[name](place.uri)
                busy = False

        with observe(hook):
            sidecar.drop(place.uri)
        if left > 0:
            break
        assert_whole_or_none(place)
    assert number > 5


@pytest.mark.parametrize("name", quick(["refresh", "forced build"], 1))
def test_a_drop_that_takes_the_temporary_file_of_a_write_does_not_fail_it(
    name: str, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a local disk a file has another name until it is whole, and a drop removes what killed writers left."""
    number = 0
    while True:
        number += 1
        place = copied(table, "local")
        left, names = number, {"replace": os.replace, "link": os.link}

        def disturbed(
            kind: str, source: Any, target: Any, place: Place = place, names: Any = names, **keywords: Any
        ) -> None:
            nonlocal left
            inside = FOLDER in str(Path(f"/proc/self/fd/{keywords['dst_dir_fd']}").readlink())
            left -= inside
            if left == 0 and inside:
                sidecar.drop(place.uri)
            names[kind](source, target, **keywords)

        with monkeypatch.context() as patch:
            for kind in names:
                patch.setattr(os, kind, partial(disturbed, kind))
            WORK[name](place.uri)
        if left > 0:
            break
        assert_whole_or_none(place)
    assert number > 2


def test_a_build_whose_parts_vanish_again_and_again_ends_in_an_error_that_says_so(table: Path) -> None:
    """Against endless drops the build gives up, and no manifest is left without its parts."""
    place = copied(table)
    busy, rounds = False, 0

    def hook(request: Request) -> None:
        nonlocal busy, rounds
        if busy or request.verb != "PUT" or request.path != manifest_path(1):
            return
        busy, rounds = True, rounds + 1
        for path in place.parquets():
            place.store.delete(path)
        busy = False

    with observe(hook), pytest.raises(ObjectChangedError, match=f"{FOLDER} is dropped faster than it can be built"):
        sidecar.build(place.uri)
    assert rounds == 5
    assert manifest_path(1) not in place.sidecars()
    assert rows(place.open())[0] == place.answer()
