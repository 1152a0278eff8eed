"""Delta sidecars over random stretches of a log, and ways to damage them."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec

from lazydelta.log.segment import list_commits
from lazydelta.sidecar.building.deltas import collect_deltas, publish_delta
from lazydelta.sidecar.format.columns import DELTA_MANIFEST
from lazydelta.sidecar.format.delta_file import DeltaEntry, DeltaManifest
from lazydelta.sidecar.handle import TableHandle

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path


def cover(table: Path, rng: random.Random, versions: Sequence[int]) -> list[DeltaEntry]:
    """Write delta sidecars over random runs of commits of these versions, whatever checkpoints lie between."""
    handle = TableHandle.open(table)
    commits = [commit for commit in list_commits(handle.store, min(versions)) if commit.version in versions]
    inner = range(1, len(commits))
    cuts = sorted({0, len(commits), *rng.sample(inner, k=min(len(inner), rng.choice([0, 1, 2, 4])))})
    entries: list[DeltaEntry] = []
    for start, end in pairwise(cuts):
        if rng.random() < 0.2:
            continue  # a gap in the chain
        run = commits[start:end]
        collected = collect_deltas(
            handle.store, run, handle.snapshot, parallelism=None, memory_budget=512 << 20, progress=lambda _: None
        )
        entries += [publish_delta(handle.store, *found.encoded(), "0" * 8) for found in collected]
    put(table, entries)
    return entries


def put(table: Path, entries: Sequence[DeltaEntry]) -> None:
    """Write the manifest of these entries."""
    TableHandle.open(table).store.put(DELTA_MANIFEST, DeltaManifest(spans=tuple(entries)).encode())


def listed(table: Path) -> DeltaManifest:
    """Return the manifest as it is."""
    return DeltaManifest.decode((table / DELTA_MANIFEST).read_bytes())


def changed(table: Path, rng: random.Random, change: Callable[[DeltaEntry], dict[str, Any]]) -> None:
    """Change one entry of the manifest and seal it again."""
    entries = list(listed(table).spans)
    place = rng.randrange(len(entries))
    entries[place] = msgspec.structs.replace(entries[place], **change(entries[place]))
    put(table, entries)


def _file(table: Path, rng: random.Random) -> Path:
    return table / rng.choice(listed(table).spans).file


def _flipped(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def _torn(path: Path, rng: random.Random) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: rng.randrange(len(data))])


def _other_bytes(table: Path, rng: random.Random) -> None:
    """Put the bytes of another delta sidecar, or of a manifest, in the place of one."""
    one = _file(table, rng)
    others = [table / entry.file for entry in listed(table).spans if table / entry.file != one]
    one.write_bytes(rng.choice([table / DELTA_MANIFEST, *others]).read_bytes())


def _rewritten_commit(table: Path, rng: random.Random) -> None:
    """Write a commit again, so that the store takes it for another object; here with the same actions."""
    entry = rng.choice(listed(table).spans)
    version = rng.randint(entry.first, entry.last)
    path = table / "_delta_log" / f"{version:020d}.json"
    lines = path.read_text(encoding="utf-8")
    path.unlink()
    path.write_text(lines + json.dumps({"commitInfo": {"again": True}}) + "\n", encoding="utf-8")


DAMAGES: dict[str, Any] = {
    "missing": lambda table, rng: _file(table, rng).unlink(),
    "torn": lambda table, rng: _torn(_file(table, rng), rng),
    "flipped": lambda table, rng: _flipped(_file(table, rng), rng),
    "empty": lambda table, rng: _file(table, rng).write_bytes(b""),
    "another's bytes": _other_bytes,
    "torn manifest": lambda table, rng: _torn(table / DELTA_MANIFEST, rng),
    "flipped manifest": lambda table, rng: _flipped(table / DELTA_MANIFEST, rng),
    "another table": lambda table, rng: changed(table, rng, lambda _: {"table_id": "another"}),
    "another seal": lambda table, rng: changed(table, rng, lambda _: {"footer_sha256": "0" * 64}),
    "another range": lambda table, rng: changed(
        table, rng, lambda entry: {"first": entry.first + 1, "last": entry.last + 1}
    ),
    "another schema": lambda table, rng: changed(table, rng, lambda _: {"schema_hash": "0" * 64}),
    "rewritten commit": _rewritten_commit,
}
