"""Ways to damage the objects around the commits: absent, misnamed, folders, hints, checksums, compactions."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

from tests.oracle.mutate import DEEP_LIST, DEEP_OBJECT, each
from tests.oracle.replay import commit_name
from tests.oracle.victim import LATEST, Mutant, Verdict, Victim

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.oracle.mutate import Mutator
    from tests.oracle.replay import Json


def missing_commit(victim: Victim) -> Mutant:
    """Delete a commit between others."""
    path = victim.commit(victim.rng.randrange(LATEST))
    path.unlink()
    return Mutant(Verdict.MUST_ERROR, (path.name, f"version {int(path.stem)}", "_delta_log"))


def folder_for_commit(victim: Victim) -> Mutant:
    """Put a folder where a commit should be."""
    path = victim.commit(victim.rng.randrange(LATEST))
    path.unlink()
    (path / "inner").mkdir(parents=True)
    (path / "inner" / "file").write_text("x")
    return Mutant(Verdict.MUST_ERROR, (path.name, f"version {int(path.stem)}", "_delta_log"))


def commit_far_ahead(victim: Victim) -> Mutant:
    """Leave a gap before the newest commit."""
    shutil.copyfile(victim.commit(LATEST), victim.log / commit_name(LATEST + 3))
    return Mutant(Verdict.MUST_ERROR, (commit_name(LATEST + 1), f"version {LATEST + 1}", "_delta_log"))


def absurd_version(victim: Victim) -> Mutant:
    """Name a commit by a number beyond 64 bits."""
    name = "9" * 20 + ".json"
    (victim.log / name).write_text("{}")
    return Mutant(Verdict.EITHER, (name, "_delta_log"), victim.healthy())


def short_name(victim: Victim) -> Mutant:
    """Leave a file whose name is one digit short of a commit's."""
    name = f"{LATEST + 1:019d}.json"
    (victim.log / name).write_text("{")
    return Mutant(Verdict.MUST_EQUAL, (name,), victim.healthy())


def torn_compaction(victim: Victim) -> Mutant:
    """Cut a compacted commit short; the commits it stands for are all there."""
    path = victim.log / f"{1:020d}.{3:020d}.compacted.json"
    path.write_bytes(victim.commit(1).read_bytes()[:-20])
    return Mutant(Verdict.EITHER, (path.name,), victim.healthy())


def _checksum(victim: Victim) -> Json:
    state = victim.healthy()
    return {
        "tableSizeBytes": sum(add["size"] for add in state.files.values()),
        "numFiles": len(state.files),
        "numMetadata": 1,
        "numProtocol": 1,
        "metadata": state.metadata,
        "protocol": state.protocol,
    }


def bad_checksum(data: bytes | Json, victim: Victim) -> Mutant:
    """Write a version checksum that is garbage or lies about the files; commits decide."""
    path = victim.log / f"{LATEST:020d}.crc"
    path.write_bytes(data if isinstance(data, bytes) else json.dumps(_checksum(victim) | data).encode())
    return Mutant(Verdict.MUST_EQUAL, (path.name,), victim.healthy())


def flipped_checksum(victim: Victim) -> Mutant:
    """Cut a good version checksum anywhere."""
    path = victim.log / f"{LATEST:020d}.crc"
    data = json.dumps(_checksum(victim)).encode()
    path.write_bytes(data[: victim.rng.randrange(len(data))])
    return Mutant(Verdict.MUST_EQUAL, (path.name,), victim.healthy())


def bad_hint(data: bytes, victim: Victim) -> Mutant:
    """Write a ``_last_checkpoint`` that is garbage or lies."""
    (victim.log / "_last_checkpoint").write_bytes(data)
    return Mutant(Verdict.MUST_EQUAL, ("_last_checkpoint",), victim.healthy())


def folder_for_hint(victim: Victim) -> Mutant:
    """Put a folder where the hint should be."""
    (victim.log / "_last_checkpoint").mkdir()
    (victim.log / "_last_checkpoint" / "x").touch()
    return Mutant(Verdict.MUST_EQUAL, ("_last_checkpoint",), victim.healthy())


_HINTS = [
    b"",
    b"{",
    b"\xff\xfe",
    b"null",
    b"[3]",
    b'{"version":-1,"size":1}',
    b'{"version":1e400,"size":1}',
    b'{"version":"3","size":1}',
    b'{"version":3,"size":1,"parts":1000000000}',
    b'{"version":3,"size":1,"parts":-2}',
    b'{"version":' + str(2**70).encode() + b',"size":1}',
    b'{"version":9223372036854775807,"size":1}',
    b'{"version":4000000000,"size":1}',
    b'{"version":0,"size":1,"v2Checkpoint":{"path":"../../x","sidecarFiles":[{"path":"/etc/passwd"}]}}',
    DEEP_LIST.encode(),
    b'{"version":0,"size":1,"pad":"' + b"x" * 2_000_000 + b'"}',
]
_CHECKSUMS: list[bytes | Json] = [
    b"",
    b"{",
    b"\xff\x00",
    b"[]",
    b"{}",
    DEEP_OBJECT.encode(),
    {"numFiles": "many"},
    {"numFiles": 2**70},
    {"numFiles": 3},
    {"tableSizeBytes": -1},
    {"metadata": None},
    {"metadata": 5},
    {"metadata": {"id": "x"}},
    {"protocol": []},
    {"protocol": None},
]


def _object_mutators() -> Mapping[str, Mutator]:
    plain = [missing_commit, folder_for_commit, commit_far_ahead, absurd_version, short_name, torn_compaction]
    plain += [flipped_checksum, folder_for_hint]
    found: dict[str, Mutator] = {function.__name__: function for function in plain}
    return found | each(bad_hint, _HINTS) | each(bad_checksum, _CHECKSUMS)


OBJECT_MUTATORS = _object_mutators()
