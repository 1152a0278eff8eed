"""Rows deleted by a deletion vector, as another writer does it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from lazydelta.protocol.actions import Add
from lazydelta.storage import open_store
from lazydelta.write.commit import removal_of
from lazydelta.write.transaction import Transaction
from tests.rows.files import stored_vector
from tests.write.commits import begin

__all__ = ["delete_rows"]


def delete_rows(root: Path, file: Any, positions: list[int], begun: Transaction | None = None) -> None:
    """Give a file a deletion vector, as another writer would; the file was found at the version of ``begun``."""
    vector, _ = stored_vector(root, positions)
    with begun or begin(open_store(root)) as transaction:
        add = _add_of(root, file.path)
        transaction.remove(removal_of(add, 1))
        transaction.add(msgspec.structs.replace(add, deletion_vector=vector))
        transaction.commit()


def _add_of(root: Path, path: str) -> Add:
    for commit in sorted((root / "_delta_log").glob("[0-9]*.json")):
        for line in commit.read_text().splitlines():
            action = json.loads(line)
            if action.get("add", {}).get("path") == path:
                return msgspec.convert(action["add"], Add)
    raise AssertionError(path)
