"""What a transaction writes, and when it writes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import deltalake
import msgspec
import pytest

from lazydelta.errors import (
    AccessDeniedError,
    ObjectExistsError,
    OptionError,
    PredicateError,
    StorageError,
    StorageTimeoutError,
    UnsupportedFeatureError,
    WriteError,
)
from lazydelta.predicates import Where
from lazydelta.protocol.actions import DeletionVector, Protocol, Remove, Txn
from lazydelta.sidecar.handle import TableHandle
from lazydelta.storage import Request, Store, observe, open_store
from lazydelta.storage.local import FileStore
from lazydelta.write import publication
from lazydelta.write import transaction as transactions
from lazydelta.write.transaction import Transaction
from tests.scan.hand_log import HandLog, add, vector, watching
from tests.write.commits import (
    append,
    begin,
    commit_info,
    commit_lines,
    files,
    new_table,
    put_file,
    removal,
    rows,
    versions,
)

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return new_table(tmp_path / "table")


def test_an_append_is_read_by_us_and_by_deltalake(store: Store) -> None:
    result = append(store, [1, 2, 3])
    assert (result.version, result.attempts, result.already_committed) == (1, 1, False)
    assert rows(store) == [1, 2, 3]
    assert deltalake.DeltaTable(store.uri).to_pyarrow_table().column("id").to_pylist() == [1, 2, 3]


def test_the_provenance_comes_first_and_says_who_did_what(store: Store) -> None:
    append(store, [1, 2])
    info = commit_info(store, 1)
    assert info["operation"] == "WRITE"
    assert info["operationParameters"] == {"mode": "Append"}
    assert info["operationMetrics"]["numFiles"] == "1"
    assert info["operationMetrics"]["numOutputRows"] == "2"
    assert info["engineInfo"].startswith("lazydelta")
    assert (info["isBlindAppend"], info["readVersion"]) == (True, 0)
    assert len(info["txnId"]) == 36
    assert "inCommitTimestamp" not in info


def test_parameters_that_are_not_text_are_logged_as_json(store: Store) -> None:
    transaction = Transaction.begin(
        TableHandle.of(store), operation="WRITE", parameters={"by": ["p"], "n": 3, "flag": True}
    )
    transaction.commit()
    assert commit_info(store, 1)["operationParameters"] == {"by": '["p"]', "n": "3", "flag": "true"}


def test_a_remove_carries_what_checksums_and_vacuum_need(store: Store) -> None:
    append(store, [1])
    transaction = begin(store)
    transaction.remove(removal(files(store)[0]))
    transaction.commit()
    [removed] = [line["remove"] for line in commit_lines(store, 2) if "remove" in line]
    assert removed["extendedFileMetadata"] is True
    assert removed["partitionValues"] == {"p": "a"}
    assert removed["size"] > 0
    assert removed["deletionTimestamp"] > 1_700_000_000_000
    assert rows(store) == []
    assert commit_info(store, 2)["isBlindAppend"] is False


def test_an_overwrite_replaces_all_rows_in_one_version(store: Store) -> None:
    append(store, [1], "a")
    append(store, [2], "b")
    transaction = begin(store)
    transaction.remove_all()
    transaction.add(put_file(store, [9]))
    assert transaction.commit().version == 3
    assert rows(store) == [9]
    assert deltalake.DeltaTable(store.uri).to_pyarrow_table().column("id").to_pylist() == [9]


@pytest.mark.parametrize("at_checkpoint", [True, False])
def test_an_overwrite_keeps_the_tags_of_what_it_removes(
    tmp_path: Path,
    at_checkpoint: bool,  # noqa: FBT001 - a case
) -> None:
    """``extendedFileMetadata`` promises them, and statistics not."""
    log = HandLog(tmp_path)
    tagged = add("a.parquet", ids=(1, 2))
    tagged["add"]["tags"] = {"ZCUBE_ID": "7", "empty": None}
    log.commit(tagged, add("b.parquet"))
    if at_checkpoint:
        log.checkpoint()
    with begin(open_store(tmp_path)) as transaction:
        transaction.remove_all()
        transaction.commit()
    lines = commit_lines(open_store(tmp_path), 1)
    removed = {line["remove"]["path"]: line["remove"] for line in lines if "remove" in line}
    assert removed["a.parquet"]["tags"] == {"ZCUBE_ID": "7", "empty": None}
    assert removed["a.parquet"]["extendedFileMetadata"] is True
    assert "stats" not in removed["a.parquet"]
    assert "tags" not in removed["b.parquet"]


@pytest.mark.parametrize(
    ("where", "left"),
    [
        ("p = 'a'", [2, 3, 4]),
        ("p IN ('a', 'b')", [3, 4]),
        ("p IS NULL", [1, 2, 4]),
        ([("p", "!=", "a")], [1, 3]),
        ("p = 'none of them'", [1, 2, 3, 4]),
    ],
)
def test_an_overwrite_by_predicate_replaces_the_partitions_that_match(
    store: Store, where: Where, left: list[int]
) -> None:
    for number, partition in enumerate(["a", "b", None, "c d%/é"], 1):
        append(store, [number], partition)
    transaction = begin(store)
    transaction.remove_partitions(where)
    transaction.commit()
    assert rows(store) == left


@pytest.mark.parametrize("where", ["id = 1", "p = 'a' AND id > 3", None, ""])
def test_an_overwrite_by_anything_but_partitions_is_refused(store: Store, where: str | None) -> None:
    append(store, [1])
    with pytest.raises(PredicateError):
        begin(store).remove_partitions(where)
    assert versions(store) == [0, 1]


def test_a_file_with_a_deletion_vector_is_removed_with_it(tmp_path: Path) -> None:
    log = HandLog(tmp_path, features=["deletionVectors"])
    log.commit(add("x.parquet", vector=vector("one", 2)))
    store = open_store(tmp_path)
    transaction = begin(store)
    transaction.remove_all()
    transaction.commit()
    [removed] = [line["remove"] for line in commit_lines(store, 1) if "remove" in line]
    assert removed["deletionVector"] == vector("one", 2)
    assert files(store) == []


def test_a_file_may_not_be_removed_twice_in_one_transaction(store: Store) -> None:
    append(store, [1])
    transaction = begin(store)
    transaction.remove(removal(files(store)[0]))
    with pytest.raises(WriteError, match="removed twice"):
        transaction.remove(removal(files(store)[0]))


def test_an_overwrite_does_not_mix_with_other_removes(store: Store) -> None:
    append(store, [1])
    first, second = begin(store), begin(store)
    first.remove_all()
    with pytest.raises(WriteError, match="files to remove itself"):
        first.remove(removal(files(store)[0]))
    second.remove(removal(files(store)[0]))
    with pytest.raises(WriteError, match="only one overwrite"):
        second.remove_partitions("p = 'a'")


def test_a_transaction_is_over_once_it_is_committed(store: Store) -> None:
    transaction = begin(store)
    transaction.commit()
    with pytest.raises(WriteError, match="is over"):
        transaction.commit()
    with pytest.raises(WriteError, match="is over"):
        transaction.add(put_file(store, [1]))


def test_a_transaction_that_is_left_writes_nothing(store: Store) -> None:
    with begin(store) as transaction:
        transaction.add(put_file(store, [1]))
    assert versions(store) == [0]


def test_max_attempts_must_allow_one(store: Store) -> None:
    with pytest.raises(OptionError):
        begin(store).commit(max_attempts=0)


def test_there_is_nothing_to_commit_to_without_a_table(tmp_path: Path) -> None:
    transaction = begin(open_store(tmp_path))
    assert transaction.snapshot is None
    with pytest.raises(WriteError, match="no Delta table"):
        transaction.commit()


def test_a_commit_whose_place_cannot_be_checked_is_a_storage_error_that_says_so(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publication, "_PAUSES", (0.0,))
    transaction = begin(store)
    transaction.add(put_file(store, [1]))
    asked: list[Request] = []

    def unreachable(request: Request) -> None:
        asked.append(request)
        if request.verb == "LIST" and any(each.verb == "PUT" for each in asked):
            raise StorageError("unreachable", path=request.path)

    with observe(unreachable), pytest.raises(StorageError, match=r"version 1 was put, .* not known.*keep its data"):
        transaction.commit()
    assert rows(store) == [1]


def test_a_commit_costs_seven_requests(store: Store) -> None:
    """The hint, the listing and the checksum to begin with; then the commit between two listings, and its checksum."""
    append(store, [1])
    with watching() as watch:
        transaction = begin(store)
        transaction.commit()
    assert [each.verb for each in watch.requests] == ["GET", "LIST", "GET", "LIST", "PUT", "LIST", "PUT"]


def test_a_commit_reads_no_more_of_a_large_table_than_of_a_small_one(tmp_path: Path) -> None:
    read = []
    for count in (10, 10_000):
        log = HandLog(tmp_path / str(count))
        log.commit(*[add(f"{number}.parquet") for number in range(count)])
        log.checkpoint()
        log.checksum(count)
        store = open_store(log.table)
        transaction = begin(store)
        transaction.add(put_file(store, [1]))
        transaction.commit()
        read.append((store.counters.requests, store.counters.bytes_read // 100))
    assert read[0] == read[1]


def test_removes_of_a_large_table_wait_on_disk(tmp_path: Path) -> None:
    log = HandLog(tmp_path)
    log.commit(*[add(f"{number:0200}.parquet") for number in range(40_000)])
    transaction = begin(open_store(tmp_path))
    transaction.remove_all()
    spool = transaction._lines._spool
    assert spool._rolled  # type: ignore[attr-defined]
    assert transaction.commit().version == 1
    assert files(open_store(tmp_path)) == []


# --- applications


def test_a_replayed_application_version_is_not_written_again(store: Store) -> None:
    first = append(store, [1], txn=Txn(app_id="stream", version=0))
    again = begin(store, Txn(app_id="stream", version=0))
    assert again.already_committed
    again.add(put_file(store, [1]))
    result = again.commit()
    assert (result.already_committed, result.version, result.attempts) == (True, first.version, 0)
    assert rows(store) == [1]


def test_the_next_application_version_is_written(store: Store) -> None:
    append(store, [1], txn=Txn(app_id="stream", version=0))
    append(store, [2], txn=Txn(app_id="another", version=0))
    assert not append(store, [3], txn=Txn(app_id="stream", version=1)).already_committed
    assert rows(store) == [1, 2, 3]
    snapshot = begin(store).snapshot
    assert snapshot is not None
    assert {each.app_id: each.version for each in snapshot.transactions()} == {"stream": 1, "another": 0}


def test_a_replay_that_loses_the_race_against_itself_is_done(store: Store) -> None:
    """Two drivers of one stream: the second finds the first one's commit when it wants to write its own."""
    txn = Txn(app_id="stream", version=7)
    slow = begin(store, txn)
    slow.add(put_file(store, [1]))
    append(store, [1], txn=txn)
    append(store, [2])
    result = slow.commit()
    assert result.already_committed
    assert rows(store) == [1, 2]


