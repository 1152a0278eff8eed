"""Whatever happens to a sidecar, the answer is the log's: damage of every kind, at rest and in mid-scan."""

from __future__ import annotations

import copy
import functools
import logging
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lazydelta import sidecar
from lazydelta.sidecar.format.columns import FOLDER, manifest_path, sidecar_path
from lazydelta.sidecar.format.manifest import Manifest
from lazydelta.sidecar.format.part_file import PartFooter
from lazydelta.sidecar.reading.discovery import shared_cache
from lazydelta.testing import make_table
from tests.scan.hand_log import HandLog, add, key, vector
from tests.sidecar.conftest import Split, set_sizes
from tests.sidecar.sidecars import (
    QUERIES,
    Answer,
    Place,
    checkpoint,
    flipped,
    hourly,
    is_overview,
    resealed,
    rest,
    rows,
    until_base,
)
from tests.support.rounds import quick

STRATEGIES = ("reverse", "forward")
LAYOUTS = {"single": (20, 100), "parts": (10, 3), "one row group": (1000, 1)}
STATS = ["id", "at", "name"]
FLIPS = 100
FLIPS_IN_EACH_PLACE = 20

every_layout = pytest.mark.parametrize("layout", LAYOUTS)
both = pytest.mark.parametrize("strategy", STRATEGIES)


class Victim:
    """A table with a sidecar whose files can be damaged and put back, and the answers that must not change."""

    def __init__(self, folder: Path) -> None:
        hourly(folder)
        self.place = Place(str(folder))
        self.place.build(0)
        self.files = {Path(path).name: self.place.store.get(path) for path in self.place.sidecars()}
        self.manifest = Manifest.decode(self.files["v0.manifest.json"])
        self.answers: dict[Any, Answer] = {where: self.place.answer(where, stats_columns=STATS) for where in QUERIES}

    def copied(self, folder: Path) -> Victim:
        """Return the same table in another folder: as it was made, with the times of its files."""
        shutil.copytree(self.place.uri, folder)
        twin = copy.copy(self)
        twin.place = Place(str(folder))
        return twin

    @property
    def folder(self) -> Path:
        """Where the sidecar lies."""
        return Path(self.place.uri) / FOLDER

    @property
    def parquets(self) -> list[str]:
        """The names of the Parquet files, without the overview of parts."""
        return [name for name in self.files if name.endswith(".parquet") and not is_overview(self.files[name])]

    def put(self, name: str, data: bytes | None) -> None:
        """Replace a file of the sidecar; None deletes it."""
        (self.folder / name).unlink(missing_ok=True)
        if data is not None:
            (self.folder / name).write_bytes(data)

    def heal(self) -> None:
        """Put everything back."""
        for path in self.folder.iterdir():
            if path.name not in self.files:
                path.unlink()
        for name, data in self.files.items():
            self.put(name, data)

    def assert_unchanged(
        self, story: object, *, tiers: set[int], queries: tuple[Any, ...] = QUERIES[:-1], warm: bool = False
    ) -> None:
        """Check that the queries give the log's answers, from one of the tiers allowed."""
        for number, where in enumerate(queries):
            if not warm:
                shared_cache.clear()
            found, metrics = rows(self.place.open(), where, strategy=STRATEGIES[number % 2], stats_columns=STATS)
            assert found == self.answers[where], (story, where)
            assert metrics.tier in tiers, (story, where)
            assert metrics.sidecar_hits == (metrics.tier < 3), (story, where)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Victim]:
    """Return a function that makes the table of a layout, once for all tests; they damage copies."""
    folder = tmp_path_factory.mktemp("whole")

    @functools.cache
    def made(layout: str) -> Victim:
        with pytest.MonkeyPatch.context() as patch:
            set_sizes(patch, *LAYOUTS[layout])
            victim = Victim(folder / layout)
        assert len(victim.parquets) == (1 if layout != "parts" else 4)
        victim.copied(folder / f"{layout} again").assert_unchanged("whole", tiers={1})
        return victim

    return made


