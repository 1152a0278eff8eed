"""Random, reproducible Delta logs on disk: every legal oddity we know of, and the history to check them by.

The commits are made by :class:`_History`; this module then makes the *visible* log out of them: checkpoints, hints,
compactions, checksums, clutter, and a clean-up that deletes what is no longer needed. The complete history stays
beside the table, where only the oracle looks. Data files do not exist: listing a table must never open one.
"""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from tests.oracle.checkpoints import CheckpointWriter, hint_checksum, hint_for
from tests.oracle.random_history import History
from tests.oracle.replay import Snapshot, commit_name, read_commit, replay

if TYPE_CHECKING:
    from pathlib import Path

    from tests.oracle.replay import Json

_CHECKPOINT_ODDS = 0.75
_CLEANUP_ODDS = 0.5
_SUPERSEDED_ODDS = 0.15


@dataclass(frozen=True)
class RandomLog:
    """A table on disk and what is known about it."""

    seed: int
    path: Path
    history: Path
    latest: int
    readable: tuple[int, ...]
    notes: tuple[str, ...]
    deltalake_reads: bool

    @property
    def earliest(self) -> int:
        """The oldest version that can still be read."""
        return self.readable[0]

    @property
    def log(self) -> Path:
        """The visible log folder."""
        return self.path / "_delta_log"

    @cached_property
    def _cache(self) -> dict[int, Snapshot]:
        return {}

    def expected(self, version: int) -> Snapshot:
        """Return the state at ``version`` by plain replay of the whole history."""
        if version not in self._cache:
            self._cache[version] = replay(self.history, version)
        return self._cache[version]