# --- in-commit timestamps


def test_in_commit_timestamps_rise_even_when_the_clock_falls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = new_table(tmp_path, properties={"delta.enableInCommitTimestamps": "true"})
    append(store, [1])
    monkeypatch.setattr(transactions, "_now", lambda: 1_000)
    append(store, [2])
    (tmp_path / "_delta_log" / f"{2:020}.crc").unlink()  # the next one has to look into the commit itself
    append(store, [3])
    stamps = [commit_info(store, version)["inCommitTimestamp"] for version in range(4)]
    assert stamps[2:] == [stamps[1] + 1, stamps[1] + 2]
    assert stamps == sorted(set(stamps))


def test_an_in_commit_timestamp_is_later_than_that_of_the_winner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = new_table(tmp_path, properties={"delta.enableInCommitTimestamps": "true"})
    slow = begin(store)
    slow.add(put_file(store, [2]))
    append(store, [1])
    monkeypatch.setattr(transactions, "_now", lambda: 1_000)
    assert slow.commit().version == 2
    stamps = [commit_info(store, version)["inCommitTimestamp"] for version in range(3)]
    assert stamps[2] == stamps[1] + 1


def test_in_commit_timestamps_are_not_switched_on_later(tmp_path: Path) -> None:
    HandLog(tmp_path).commit()
    _set_protocol(tmp_path, '{"minReaderVersion":1,"minWriterVersion":7,"writerFeatures":["inCommitTimestamp"]}')
    transaction = begin(open_store(tmp_path))
    assert transaction.metadata is not None
    properties: dict[str, str | None] = {"delta.enableInCommitTimestamps": "true"}
    transaction.set_metadata(msgspec.structs.replace(transaction.metadata, configuration=properties))
    with pytest.raises(WriteError, match="In-commit timestamps"):
        transaction.commit()
    assert versions(open_store(tmp_path)) == [0]


