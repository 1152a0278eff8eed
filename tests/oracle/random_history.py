"""Random commits: what writers may legally do to a table, and some of what they do anyway."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tests.oracle.checkpoints import physical_name
from tests.oracle.replay import Snapshot, canonical_path, commit_name, dv_id

if TYPE_CHECKING:
    import random
    from pathlib import Path

    from tests.oracle.replay import Json

_STRINGS = [
    "a",
    "b",
    "",
    "with space",
    "50%",
    "a/b",
    "ünï",
    "日本",
    "2026-02-10T14:00:00Z",
    "2026021014",
    "x=y",
    "+",
    "#?",
]
_PARTITION_VALUES: dict[str, list[str | None]] = {
    "string": [*_STRINGS, None],
    "integer": ["0", "-7", "2147483647", "", None],
    "date": ["2026-02-10", "1969-12-31", None],
    "timestamp": ["2026-02-10 14:00:00", "2026-02-10T14:00:00.123456Z", "1969-12-31 23:59:59.999999", None],
}
_FOLDERS = ["", "", "", "deep/er/", "sp%20ace/", "%C3%BCn%C3%AF/", "p%3D1%252F2/", "ünï/", "日/"]
_FEATURES = ["deletionVectors", "v2Checkpoint", "timestampNtz", "vacuumProtocolCheck"]
_STATS_COLUMNS = {
    "id": "long",
    "name": "string",
    "value": "double",
    "day": "date",
    "at": "timestamp",
    "flag": "boolean",
}
_KINDS = ["new", "new", "new", "remove", "readd", "vector", "again", "unknown", "stale", "cdc"]


class History:
    """Commits 0..latest of one random table, written as JSON to a folder."""

    def __init__(self, folder: Path, table: Path, rng: random.Random) -> None:
        self.folder = folder
        self.table = table
        self.rng = rng
        self.latest = rng.choice([0, 1, 2, 3, 5, 8, 8, 13, 13, 21, 34, 59])
        self.state = Snapshot()
        self.notes: list[str] = []
        self.deltalake_reads = True
        self.counter = 0
        self.removed: list[Json] = []
        self.mapping = self.chance(0.15)
        self.respell = self.chance(0.2)
        self.absolute = self.chance(0.3)
        self.bad_stats = self.chance(0.15)
        self.kinds = [*_KINDS, "replace"] if self.chance(0.4) else _KINDS
        # deltalake compares paths by their spelling, and fails on statistics that do not parse.
        self.deltalake_reads = not (self.respell or self.bad_stats)
        for name in ("mapping", "respell", "absolute", "bad_stats"):
            if getattr(self, name):
                self.notes.append(name)
        if "replace" in self.kinds:
            self.notes.append("replace")

    def chance(self, odds: float) -> bool:
        """Return whether something with these odds happens."""
        return self.rng.random() < odds

    def write(self) -> None:
        """Write every commit."""
        self.folder.mkdir(parents=True)
        for version in range(self.latest + 1):
            actions = self._first() if version == 0 else self._table_actions(version)
            if version == 0:
                self.state.apply(0, actions)
            actions += self._file_actions()
            self.rng.shuffle(actions)
            if self.chance(0.8):
                actions.insert(0, self._commit_info(version))
            elif not actions:
                actions.append({"futureAction": {"nothing": True}})
            self._write_commit(version, actions)
            self.state.apply(version, json.loads(json.dumps(actions)))

    # The table: protocol, metadata, transactions, domains.

    def _first(self) -> list[Json]:
        rng = self.rng
        columns = [("id", "long"), *rng.sample(list(_STATS_COLUMNS.items())[1:], rng.randrange(len(_STATS_COLUMNS)))]
        partitions = [(f"p{i}", rng.choice(list(_PARTITION_VALUES))) for i in range(rng.choice([0, 1, 1, 2]))]
        fields = [self._field(name, kind) for name, kind in [*columns, *partitions]]
        for field in fields[len(columns) :]:
            field["nullable"] = True
        configuration = {"delta.columnMapping.mode": "name"} if self.mapping else {}
        if self.mapping:
            configuration["delta.columnMapping.maxColumnId"] = "99"
        metadata: Json = {
            "id": f"table-{rng.getrandbits(32):08x}",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps({"type": "struct", "fields": fields}),
            "partitionColumns": [name for name, _ in partitions],
            "configuration": configuration,
        }
        if self.chance(0.7):
            metadata |= {"name": "näme", "description": None, "createdTime": 1_700_000_000_000}
        return [{"metaData": metadata}, {"protocol": self._protocol()}]

    def _protocol(self) -> Json:
        if self.chance(0.25):
            legacy: Json = {"minReaderVersion": 1, "minWriterVersion": 2}
            return {"minReaderVersion": 2, "minWriterVersion": 5} if self.mapping else legacy
        return self._feature_protocol()

    def _feature_protocol(self) -> Json:
        features = self.rng.sample(_FEATURES, self.rng.randrange(len(_FEATURES) + 1))
        features += ["columnMapping"] if self.mapping else []
        return {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": features,
            "writerFeatures": [*features, "appendOnly", "domainMetadata"],
        }

    def _field(self, name: str, kind: str) -> Json:
        metadata: Json = {}
        if self.mapping:
            self.counter += 1
            metadata = {
                "delta.columnMapping.id": self.counter,
                "delta.columnMapping.physicalName": f"col-{self.counter:04d}",
            }
        return {"name": name, "type": kind, "nullable": self.chance(0.9), "metadata": metadata}

    def _table_actions(self, version: int) -> list[Json]:
        actions: list[Json] = []
        assert self.state.protocol is not None
        if self.chance(0.1):
            actions.append({"metaData": self._changed_metadata(version)})
        if self.chance(0.06) and self.state.protocol["minReaderVersion"] < 3:
            actions.append({"protocol": self._feature_protocol()})
            self.notes.append(f"protocol at {version}")
        if self.chance(0.2):
            txn: Json = {"appId": self.rng.choice(["app", "äpp", "stream-1"]), "version": version - 1}
            actions.append({"txn": txn | ({"lastUpdated": 1_700_000_000_000} if self.chance(0.5) else {})})
        if self.chance(0.1) and "domainMetadata" in self.state.protocol.get("writerFeatures", []):
            domain = {"domain": self.rng.choice(["d.one", "d.two"]), "configuration": f'{{"v":{version}}}'}
            actions.append({"domainMetadata": domain | {"removed": self.chance(0.3)}})
        return actions

    def _changed_metadata(self, version: int) -> Json:
        assert self.state.metadata is not None
        fields = self.state.fields
        kind = self.rng.choice(["column", "property", "rename" if self.mapping else "description"])
        changed = dict(self.state.metadata)
        if kind == "column":
            fields.append(
                self._field(f"new{version}", self.rng.choice(["long", "string", "double"])) | {"nullable": True}
            )
        elif kind == "rename":
            field = self.rng.choice(fields)
            renamed = f"re{version}"
            changed["partitionColumns"] = [renamed if c == field["name"] else c for c in changed["partitionColumns"]]
            field["name"] = renamed
        elif kind == "property":
            changed["configuration"] = {**changed["configuration"], f"user.property{version}": "on"}
        else:
            changed["description"] = f"version {version}"
        self.notes.append(f"metadata {kind} at {version}")
        changed["schemaString"] = json.dumps({"type": "struct", "fields": fields})
        return changed

    def _commit_info(self, version: int) -> Json:
        info: Json = {
            "timestamp": 1_700_000_000_000 + version,
            "operation": "WRITE",
            "operationParameters": {"x": "[]"},
        }
        return {"commitInfo": info | ({"engineInfo": "tests", "future": [1, {"a": None}]} if self.chance(0.5) else {})}

    # The files.

    def _file_actions(self) -> list[Json]:
        rng = self.rng
        actions: list[Json] = []
        touched: set[str] = set()
        count = rng.choice([80, 200]) if self.chance(0.02) else rng.choice([0, 1, 1, 2, 3, 6])
        for _ in range(count):
            kind = rng.choice(self.kinds)
            target = self._target(kind)
            if kind == "cdc":
                cdc = {"path": "_change_data/c.parquet", "partitionValues": {}, "size": 1, "dataChange": False}
                actions.append({"cdc": cdc})
            elif target is not None and canonical_path(target["path"]) not in touched:
                touched.add(canonical_path(target["path"]))
                actions += self._actions_on(kind, target)
        self.removed += [action["remove"] for action in actions if "remove" in action]
        if self.chance(0.1):
            actions.append({"futureAction": {"path": "x", "nested": {"add": 1}}})
        return actions

    def _target(self, kind: str) -> Json | None:
        """Choose a file to act on, or None where there is none for this kind of action."""
        active = list(self.state.files.values())
        if kind in {"new", "unknown"}:
            return {"path": self._new_path(), "partitionValues": {}, "size": 1}
        if kind == "again":
            paths = {canonical_path(add["path"]) for add in active}
            gone = [remove for remove in self.removed if canonical_path(remove["path"]) not in paths]
            return self.rng.choice(gone) if gone else None
        return self.rng.choice(active) if active else None

    def _actions_on(self, kind: str, target: Json) -> list[Json]:
        vector = target.get("deletionVector")
        actions: list[Json] = []
        if kind in {"remove", "unknown", "replace"}:
            actions.append({"remove": self._remove(target)})
        match kind:
            case "new":
                actions.append({"add": self._add(target["path"], self._new_vector() if self.chance(0.1) else None)})
            case "again":  # an add after a remove, now and then under the same vector
                vector = self.rng.choice([vector, self._new_vector()])
                actions.append({"add": self._add(self._spell(target["path"]), vector)})
            case "readd":  # no remove: statistics were recomputed
                actions.append({"add": self._add(self._spell(target["path"]), vector)})
            case "replace":  # the same key removed and added; shuffling makes both orders
                self.deltalake_reads = False  # it takes the first of the two that it meets
                actions.append({"add": self._add(self._spell(target["path"]), vector)})
            case "vector":
                actions.append({"add": self._add(self._spell(target["path"]), self._new_vector())})
                if dv_id(actions[0]["add"]) != dv_id(target):
                    actions.append({"remove": self._remove(target)})
            case "stale" if self._vectors_allowed():  # a remove of another key of the path must not hide the active one
                other = {**target, "deletionVector": {**self._vector("u", 39), "offset": 999}}
                actions.append({"remove": self._remove(other)})
        return actions

    def _new_path(self) -> str:
        self.counter += 1
        folder = self.rng.choice(_FOLDERS)
        name = self.rng.choice(["part", "p%20art", "p%25", "pärt", "p+a=r", "%E6%97%A5", "p%3At", "p%2Dt"])
        path = f"{folder}{name}-{self.counter:05d}.parquet"
        if self.absolute and self.chance(0.3):
            base = self.rng.choice([quote(str(self.table)), "/else/where", "/some%20where"])
            return self.rng.choice(["", "file:", "file://"]) + f"{base}/{path}"
        return path

    def _spell(self, path: str) -> str:
        """Return the path in another spelling of the same place, where this table does such things."""
        if not self.respell or self.chance(0.4):
            return path
        decoded = canonical_path(path)
        spelled = self.rng.choice([quote(decoded, safe="/"), quote(decoded, safe="/=+:"), quote(decoded, safe="/-._~")])
        if decoded.startswith("/"):
            return self.rng.choice(["", "file:", "file://"]) + quote(decoded, safe="/")
        # A colon in the first segment of a relative reference would read as a scheme.
        return spelled

    def _vectors_allowed(self) -> bool:
        assert self.state.protocol is not None
        return "deletionVectors" in (self.state.protocol.get("readerFeatures") or [])

    def _vector(self, storage: str, size: int) -> Json:
        token = "".join(self.rng.choices("abcdefghijklmnop0123456789", k=20))
        path = f"file:///dv/{token}.bin" if storage == "p" else token
        return {
            "storageType": storage,
            "pathOrInlineDv": path,
            "sizeInBytes": size,
            "cardinality": self.rng.randrange(9),
        }

    def _new_vector(self) -> Json | None:
        if self.state.protocol is None or not self._vectors_allowed() or self.chance(0.2):
            return None
        vector = self._vector(self.rng.choice(["u", "u", "i", "p"]), 34)
        if vector["storageType"] != "i" and self.chance(0.7):
            vector["offset"] = self.rng.choice([1, 5, 2**31 - 1])
        return vector

    def _add(self, path: str, vector: Json | None) -> Json:
        rng = self.rng
        add: Json = {
            "path": path,
            "partitionValues": self._partition_values(),
            "size": rng.choice([0, 1, 1234, 2**31, 2**52]),
            "modificationTime": rng.choice([0, 1_700_000_000_000, rng.getrandbits(40)]),
            "dataChange": self.chance(0.8),
        }
        if vector is not None:
            add["deletionVector"] = vector
        stats = self._stats()
        if stats is not None or self.chance(0.3):
            add["stats"] = stats
        if self.chance(0.1):
            add |= {"tags": {"k": "v"}, "futureField": {"deep": [1, {"x": "ü"}]}}
        items = list(add.items())
        rng.shuffle(items)
        return dict(items)

    def _remove(self, target: Json) -> Json:
        remove: Json = {"path": self._spell(target["path"]), "dataChange": True}
        if self.chance(0.9):
            remove["deletionTimestamp"] = 1_700_000_000_000
        if self.chance(0.7):
            remove |= {"extendedFileMetadata": True, "partitionValues": target.get("partitionValues", {})}
            remove["size"] = target.get("size", 1)
        if target.get("deletionVector") is not None:
            remove["deletionVector"] = target["deletionVector"]
        return remove

    def _current_fields(self) -> list[Json]:
        return self.state.fields if self.state.metadata else []

    def _partition_values(self) -> dict[str, str | None]:
        if self.state.metadata is None:
            return {}
        partitions = self.state.metadata["partitionColumns"]
        return {
            physical_name(f): self.rng.choice(_PARTITION_VALUES[f["type"]])
            for f in self._current_fields()
            if f["name"] in partitions
        }

    def _stats(self) -> str | None:
        kind = self.rng.choice(["full", "full", "full", "partial", "count", "empty", None])
        if self.bad_stats and self.chance(0.2):
            return self.rng.choice(["", "{", "not json", '{"numRecords":"many"}'])
        if kind is None or self.state.metadata is None:
            return None
        if kind == "empty":
            return "{}"
        records = self.rng.choice([0, 1, 1000, 2**33])
        if kind == "count":
            return json.dumps({"numRecords": records})
        partitions = self.state.metadata["partitionColumns"]
        fields = [f for f in self._current_fields() if f["name"] not in partitions]
        if kind == "partial":
            fields = self.rng.sample(fields, self.rng.randrange(len(fields)))
        bounds = {physical_name(f): self._bound(f["type"]) for f in fields if f["type"] != "boolean"}
        stats: Json = {
            "numRecords": records,
            "minValues": {k: low for k, (low, _) in bounds.items()},
            "maxValues": {k: high for k, (_, high) in bounds.items()},
            "nullCount": {physical_name(f): self.rng.choice([0, records]) for f in fields},
        }
        if self.chance(0.2):
            stats["tightBounds"] = self.chance(0.5)
        return json.dumps(stats, ensure_ascii=self.chance(0.5))

    def _bound(self, kind: str) -> tuple[Any, Any]:
        match kind:
            case "long":
                low = self.rng.randrange(-(2**40), 2**40)
                return low, low + self.rng.randrange(1000)
            case "double":
                bound = self.rng.uniform(-10, 10)
                return bound, bound + 1.5
            case "date":
                return "1969-12-31", "2026-02-10"
            case "timestamp":
                return "2026-02-10T14:00:00.000Z", "2026-02-10T14:59:59.999Z"
            case _:
                return "a\u00e4", "z" * self.rng.choice([1, 32]) + "\U0001f600"

    def _write_commit(self, version: int, actions: list[Json]) -> None:
        ascii_only = self.chance(0.5)
        lines = [json.dumps(a, ensure_ascii=ascii_only, separators=(",", ":")) for a in actions]
        if self.chance(0.1):
            lines.insert(self.rng.randrange(len(lines) + 1), "")
        text = "\n".join(lines) + ("\n" if self.chance(0.8) else "")
        (self.folder / commit_name(version)).write_text(text, encoding="utf-8", newline="")
