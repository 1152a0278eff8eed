"""What is out of force need not be in order: only the newest protocol and metadata count."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lazydelta import DeltaTable
from lazydelta.errors import CorruptLogError
from tests.oracle.replay import commit_name
from tests.scan.hand_log import HandLog, add, paths, remove

if TYPE_CHECKING:
    from pathlib import Path

both = pytest.mark.parametrize("strategy", ["reverse", "forward"])
POOR: dict[str, Any] = {
    "no schema": {"id": "x", "format": {"provider": "parquet"}, "partitionColumns": [], "configuration": {}},
    "nothing at all": {},
    "no id": {"schemaString": "{}"},
    "a null for the schema": {"id": "x", "schemaString": None},
    "another shape": {"id": 7, "schemaString": [], "partitionColumns": "none", "configuration": {"a": 1}},
}


def history(tmp_path: Path, poor: Any) -> HandLog:
    """Write a table whose first metaData lacks something, and a later version that puts it right."""
    log = HandLog(tmp_path)
    log.commit(add("a", ids=(0, 9)))
    log.commit({"metaData": poor}, add("b", ids=(10, 19)))
    log.commit(add("c", ids=(20, 29)), remove("a"))
    log.commit(log.metadata(), add("d", ids=(30, 39)))
    return log


@both
@pytest.mark.parametrize("poor", POOR.values(), ids=POOR)
@pytest.mark.parametrize("settled", ["replayed", "checksum", "compaction"])
def test_a_superseded_metadata_may_lack_anything(settled: str, poor: Any, strategy: str, tmp_path: Path) -> None:
    """The table opens, and its files are found in the commits that hold it, too."""
    log = history(tmp_path, poor)
    if settled == "checksum":
        log.checksum()
    if settled == "compaction":
        lines = [(log.log / commit_name(version)).read_text() for version in (1, 2)]
        (log.log / f"{1:020d}.{2:020d}.compacted.json").write_text("".join(lines))
    table = DeltaTable(str(tmp_path), options={"checksum": "error"})
    assert sorted(paths(table.files(strategy=strategy))) == ["b", "c", "d"]
    assert paths(table.files("id > 25 AND id < 35", strategy=strategy)) in (["d", "c"], ["c", "d"])
    assert table.history(10)
    assert table.metadata().id == "hand"


@pytest.mark.parametrize("poor", POOR.values(), ids=POOR)
def test_a_metadata_in_force_must_be_whole_and_is_named(poor: Any, tmp_path: Path) -> None:
    """At its own version it counts: the error names the commit and the action."""
    history(tmp_path, poor)
    with pytest.raises(CorruptLogError) as caught:
        DeltaTable(str(tmp_path), version=2)
    assert "metaData" in str(caught.value)
    assert caught.value.path == f"_delta_log/{commit_name(1)}"


@both
def test_a_checkpoints_metadata_that_the_tail_replaces_may_lack_its_schema(strategy: str, tmp_path: Path) -> None:
    """What a checkpoint says is looked at only for what the tail leaves open: here, the protocol."""
    log = HandLog(tmp_path)
    log.commit(add("a"))
    schema = log.metadata
    log.metadata = lambda: {"metaData": {"id": "hand", "format": {"provider": "parquet"}}}  # type: ignore[method-assign]
    log.commit(log.metadata(), add("b"))
    _checkpoint_without_schema(log)
    log.commit(schema(), add("c"))
    assert sorted(paths(DeltaTable(str(tmp_path)).files(strategy=strategy))) == ["a", "b", "c"]


def _checkpoint_without_schema(log: HandLog) -> None:
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    state = log.state()
    rows: list[dict[str, Any]] = [{"protocol": state.protocol}, {"metaData": {"id": "hand"}}]
    rows += [{"add": {**each, "partitionValues": []}} for each in state.files.values()]
    kinds = {
        "protocol": pa.struct([("minReaderVersion", pa.int32()), ("minWriterVersion", pa.int32())]),
        "metaData": pa.struct([("id", pa.string()), ("schemaString", pa.string())]),
        "add": pa.struct(
            [
                ("path", pa.string()),
                ("partitionValues", pa.map_(pa.string(), pa.string())),
                ("size", pa.int64()),
                ("modificationTime", pa.int64()),
                ("dataChange", pa.bool_()),
            ]
        ),
    }
    columns = {name: pa.array([row.get(name) for row in rows], kind) for name, kind in kinds.items()}
    pq.write_table(pa.table(columns), log.log / f"{log.version:020d}.checkpoint.parquet")


@both
def test_a_superseded_protocol_may_lack_anything_too(strategy: str, tmp_path: Path) -> None:
    """The same holds for the other action of which only the newest counts."""
    log = HandLog(tmp_path)
    log.commit(add("a"))
    log.commit({"protocol": {}}, add("b"))
    log.commit(log.protocol(), add("c"))
    assert sorted(paths(DeltaTable(str(tmp_path)).files(strategy=strategy))) == ["a", "b", "c"]
    with pytest.raises(CorruptLogError, match=rf"{commit_name(1)} holds a protocol action"):
        DeltaTable(str(tmp_path), version=1)
