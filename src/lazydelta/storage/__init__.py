"""Storage: the only package that does I/O.

It lists, reads, puts if absent and counts; what the objects mean is unknown here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lazydelta.errors import OptionError
from lazydelta.storage.atomic_files import TEMPORARY
from lazydelta.storage.bridge import Pending
from lazydelta.storage.faults import redact
from lazydelta.storage.input import open_native
from lazydelta.storage.local import FileStore
from lazydelta.storage.location import (
    Location,
    Settings,
    expand_home,
    external_locations_of,
    folded,
    has_known_scheme,
    is_plain,
    parse_location,
    refuse_half_uri,
)
from lazydelta.storage.options import CREDENTIAL, LEFT_BEHIND, CarriedOptions, normalise, secrets_of, shipped_options
from lazydelta.storage.store import ByteStream, IoCounters, ObjectInfo, ObjectWalk, Request, Store, observe

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

__all__ = [
    "TEMPORARY",
    "ByteStream",
    "CarriedOptions",
    "IoCounters",
    "ObjectInfo",
    "ObjectWalk",
    "Pending",
    "Request",
    "Store",
    "expand_home",
    "folded",
    "has_known_scheme",
    "input",
    "is_plain",
    "local",
    "location",
    "observe",
    "open_native",
    "open_store",
    "options",
    "redact",
    "refuse_half_uri",
    "shipped_options",
    "staged_files",
]


# Open a store from a URI.


def _open_at(location: Location, settings: Settings) -> Store:
    if location.kind == "local":
        return FileStore(location, settings)
    from lazydelta.storage.remote import ObjectStore  # noqa: PLC0415 - loads the client and asyncio

    return ObjectStore(location, settings)


def open_store(
    uri: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    *,
    retries: int = 5,
    request_timeout: float = 30.0,
    external_locations: Mapping[str, Mapping[str, str] | None] | None = None,
) -> Store:
    """Open the folder at ``uri``. Makes no request, so a missing folder is not noticed here.

    ``memory://name/…`` stores live as long as the process and are shared by name, so that one part of a program can
    open what another has written. ``external_locations`` are folders of other accounts or buckets that the table's log
    may refer to, each with its own storage options. An entry with ``use_environment`` also uses the options of the
    environment. The option ``credential`` is a name such as ``default``, or an object or function that returns tokens.
    """
    if retries < 0 or request_timeout <= 0:
        message = f"retries must not be negative and request_timeout must be positive: {retries}, {request_timeout}"
        raise OptionError(message)
    credential = (storage_options or {}).get(CREDENTIAL)
    if credential is not None and not isinstance(credential, str):
        storage_options = {key: value for key, value in (storage_options or {}).items() if key != CREDENTIAL}
    else:
        credential = None  # by name, like any other option
    given = normalise(storage_options)
    left_behind = given.pop(LEFT_BEHIND, None) is not None
    location, options = parse_location(uri, given)
    external = external_locations_of(
        external_locations, retries=retries, request_timeout=request_timeout, opener=_open_at
    )
    settings = Settings(
        options,
        secrets_of(options),
        retries,
        request_timeout,
        _open_at,
        external,
        left_behind=left_behind,
        credential=credential,
    )
    return _open_at(location, settings)