@pytest.fixture
def victim(layout: str, whole: Callable[[str], Victim], split: Split, tmp_path: Path) -> Victim:
    """Copy the table whose sidecar has one of the layouts; what is built in the test has it as well."""
    split(*LAYOUTS[layout])
    return whole(layout).copied(tmp_path / "table")


@pytest.fixture
def quiet() -> None:
    """Keep thousands of expected warnings from being formatted."""
    logging.getLogger("lazydelta.sidecar").setLevel(logging.ERROR)


@pytest.fixture(autouse=True)
def usual_level() -> Any:
    """Bring the level of the log back."""
    logger = logging.getLogger("lazydelta.sidecar")
    yield
    logger.setLevel(logging.NOTSET)


# Missing and truncated.


@every_layout
def test_any_missing_file_changes_nothing(victim: Victim) -> None:
    """Every subset of one: the manifest, or one of the Parquet files."""
    for name in victim.files:
        victim.put(name, None)
        victim.assert_unchanged(name, tiers={2} if name == "v0.manifest.json" else {3, 1})
        victim.heal()


@every_layout
def test_files_truncated_at_random_bytes_change_nothing(victim: Victim, quiet: None) -> None:
    """From the empty file to the one that lacks its last byte."""
    rng = random.Random(1)
    for name, data in victim.files.items():
        places = {0, 1, 4, 7, 8, 11, 12, 13, len(data) - 1, len(data) - 4, len(data) - 8, len(data) - 9}
        for length in sorted(places | {rng.randrange(len(data)) for _ in range(4)}):
            victim.put(name, data[:length])
            victim.assert_unchanged((name, length), tiers={1, 2, 3}, queries=(None,))
            if name == "v0.parquet":  # the only Parquet file that is looked at without a manifest
                victim.put("v0.manifest.json", None)
                victim.assert_unchanged((name, length, "no manifest"), tiers={2, 3}, queries=(None,))
            victim.heal()


@every_layout
def test_files_that_are_longer_than_they_were_change_nothing(victim: Victim) -> None:
    for name, data in victim.files.items():
        for longer in (data + b"\0", data + data, b"\0" + data):
            victim.put(name, longer)
            victim.assert_unchanged((name, len(longer)), tiers={1, 2, 3}, queries=QUERIES[:2])
            victim.put("v0.manifest.json", None)
            victim.assert_unchanged((name, len(longer), "no manifest"), tiers={2, 3}, queries=QUERIES[:2])
            victim.heal()


@every_layout
def test_a_folder_in_place_of_a_file_changes_nothing(victim: Victim) -> None:
    for name in victim.files:
        victim.put(name, None)
        (victim.folder / name).mkdir()
        victim.assert_unchanged(name, tiers={1, 2, 3}, queries=(None,))
        (victim.folder / name).rmdir()
        victim.heal()


# One bit.


def places_of(victim: Victim, name: str) -> dict[str, tuple[int, int]]:
    """Return the kinds of places in a file where a bit may flip, as ranges of bytes."""
    data = victim.files[name]
    if name == "v0.manifest.json":
        return {"manifest": (0, len(data))}
    part = next(part for part in victim.manifest.parts if part.file.endswith(name))
    return {
        "pages": (0, part.footer_offset),
        "footer": (part.footer_offset, len(data) - 8),
        "trailer": (len(data) - 8, len(data)),
    }


