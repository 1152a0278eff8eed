"""Storage: the only package that does I/O."""

from __future__ import annotations

from lazydelta.storage.bridge import Pending
from lazydelta.storage.faults import redact
from lazydelta.storage.input import open_native
from lazydelta.storage.local import TEMPORARY
from lazydelta.storage.location import expand_home, folded, has_known_scheme, is_plain, refuse_half_uri
from lazydelta.storage.opener import open_store
from lazydelta.storage.options import CarriedOptions, shipped_options
from lazydelta.storage.store import ByteStream, IoCounters, ObjectInfo, Request, Store, Walk, observe

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
    "folded",
    "has_known_scheme",
    "is_plain",
    "observe",
    "open_native",
    "open_store",
    "redact",
    "refuse_half_uri",
    "shipped_options",
]
