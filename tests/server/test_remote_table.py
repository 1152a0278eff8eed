"""A table of a server has the API of the table itself, or says what to do instead."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow.flight as fl
import pytest

from lazydelta import DeltaTable, PredicateWarning
from lazydelta.client.remote_table import NotOverTheWire
from lazydelta.errors import OptionError, PredicateError, UnsupportedOperationError
from lazydelta.server import tables
from lazydelta.server.flight import FlightServer
from tests.rows.made_table import MadeTable, make_rich_table
from tests.scan.hand_log import HandLog, add
from tests.server.serving import connected, location, serving


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeTable:
    return make_rich_table(tmp_path_factory.mktemp("made") / "t", seed=9, files=12, rows=40)


@pytest.fixture(scope="module")
def server(made: MadeTable) -> Iterator[FlightServer]:
    with serving({"t": made.path}) as running:
        yield running


def test_a_remote_table_tells_of_its_files_what_the_table_does(server: FlightServer, made: MadeTable) -> None:
    here = DeltaTable(made.path)
    with connected(server) as connection:
        there = connection.table("t")
        assert there.history() == here.history()
        assert there.history(2) == here.history(2)
        assert there.partitions() == here.partitions()
        asked = [("hour", "=", here.partitions()[0]["hour"])]
        assert there.partitions(file_pruning_predicate=asked) == here.partitions(file_pruning_predicate=asked) != []
        for flatten in (False, True):
            ours = there.get_add_actions(flatten=flatten).sort_by("path")
            assert repr(ours.to_pylist()) == repr(here.get_add_actions(flatten=flatten).sort_by("path").to_pylist())
            assert ours.schema == here.get_add_actions(flatten=flatten).schema
        for where in (None, "id >= 30", "n = 7"):
            assert there.estimate(where) == here.estimate(where)
        assert there.domain_metadata() == here.domain_metadata()
        assert there.scan(["id"], "n = 7").read_all().equals(here.scan(["id"], "n = 7").read_all())
        assert there.table_uri == f"{location(server)}/t"
        with pytest.raises(OptionError, match="is not valid"):
            there.history(-1)


def test_every_name_of_a_table_is_there_or_says_what_to_do_instead(server: FlightServer) -> None:
    refused = {name for name in vars(NotOverTheWire) if not name.startswith("_")}
    with connected(server) as connection:
        table = connection.table("t")
        for name in (each for each in dir(DeltaTable) if not each.startswith("_")):
            if name not in refused:
                assert getattr(table, name) is not None
                continue
            with pytest.raises(UnsupportedOperationError, match=name) as caught:
                getattr(table, name)("whatever", it="takes")
            assert caught.value.hint
    assert {"vacuum", "merge", "file_uris", "load_cdf", "optimize"} < refused
    assert refused <= set(dir(DeltaTable))


def test_a_history_tells_no_places_and_is_not_longer_than_one_answer_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "stored here"
    log = HandLog(folder)
    for number in range(4):
        log.commit(add(f"{number}.parquet"), {"commitInfo": {"operation": "WRITE", "from": f"{folder}/staged"}})
    monkeypatch.setattr(tables, "_MOST_VERSIONS", 3)
    with serving({"t": folder}) as server, connected(server) as connection:
        table = connection.table("t")
        assert [each["from"] for each in table.history(3)] == ["t/staged"] * 3
        with pytest.raises(OptionError, match="more than 3 versions"):
            table.history()
        assert server.budgets.streams == 0


def test_what_goes_over_files_is_counted_as_a_stream(server: FlightServer) -> None:
    client, labels = fl.connect(location(server)), {"table": "t", "of": "files", "how": "done"}

    def streams() -> float:
        return server.metrics.registry.get_sample_value("lazydelta_serve_stream_seconds_count", labels) or 0

    before = streams()
    for kind in ("partitions", "estimate", "explain"):
        (answer,) = client.do_action(fl.Action(kind, msgspec.json.encode({"table": "t"})))
        assert msgspec.json.decode(answer.body.to_pybytes())
    assert server.budgets.wait_until_idle(60)
    assert streams() == before + 3
    assert server.budgets.most_memory >= server.limits.files_memory


def test_a_condition_that_takes_an_engine_is_not_evaluated_in_the_server(server: FlightServer, made: MadeTable) -> None:
    where = "id % 2 = 1 AND upper(s) = 'A'"
    with pytest.warns(PredicateWarning):
        assert DeltaTable(made.path).rows(where=where).read_all().num_rows > 0
    with connected(server) as connection, pytest.raises(PredicateError, match="Rows cannot be filtered by"):
        list(connection.table("t").rows(where=where))