@pytest.mark.parametrize(
    ("layout", "with_manifest"),
    [
        ("parts", True),
        ("single", False),
        pytest.param("single", True, marks=pytest.mark.slow),
        pytest.param("one row group", True, marks=pytest.mark.slow),
        pytest.param("one row group", False, marks=pytest.mark.slow),
    ],
)
def test_one_flipped_bit_anywhere_changes_nothing(
    *, victim: Victim, layout: str, with_manifest: bool, quiet: None
) -> None:
    """Hundreds of flips over manifest, footer and pages: each is noticed or harmless, and the answer is the log's."""
    rng = random.Random(f"{layout}-{with_manifest}")
    names = [*victim.parquets, *(["v0.manifest.json"] if with_manifest else [])]
    flips: list[tuple[str, int]] = []
    for name in names:
        for start, end in places_of(victim, name).values():
            count = FLIPS_IN_EACH_PLACE // (1 if len(names) < 4 else len(names) - 1)
            flips += [(name, rng.randrange(start * 8, end * 8)) for _ in range(count)]
    while len(flips) < FLIPS:
        name = rng.choice(names)
        flips.append((name, rng.randrange(len(victim.files[name]) * 8)))
    noticed = 0
    if not with_manifest:
        victim.put("v0.manifest.json", None)
    for name, bit in flips:
        victim.put(name, flipped(victim.files[name], bit))
        shared_cache.clear()
        found, metrics = rows(victim.place.open(), stats_columns=STATS)
        assert found == victim.answers[None], (name, bit)
        noticed += metrics.tier > (1 if with_manifest else 2)
        victim.put(name, victim.files[name])
    assert len(flips) >= FLIPS
    # Not those in what no reader looks at: the map of partition values, where it says no more than their column.
    assert noticed > 0.8 * len(flips)


@every_layout
def test_flipped_bits_change_nothing_for_a_warm_cache(victim: Victim, quiet: None) -> None:
    """The manifest and the footers are remembered; the pages are read, and damage to them is noticed all the same."""
    rng = random.Random(5)
    for _ in range(30):
        victim.assert_unchanged("warming", tiers={1}, queries=QUERIES[1:2], warm=True)
        name = rng.choice(list(victim.files))
        bit = rng.randrange(len(victim.files[name]) * 8)
        victim.put(name, flipped(victim.files[name], bit))
        victim.assert_unchanged((name, bit), tiers={1, 2, 3}, queries=(None,), warm=True)
        victim.put(name, victim.files[name])
    assert victim.place.open().files().collect()


@pytest.mark.parametrize("tried", quick([120, 2_000], 1))
def test_one_flipped_bit_in_a_page_header_changes_nothing(
    tried: int, split: Split, tmp_path: Path, quiet: None
) -> None:
    """The first bytes of every column chunk are page headers, which no checksum covers: their bits are tried."""
    split(1000, 1)
    victim = Victim(tmp_path / "table")
    (name,) = victim.parquets
    part = victim.manifest.parts[0]
    footer = PartFooter(victim.files[name][part.footer_offset :])
    rng = random.Random(9)
    spans = [span for column in footer.state.columns for span in footer.spans(0, [column.name])]
    bits = [start * 8 + offset for start, length in spans for offset in range(min(length, 24) * 8)]
    for bit in rng.sample(bits, min(tried, len(bits))):
        victim.put(name, flipped(victim.files[name], bit))
        shared_cache.clear()
        assert rows(victim.place.open(), stats_columns=STATS)[0] == victim.answers[None], bit


# Of another program.


@every_layout
def test_the_sidecar_of_another_table_changes_nothing(victim: Victim, tmp_path: Path) -> None:
    """The folder of another table with the same schema and version, copied here whole or file by file."""
    log = HandLog(tmp_path / "other", {"id": "long", "at": "timestamp", "name": "string", "hour": "string"})
    log.partitions = ["hour"]
    log.commit(*(add(f"f{n:05d}", ids=(n, n), partition={"hour": "2026021001"}) for n in range(40)))
    text = (log.log / f"{0:020d}.json").read_text(encoding="utf-8")
    (log.log / f"{0:020d}.json").write_text(text.replace('"id": "hand"', '"id": "another"'), encoding="utf-8")
    log.checkpoint()
    other = Place(str(tmp_path / "other"))
    other.build(0)
    shutil.rmtree(victim.folder)
    shutil.copytree(tmp_path / "other" / FOLDER, victim.folder)
    victim.assert_unchanged("all of it", tiers={3})
    victim.put("v0.manifest.json", None)
    victim.assert_unchanged("its parts", tiers={3})
    victim.heal()
    for path in (tmp_path / "other" / FOLDER).iterdir():
        victim.put(path.name, path.read_bytes())
        victim.assert_unchanged(path.name, tiers={1, 2, 3})
        victim.heal()


