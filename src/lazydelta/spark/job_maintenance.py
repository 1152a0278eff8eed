"""What follows the commit of a job that Spark carried: on the driver's machine, at most once at a time."""

from __future__ import annotations

from lazydelta.handle import TableHandle
from lazydelta.maintenance.own_process import maintain_later, maintain_now
from lazydelta.write.job import WriteResult
from lazydelta.write.write_options import WriteOptions

__all__ = ["maintain_rejected", "maintain_written"]


def maintain_written(uri: str, options: WriteOptions, done: WriteResult, *, later: bool = False) -> None:
    """Do what the commits of a job made due, to the table before it returns, unless it is to be ``later``."""
    maintain_rejected(uri, options, done)
    if options.maintain and not done.already_committed:
        maintain = maintain_later if later else maintain_now
        maintain(TableHandle.open(uri, options.storage_options), done.version, done.metadata)


def maintain_rejected(uri: str, options: WriteOptions, done: WriteResult) -> None:
    """Do what is due to the table of rejected rows, for which nobody waits."""
    beside = done.rejected_commit
    if options.maintain and beside is not None and not beside.already_committed:
        table = TableHandle.open(options.rejected_uri(uri), options.storage_options)
        maintain_later(table, beside.version, beside.metadata)