# --- tables that we may not write to


@pytest.mark.parametrize(
    ("configuration", "feature"),
    [
        ({"delta.constraints.positive": "id > 0"}, "checkConstraints"),
        ({"delta.enableTypeWidening": "true"}, "typeWidening"),
        ({"delta.enableRowTracking": "true"}, "rowTracking"),
        ({"delta.enableIcebergCompatV2": "true"}, "icebergCompatV2"),
    ],
)
def test_a_table_that_uses_what_we_do_not_write_is_refused_before_anything_is_written(
    tmp_path: Path, configuration: dict[str, str], feature: str
) -> None:
    HandLog(tmp_path, configuration=configuration).commit()
    with watching() as watch, pytest.raises(UnsupportedFeatureError) as raised:
        begin(open_store(tmp_path))
    assert raised.value.features == (feature,)
    assert watch.count(verb="PUT") == 0


@pytest.mark.parametrize(
    "feature",
    [
        "rowTracking",
        "clustering",
        "v2Checkpoint",
        "typeWidening",
        "icebergCompatV1",
        "something-new",
    ],
)
def test_a_writer_feature_that_we_do_not_implement_is_refused_by_name(tmp_path: Path, feature: str) -> None:
    log = HandLog(tmp_path)
    log.commit()
    _set_protocol(tmp_path, f'{{"minReaderVersion":1,"minWriterVersion":7,"writerFeatures":["{feature}"]}}')
    with pytest.raises(UnsupportedFeatureError, match=feature):
        begin(open_store(tmp_path))


