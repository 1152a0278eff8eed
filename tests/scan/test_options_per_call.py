"""What ``DeltaTable(options=…)`` takes, ``files(options=…)`` takes too, for that scan alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import lazydelta
from lazydelta import DeltaTable, sidecar
from lazydelta.errors import OptionError
from lazydelta.options import Options
from lazydelta.sidecar.handle import TableHandle
from lazydelta.storage import observe
from lazydelta.write.checkpoint.writer import write_checkpoint

OTHER: dict[str, Any] = {
    "delta.sidecar.enabled": False,
    "delta.commit.parallelism": 3,
    "delta.sidecar.row_groups_per_batch": 1,
    "delta.open.prefetched_versions": 0,
    "use_manifest": False,
    "project_columns": False,
    "prune_row_groups": False,
    "delta.reverse.window": 7,
    "batch_size": 1,
    "remove_set_memory_limit": 1 << 20,
    "memory_budget": 1 << 20,
    "cache_size": 0,
    "enable_fallback": False,
    "checksum": "error",
    "max_staleness": 5,
    "float_max": "trust",
    "page_checksums": "verify",
    "page_sizes": "pages",
    "retries": 0,
    "request_timeout": 2.5,
}


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("options") / "table"
    rows = pa.table({"n": list(range(6)), "p": [str(number) for number in range(6)]})
    lazydelta.write_arrow(path, rows, partition_by=["p"])
    write_checkpoint(TableHandle.open(path).store)
    sidecar.build(path)
    return path


def test_this_file_knows_every_option() -> None:
    assert set(OTHER) == {each.encode_name for each in msgspec.structs.fields(Options)}


@pytest.mark.parametrize(("name", "value"), OTHER.items(), ids=OTHER)
def test_every_option_of_a_table_is_one_of_a_call(uri: Path, name: str, value: Any) -> None:
    table = DeltaTable(uri)
    with table.files(options={name: value}) as files:
        assert len(list(files)) == 6
        ours = files._scanner.options
    assert ours == Options.load({name: value}) != Options.load()
    with table.files() as files:
        assert files._scanner.options == Options.load()


def test_an_option_of_a_call_goes_over_those_of_the_table(uri: Path) -> None:
    table = DeltaTable(uri, options={"batch_size": 2, "checksum": "off"})
    assert [batch.num_rows for batch in table.files(options={"batch_size": "3"}).batches()] == [3, 3]
    assert [batch.num_rows for batch in table.files(options={"checksum": "warn"}).batches()] == [2, 2, 2]


def test_one_scan_may_leave_the_sidecar_alone(uri: Path) -> None:
    table = DeltaTable(uri)
    requests: list[str] = []
    with observe(lambda request: requests.append(request.path)):
        assert len(list(table.files(options={"delta.sidecar.enabled": "false", "cache_size": 0}))) == 6
    assert not [path for path in requests if "_sidecars" in path or ".manifest" in path]
    with observe(lambda request: requests.append(request.path)):
        assert len(list(DeltaTable(uri, options={"cache_size": 0}).files())) == 6
    assert [path for path in requests if ".manifest" in path]


def test_requests_of_one_scan_may_have_their_own_limits() -> None:
    """On an object store: local files are read without requests that could time out."""
    lazydelta.write_arrow("memory://limits/table", pa.table({"n": [1]}))
    table = DeltaTable("memory://limits/table")
    with table.files(options={"retries": 1, "request_timeout": 3}) as files:
        settings = files._scanner.snapshot.store._settings
        assert (settings.retries, settings.request_timeout) == (1, 3.0)
        assert len(list(files)) == 1
    assert table._snapshot.store._settings.retries == 5
    assert table.files(options={"batch_size": 1})._scanner.snapshot.store is table._snapshot.store


def test_a_wrong_option_of_a_call_is_an_error_at_once(uri: Path) -> None:
    with pytest.raises(OptionError, match=r"There is no option 'batchsize'.*did you mean 'batch_size'"):
        DeltaTable(uri).files(options={"batchsize": 1})
    with pytest.raises(OptionError, match="A bad option"):
        DeltaTable(uri).files(options={"batch_size": 0})


def test_commit_read_parallelism_is_another_name(uri: Path) -> None:
    assert Options.load({"commit_read_parallelism": 3}).commit_parallelism == 3
    assert DeltaTable(uri).files(options={"commit_read_parallelism": "4"})._scanner.snapshot.parallelism == 4
    with pytest.raises(OptionError, match="is given twice: 3 and 4"):
        Options.load({"commit_read_parallelism": 3, "delta.commit.parallelism": 4})


def test_an_option_that_is_not_needed_is_explained() -> None:
    with pytest.raises(OptionError, match="page by page: memory_budget") as raised:
        Options.load({"checkpoint_row_groups_per_batch": 5})
    assert "delta.sidecar.row_groups_per_batch" in str(raised.value)


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("page_checksums", "'ignore', 'verify'"),
        ("page_sizes", "'any', 'footers', 'pages'"),
        ("float_max", "'ignore', 'trust'"),
        ("checksum", "'warn', 'error', 'off'"),
    ],
)
def test_a_word_that_an_option_does_not_know_is_answered_with_those_that_it_does(name: str, allowed: str) -> None:
    with pytest.raises(OptionError, match=f"{name} is one of {allowed}"):
        Options.load({name: "VERIFY"}, {})
