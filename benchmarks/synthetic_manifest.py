"""Tables of a hundred million and of a billion files, of which three hours exist.

What a query for one hour costs depends on the manifest and on the parts that it touches. So the three hours are a real
table with a real sidecar, and the manifest says that this sidecar is the middle of a much longer one: every other part
is described like the real one, hour by hour, and lies nowhere.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterator
from pathlib import Path

import msgspec

from lazydelta.log.segment import Checkpoint
from lazydelta.log.snapshot import LogSnapshot
from lazydelta.sidecar.building.build import build
from lazydelta.sidecar.building.plan import at_checkpoint, plan_of
from lazydelta.sidecar.building.publish import Publication, PublishedPart, load_manifest
from lazydelta.sidecar.format.columns import GROUPS_PER_FILE, ROWS_PER_GROUP, manifest_path, part_path
from lazydelta.sidecar.format.leaves import pack_groups
from lazydelta.sidecar.format.manifest import ManifestPart, ManifestRowGroup, RangeText
from lazydelta.storage import open_store
from lazydelta.testing import make_table

__all__ = ["FILES_AN_HOUR", "REAL_HOURS", "make_long_table"]

FILES_AN_HOUR = ROWS_PER_GROUP
REAL_HOURS = ("2026021021", "2026021022", "2026021023")
_HOUR, _TIME = "_event_hour", "timestamp"
_PHANTOM_BUILD = "00000000-0000-4000-8000-000000000000"
_UUID_DIGITS = 32


def make_long_table(folder: Path, files: int) -> None:
    """Make a table in ``folder`` whose manifest speaks of so many files, at as many an hour as a row group holds."""
    real_files = FILES_AN_HOUR * len(REAL_HOURS)
    made = make_table(folder, files=real_files, hours=len(REAL_HOURS), order="time", checksum=True, tail=2)
    build(folder)
    store = open_store(folder)

    def work(snapshot: LogSnapshot, checkpoint: Checkpoint) -> None:
        real = load_manifest(store, snapshot, checkpoint)
        if real is None:
            message = "the sidecar of the real hours is not there"
            raise RuntimeError(message)
        publication = Publication(store, snapshot, checkpoint, plan_of(real.index.layout, snapshot.schema))
        phantoms = (files - real_files) // (ROWS_PER_GROUP * GROUPS_PER_FILE)
        manifest = publication.manifest_over(list(_around(real.parts[0], real.groups_of(0) or [], phantoms)))
        store.put(manifest_path(manifest.version), manifest.encode())

    at_checkpoint(store, made.checkpoint_version, work)


def _around(part: ManifestPart, groups: list[ManifestRowGroup], phantoms: int) -> Iterator[PublishedPart]:
    """Yield as many parts that do not exist, half of them before the one that does and half behind it."""
    chance = random.Random(0)
    begin = _timestamp(REAL_HOURS[0]) - dt.timedelta(hours=GROUPS_PER_FILE * (phantoms // 2))
    for number in range(phantoms // 2):
        yield _phantom(part, groups[0], begin, number, chance)
    yield part, pack_groups(groups)
    begin = _timestamp(REAL_HOURS[-1]) + dt.timedelta(hours=1 - GROUPS_PER_FILE * (phantoms // 2))
    for number in range(phantoms // 2, phantoms):
        yield _phantom(part, groups[0], begin, number, chance)


def _phantom(
    part: ManifestPart, group: ManifestRowGroup, begin: dt.datetime, number: int, chance: random.Random
) -> PublishedPart:
    hours = [begin + dt.timedelta(hours=number * GROUPS_PER_FILE + each) for each in range(GROUPS_PER_FILE)]
    described = []
    for index, hour in enumerate(hours):
        text = f"{hour:%Y%m%d%H}"
        described.append(
            msgspec.structs.replace(
                group,
                index=index,
                byte_offset=group.byte_offset + index * group.byte_length,
                event_hour_min=text,
                event_hour_max=text,
                first=_key(group.first, text, chance),
                last=_key(group.last, text, chance),
                ranges=_ranges(group, hour, hour),
            )
        )
    phantom = msgspec.structs.replace(
        part,
        file=part_path(10, _PHANTOM_BUILD, number + 1),
        size=part.size * GROUPS_PER_FILE,
        footer_offset=part.size * GROUPS_PER_FILE - part.footer_length,
        footer_sha256=f"{chance.getrandbits(256):064x}",
        num_rows=sum(each.num_rows for each in described),
        num_row_groups=len(described),
        first=described[0].first,
        last=described[-1].last,
        ranges=_ranges(group, hours[0], hours[-1]),
    )
    return phantom, pack_groups(described)


def _ranges(group: ManifestRowGroup, first: dt.datetime, last: dt.datetime) -> dict[str, RangeText]:
    """Return ranges like those of a row group of the real part, but for what goes with the hour."""
    end = last + dt.timedelta(minutes=59, seconds=59)
    return group.ranges | {
        _HOUR: RangeText(f"{first:%Y%m%d%H}", f"{last:%Y%m%d%H}"),
        _TIME: RangeText(f"{first:%Y-%m-%d %H:%M:%S}Z", f"{end:%Y-%m-%d %H:%M:%S}Z"),
    }


def _key(key: tuple[str | None, ...], hour: str, chance: random.Random) -> tuple[str | None, ...]:
    name = f"{chance.getrandbits(4 * _UUID_DIGITS):0{_UUID_DIGITS}x}"
    return hour, f"{_HOUR}={hour}/part-{name[:5]}-{name}.c000.snappy.parquet" if key[-1] else None


def _timestamp(hour: str) -> dt.datetime:
    return dt.datetime.strptime(hour, "%Y%m%d%H").replace(tzinfo=dt.UTC)