@every_layout
def test_the_sidecar_of_another_version_changes_nothing(victim: Victim, tmp_path: Path, split: Split) -> None:
    """A newer checkpoint, and the older sidecar under its name."""
    place = victim.place
    log = _reopened(Path(place.uri))
    log.checkpoint()
    for name in victim.files:
        if name.startswith("v0."):
            victim.put(name.replace("v0.", f"v{log.version}."), victim.files[name])
    victim.answers = {where: place.answer(where, stats_columns=STATS) for where in QUERIES}  # of no version any more
    victim.assert_unchanged("with manifest", tiers={3})
    victim.put(f"v{log.version}.manifest.json", None)
    victim.assert_unchanged("alone", tiers={3})
    assert place.build() in {"built", "manifest-added"}
    victim.assert_unchanged("built", tiers={1})


def _reopened(table: Path) -> HandLog:
    log = HandLog.__new__(HandLog)
    log.table, log.log = table, table / "_delta_log"
    log.version = max(int(path.stem) for path in log.log.glob("*.json"))
    return log


@every_layout
@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.each_value
def test_a_rewound_log_with_the_same_checkpoint_version_changes_nothing(
    *, victim: Victim, warm: bool, tmp_path: Path
) -> None:
    """The checkpoint was written anew with other files at the same version: the sidecar mirrors one that is gone."""
    place = victim.place
    victim.assert_unchanged("before", tiers={1}, warm=warm)
    shutil.rmtree(Path(place.uri) / "_delta_log", ignore_errors=False)
    hourly(Path(place.uri), files=90, seed=5)
    victim.folder.mkdir()
    victim.heal()
    for where in QUERIES:
        if not warm:
            shared_cache.clear()
        found, metrics = rows(place.open(), where)
        assert found == place.answer(where)
        assert metrics.tier == 3
    victim.put("v0.manifest.json", None)
    for where in QUERIES:
        assert rows(place.open(), where)[0] == place.answer(where)


# A manifest that lies under a good seal.


