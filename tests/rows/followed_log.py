"""A log that grows at random, and what a stream of it has to bring: by lists, from the JSON alone."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from tests.oracle.replay import dv_id, read_commit, replay
from tests.scan.hand_log import HandLog, add, remove, vector

if TYPE_CHECKING:
    from pathlib import Path

    from lazydelta.rows.stream_options import StreamOffset
    from lazydelta.rows.stream_source import TableStream
    from tests.oracle.replay import Json

    Named = tuple[str, str | None]

# Few timestamps, so that many files share one and the path decides; names whose order is not that of their making.
_TIMESTAMPS = (0, 1_700_000_000_000, 1_700_000_000_001, 1_700_000_000_002)


class FollowedLog:
    """A table that grows by appends, rewrites, deletes and changes; ``kinds`` says which of them."""

    def __init__(self, table: Path, seed: int, kinds: str = "append append append rewrite") -> None:
        self.rng = random.Random(f"followed-{seed}")
        self.log = HandLog(table, features=["deletionVectors"])
        self.kinds = kinds.split()
        self.number = 0
        self.log.commit(*self._adds(self.rng.randrange(8)))

    @property
    def table(self) -> Path:
        """Where it is."""
        return self.log.table

    def grow(self, commits: int = 1) -> None:
        """Make commits of random kinds."""
        for _ in range(commits):
            live = [each for each in self.log.state().files.values() if "deletionVector" not in each]
            kind = self.rng.choice(self.kinds)
            some = self.rng.sample(live, min(len(live), self.rng.randrange(1, 4)))
            if kind == "rewrite":
                actions = [*(remove(each["path"]) for each in some), *self._adds(1)]
                for action in actions:
                    next(iter(action.values()))["dataChange"] = False
            elif kind == "delete":
                actions = [remove(each["path"]) for each in some]
            elif kind == "change":
                actions = [*(remove(each["path"]) for each in some), *self._adds(2)]
            elif kind == "vector":
                # Another vector of a file that the stream has read: a change, though its path is known.
                actions = [remove(each["path"]) for each in some]
                actions += [{"add": each | {"deletionVector": vector(f"v{self._next()}")}} for each in some]
            else:
                actions = self._adds(self.rng.choice([0, 1, 2, 9]))
            self.rng.shuffle(actions)
            self.log.commit(*actions, *([] if self.rng.random() < 0.9 else [self.log.metadata()]))

    def expected(self, start: StreamOffset, rule: str = "append") -> list[Named]:
        """Return every file from an offset at the beginning of a version to the newest version."""
        version, found = start.version, []
        if start.is_initial_snapshot:
            active = replay(self.log.log, version).files.values()
            found += [
                _named(each) for each in sorted(active, key=lambda each: (each["modificationTime"], each["path"]))
            ]
            version += 1
        for number in range(version, self.log.version + 1):
            actions = list(read_commit(self.log.log, number))
            adds = [each["add"] for each in actions if "add" in each and each["add"]["dataChange"]]
            removes = [each for each in actions if "remove" in each and each["remove"]["dataChange"]]
            if not (removes and rule == "skip"):
                found += map(_named, adds)
        return found

    def _adds(self, count: int) -> list[Json]:
        made = []
        for _ in range(count):
            action = add(f"{self.rng.choice('azÄ')}%20{self._next()}.parquet")
            action["add"]["modificationTime"] = self.rng.choice(_TIMESTAMPS)
            action["add"]["size"] = self.rng.choice([0, 1, 10, 1000])
            made.append(action)
        return made

    def _next(self) -> int:
        self.number += 1
        return self.number


def named(stream: TableStream, start: StreamOffset, end: StreamOffset) -> list[Named]:
    """Return the files between two offsets, as the stream names them."""
    found: list[Named] = []
    for run in stream.runs_between(start, end):
        vectors: Any = run.files.deletion_vector
        ids = [None] * len(run.files) if vectors is None else vectors.to_pylist()
        found += [
            (path, dv_id({"deletionVector": each} if each else {}))
            for path, each in zip(run.files.path.to_pylist(), ids, strict=True)
        ]
    return found


def _named(action: Json) -> Named:
    return action["path"], dv_id(action)
