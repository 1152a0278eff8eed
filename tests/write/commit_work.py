"""Work for a process of its own, whose requests, bytes and peak of memory are looked at."""

from __future__ import annotations

from dataclasses import dataclass

from lazydelta.protocol.actions import Add, Remove, Txn
from lazydelta.sidecar.handle import TableHandle
from lazydelta.storage import Request, observe, open_store
from lazydelta.write.transaction import Transaction

__all__ = ["commits"]


@dataclass
class _Counter:
    requests: int = 0

    def __call__(self, _: Request) -> None:
        self.requests += 1


def commits(table: str, count: int) -> list[list[int]]:
    """Commit so many times: a file more, the one before it less; return requests and bytes read of each commit."""
    spent = []
    before: Add | None = None
    for number in range(count):
        store = open_store(table)
        seen = _Counter()
        added = Add(
            path=f"new-{number}.parquet", size=1, modification_time=0, partition_values={"_event_hour": "2026021014"}
        )
        with (
            observe(seen),
            Transaction.begin(
                TableHandle.of(store), operation="WRITE", txn=Txn(app_id="work", version=number)
            ) as transaction,
        ):
            transaction.add(added)
            if before is not None:
                transaction.remove(
                    Remove(
                        path=before.path,
                        deletion_timestamp=0,
                        partition_values=before.partition_values,
                        size=before.size,
                    )
                )
            transaction.commit()
        before = added
        spent.append([seen.requests, store.counters.bytes_read])
    return spent
