"""The healthy table that the hostile tests damage, and what each damage is allowed to lead to."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from tests.oracle.checkpoints import CheckpointWriter, hint_for
from tests.oracle.replay import Snapshot, commit_name, replay

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.oracle.replay import Json

LATEST = 5
CHECKPOINT = 3


class Verdict(Enum):
    """What a reader may do with a damaged log."""

    MUST_ERROR = "an error that names the object"
    MUST_EQUAL = "the right answer"
    EITHER = "the right answer, or an error that names the object"
    # Bytes changed where nothing guards them: no reader can know. It must still end well.
    ANY = "any answer, or an error that names the object"


@dataclass
class Mutant:
    """A damaged table."""

    verdict: Verdict
    names: tuple[str, ...]
    expected: Snapshot | None = None
    # Where the damage is in a field that may lawfully be read in two ways, only the files' identities count.
    keys_only: bool = False


@dataclass
class Victim:
    """A small healthy table: six commits, and a checkpoint at version 3 if ``kind`` names one.

    With a checkpoint, the commits up to it are gone, so that nothing but the checkpoint can give the right answer.
    """

    root: Path
    seed: int
    kind: str = ""
    rng: random.Random = field(init=False)
    checkpoint: list[Path] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(f"victim-{self.seed}")
        self.log.mkdir(parents=True)
        for version in range(LATEST + 1):
            lines = [json.dumps(action, ensure_ascii=False) for action in _commit(version)]
            (self.log / commit_name(version)).write_text("\n".join(lines) + "\n", encoding="utf-8")
        shutil.copytree(self.log, self.history)
        if self.kind:
            self._write_checkpoint()

    @property
    def table(self) -> Path:
        """The table's folder."""
        return self.root / "table"

    @property
    def log(self) -> Path:
        """The visible log."""
        return self.table / "_delta_log"

    @property
    def history(self) -> Path:
        """The undamaged commits."""
        return self.root / "history"

    def healthy(self) -> Snapshot:
        """Return the state before any damage."""
        return replay(self.history)

    def damaged(self) -> Snapshot:
        """Return the state that a strict reading of the damaged commits gives."""
        return replay(self.log)

    def commit(self, version: int | None = None) -> Path:
        """Return a commit that still exists: the one asked for, or any that is not the first."""
        first = CHECKPOINT + 1 if self.kind else 1
        return self.log / commit_name(self.rng.randrange(first, LATEST + 1) if version is None else version)

    def edit(self, action: str, change: Callable[[Json], object], version: int | None = None) -> Path:
        """Apply ``change`` to the body of one ``action`` of a commit and return the commit."""
        path = self.commit(0 if action in {"metaData", "protocol"} else version)
        actions = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        change(next(a for a in actions if action in a)[action])
        path.write_text("\n".join(json.dumps(a) for a in actions) + "\n", encoding="utf-8")
        return path

    def edit_line(self, action: str, change: Callable[[bytes], bytes], version: int | None = None) -> Path:
        """Apply ``change`` to the bytes of the line of one ``action`` of a commit and return the commit."""
        path = self.commit(0 if action in {"metaData", "protocol"} else version)
        lines = path.read_bytes().splitlines()
        index = next(i for i, line in enumerate(lines) if line.startswith(b'{"' + action.encode()))
        lines[index] = change(lines[index])
        path.write_bytes(b"\n".join(lines) + b"\n")
        return path

    def _write_checkpoint(self) -> None:
        snapshot = replay(self.history, CHECKPOINT)
        writer = CheckpointWriter(self.log, snapshot, self.rng)
        writer.compression = "none" if self.kind == "plain" else "zstd"
        parts = None
        match self.kind.split("+"):
            case ["classic" | "plain"]:
                self.checkpoint = writer.classic()
            case ["multipart"]:
                parts = 2
                self.checkpoint = writer.multipart(parts)
            case [main, sidecars]:
                self.checkpoint = writer.v2(main=main, sidecars=int(sidecars))
        (self.log / "_last_checkpoint").write_text(json.dumps(hint_for(snapshot, self.checkpoint, parts=parts)))
        for version in range(CHECKPOINT + 1):
            (self.log / commit_name(version)).unlink()


def _commit(version: int) -> list[Json]:
    actions: list[Json] = [{"commitInfo": {"timestamp": 1_700_000_000_000 + version, "operation": "WRITE"}}]
    if version == 0:
        fields = [
            {"name": "id", "type": "long", "nullable": True, "metadata": {}},
            {"name": "p", "type": "string", "nullable": True, "metadata": {}},
        ]
        features = ["deletionVectors", "v2Checkpoint"]
        actions += [
            {
                "protocol": {
                    "minReaderVersion": 3,
                    "minWriterVersion": 7,
                    "readerFeatures": features,
                    "writerFeatures": features,
                }
            },
            {
                "metaData": {
                    "id": "victim",
                    "format": {"provider": "parquet", "options": {}},
                    "schemaString": json.dumps({"type": "struct", "fields": fields}),
                    "partitionColumns": ["p"],
                    "configuration": {},
                }
            },
        ]
    else:
        actions.append({"remove": {"path": f"p=a/file-{version - 1}-1.parquet", "dataChange": True, "size": 1001}})
    actions += [{"add": _add(version, number)} for number in range(4)]
    return [*actions, {"txn": {"appId": "app", "version": version}}]


def _add(version: int, number: int) -> Json:
    stats = {"numRecords": 10, "minValues": {"id": version}, "maxValues": {"id": 9}, "nullCount": {"id": 0}}
    add: Json = {
        "path": f"p=a/file-{version}-{number}.parquet",
        "partitionValues": {"p": "a"},
        "size": 1000 + number,
        "modificationTime": 1_700_000_000_000,
        "dataChange": True,
        "stats": json.dumps(stats),
    }
    if number == 0:
        add["deletionVector"] = {
            "storageType": "u",
            "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^",
            "offset": 4,
            "sizeInBytes": 40,
            "cardinality": 6,
        }
    return add