class _Layout:
    """Builds the visible log of a history."""

    def __init__(self, root: Path, history: History, rng: random.Random, broken: random.Random) -> None:
        self.log = root / "table" / "_delta_log"
        self.full = root / "history"
        self.rng = rng
        self.broken = broken  # what others got wrong is drawn apart, so that each log stays what it is without it
        self.latest = history.latest
        self.notes = list(history.notes)
        self.deltalake_reads = history.deltalake_reads
        self.checkpoints: dict[int, tuple[list[Path], Json]] = {}
        self.log.mkdir(parents=True)
        for version in range(self.latest + 1):
            shutil.copyfile(self.full / commit_name(version), self.log / commit_name(version))

    def chance(self, odds: float) -> bool:
        return self.rng.random() < odds

    def write_checkpoints(self) -> None:
        """Write checkpoints of random kinds, and some that must be ignored."""
        if not self.chance(_CHECKPOINT_ODDS):
            return
        count = min(self.latest + 1, self.rng.choice([1, 1, 2, 3]))
        for version in self.rng.sample(range(self.latest + 1), count):
            snapshot = replay(self.full, version)
            assert snapshot.protocol is not None
            features = snapshot.protocol.get("readerFeatures") or []
            kinds = ["classic", "classic", "multipart"]
            if "v2Checkpoint" in features:
                kinds = ["classic", "multipart", "v2-parquet", "v2-json", "v2-classic"]
            kind = self.rng.choice(kinds)
            writer = CheckpointWriter(self.log, snapshot, self.rng, page_checksum=self.chance(0.5))
            match kind:
                case "classic":
                    paths = writer.classic()
                    hint = hint_for(snapshot, paths)
                case "multipart":
                    parts = self.rng.choice([1, 2, 3, 5])
                    paths = writer.multipart(parts)
                    hint = hint_for(snapshot, paths, parts=parts)
                case _:
                    sidecars = self.rng.choice([0, 1, 3])
                    kind += f"+{sidecars}"
                    paths = writer.v2(main=kind.removeprefix("v2-").split("+")[0], sidecars=sidecars)
                    hint = hint_for(snapshot, paths)
            self.notes.append(f"checkpoint {version} {kind} stats={writer.stats}{' int96' if writer.int96 else ''}")
            self.checkpoints[version] = (paths, hint)

    def write_unusable_checkpoints(self) -> None:
        """Leave checkpoints that a reader must pass over: parts missing, or no byte at all."""
        free = [v for v in range(self.latest + 1) if v not in self.checkpoints]
        if free and self.chance(0.25):
            version = self.rng.choice(free)
            writer = CheckpointWriter(self.log, replay(self.full, version), self.rng)
            paths = writer.multipart(self.rng.choice([2, 3]))
            self.rng.choice(paths).unlink()
            free.remove(version)
            self.notes.append(f"incomplete multi-part checkpoint {version}")
        if free and self.chance(0.15):
            version = self.rng.choice(free)
            (self.log / f"{version:020d}.checkpoint.parquet").touch()
            self.notes.append(f"zero-byte checkpoint {version}")

    def write_hint(self) -> None:
        """Write ``_last_checkpoint``: right, stale, wrong in every way, or not at all."""
        path = self.log / "_last_checkpoint"
        kind = self.rng.choice(
            ["right", "right", "right", "stale", "absent", "corrupt", "checksum", "forged", "nowhere"]
        )
        self.notes.append(f"hint {kind}")
        versions = sorted(self.checkpoints)
        if kind == "corrupt":
            path.write_bytes(
                self.rng.choice([b"", b"{", b"[]", b"null", b'{"version":"x"}', b"\xff\xfe\x00", b'{"size":3}'])
            )
        elif kind == "nowhere":
            path.write_text(json.dumps({"version": self.rng.choice([0, 3, self.latest, self.latest + 7]), "size": 1}))
            self.deltalake_reads = False  # it trusts the hint
        elif versions and kind != "absent":
            hint = self.checkpoints[versions[0] if kind == "stale" else versions[-1]][1]
            if kind == "checksum":
                hint = {**hint, "checksum": hint_checksum(hint)}
            elif kind == "forged":
                hint = {**hint, "version": versions[0], "checksum": "0" * 32}
            path.write_text(json.dumps(hint))

    def write_compactions(self) -> None:
        """Write compacted commits: the reconciled actions of a range, in place of which nothing is deleted."""
        if self.latest < 1 or not self.chance(0.3):
            return
        for _ in range(self.rng.choice([1, 1, 2, 3])):
            first, last = sorted(self.rng.sample(range(self.latest + 1), 2))
            path = self.log / f"{first:020d}.{last:020d}.compacted.json"
            if self.chance(0.1):
                path.touch()
                self.notes.append(f"zero-byte compaction {first}-{last}")
                continue
            state = Snapshot()
            for version in range(first, last + 1):
                state.apply(version, read_commit(self.full, version))
            actions: list[Json] = [{"add": add} for add in state.files.values()]
            actions += [{"remove": remove} for remove in state.tombstones.values()]
            actions += [{"txn": txn} for txn in state.transactions.values()]
            actions += [{"domainMetadata": domain} for domain in state.domains.values()]
            actions += [{"metaData": state.metadata}] if state.metadata else []
            actions += [{"protocol": state.protocol}] if state.protocol else []
            self.rng.shuffle(actions)
            path.write_text("\n".join(json.dumps(a) for a in actions) + "\n" * bool(actions), encoding="utf-8")
            self.notes.append(f"compaction {first}-{last}")
            self._break(path, first, last)

    def _break(self, path: Path, first: int, last: int) -> None:
        """Make some compactions such that nothing in them may be believed."""
        kind = self.broken.choice(["sound", "sound", "unreconciled", "twice", "torn"])
        lines = path.read_bytes().splitlines(keepends=True)
        if kind == "unreconciled":
            # As an early kernel wrote them: every action of the range, the newest commit first.
            versions = range(last, first - 1, -1)
            path.write_bytes(b"".join((self.full / commit_name(v)).read_bytes().rstrip() + b"\n" for v in versions))
        elif kind == "twice" and lines:
            path.write_bytes(b"".join([*lines, self.broken.choice(lines)]))
        elif kind == "torn" and lines:
            data = b"".join(lines)
            damage = self.broken.choice([data[: -1 - self.broken.randrange(1, 20)], data + bytes(64), b"{" + data])
            path.write_bytes(damage)
        else:
            return
        self.notes.append(f"{kind} compaction {first}-{last}")
        self.deltalake_reads = False  # it believes them

    def write_superseded(self) -> None:
        """Put a metaData that lacks nearly everything before the one that counts, in the commits that have one."""
        if self.broken.random() < _SUPERSEDED_ODDS:
            for version in range(self.latest + 1):
                path = self.log / commit_name(version)
                if path.exists() and b'"metaData"' in path.read_bytes():
                    poor = self.broken.choice([b"{}", b'{"id":"x"}', b'{"id":7,"schemaString":null}'])
                    path.write_bytes(b'{"metaData":' + poor + b"}\n" + path.read_bytes())
            self.notes.append("superseded metaData")
            self.deltalake_reads = False

    def write_checksums(self) -> None:
        """Write exact version checksums at random versions."""
        if not self.chance(0.4):
            return
        for version in self.rng.sample(range(self.latest + 1), min(self.latest + 1, 3)):
            state = replay(self.full, version)
            checksum: Json = {
                "tableSizeBytes": sum(add["size"] for add in state.files.values()),
                "numFiles": len(state.files),
                "numMetadata": 1,
                "numProtocol": 1,
                "metadata": state.metadata,
                "protocol": state.protocol,
            }
            if self.chance(0.5):
                checksum["setTransactions"] = list(state.transactions.values())
                checksum["domainMetadata"] = [d for d in state.domains.values() if not d["removed"]]
            (self.log / f"{version:020d}.crc").write_text(json.dumps(checksum), encoding="utf-8")
            self.notes.append(f"checksum {version}")

    def write_clutter(self) -> None:
        """Leave files that are no part of the log."""
        if not self.chance(0.4):
            return
        self.notes.append("clutter")
        after = self.latest + 1
        names = [
            f".{commit_name(after)}",
            f".{commit_name(0)}.crc",
            f"{commit_name(after)}.tmp",
            f"{commit_name(after)}.12.tmp",
            "notes.txt",
            "_commits/readme",
            f"_staged_commits/{after:020d}.3a0d65cd-4056-49b8-937b-95f9e3ee90e5.json",
            f"{after:020d}.checkpoint.tmp",
            f"{after:020d}.json/part",
        ]
        for name in self.rng.sample(names[:-1], 4):
            path = self.log / name
            path.parent.mkdir(exist_ok=True)
            path.write_text("not a commit")

    def clean_up(self) -> tuple[int, ...]:
        """Delete what lies below a checkpoint, now and then; return the versions that can still be read."""
        visible = set(range(self.latest + 1))
        if self.checkpoints and self.chance(_CLEANUP_ODDS):
            floor = self.rng.choice(sorted(self.checkpoints))
            # Some writers keep the commit of the checkpoint's own version, others do not.
            bound = floor + 1 if self.chance(0.2) else floor
            # A clean-up that was interrupted leaves the younger of the doomed commits.
            doomed = list(range(bound))
            if self.chance(0.2):
                doomed = doomed[: self.rng.randrange(len(doomed) + 1)]
            for version in doomed:
                (self.log / commit_name(version)).unlink()
                visible.discard(version)
            for version in [v for v in self.checkpoints if v < floor]:
                if self.chance(0.7):
                    for path in self.checkpoints.pop(version)[0]:
                        path.unlink()
            self.notes.append(f"cleaned below {bound}, {len(doomed)} commits gone")
        bases = sorted({*self.checkpoints, *([-1] if 0 in visible else [])})
        return tuple(
            version
            for version in range(self.latest + 1)
            if any(base <= version and visible.issuperset(range(base + 1, version + 1)) for base in bases)
        )


def random_log(seed: int, root: Path) -> RandomLog:
    """Write the table of ``seed`` below ``root`` and return what is known about it."""
    rng = random.Random(f"lazydelta-{seed}")
    history = History(root / "history", root / "table", rng)
    history.write()
    layout = _Layout(root, history, rng, random.Random(f"lazydelta-broken-{seed}"))
    layout.write_checkpoints()
    readable = layout.clean_up()
    layout.write_unusable_checkpoints()
    layout.write_hint()
    layout.write_compactions()
    layout.write_checksums()
    layout.write_clutter()
    layout.write_superseded()
    return RandomLog(
        seed=seed,
        path=root / "table",
        history=root / "history",
        latest=layout.latest,
        readable=readable,
        notes=tuple(layout.notes),
        deltalake_reads=layout.deltalake_reads,
    )
