"""The switches of the ladder: whatever is off, the answer is the same, and what each of them saves can be counted."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from lazydelta import DeltaTable
from lazydelta.runtime.metrics import ScanMetrics
from lazydelta.scan.stream import FileStream
from lazydelta.sidecar.building.build import build
from lazydelta.storage import observe
from lazydelta.testing import make_table
from tests.sidecar.conftest import set_sizes

FILES, HOURS, ROWS, GROUPS = 2_000, 20, 100, 4
HOUR = "2026021012"
DEVICE = "sensor-04242"
SWITCHES = ("delta.sidecar.enabled", "use_manifest", "project_columns", "prune_row_groups")
PREDICATES = {
    "all": None,
    "hour": f"_event_hour = '{HOUR}'",
    "device": f"device_id = '{DEVICE}'",
    "both": f"_event_hour >= '{HOUR}' AND device_id <= '{DEVICE}'",
}


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a table whose sidecar has five files of four row groups, and a tail that removes some of its files."""
    with pytest.MonkeyPatch.context() as patch:
        set_sizes(patch, ROWS, GROUPS)
        return _made(tmp_path_factory.mktemp("several"))


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the same table with a sidecar of one file."""
    with pytest.MonkeyPatch.context() as patch:
        set_sizes(patch, ROWS, FILES)
        return _made(tmp_path_factory.mktemp("single"))


def _made(folder: Path) -> str:
    make_table(folder, files=FILES, hours=HOURS, tail=3, removes=90, checksum=True)
    build(folder)
    return str(folder)


def _truth(uri: str) -> dict[str, set[str]]:
    """Let deltalake tell all files and their statistics, and compare these here."""
    files = pa.table(deltalake.DeltaTable(uri).get_add_actions(flatten=True)).to_pylist()

    def may(file: dict[str, str], name: str) -> bool:
        least, most, hour = file["min.device_id"], file["max.device_id"], file["partition._event_hour"]
        in_hour = hour == HOUR if name == "hour" else hour >= HOUR
        return {
            "all": True,
            "hour": in_hour,
            "device": least <= DEVICE <= most,
            "both": in_hour and least <= DEVICE,
        }[name]

    return {name: {file["path"] for file in files if may(file, name)} for name in PREDICATES}


def _scan(uri: str, where: str | None, **options: Any) -> tuple[set[str], ScanMetrics]:
    stream: FileStream = DeltaTable(uri, options={"cache_size": 0, **options}).files(where)
    paths = [path for batch in stream.batches() for path in batch.column("path").to_pylist()]
    assert len(paths) == len(set(paths)), "each file once"
    return set(paths), stream.metrics


@pytest.mark.parametrize("kind", ["several", "single"])
def test_the_answer_is_the_same_whatever_is_switched_off(kind: str, request: pytest.FixtureRequest) -> None:
    uri: str = request.getfixturevalue(kind)
    truth = _truth(uri)
    assert all(truth.values())
    for chosen in product([True, False], repeat=len(SWITCHES)):
        options = dict(zip(SWITCHES, chosen, strict=True))
        if kind == "single" and not chosen[0]:
            continue  # the same checkpoint as that of the other table
        for name, where in PREDICATES.items():
            found, metrics = _scan(uri, where, **options)
            assert found == truth[name], (options, name)
            enabled, manifest = chosen[:2]
            assert metrics.tier == (3 if not enabled else 1 if manifest else 2), (options, name)
            assert not metrics.sidecar_failure


@pytest.mark.parametrize("strategy", ["forward", "reverse"])
def test_statistics_and_order_are_those_of_the_manifest(several: str, strategy: str) -> None:
    """Reported statistics, limits and the order of a strategy do not depend on what they were found by."""

    def answer(**options: Any) -> list[Any]:
        table = DeltaTable(several, options={"cache_size": 0, **options})
        asked = table.files(PREDICATES["both"], strategy=strategy, stats_columns=["device_id"], limit=500)
        return [row for batch in asked.batches() for row in batch.drop_columns(["tier"]).to_pylist()]

    usual = answer()
    assert len(usual) == 500
    for chosen in product([True, False], repeat=3):
        assert answer(**dict(zip(SWITCHES[1:], chosen, strict=True))) == usual


def _reads(uri: str, where: str | None, **options: Any) -> tuple[ScanMetrics, set[str], set[str]]:
    """Return the metrics, the files of the sidecar whose footer was read, and the other files of its folder."""
    footers: set[str] = set()
    others: set[str] = set()

    def note(path: str, start: int | None, length: int | None) -> None:
        if "_sidecars" in path:
            place = Path(uri) / path
            at_end = (
                path.endswith(".parquet") and place.exists() and (start or 0) + (length or 0) == place.stat().st_size
            )
            (footers if at_end else others).add(path.rpartition("/")[2])

    with observe(lambda each: note(each.path, each.start, each.length)):
        _, metrics = _scan(uri, where, **options)
    return metrics, footers, others


def test_the_manifest_saves_the_footers_of_files_that_are_not_needed(several: str, single: str) -> None:
    where = PREDICATES["hour"]
    _, footers, others = _reads(several, where)
    assert len(footers) <= 2
    assert "v10.manifest.json" in others
    _, footers, _ = _reads(several, where, use_manifest=False)
    assert len(footers) == FILES // (ROWS * GROUPS) + 1, "those of all parts, and the overview that lists them"
    _, footers, others = _reads(single, where, use_manifest=False)
    assert footers == {"v10.parquet"}
    assert "v10.manifest.json" not in others


def test_projection_saves_bytes_and_nothing_else(several: str) -> None:
    for where in PREDICATES.values():
        usual, _, _ = _reads(several, where)
        whole, _, _ = _reads(several, where, project_columns=False)
        assert whole.bytes_read > usual.bytes_read
        assert (whole.row_groups_read, whole.row_groups_pruned) == (usual.row_groups_read, usual.row_groups_pruned)


def test_projection_saves_the_texts_of_statistics_in_a_checkpoint(several: str) -> None:
    without = {"delta.sidecar.enabled": False}
    usual, _, _ = _reads(several, PREDICATES["hour"], **without)
    whole, _, _ = _reads(several, PREDICATES["hour"], **without, project_columns=False)
    assert whole.bytes_read > 1.5 * usual.bytes_read


@pytest.mark.parametrize("use_manifest", [True, False])
def test_pruning_saves_row_groups(several: str, use_manifest: bool) -> None:  # noqa: FBT001 - a parameter
    where = PREDICATES["hour"]
    usual, _, _ = _reads(several, where, use_manifest=use_manifest)
    assert usual.row_groups_read <= 3
    assert usual.row_groups_read + usual.row_groups_pruned == FILES // ROWS
    whole, _, _ = _reads(several, where, use_manifest=use_manifest, prune_row_groups=False)
    assert (whole.row_groups_read, whole.row_groups_pruned) == (FILES // ROWS, 0)
    assert whole.files_considered == usual.files_considered


def test_explain_says_that_the_manifest_was_not_asked(several: str) -> None:
    _, metrics = _scan(several, None, use_manifest=False)
    assert metrics.sidecar == "version 10, by the footers of its files, because use_manifest is off"