def test_listed_features_that_are_not_used_do_no_harm(tmp_path: Path) -> None:
    HandLog(tmp_path).commit()
    unused = '["appendOnly","invariants","checkConstraints","changeDataFeed","generatedColumns","identityColumns"]'
    _set_protocol(tmp_path, f'{{"minReaderVersion":1,"minWriterVersion":7,"writerFeatures":{unused}}}')
    assert begin(open_store(tmp_path)).commit().version == 1


@pytest.mark.parametrize(
    ("mark", "feature"),
    [
        ('"delta.invariants":"{}"', "invariants"),
        ('"delta.generationExpression":"id + 1"', "generatedColumns"),
        ('"delta.identity.start":1', "identityColumns"),
        ('"CURRENT_DEFAULT":"7"', "allowColumnDefaults"),
    ],
)
def test_a_column_that_asks_for_more_is_refused_wherever_it_is(tmp_path: Path, mark: str, feature: str) -> None:
    inner = f'{{"name":"deep","type":"long","nullable":true,"metadata":{{{mark}}}}}'
    nested = f'{{"type":"array","elementType":{{"type":"struct","fields":[{inner}]}},"containsNull":true}}'
    HandLog(tmp_path, {"id": "long", "list": "LIST"}).commit()
    commit = tmp_path / "_delta_log" / f"{0:020}.json"
    commit.write_text(commit.read_text().replace('\\"LIST\\"', nested.replace('"', '\\"')))
    with pytest.raises(UnsupportedFeatureError, match="deep") as raised:
        begin(open_store(tmp_path))
    assert raised.value.features == (feature,)


