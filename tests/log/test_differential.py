"""Random logs: whatever writers, cleaners and checkpointers did, we see what a plain replay sees."""

from __future__ import annotations

import random
import shutil
from typing import TYPE_CHECKING

import deltalake
import pyarrow as pa
import pytest

from lazydelta import DeltaTable
from lazydelta.errors import VersionNotFoundError
from tests.oracle.observe import observed_facts
from tests.oracle.random_log import RandomLog, random_log
from tests.oracle.replay import parsed_stats
from tests.support.rounds import quick

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.oracle.replay import Snapshot

CHUNK = 50
CHUNKS = 11
APPLICATIONS = ("app", "äpp", "stream-1", "nobody")
# What the generator must keep producing, or the suite would pass for want of hard cases.
ODDITIES = (
    "mapping",
    "respell",
    "absolute",
    "bad_stats",
    "replace",
    "metadata column",
    "metadata rename",
    "protocol",
    "classic",
    "multipart",
    "v2-parquet+0",
    "v2-parquet+3",
    "v2-json+0",
    "v2-json+1",
    "v2-classic+1",
    "stats=struct",
    "stats=json",
    "stats=both",
    "incomplete multi-part",
    "zero-byte checkpoint",
    "zero-byte compaction",
    "hint absent",
    "hint stale",
    "hint corrupt",
    "hint checksum",
    "hint forged",
    "hint nowhere",
    "compaction",
    "unreconciled compaction",
    "twice compaction",
    "torn compaction",
    "superseded metaData",
    "checksum",
    "clutter",
    "cleaned",
)


def logs_of(chunk: int, root: Path) -> Iterator[RandomLog]:
    """Yield the logs of a chunk, each deleted after use."""
    for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        yield random_log(seed, root / str(seed))
        shutil.rmtree(root / str(seed))


def versions_of(log: RandomLog) -> list[int]:
    """Return the latest version and two others that can be read."""
    rng = random.Random(log.seed)
    return sorted({log.latest, *rng.choices(log.readable, k=2)})


def differences(table: DeltaTable, expected: Snapshot) -> list[str]:
    """Return every way in which the table is not as expected."""
    assert expected.metadata is not None
    assert expected.protocol is not None
    found = []
    files = observed_facts(table)
    if files != expected.facts:
        missing = [fact for fact in expected.facts if fact not in files]
        extra = [fact for fact in files if fact not in expected.facts]
        found.append(f"{len(files)} files, not {len(expected.facts)}; missing {missing[:2]}, extra {extra[:2]}")
    metadata, protocol = table.metadata(), table.protocol()
    pairs = {
        "version": (table.version(), expected.version),
        "schema": (table.schema(), expected.schema),
        "id": (metadata.id, expected.metadata["id"]),
        "name": (metadata.name, expected.metadata.get("name")),
        "description": (metadata.description, expected.metadata.get("description")),
        "configuration": (dict(metadata.configuration or {}), expected.metadata["configuration"]),
        "partition columns": (list(metadata.partition_columns), expected.metadata["partitionColumns"]),
        "reader version": (protocol.min_reader_version, expected.protocol["minReaderVersion"]),
        "writer version": (protocol.min_writer_version, expected.protocol["minWriterVersion"]),
        "reader features": (set(protocol.reader_features or ()), set(expected.protocol.get("readerFeatures") or ())),
        "writer features": (set(protocol.writer_features or ()), set(expected.protocol.get("writerFeatures") or ())),
    }
    domains = {name: body["configuration"] for name, body in expected.domains.items() if not body["removed"]}
    pairs["domains"] = (table.domain_metadata(), domains)
    for application in APPLICATIONS:
        transaction = expected.transactions.get(application, {}).get("version")
        pairs[f"transaction of {application}"] = (table.transaction_version(application), transaction)
    found += [f"{name} is {ours!r}, not {theirs!r}" for name, (ours, theirs) in pairs.items() if ours != theirs]
    return found


