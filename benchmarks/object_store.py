"""The questions over an object store: Azurite behind a delay line, with the round trips that waited for each other.

Latencies, tails and version checksums differ one at a time from a tail of ten commits, a checksum and 30 ms. A floor is
the latency times the round trips: what is left of the time when nothing is computed.

`bases` asks a large table behind 30 ms and 100 MB/s by its manifest, by footers and by its checkpoint, cold and warm.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmarks.growth import WITH_SIDECAR, WITHOUT_SIDECAR
from benchmarks.measure import Measurement, measure
from benchmarks.questions import HOURS, Question, questions
from benchmarks.records import Record, record_of
from lazydelta.sidecar import build, build_deltas
from lazydelta.storage import open_store
from lazydelta.testing import MadeTable, make_table
from tests.support.azurite import Azurite, AzuriteToStop, azurite_script, running_azurite
from tests.support.latency import LatencyProxy

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = [
    "BASES_SECTION",
    "SECTION",
    "Circumstances",
    "bases",
    "circumstances",
    "measured",
    "object_store",
    "uploaded",
]

SECTION, BASES_SECTION = "object store", "object store: bases"
_NAMES = ("one hour", "take 100")
_OURS = ("lazydelta", "pyarrow.parquet", "obstore")
_BY_COMMIT = "lazydelta, one commit at a time"
_BYTES_PER_SECOND = 100e6
_COMMITS, _CHUNK = (".json", ".crc"), 8 << 20
_LONG_TAIL, _MOST_REMOVES = 1_000, 1_000_000
# Where the base is read from. Warm is the second query of a process.
_BASES: dict[str, dict[str, Any]] = {
    "manifest": {},
    "footers": {"use_manifest": False},
    "checkpoint": {"delta.sidecar.enabled": False},
}


@dataclass(frozen=True, slots=True)
class Circumstances:
    """How far away the store is, and what the log is like."""

    latency_ms: int = 30
    tail: int = 10
    checksum: bool = True
    removes: int = 0

    @property
    def name(self) -> str:
        """Return a name for the folder of the table."""
        return f"tail-{self.tail}-{'with' if self.checksum else 'without'}-{self.removes}"

    def as_dict(self) -> dict[str, Any]:
        """Return them in words."""
        checksum = "with" if self.checksum else "without"
        return {"latency": f"{self.latency_ms} ms", "tail": self.tail, "checksum": checksum}


def circumstances() -> list[Circumstances]:
    """Return those that are measured."""
    usual = Circumstances()
    return [
        *(replace(usual, latency_ms=latency) for latency in (0, 10, 30, 100)),
        replace(usual, checksum=False),
        replace(usual, tail=150),
        replace(usual, tail=150, checksum=False),
    ]


def object_store(files: int) -> Iterator[Record]:
    """Measure a table of so many files; nothing where Azurite is not installed."""
    if not azurite_script().exists():
        click.echo("  Azurite is not installed: nothing is measured over an object store", err=True)
        return
    with tempfile.TemporaryDirectory(prefix="lazydelta-bench-azurite-") as name, running_azurite(Path(name)) as azurite:
        for uri, made, each in _tables(azurite, Path(name), files):
            yield from measured(azurite, uri, made, each)


def _tables(azurite: Azurite, folder: Path, files: int) -> Iterator[tuple[str, MadeTable, Circumstances]]:
    known: dict[tuple[int, bool], tuple[str, MadeTable]] = {}
    for each in circumstances():
        key = (each.tail, each.checksum)
        if key not in known:
            known[key] = uploaded(azurite, folder, files, each)
        yield *known[key], each


def uploaded(
    azurite: Azurite, folder: Path, files: int, wanted: Circumstances, name: str | None = None
) -> tuple[str, MadeTable]:
    """Make a table, put it on the store and build its sidecar there.

    Where a table of this ``name`` is there already, only its commits are replaced: the checkpoint has the same bytes.
    """
    local = folder / (name or wanted.name)
    made = make_table(
        local,
        files=files,
        hours=HOURS,
        tail=wanted.tail,
        checksum=wanted.checksum,
        removes=wanted.removes,
        seed=5,
    )
    container = azurite.container("benchmark")
    uri = f"abfss://{container}@{azurite.account}.dfs.core.windows.net/{local.name}"
    store = open_store(uri, azurite.storage_options())
    there = [each.path for each in store.list("_delta_log")]
    for path in there:
        if path.endswith(_COMMITS):
            store.delete(path)
    for file in sorted((local / "_delta_log").iterdir()):
        path = f"_delta_log/{file.name}"
        if file.is_file() and (path not in there or path.endswith(_COMMITS)):
            with file.open("rb") as opened:
                store.put_stream(path, iter(partial(opened.read, _CHUNK), b""))
    shutil.rmtree(local)  # ten million files take two gigabytes
    build(uri, storage_options=azurite.storage_options())
    return uri, made


def measured(
    azurite: Azurite, uri: str, made: MadeTable, each: Circumstances, names: Sequence[str] = _NAMES
) -> list[Record]:
    """Ask everybody once, each through a delay line of its own."""
    found: list[Record] = []
    for question in (asked for asked in questions(made) if asked.name in names):
        click.echo(f"  {SECTION}: {question.name}, {each.as_dict()}", err=True)
        for name, options in (
            (WITH_SIDECAR, {"cache_size": 0}),
            (WITHOUT_SIDECAR, {"cache_size": 0, "delta.sidecar.enabled": False}),
            (_BY_COMMIT, {"cache_size": 0, "delta.commit.parallelism": 1}),
            ("deltalake", None),
        ):
            run = _once(azurite, uri, question, each, options)
            record = record_of(SECTION, name, question.name, [run], each.as_dict())
            found.append(record)
            if name == WITH_SIDECAR and record.round_trips is not None:
                found.append(_floor(record, each))
    return found


def bases(files: int) -> Iterator[Record]:
    """Measure a table of so many files by each kind of base; nothing where Azurite is not installed."""
    if not azurite_script().exists():
        click.echo("  Azurite is not installed: nothing is measured over an object store", err=True)
        return
    removes = min(_MOST_REMOVES, files // 2)
    with tempfile.TemporaryDirectory(prefix="lazydelta-bench-azurite-") as name, AzuriteToStop(Path(name)) as server:
        azurite = server.service
        for wanted, log, names in (
            (Circumstances(), "10 commits", ("one hour", "take 100", "all files")),
            (Circumstances(removes=removes), f"{removes:,} removes", ("one hour", "all files")),
            (Circumstances(tail=_LONG_TAIL), "1,000 commits", ("one hour", "take 100")),
        ):
            uri, made = uploaded(azurite, Path(name), files, wanted, "bases")
            asked = [each for each in questions(made) if each.name in names]
            yield from _by_bases(azurite, uri, asked, log, files)
            if wanted.tail == _LONG_TAIL:
                build_deltas(uri, storage_options=azurite.storage_options())
                yield from _by_bases(azurite, uri, asked, f"{log}, delta sidecars", files)


def _by_bases(azurite: Azurite, uri: str, asked: Sequence[Question], log: str, files: int) -> Iterator[Record]:
    for question in asked:
        for base, options in _BASES.items():
            for temperature in ("cold", "warm"):
                is_warm = temperature == "warm"
                given = options if is_warm else options | {"cache_size": 0}
                click.echo(f"  {BASES_SECTION}: {question.name}, {log}, {base}, {temperature}", err=True)
                run = _once(azurite, uri, question, Circumstances(), given, _BYTES_PER_SECOND, remembers=is_warm)
                variant = {"files": files, "log": log, "cache": temperature}
                yield record_of(BASES_SECTION, f"lazydelta, {base}", question.name, [run], variant)


def _floor(record: Record, each: Circumstances) -> Record:
    waited = each.latency_ms / 1000
    first = None if record.first_round_trips is None else record.first_round_trips * waited
    seconds = (record.round_trips or 0) * waited
    return Record(SECTION, "floor", record.question, record.variant, seconds=seconds, first_seconds=first)


def _once(
    azurite: Azurite,
    uri: str,
    question: Question,
    each: Circumstances,
    options: dict[str, Any] | None,
    bytes_per_second: float | None = None,
    *,
    remembers: bool = False,
) -> Measurement:
    with LatencyProxy(azurite.port, each.latency_ms / 1000, bytes_per_second) as proxy:
        endpoint = {"azure_storage_endpoint": f"http://127.0.0.1:{proxy.port}/{azurite.account}"}
        storage = azurite.storage_options() | endpoint
        if options is None:
            arguments = (uri, question.as_dict(), storage)
            run = measure("benchmarks.peer_work:deltalake", *arguments, imports=("deltalake", "pyarrow"))
        else:
            asked = (uri, question.as_dict(), options, True, remembers, storage)
            run = measure("benchmarks.ladder_work:ask", *asked, imports=_OURS)
        if run.failure is None:
            # The clock that a child reads is the machine's, and so is that of the delay line.
            began, first, ended = run.answer["moments"]
            run.answer["round_trips"] = proxy.round_trips(began, ended)
            if first is not None:
                run.answer["first_round_trips"] = proxy.round_trips(began, first)
            run.answer.setdefault("requests", len(proxy.exchanges))
    return run