def test_an_append_only_table_takes_appends_and_refuses_removes(tmp_path: Path) -> None:
    store = new_table(tmp_path, properties={"delta.appendOnly": "true"})
    append(store, [1])
    with pytest.raises(WriteError, match="append-only"):
        begin(store).remove_all()
    with pytest.raises(WriteError, match="append-only"):
        begin(store).remove_partitions("p = 'a'")
    with pytest.raises(WriteError, match="append-only"):
        begin(store).remove(removal(files(store)[0]))
    transaction = begin(store)
    transaction.remove(Remove(path=files(store)[0].path, data_change=False))
    transaction.add(put_file(store, [1]))
    assert transaction.commit().version == 2


def _set_protocol(table: Path, protocol: str) -> None:
    commit = table / "_delta_log" / f"{0:020}.json"
    first, rest = commit.read_text().split("\n", 1)
    assert "minWriterVersion" in first
    commit.write_text(f'{{"protocol":{protocol}}}\n{rest}')


# --- answers that get lost


class LossyStore(FileStore):
    """A store whose put-if-absent does its work and then fails to say so."""

    lost: StorageError | None = None

    def put_if_absent(self, path: str, data: bytes) -> None:
        """Write, then perhaps fail."""
        super().put_if_absent(path, data)
        if self.lost is not None:
            lost, self.lost = self.lost, None
            raise lost


def _lossy(store: Store, error: StorageError) -> LossyStore:
    twin = LossyStore(store._location, store._settings)
    twin.lost = error
    return twin


@pytest.mark.parametrize("error", [StorageError("reset"), StorageTimeoutError("late")])
def test_a_commit_whose_answer_was_lost_is_a_success(store: Store, error: StorageError) -> None:
    result = append(_lossy(store, error), [1])
    assert (result.version, result.attempts) == (1, 1)
    assert versions(store) == [0, 1]
    assert rows(store) == [1]


def test_a_commit_that_meets_itself_is_a_success(store: Store) -> None:
    """The client inside a store tries again by itself, and then finds the object that it wrote."""
    result = append(_lossy(store, ObjectExistsError("there already")), [1])
    assert (result.version, result.attempts, result.already_committed) == (1, 1, False)
    assert rows(store) == [1]


def test_an_outcome_that_stays_unknown_is_a_storage_error_that_says_so(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publication, "_PAUSES", (0.0,))
    transaction = begin(store)
    transaction.add(put_file(store, [1]))

    def unreachable(request: Request) -> None:
        if request.verb != "LIST":
            raise StorageError("unreachable", path=request.path)

    with observe(unreachable), pytest.raises(StorageError, match=r"not known.*keep its data files"):
        transaction.commit()
    assert versions(store) == [0]


def test_a_commit_that_is_denied_is_not_tried_again(store: Store) -> None:
    transaction = begin(store)

    def denied(request: Request) -> None:
        if request.verb == "PUT":
            raise AccessDeniedError("no", path=request.path)

    with watching() as watch, observe(denied), pytest.raises(AccessDeniedError):
        transaction.commit()
    assert watch.count(verb="PUT") == 1
    assert versions(store) == [0]


def test_a_deletion_vector_tells_two_removes_of_a_path_apart(store: Store) -> None:
    transaction = begin(store)
    one = DeletionVector(storage_type="u", path_or_inline_dv="x" * 20)
    transaction.remove(Remove(path="x", size=1, deletion_vector=one), Remove(path="x", size=1))
    assert transaction.commit().version == 1


def test_a_protocol_that_we_cannot_write_is_not_set(store: Store) -> None:
    with pytest.raises(UnsupportedFeatureError, match="rowTracking"):
        begin(store).set_protocol(
            Protocol(min_reader_version=1, min_writer_version=7, writer_features=("rowTracking", "domainMetadata"))
        )
