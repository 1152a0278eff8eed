"""Checksums of pages: readers verify them on request, row changes always."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from lazydelta import DeltaTable
from lazydelta.errors import DataFileError
from tests.rows.made_table import make_table

_ROWS = 1000
_HURT = 321


def _damaged(folder: Path) -> str:
    """Make a table of two files and flip one bit of the number of a row in the second."""
    made = make_table(folder, files=2, rows=_ROWS)
    path = folder / made.files[1]
    rows = pq.read_table(path)
    pq.write_table(rows, path, compression="none", use_dictionary=False, write_page_checksum=True)
    content = bytearray(path.read_bytes())
    # The column comes first and its numbers lie one after another, so that this one is nowhere else.
    content[content.index((_ROWS + _HURT).to_bytes(8, "little"))] ^= 4
    path.write_bytes(content)
    return made.uri


def _table(uri: str, page_checksums: str) -> DeltaTable:
    return DeltaTable(uri, options={"page_checksums": page_checksums})


_READS: dict[str, Callable[[DeltaTable], object]] = {
    "rows": lambda table: table.rows().read_all(),
    "filtered": lambda table: table.to_pyarrow_table(filters=[("id", ">", _ROWS + 500)]),
    "dataset": lambda table: table.to_pyarrow_dataset().to_table(),
    "fragments": lambda table: [piece.to_table() for piece in table.fragments(1)],
}


@pytest.mark.parametrize("read", sorted(_READS))
def test_a_page_that_differs_from_its_checksum_is_an_error_for_those_who_ask(tmp_path: Path, read: str) -> None:
    uri = _damaged(tmp_path)
    with pytest.raises(DataFileError, match=r"part-00001\.parquet"):
        _READS[read](_table(uri, "verify"))


def test_without_the_option_pages_are_read_as_they_are(tmp_path: Path) -> None:
    """As other readers do: what the bit says is what comes out."""
    uri = _damaged(tmp_path)
    second = list(range(_ROWS, 2 * _ROWS))
    second[_HURT] ^= 4
    for table in (DeltaTable(uri), _table(uri, "ignore")):
        found = table.to_pyarrow_table(columns=["id"], filters=[("part", "=", 1)])
        assert found["id"].to_pylist() == second


_CHANGES: dict[str, Callable[[DeltaTable], object]] = {
    "delete": lambda table: table.delete(f"id = {_ROWS + 7}"),
    "update": lambda table: table.update(updates={"part": "7"}, predicate=f"id = {_ROWS + 7}"),
    "optimize": lambda table: table.optimize.compact(),
}


@pytest.mark.parametrize("change", sorted(_CHANGES))
def test_whatever_changes_the_table_verifies_also_where_readers_do_not(tmp_path: Path, change: str) -> None:
    """Otherwise the damage would be copied, under a checksum that is right."""
    uri = _damaged(tmp_path)
    with pytest.raises(DataFileError, match=r"part-00001\.parquet"):
        _CHANGES[change](_table(uri, "ignore"))
    assert DeltaTable(uri).version() == 2
