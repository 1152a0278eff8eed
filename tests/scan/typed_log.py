"""Random logs whose files have rows of every type behind their statistics.

The commits, their oddities and the layout of the log are those of ``tests.oracle``; what is new is that each add action
stands for rows drawn by ``tests.predicates.worlds``, is logged as one of the known writers would, and carries the
number of its rows in a tag, so that a scan can be held against the rows themselves.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tests.oracle.checkpoints import _DELETION_VECTOR, _STRING_MAP, CheckpointWriter, hint_for
from tests.oracle.random_history import History
from tests.oracle.random_log import RandomLog, _Layout
from tests.oracle.replay import arrow_type, commit_name, file_key, read_commit, replay
from tests.predicates import worlds
from tests.scan.judging import typed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.oracle.replay import Json, Key

COLUMNS = [*worlds.TYPES, *worlds.PARTITIONS, "n.i"]
_KINDS = {**worlds.TYPES, **worlds.PARTITIONS}


@dataclass(frozen=True)
class TypedLog:
    """A table on disk and the rows of its files."""

    log: RandomLog
    rows: list[list[worlds.Row]]

    def rows_of(self, add: Json) -> list[worlds.Row]:
        """Return the rows that an add action stands for."""
        return self.rows[int(add["tags"]["rows"])]


class _TypedHistory(History):
    """Commits whose files have rows."""

    def __init__(self, folder: Path, table: Path, rng: random.Random) -> None:
        super().__init__(folder, table, rng)
        self.latest = rng.choice([1, 3, 5, 8, 13, 21])
        self.mapping = False
        self.rows: list[list[worlds.Row]] = []

    def _first(self) -> list[Json]:
        fields = [self._field(name, kind) for name, kind in _KINDS.items()]
        inner: Any = {"type": "struct", "fields": [self._field("i", "long")]}
        fields.append(self._field("n", inner))
        metadata: Json = {
            "id": "typed",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps({"type": "struct", "fields": fields}),
            "partitionColumns": list(worlds.PARTITIONS),
            "configuration": {},
        }
        return [{"metaData": metadata}, {"protocol": self._feature_protocol()}]

    def _file_actions(self) -> list[Json]:
        more = [{"add": self._add(self._new_path(), None)} for _ in range(self.rng.randrange(8))]
        return super()._file_actions() + more

    def _feature_protocol(self) -> Json:
        protocol = super()._feature_protocol()
        for name in ("readerFeatures", "writerFeatures"):
            protocol[name] = sorted({*protocol[name], "timestampNtz"})
        return protocol

    def _vector(self, storage: str, size: int) -> Json:
        return super()._vector(storage, size) | {"cardinality": self.rng.randrange(2)}

    def _add(self, path: str, vector: Json | None) -> Json:
        self.rows.append(worlds.rows(self.rng, self.rng.randint(1, 5)))
        return super()._add(path, vector) | {"tags": {"rows": str(len(self.rows) - 1)}}

    def _partition_values(self) -> dict[str, str | None]:
        first = self.rows[-1][0]
        texts = {name: worlds.partition_text(first[name]) for name in worlds.PARTITIONS}
        # Both spellings of null.
        return {name: text if text is not None else self.rng.choice([None, ""]) for name, text in texts.items()}

    def _stats(self) -> str | None:
        if self.bad_stats and self.chance(0.1):
            return self.rng.choice(["", "{", "not json", '{"numRecords":"many"}'])
        return worlds.logged(self.rng, self.rows[-1])


class _TypedWriter(CheckpointWriter):
    """Checkpoints with native statistics of every type, nested ones too."""

    def _add_type(self) -> pa.DataType:
        fields: dict[str, pa.DataType] = {
            "path": pa.string(),
            "partitionValues": _STRING_MAP,
            "size": pa.int64(),
            "modificationTime": pa.int64(),
            "dataChange": pa.bool_(),
            "tags": _STRING_MAP,
            "deletionVector": _DELETION_VECTOR,
        }
        if self.stats != "struct":
            fields["stats"] = pa.string()
        if self.stats != "json":
            bounds = pa.struct([*((n, arrow_type(k)) for n, k in worlds.TYPES.items()), ("n", _nested(pa.int64()))])
            counts = pa.struct([*((name, pa.int64()) for name in worlds.TYPES), ("n", _nested(pa.int64()))])
            fields["stats_parsed"] = pa.struct(
                {
                    "numRecords": pa.int64(),
                    "minValues": bounds,
                    "maxValues": bounds,
                    "nullCount": counts,
                    "tightBounds": pa.bool_(),
                }
            )
        if self.parsed_partitions:
            fields["partitionValues_parsed"] = pa.struct({n: arrow_type(k) for n, k in worlds.PARTITIONS.items()})
        return pa.struct(fields)

    def _add_value(self, add: Json) -> Json:
        value = dict(add)
        try:
            stats = json.loads(add.get("stats") or "null", parse_float=Decimal)
        except json.JSONDecodeError:
            stats = None
        if stats is not None and isinstance(stats["numRecords"], int):
            bounds = {
                section: {name: _native(item, name) for name, item in stats[section].items()}
                for section in ("minValues", "maxValues")
            }
            value["stats_parsed"] = stats | bounds
        value["partitionValues_parsed"] = {
            name: _native(int(text) if name == "p" and text else text or None, name)
            for name, text in add["partitionValues"].items()
        }
        return value


def _nested(kind: pa.DataType) -> pa.DataType:
    return pa.struct([("i", kind)])


def _native(item: Any, name: str) -> Any:
    if item is None or name == "n":
        return item
    kind = _KINDS[name]
    value = typed(item, kind)
    if isinstance(value, Decimal):
        with localcontext() as context:
            context.prec = 60
            return value.quantize(Decimal(1).scaleb(-arrow_type(kind).scale))
    return value


class _TypedLayout(_Layout):
    """The visible log of a typed history."""

    def write_checkpoints(self) -> None:
        for version in self.rng.sample(range(self.latest + 1), self.rng.choice([0, 1, 1, 1])):
            snapshot = replay(self.full, version)
            writer = _TypedWriter(self.log, snapshot, self.rng)
            parts = self.rng.choice([1, 1, 3])
            kinds: list[Callable[[], list[Path]]] = [writer.classic, partial(writer.multipart, parts)]
            assert snapshot.protocol is not None
            if "v2Checkpoint" in snapshot.protocol["readerFeatures"]:
                kinds.append(partial(writer.v2, main=self.rng.choice(["parquet", "json", "classic"]), sidecars=2))
            kind = self.rng.randrange(len(kinds))
            paths = kinds[kind]()
            self.checkpoints[version] = (paths, hint_for(snapshot, paths, parts=parts if kind == 1 else None))
            self.notes.append(f"checkpoint {version} kind {kind} stats={writer.stats}")


def typed_log(seed: int, root: Path) -> TypedLog:
    """Write the table of ``seed`` below ``root``."""
    rng = random.Random(f"typed-{seed}")
    history = _TypedHistory(root / "history", root / "table", rng)
    history.write()
    layout = _TypedLayout(root, history, rng, random.Random(f"lazydelta-broken-typed-{seed}"))
    layout.write_checkpoints()
    readable = layout.clean_up()
    layout.write_hint()
    layout.write_compactions()
    layout.write_checksums()
    log = RandomLog(
        seed=seed,
        path=root / "table",
        history=root / "history",
        latest=layout.latest,
        readable=readable,
        notes=tuple(layout.notes),
        deltalake_reads=False,
    )
    return TypedLog(log, history.rows)


def added_at(log: RandomLog, version: int) -> dict[Key, int]:
    """Return the newest version up to ``version`` that added each key."""
    found: dict[Key, int] = {}
    for number in range(version + 1):
        if not (log.history / commit_name(number)).is_file():
            continue
        for action in read_commit(log.history, number):
            if "add" in action:
                found[file_key(action["add"])] = number
    return found