@pytest.mark.parametrize("chunk", quick(range(CHUNKS), 2))
def test_every_random_log_reads_as_its_plain_replay(chunk: int, tmp_path: Path) -> None:
    """Files, metadata, protocol, transactions and domains of the latest and two other versions equal the replay's."""
    failures = []
    for log in logs_of(chunk, tmp_path):
        for version in versions_of(log):
            pinned = None if version == log.latest else version
            found = differences(DeltaTable(str(log.path), version=pinned), log.expected(version))
            failures += [f"seed {log.seed} version {version} of {log.latest} {log.notes}: {text}" for text in found]
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("chunk", range(3))
def test_statistics_are_those_that_were_logged(chunk: int, tmp_path: Path) -> None:
    """Where no checkpoint has turned them into columns, statistics come out as they went in."""
    failures = []
    compared = 0
    for log in logs_of(chunk, tmp_path):
        text = " ".join(log.notes)
        if "stats=struct" in text or "stats=both" in text or "mapping" in text:
            continue
        expected = {add["path"]: parsed_stats(add) or None for add in log.expected(log.latest).files.values()}
        for file in DeltaTable(str(log.path)).files():
            compared += 1
            if (file.stats or None) != expected[file.path]:
                failures.append(f"seed {log.seed} {file.path}: {file.stats}, not {expected[file.path]}")
    assert compared
    assert not failures, "\n".join(failures)


def test_deltalake_agrees_on_the_logs_it_can_read(tmp_path: Path) -> None:
    """An independent reader confirms the replay, and us, on every eighth log."""
    failures = []
    compared = 0
    for seed in range(0, CHUNK * CHUNKS, 8):
        log = random_log(seed, tmp_path / str(seed))
        if not log.deltalake_reads:
            continue
        for version in versions_of(log):
            compared += 1
            adds = pa.table(deltalake.DeltaTable(str(log.path), version=version).get_add_actions())
            names = ("path", "size_bytes", "modification_time", "num_records")
            columns = [adds[name].cast(pa.int64()) if name == names[2] else adds[name] for name in names]
            theirs = sorted(zip(*(column.to_pylist() for column in columns), strict=True), key=repr)
            replayed = [(f.path, f.size, f.modification_time, f.num_records) for f in log.expected(version).facts]
            ours = [
                (f.path, f.size, f.modification_time, f.num_records)
                for f in DeltaTable(str(log.path), version=version).files()
            ]
            if any("stats=struct int96" in note for note in log.notes):
                # deltalake leaves typed statistics out altogether where a timestamp among them is INT96.
                theirs, replayed, ours = ([each[:3] for each in found] for found in (theirs, replayed, ours))
            if not sorted(theirs, key=repr) == sorted(replayed, key=repr) == sorted(ours, key=repr):
                failures.append(f"seed {seed} version {version} {log.notes}")
    assert compared > CHUNK
    assert not failures, "\n".join(failures)


def test_a_version_that_cannot_be_read_is_an_error_with_the_range_there_is(tmp_path: Path) -> None:
    """Versions below the clean-up and above the latest are refused by name."""
    failures = []
    refused = 0
    for log in logs_of(CHUNKS, tmp_path):
        for version in {0, log.earliest - 1, log.latest + 1, log.latest + 1000} - {-1, *log.readable}:
            refused += 1
            with pytest.raises(VersionNotFoundError) as caught:
                DeltaTable(str(log.path), version=version).files().collect()
            told = (caught.value.earliest, caught.value.latest)
            if told != (log.earliest, log.latest):
                range_ = (log.earliest, log.latest)
                failures.append(f"seed {log.seed} version {version} {log.notes}: told {told}, not {range_}")
    assert refused > CHUNK
    assert not failures, "\n".join(failures)


@pytest.mark.slow  # what a seed gives never changes
def test_the_random_logs_hold_every_oddity(tmp_path: Path) -> None:
    """The generator still makes each of the hard cases, several times."""
    missing, seen = list(ODDITIES), list[str]()
    for log in (log for chunk in range(6) for log in logs_of(chunk, tmp_path)):
        seen += log.notes
        missing = [oddity for oddity in ODDITIES if sum(oddity in note for note in seen) < 2]
        if not missing:
            break
    assert missing == []


def test_a_random_log_is_the_same_for_the_same_seed(tmp_path: Path) -> None:
    """A failure that names a seed can be reproduced."""

    def contents() -> dict[str, bytes]:
        random_log(7, tmp_path / "log")
        found = {str(p.relative_to(tmp_path)): p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
        shutil.rmtree(tmp_path / "log")
        return found

    assert contents() == contents()