def _group(position: int, **changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda manifest: manifest["row_groups"][position].update(changes)


def _part(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda manifest: manifest["parts"][-1].update(changes)


def _swap(manifest: dict[str, Any]) -> None:
    groups = manifest["row_groups"]
    first, last = groups[0], groups[-1]
    for name in ("byte_offset", "byte_length", "core_byte_length", "index", "part"):
        first[name], last[name] = last[name], first[name]


def _forget_group(manifest: dict[str, Any]) -> None:
    del manifest["row_groups"][len(manifest["row_groups"]) // 2]


def _forget_part(manifest: dict[str, Any]) -> None:
    last = len(manifest["parts"]) - 1
    manifest["parts"].pop()
    manifest["row_groups"] = [group for group in manifest["row_groups"] if group["part"] != last]


def _twice(manifest: dict[str, Any]) -> None:
    manifest["row_groups"].append(manifest["row_groups"][-1])


LIES: dict[str, Callable[[dict[str, Any]], None]] = {
    "rows of a group": _group(0, num_rows=7777),
    "no rows in a group": _group(-1, num_rows=0),
    "rows of a part": _part(num_rows=7777),
    "files": lambda manifest: manifest.update(num_files=7777),
    "row groups": lambda manifest: manifest.update(num_row_groups=7777),
    "row groups of a part": _part(num_row_groups=1),
    "sidecar file": lambda manifest: manifest.update(sidecar_file="_delta_log/_sidecars/other.parquet"),
    "file of a part": _part(file="_delta_log/_sidecars/other.parquet"),
    "file that is the checkpoint": _part(file=f"_delta_log/{0:020d}.checkpoint.parquet"),
    "file outside the table": _part(file="../../../../../../../../etc/hostname"),
    "absolute file": _part(file="/etc/hostname"),
    "no file": _part(file=""),
    "offset of a group": _group(0, byte_offset=5),
    "offset past the end": _group(0, byte_offset=10**9),
    "offset past all ends": _group(0, byte_offset=2**63 - 1),
    "length of a group": _group(0, core_byte_length=10),
    "no length of a group": _group(0, core_byte_length=0),
    "length past all ends": _group(0, core_byte_length=2**40),
    "index of a group": _group(0, index=77),
    "part of a group": _group(0, part=77),
    "groups swapped": _swap,
    "footer offset": _part(footer_offset=3),
    "footer offset past the end": _part(footer_offset=10**9),
    "footer length": _part(footer_length=20),
    "no footer": _part(footer_length=0),
    "footer digest": _part(footer_sha256="0" * 64),
    "size of a part": _part(size=100),
    "first key": _group(0, first=["2026021000", "a"]),
    "last key": _group(-1, last=[None, "z"]),
    "keys of no length": _group(0, first=[], last=[]),
    "a group forgotten": _forget_group,
    "a part forgotten": _forget_part,
    "no parts": lambda manifest: manifest.update(parts=[], row_groups=[]),
    "no parts and no files": lambda manifest: manifest.update(parts=[], row_groups=[], num_files=0, num_row_groups=0),
    "a group twice": _twice,
    "columns": lambda manifest: manifest["columns"].pop(),
    "no columns": lambda manifest: manifest.update(columns=[]),
    "roles": lambda manifest: manifest["columns"][1].update(role="modification_time"),
    "sort": lambda manifest: manifest.update(sort=[{"role": "min", "path": ["id"]}]),
    "sort by what is not there": lambda manifest: manifest.update(sort=[{"role": "min", "path": ["nothing"]}]),
    "no sort": lambda manifest: manifest.update(sort=[]),
    "table": lambda manifest: manifest.update(table_id="another"),
    "version": lambda manifest: manifest.update(version=1),
    "checkpoint": lambda manifest: manifest["checkpoint"][0].update(size=1),
    "no checkpoint": lambda manifest: manifest.update(checkpoint=[]),
    "format of the future": lambda manifest: manifest.update(format_version=99),
    "format of no time": lambda manifest: manifest.update(format_version=0),
    "wrong type": lambda manifest: manifest.update(parts=7),
    "unknown fields": lambda manifest: manifest.update(future={"a": [1]}),
}
HARMLESS = {"sidecar file", "unknown fields"}


@pytest.mark.parametrize("layout", quick(["parts", "single"], 1))
@pytest.mark.parametrize("lie", LIES)
def test_a_lying_manifest_under_a_good_seal_changes_nothing(victim: Victim, lie: str) -> None:
    """Row counts, offsets, files, keys, columns: whatever it says, what is read is checked against it."""
    victim.put("other.parquet", b"PAR1" + b"x" * 5000 + b"PAR1")
    victim.put("v0.manifest.json", resealed(victim.files["v0.manifest.json"], LIES[lie]))
    victim.assert_unchanged(lie, tiers={1} if lie in HARMLESS else {1, 2, 3})


# In mid-scan.


def _delete(victim: Victim) -> None:
    for name in victim.files:
        victim.put(name, None)


def _truncate(victim: Victim) -> None:
    for name in victim.parquets:
        victim.put(name, victim.files[name][:50])


def _empty(victim: Victim) -> None:
    for name in victim.parquets:
        victim.put(name, b"")


def _garble(victim: Victim) -> None:
    rng = random.Random(3)
    for name in victim.parquets:
        victim.put(name, rng.randbytes(len(victim.files[name])))


DAMAGE = {"deleted": _delete, "truncated": _truncate, "emptied": _empty, "garbled": _garble}


@pytest.mark.parametrize("layout", ["single", "parts"])
@both
@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_in_mid_scan_changes_nothing(
    victim: Victim, damage: str, strategy: str, caplog: pytest.LogCaptureFixture
) -> None:
    """After each number of files pulled: what came is not repeated, what did not come follows from the checkpoint."""
    place = victim.place
    expected = sorted(map(key, place.open(**{"delta.sidecar.enabled": False}).files()), key=repr)
    for pulled in (0, 1, 9, 33):
        shared_cache.clear()
        caplog.clear()
        stream = place.open(**{"delta.sidecar.row_groups_per_batch": 1}).files(strategy=strategy)
        files = until_base(stream) + [next(stream) for _ in range(pulled)]
        DAMAGE[damage](victim)
        files += rest(stream)
        assert sorted(map(key, files), key=repr) == expected, pulled
        assert {file.tier for file in files} == {0, 1, 3}
        assert (stream.metrics.tier, stream.metrics.sidecar_hits) == (3, 0)
        assert "the checkpoint goes on" in caplog.text
        victim.heal()


@pytest.mark.parametrize("ahead", [2, 4, 7])
def test_damage_while_several_row_groups_are_decoded_together_changes_nothing(tmp_path: Path, ahead: int) -> None:
    """Large scans decode some at a time: those that left are not repeated, the others follow from the checkpoint."""
    with pytest.MonkeyPatch.context() as patch:
        set_sizes(patch, 7, 13)
        make_table(tmp_path, files=2000, hours=24, deletion_vectors=0.2)
        sidecar.build(tmp_path)
    place = Place(str(tmp_path))
    expected = sorted(map(key, place.open(**{"delta.sidecar.enabled": False}).files()), key=repr)
    rng = random.Random(ahead)
    parquets = {path: place.store.get(path) for path in place.parquets()}
    for pulled in (0, 20, 100, 400):
        shared_cache.clear()
        stream = place.open(**{"delta.sidecar.row_groups_per_batch": ahead}).files(strategy="forward")
        files = [next(stream) for _ in range(pulled + 1)]
        for path, data in parquets.items():
            place.store.put(path, rng.randbytes(len(data)))
        files += rest(stream)
        assert sorted(map(key, files), key=repr) == expected, pulled
        assert {file.tier for file in files} == {1, 3}
        for path, data in parquets.items():
            place.store.put(path, data)


@pytest.mark.parametrize("layout", ["single", "parts"])
@both
@pytest.mark.parametrize("where", QUERIES[1:6])
def test_damage_in_mid_scan_of_a_query_changes_nothing(
    victim: Victim, where: str, strategy: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The same under predicates, where row groups were pruned before the sidecar went."""
    expected = sorted(map(key, victim.place.open(**{"delta.sidecar.enabled": False}).files(where)), key=repr)
    stream = victim.place.open(**{"delta.sidecar.row_groups_per_batch": 1}).files(where, strategy=strategy)
    files = until_base(stream)
    _delete(victim)
    files += rest(stream)
    assert sorted(map(key, files), key=repr) == expected


@pytest.mark.parametrize("layout", ["single", "parts"])
@both
def test_statistics_asked_for_after_the_sidecar_went_come_from_the_checkpoint(victim: Victim, strategy: str) -> None:
    """A file that was listed without statistics still has them, though the sidecar it was listed from is gone."""
    expected = {key(file): file.num_records for file in victim.place.open(**{"delta.sidecar.enabled": False}).files()}
    files = victim.place.open().files(strategy=strategy).collect()
    _delete(victim)
    assert {key(file): file.num_records for file in files} == expected
    bounds = {key(file): (file.stats or {}).get("minValues", {}).get("id") for file in files}
    from_log = victim.place.open(**{"delta.sidecar.enabled": False}).files()
    assert bounds == {key(file): (file.stats or {}).get("minValues", {}).get("id") for file in from_log}


@both
@pytest.mark.parametrize("rows_of_a_group", [1, 2, 3, 5])
def test_one_path_under_two_vectors_at_the_edge_of_a_row_group_survives_damage(
    rows_of_a_group: int, strategy: str, split: Split, tmp_path: Path
) -> None:
    """Two files with the same sort key and path: what came of one group does not hide its twin in the next."""
    split(rows_of_a_group, 1000)
    log = HandLog(tmp_path / "t", {"id": "long", "p": "string"}, partitions=["p"], features=["deletionVectors"])
    log.commit(*(add(f"f{n // 3}", partition={"p": "x"}, vector=vector(f"v{n}") if n % 3 else None) for n in range(60)))
    log.checkpoint()
    place = Place(str(tmp_path / "t"))
    place.build()
    assert sorted(map(key, place.open().files(strategy=strategy)), key=repr) == sorted(log.state().files, key=repr)
    stream = place.open(**{"delta.sidecar.row_groups_per_batch": 1}).files(strategy=strategy)
    files = until_base(stream)
    for path in place.sidecars():
        place.store.delete(path)
    files += rest(stream)
    assert sorted(map(key, files), key=repr) == sorted(log.state().files, key=repr)


@both
@pytest.mark.parametrize(
    "kind", ["timestamp", "date", "double", "decimal(20,3)", "string", "boolean", "long", "binary"]
)
@pytest.mark.each_value
def test_damage_in_mid_scan_of_tables_sorted_by_every_type_changes_nothing(
    kind: str, strategy: str, split: Split, tmp_path: Path
) -> None:
    """The files left are told by their sort key, whatever its type; odd values and nulls included."""
    split(3, 1000)
    texts: dict[str, list[str | None]] = {
        "timestamp": ["2026-02-10 14:00:00", "2026-02-10T14:00:00.123456Z", "1969-12-31 23:59:59.999999", None],
        "date": ["2026-02-10", "1969-12-31", "0001-01-01", "", None],
        "double": ["0.0", "-0.0", "1e300", "-1.5", "Infinity", "-Infinity", "NaN", None],
        "decimal(20,3)": ["0", "-1.5", "99999999999999999.999", "12", None],
        "string": ["a", "", "ab", "a\x00b", "日本", "a/b", "😀", None],
        "boolean": ["true", "false", None],
        "long": ["0", "-9223372036854775808", "9223372036854775807", "-1", None],
        "binary": ["\x01", "\x01\x02", "é", None],
    }
    values = texts[kind]
    log = HandLog(tmp_path / "t", {"id": "long", "p": kind}, partitions=["p"])
    log.commit(*(add(f"f{n:02d}", ids=(n, n), partition={"p": values[n % len(values)]}) for n in range(48)))
    checkpoint(log)
    place = Place(str(tmp_path / "t"))
    place.build()
    found, metrics = rows(place.open(), strategy=strategy)
    assert found == place.answer()
    assert metrics.tier == 1
    for pulled in (0, 7, 20):
        stream = place.open(**{"delta.sidecar.row_groups_per_batch": 1}).files(strategy=strategy)
        files = until_base(stream) + [next(stream) for _ in range(pulled)]
        data = {path: place.store.get(path) for path in place.sidecars()}
        for path in data:
            place.store.delete(path)
        files += rest(stream)
        assert sorted(file.path for file in files) == [f"f{n:02d}" for n in range(48)]
        assert stream.metrics.tier == 3
        for path, content in data.items():
            place.store.put(path, content)


def test_the_single_file_of_a_table_is_named_as_the_format_says(split: Split, tmp_path: Path) -> None:
    """The names on which the damage above rests."""
    split(*LAYOUTS["single"])
    assert sorted(Victim(tmp_path / "t").files) == [Path(manifest_path(0)).name, Path(sidecar_path(0)).name]
