"""Changing one import works: the read API has deltalake's names and parameters."""

from __future__ import annotations

import inspect
import warnings
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest

import lazydelta

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import ModuleType

POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

SHARED = [
    "cleanup_metadata",
    "compact_logs",
    "count",
    "create_checkpoint",
    "deletion_vectors",
    "file_uris",
    "get_add_actions",
    "history",
    "is_deltatable",
    "load_as_version",
    "load_cdf",
    "metadata",
    "partitions",
    "protocol",
    "scan",
    "schema",
    "to_pandas",
    "to_pyarrow_dataset",
    "to_pyarrow_table",
    "transaction_version",
    "update_incremental",
    "vacuum",
    "version",
    "create_write_transaction",
    "delete",
    "generate",
    "merge",
    "repair",
    "restore",
    "update",
]
# Public methods of deltalake that read, and that lazydelta does not have (yet).
NOT_SHARED: set[str] = set()
# Shared; its own test says how far.
DIFFERENT = {"create"}
# Parameters of ours that may be given by position, behind all of deltalake's.
OURS_BY_POSITION = {"count": ["where"]}


def parameters(cls: type, name: str) -> dict[str, inspect.Parameter]:
    """Return the parameters of a method but the object or class itself."""
    method = inspect.getattr_static(cls, name)
    bound = not isinstance(method, staticmethod)
    found = list(inspect.signature(getattr(method, "__func__", method)).parameters.items())
    return dict(found[1:] if bound else found)


@pytest.mark.parametrize("name", SHARED)
def test_a_shared_method_has_deltalakes_parameters_in_deltalakes_order(name: str) -> None:
    """Ours may add keyword-only ones; every call that deltalake takes is one that we take."""
    theirs = parameters(deltalake.DeltaTable, name)
    ours = parameters(lazydelta.DeltaTable, name)
    assert [each for each, p in ours.items() if p.kind in POSITIONAL] == [
        *[each for each, p in theirs.items() if p.kind in POSITIONAL],
        *OURS_BY_POSITION.get(name, []),
    ]
    assert set(theirs) <= set(ours)
    for each, theirs_is in theirs.items():
        # By what is shown: deltalake wraps the defaults of what it once took by position.
        assert repr(ours[each].default) == repr(theirs_is.default), each
    assert all(p.default is not inspect.Parameter.empty for each, p in ours.items() if each not in theirs)


def test_the_constructor_has_deltalakes_parameters_in_deltalakes_order() -> None:
    """Ours come by keyword alone."""
    theirs = parameters(deltalake.DeltaTable, "__init__")
    ours = parameters(lazydelta.DeltaTable, "__init__")
    assert [each for each, p in ours.items() if p.kind in POSITIONAL] == list(theirs)
    assert set(ours) - set(theirs) == {"options", "log_tail", "external_locations", "credential"}
    for name, theirs_is in theirs.items():
        assert ours[name].default == theirs_is.default, name


def test_create_and_write_deltalake_take_what_deltalakes_take() -> None:
    """Their defaults are ours but for one that is a mark of deltalake's own."""
    theirs, ours = parameters(deltalake.DeltaTable, "create"), parameters(lazydelta.DeltaTable, "create")
    assert [(name, p.kind) for name, p in ours.items()] == [(name, p.kind) for name, p in theirs.items()]
    first, second = (inspect.signature(each.write_deltalake).parameters for each in (deltalake, lazydelta))
    assert [(name, p.kind, p.default) for name, p in second.items()] == [
        (name, p.kind, p.default) for name, p in first.items()
    ]


def test_every_method_of_deltalake_is_shared_or_known_not_to_be() -> None:
    """A new reading method of deltalake is noticed here."""
    methods = {
        name
        for name, value in inspect.getmembers_static(deltalake.DeltaTable)
        if not name.startswith("_") and not isinstance(value, property)
    }
    assert methods == {*SHARED, *NOT_SHARED, *DIFFERENT}


def test_methods_that_are_not_shared_do_not_exist() -> None:
    """So that none of them is forgotten in the list of shared ones."""
    assert {name for name in NOT_SHARED if hasattr(lazydelta.DeltaTable, name)} == set()


@pytest.mark.parametrize("noun", ["alter", "optimize"])
def test_what_is_below_a_name_takes_what_deltalakes_takes(noun: str, table: Path) -> None:
    theirs = type(getattr(deltalake.DeltaTable(table), noun))
    ours = type(getattr(lazydelta.DeltaTable(table), noun))
    names = [name for name in vars(theirs) if not name.startswith("_")]
    assert names
    for name in names:
        first, second = parameters(theirs, name), parameters(ours, name)
        assert [each for each, p in first.items() if p.kind in POSITIONAL] == [
            each for each, p in second.items() if p.kind in POSITIONAL
        ], name
        assert set(first) <= set(second), name


