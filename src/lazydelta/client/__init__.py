"""Tables served by another process, with the API of ``DeltaTable``."""

from __future__ import annotations

from lazydelta.client.connection import Connection, connect
from lazydelta.client.remote_table import RemoteTable
from lazydelta.client.streams import RemoteFileStream, RemoteRowStream

__all__ = ["Connection", "RemoteFileStream", "RemoteRowStream", "RemoteTable", "connect"]
# What other packages of lazydelta import besides; programs use the names above.
SHARED = ("wire",)
