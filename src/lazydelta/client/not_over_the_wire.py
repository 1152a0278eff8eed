"""What a ``DeltaTable`` can do and a table of a server cannot: each name is here, and says what to do instead.

A name that is missing looks like a mistake. A server reads, and tells no places; so whatever writes, maintains, or
works with places is for who can open the table itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from lazydelta.errors import UnsupportedOperationError

__all__ = ["NotOverTheWire"]

_OPEN_IT = "open the table where it is stored: DeltaTable(uri)"


def _refuse(name: str, why: str, hint: str) -> NoReturn:
    raise UnsupportedOperationError(f"A table of a server has no {name}: {why}", hint=hint)


def _method(name: str, why: str, hint: str = _OPEN_IT) -> Callable[..., NoReturn]:
    def method(self: object, *_: Any, **__: Any) -> NoReturn:  # noqa: ARG001 - whatever DeltaTable's takes
        _refuse(f"{name}()", why, hint)

    method.__name__ = name
    method.__qualname__ = f"RemoteTable.{name}"
    method.__doc__ = f"Refuse: {why}; {hint}."
    return method


def _noun(name: str, why: str, hint: str = _OPEN_IT) -> property:
    return property(lambda _: _refuse(name, why, hint), doc=f"Refuse: {why}; {hint}.")


_READS = "servers only read"
_PLACES = "servers tell no places"


class NotOverTheWire:
    """The rest of ``DeltaTable``'s names; each raises ``UnsupportedOperationError``."""

    alter = _noun("alter", _READS)
    changes = _method("changes", "servers send files and rows of one version")
    cleanup_metadata = _method("cleanup_metadata", _READS)
    compact_logs = _method("compact_logs", _READS)
    create = _method("create", _READS)
    create_checkpoint = _method("create_checkpoint", _READS)
    create_write_transaction = _method("create_write_transaction", _READS)
    delete = _method("delete", _READS)
    deletion_vectors = _method("deletion_vectors", _PLACES, "rows() leaves deleted rows out")
    file_uris = _method("file_uris", _PLACES, "files() has the paths as logged, rows() what is in the files")
    generate = _method("generate", _READS)
    get_stats_for_files = _method(
        "get_stats_for_files", "servers look files up by conditions", "ask files(stats_columns=…).batches()"
    )
    is_deltatable = _method("is_deltatable", _PLACES, "Connection.tables() has the tables that there are")
    load_cdf = _method("load_cdf", "servers send files and rows of one version")
    merge = _method("merge", _READS)
    optimize = _noun("optimize", _READS)
    repair = _method("repair", _READS)
    restore = _method("restore", _READS)
    retention_guard = _method("retention_guard", "the server reads the files, so it is the one to guard them")
    table_config = _noun("table_config", "it is deltalake's, and deprecated there", "leave it out")
    to_polars = _method("to_polars", "its frames read files themselves", "polars.from_arrow(table) takes the rows")
    to_pyarrow_dataset = _method(
        "to_pyarrow_dataset", "a dataset reads files itself", "to_pyarrow_reader(columns, filters) streams the rows"
    )
    transaction_version = _method("transaction_version", "it is for those who write")
    update = _method("update", _READS)
    vacuum = _method("vacuum", _READS)
