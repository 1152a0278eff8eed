"""Storage: the one place where lazydelta does I/O."""

from __future__ import annotations

from lazydelta.storage.bridge import Pending
from lazydelta.storage.byte_stream import ByteStream
from lazydelta.storage.counters import IoCounters, Request, observe
from lazydelta.storage.faults import redact
from lazydelta.storage.input import open_native
from lazydelta.storage.location import expand_home, has_known_scheme, refuse_half_uri
from lazydelta.storage.logged import is_plain
from lazydelta.storage.opener import open_store
from lazydelta.storage.storage_options import CarriedOptions, shipped_options
from lazydelta.storage.store import ObjectInfo, Store
from lazydelta.storage.temporary import TEMPORARY
from lazydelta.storage.walk import Walk

__all__ = [
    "TEMPORARY",
    "ByteStream",
    "CarriedOptions",
    "IoCounters",
    "ObjectInfo",
    "Pending",
    "Request",
    "Store",
    "Walk",
    "expand_home",
    "has_known_scheme",
    "is_plain",
    "observe",
    "open_native",
    "open_store",
    "redact",
    "refuse_half_uri",
    "shipped_options",
]
