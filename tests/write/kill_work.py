"""A writer that goes on until it is killed: appends, removes, overwrites, and the maintenance that falls due.

It says on its standard output what it is about to do and what it was told, so that the test that kills it can judge the
table that is left.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import sys
import threading
from typing import TYPE_CHECKING

from lazydelta.maintenance.after_commit import after_commit
from lazydelta.maintenance.background import BackgroundMaintenance
from lazydelta.protocol.actions import Txn
from lazydelta.sidecar.handle import TableHandle
from tests.support.points import Points
from tests.write.commits import begin, files_of, put_file, removal

if TYPE_CHECKING:
    from lazydelta.storage import Store

__all__ = ["INTERVAL", "main", "row_in"]

INTERVAL = 3
_LOCK = threading.Lock()


def row_in(path: str) -> int:
    """Return the row of a file, which its partition names."""
    return int(path.partition("p=r")[2].partition("/")[0])


def _say(**words: object) -> None:
    with _LOCK:
        os.write(1, json.dumps(words).encode() + b"\n")


def _say_last(point: str) -> None:
    _LOCK.acquire()  # for good: no other thread prints anything after this
    os.write(1, json.dumps({"killed": point}).encode() + b"\n")


def main() -> None:
    """Write for ever, or ``commits`` times; die at a counted point."""
    store: Store = pickle.loads(bytes.fromhex(sys.argv[1]))  # noqa: S301 - made by the test
    first, commits, at, in_background = (int(each) for each in sys.argv[2:6])
    points = Points(sys.argv[6], at, mark=sys.argv[7], before=_say_last)
    dice = random.Random(first)
    maintenance = BackgroundMaintenance(TableHandle.of(store))
    _say(ready=True)
    sys.stdin.readline()
    with points.counting():
        for row in range(first, first + commits):
            _commit(store, maintenance if in_background else None, row, dice)
        maintenance.close()
    _say(done=maintenance.status.last_error or True)


def _commit(store: Store, maintenance: BackgroundMaintenance | None, row: int, dice: random.Random) -> None:
    kind = dice.choices(["append", "replace", "overwrite"], [5, 4, 1])[0]
    with begin(store, Txn(app_id="writer", version=row)) as transaction:
        removed: list[int] | None = []
        if kind == "replace":
            seen = files_of(transaction)
            chosen = dice.sample(seen, min(len(seen), 2))
            transaction.remove(*[removal(file) for file in chosen])
            removed = [row_in(file.path) for file in chosen]
        elif kind == "overwrite":
            transaction.remove_all()
            removed = None
        _say(begun=row, removed=removed)
        transaction.add(put_file(store, [row], f"r{row}"))
        result = transaction.commit()
    _say(acknowledged=row, version=result.version)
    if maintenance is not None:
        maintenance.offer(result.version, result.metadata)
    else:
        after_commit(TableHandle.of(store), result.version, result.metadata)
