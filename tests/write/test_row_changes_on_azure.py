"""Rows deleted and updated on a real Azure service: as on a disk, also where another writer was faster."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from click.testing import CliRunner

from lazydelta import CommitProperties, DeltaTable, write_arrow
from lazydelta.cli.app import cli
from lazydelta.errors import CommitConflictError
from lazydelta.storage import Request, observe, open_store
from tests.support.azurite import Azurite

ROWS = pa.table({"p": ["a", "a", "b", "b"], "id": pa.array([1, 2, 3, 4]), "s": ["w", "x", "y", None]})
_PROPERTIES = {"delta.enableChangeDataFeed": "true"}
_COUNTED = ("num_added_files", "num_removed_files", "num_copied_rows", "num_deleted_rows", "num_updated_rows")


class Place:
    """A table on Azure, and how it is opened."""

    def __init__(self, azurite: Azurite) -> None:
        self.uri = f"az://{azurite.container('row-changes')}/{uuid.uuid4().hex}"
        self.options = azurite.storage_options()
        write_arrow(self.uri, ROWS, partition_by=["p"], properties=_PROPERTIES, storage_options=self.options)

    def open(self) -> DeltaTable:
        """Open the newest version."""
        return DeltaTable(self.uri, storage_options=self.options)

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows as deltalake reads them."""
        table = deltalake.DeltaTable(self.uri, storage_options=self.options).to_pyarrow_table()
        return _sorted(table)

    def objects(self) -> set[str]:
        """Return every object but those of the log."""
        walk = open_store(self.uri, self.options).walk(lambda path: path == "_delta_log")
        return {each.path for each in walk}


@pytest.fixture
def place(azurite: Azurite) -> Place:
    """Return a table with a file in each of two partitions."""
    return Place(azurite)


def _sorted(table: pa.Table) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table.sort_by("id").to_pylist()
    return found


def _changes(table: DeltaTable) -> list[tuple[int, str, int]]:
    found = pa.table(table.load_cdf(starting_version=1)).to_pylist()
    return sorted((each["_commit_version"], each["_change_type"], each["id"]) for each in found)


@pytest.mark.parametrize(
    "deed",
    [
        lambda table: table.delete("id = 2 OR p = 'b'"),
        lambda table: table.update({"s": "'new'"}, predicate="id >= 2"),
        lambda table: table.update(new_values={"p": "c"}, predicate="id = 3"),
    ],
    ids=["delete", "update", "move"],
)
def test_rows_metrics_and_changes_are_those_of_a_table_on_a_disk(
    deed: Callable[[DeltaTable], dict[str, Any]], place: Place, tmp_path: Path
) -> None:
    write_arrow(tmp_path, ROWS, partition_by=["p"], properties=_PROPERTIES)
    there, here = deed(place.open()), deed(DeltaTable(tmp_path))
    assert [there.get(name) for name in _COUNTED] == [here.get(name) for name in _COUNTED]
    assert place.rows() == _sorted(deltalake.DeltaTable(tmp_path).to_pyarrow_table())
    assert place.rows() != _sorted(ROWS)
    assert _changes(place.open()) == _changes(DeltaTable(tmp_path)) != []


def test_the_command_deletes(place: Place) -> None:
    options = [f"--storage-option={key}={value}" for key, value in place.options.items()]
    arguments = ["delete", place.uri, "--where", "id = 2 OR p = 'b'", *options]
    done = CliRunner().invoke(cli, arguments, prog_name="lazydelta")
    assert done.output.startswith("Version 1: 3 rows in 2 files deleted; 1 row of 1 file copied to 1 file")
    assert [each["id"] for each in place.rows()] == [1]


class _Faster:
    """Lets another writer commit just before a commit of ours arrives."""

    def __init__(self, deed: Callable[[], object]) -> None:
        self._deed: Callable[[], object] | None = deed

    def __call__(self, request: Request) -> None:
        """Do it once."""
        if self._deed is not None and request.verb == "PUT" and request.path == "_delta_log/00000000000000000001.json":
            deed, self._deed = self._deed, None
            deed()


def test_a_change_begins_again_where_another_writer_changed_the_file(place: Place) -> None:
    with observe(_Faster(lambda: place.open().delete("id = 1"))):
        place.open().update({"s": "'new'"}, predicate="p = 'a'")
    assert place.open().version() == 2
    assert [(each["id"], each["s"]) for each in place.rows()] == [(2, "new"), (3, "y"), (4, None)]


def test_a_change_that_may_not_begin_again_is_a_conflict_and_leaves_no_object(place: Place) -> None:
    kept: set[str] = set()

    def other() -> None:
        before = place.objects()  # ours are among them
        place.open().update({"s": "'other'"}, predicate="id = 1")
        kept.update(before)

    once = CommitProperties(max_commit_retries=0)
    begun = place.objects()
    with observe(_Faster(other)), pytest.raises(CommitConflictError):
        place.open().delete("id = 2", commit_properties=once)
    ours = kept - begun
    assert ours
    assert not ours & place.objects()
    assert [(each["id"], each["s"]) for each in place.rows()] == [(1, "other"), (2, "x"), (3, "y"), (4, None)]
