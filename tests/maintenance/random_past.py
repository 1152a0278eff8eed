"""Random pasts of a table: what versions need, by a plain replay, and what lies around beside."""

from __future__ import annotations

import random
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.maintenance.old_tables import NOW, OldTable, data_files
from tests.oracle.replay import Json, canonical_path

__all__ = ["HIDDEN", "RandomHistory"]

_FOLDERS = ("_event_hour=h/", "_event_hour=a%20b/", "", "x/y/", "_event_hour=__HIVE_DEFAULT_PARTITION__/")
HIDDEN = ("_other/f", ".tmp/f", "_event_hour=h/_SUCCESS", "_temporary/f")
_CHECKPOINTS = ("classic", "multipart", "v2 json", "v2 parquet")


class RandomHistory:
    """A table of random appends, removals, updates of deletion vectors and rewrites, with leftovers in between."""

    def __init__(self, folder: Path, seed: int, *, absolute_vectors: bool = True, **keywords: Any) -> None:
        self.dice = random.Random(seed)
        self.absolute_vectors = absolute_vectors
        self.table = OldTable(folder, features=["deletionVectors", "v2Checkpoint"], **keywords)
        self.places: dict[str, str] = {}  # where the file of each deletion vector is, by its id
        self.active: dict[str, Json | None] = {}
        self.count = 0
        self._write()

    def _write(self) -> None:
        dice, table = self.dice, self.table
        versions = dice.randint(1, 12)
        ages = sorted((dice.uniform(0.1, 20) for _ in range(versions)), reverse=True)
        checkpoint = dice.randrange(versions) if dice.random() < 0.7 else None
        for version, age in enumerate(ages):
            table.commit_at(age, *self._actions(age))
            if dice.random() < 0.5:
                table.put(f"{dice.choice(_FOLDERS)}left-{version}.parquet", dice.uniform(0, 20))
            if version == checkpoint:
                table.write_checkpoint(dice.choice(_CHECKPOINTS))
        for path in dice.sample(HIDDEN, 2):
            table.put(path, 30)

    def _actions(self, age: float) -> list[Json]:
        dice, actions = self.dice, []
        for path in [each for each in self.active if dice.random() < 0.3]:
            vector = self.active.pop(path)
            actions.append(self.table.remove(path, age, vector))
            if dice.random() < 0.5:
                self.active[path] = self._vector(age)
                actions.append(self.table.add(path, self.active[path]))
        for _ in range(dice.randint(0, 3)):
            self.count += 1
            path = self.table.put(f"{dice.choice(_FOLDERS)}part-{self.count}.parquet", age + dice.uniform(0, 10))
            if dice.random() < 0.2:
                path = f"file://{quote(str(self.table.table), safe='/=')}/{path}"
            self.active[path] = self._vector(age) if dice.random() < 0.3 else None
            actions.append(self.table.add(path, self.active[path]))
        return actions

    def _vector(self, age: float) -> Json:
        dice = self.dice
        absolute = dice.random() < 0.3 and self.absolute_vectors
        vector, place = self.table.put_vector(age, dice.choice(["", "ab"]), absolute=absolute)
        self.places[f"{vector['storageType']}{vector['pathOrInlineDv']}@1"] = place
        return vector

    def needed(self, retention: timedelta) -> set[str]:
        """Return the files that versions within the retention need."""
        found: set[str] = set()
        root = str(self.table.table)
        for path, vector in self.table.needed(NOW - retention):
            found.add(canonical_path(path).removeprefix(f"{root}/"))
            found |= set() if vector is None else {self.places[vector]}
        return found

    def expected(self, retention: timedelta) -> set[str]:
        """Return the files that may go: not needed, old enough, and of the table by Delta's rule of names."""
        old = {
            path
            for path in data_files(self.table.table)
            if (self.table.table / path).stat().st_mtime < (NOW - retention).timestamp()
        }
        return old - self.needed(retention) - set(HIDDEN)
