"""Tables that another process serves, with the API of ``DeltaTable``."""

from __future__ import annotations

from lazydelta.client.connection import Connection, connect
from lazydelta.client.remote_files import RemoteFileStream
from lazydelta.client.remote_rows import RemoteRowStream
from lazydelta.client.remote_table import RemoteTable

__all__ = ["Connection", "RemoteFileStream", "RemoteRowStream", "RemoteTable", "connect"]