def test_the_uri_of_the_table_is_a_property_as_in_deltalake() -> None:
    assert isinstance(inspect.getattr_static(deltalake.DeltaTable, "table_uri"), property)
    assert isinstance(inspect.getattr_static(lazydelta.DeltaTable, "table_uri"), property)


# --- the same lines, either import


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a partitioned table made by deltalake, with a checkpoint and commits after it."""
    root = tmp_path_factory.mktemp("table")
    for start in range(0, 12, 3):
        rows = pa.table(
            {
                "id": pa.array(range(start, start + 3), pa.int64()),
                "day": [f"2026-02-0{1 + start // 6}"] * 3,
                "at": [datetime(2026, 2, 10, start, tzinfo=UTC)] * 3,
            }
        )
        deltalake.write_deltalake(
            root, rows, mode="append", partition_by=["day"], name="telemetry", description="of sensors"
        )
        if start == 6:
            deltalake.DeltaTable(root).create_checkpoint()
    deltalake.DeltaTable(root).delete("id = 4")
    return root


def rows_of(table: Any) -> list[dict[str, Any]]:
    """Return the rows sorted."""
    return sorted(table.to_pylist(), key=repr)


LINES: dict[str, Callable[[ModuleType, str], object]] = {
    "version": lambda package, uri: package.DeltaTable(uri).version(),
    "old version": lambda package, uri: package.DeltaTable(uri, 2).version(),
    "version by keyword": lambda package, uri: package.DeltaTable(table_uri=uri, version=1).version(),
    "without files": lambda package, uri: package.DeltaTable(uri, without_files=True, log_buffer_size=2).version(),
    "metadata": lambda package, uri: [
        getattr(package.DeltaTable(uri).metadata(), name) for name in ("id", "name", "description", "created_time")
    ],
    "partition columns": lambda package, uri: list(package.DeltaTable(uri).metadata().partition_columns),
    "configuration": lambda package, uri: dict(package.DeltaTable(uri).metadata().configuration),
    "protocol": lambda package, uri: [
        getattr(package.DeltaTable(uri).protocol(), name) for name in ("min_reader_version", "min_writer_version")
    ],
    "file uris": lambda package, uri: sorted(package.DeltaTable(uri).file_uris()),
    "filtered uris": lambda package, uri: sorted(package.DeltaTable(uri).file_uris([("day", "=", "2026-02-02")])),
    "uris of several": lambda package, uri: sorted(
        package.DeltaTable(uri).file_uris(partition_filters=[("day", "in", ["2026-02-01", "2026-02-02"])])
    ),
    "partitions": lambda package, uri: sorted(package.DeltaTable(uri).partitions(), key=repr),
    "count": lambda package, uri: package.DeltaTable(uri).count(),
    "is table": lambda package, uri: package.DeltaTable.is_deltatable(uri),
    "is no table": lambda package, uri: package.DeltaTable.is_deltatable(uri + "/nowhere"),
    "history": lambda package, uri: [entry["operation"] for entry in package.DeltaTable(uri).history(3)],
    "rows": lambda package, uri: rows_of(package.DeltaTable(uri).to_pyarrow_table()),
    "columns": lambda package, uri: rows_of(package.DeltaTable(uri).to_pyarrow_table(columns=["id"])),
    "partition rows": lambda package, uri: rows_of(
        package.DeltaTable(uri).to_pyarrow_table([("day", "=", "2026-02-01")], ["id", "day"])
    ),
    "filtered rows": lambda package, uri: rows_of(package.DeltaTable(uri).to_pyarrow_table(filters=[("id", ">", 5)])),
    "filtered by alternatives": lambda package, uri: rows_of(
        package.DeltaTable(uri).to_pyarrow_table(filters=[[("id", "<", 2)], [("id", ">=", 10)]])
    ),
    "pandas": lambda package, uri: sorted(package.DeltaTable(uri).to_pandas(columns=["id"])["id"].tolist()),
    "transaction": lambda package, uri: package.DeltaTable(uri).transaction_version("nobody"),
    "load as version": lambda package, uri: loaded(package, uri, 1),
    "load by text": lambda package, uri: loaded(package, uri, "2999-01-01T00:00:00Z"),
}


def loaded(package: ModuleType, uri: str, version: int | str) -> tuple[int, int]:
    """Pin another version."""
    table = package.DeltaTable(uri)
    table.load_as_version(version)
    return table.version(), len(table.file_uris())


@pytest.mark.parametrize("name", LINES)
def test_lines_written_for_deltalake_give_the_same_answer(name: str, table: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # deltalake renames parameters that people still write
        ours = LINES[name](lazydelta, str(table))
        theirs = LINES[name](deltalake, str(table))
    assert ours == theirs


def test_a_path_object_is_taken_for_the_uri(table: Path) -> None:
    assert lazydelta.DeltaTable(table).version() == deltalake.DeltaTable(table).version()
