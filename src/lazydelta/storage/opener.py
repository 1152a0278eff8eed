"""From a URI to a store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lazydelta.errors import OptionError
from lazydelta.storage.elsewhere import external_locations_of
from lazydelta.storage.local import FileStore
from lazydelta.storage.location import Location, parse_location
from lazydelta.storage.settings import Settings
from lazydelta.storage.storage_options import LEFT_BEHIND, normalise, secrets_of

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from lazydelta.storage.store import Store

__all__ = ["open_store"]


def _open_at(location: Location, settings: Settings) -> Store:
    if location.kind == "local":
        return FileStore(location, settings)
    from lazydelta.storage.remote import ObjectStore  # noqa: PLC0415 - with the client and asyncio

    return ObjectStore(location, settings)


def open_store(
    uri: str | os.PathLike[str],
    storage_options: Mapping[str, str] | None = None,
    *,
    retries: int = 5,
    request_timeout: float = 30.0,
    external_locations: Mapping[str, Mapping[str, str] | None] | None = None,
) -> Store:
    """Open the folder at ``uri``; no request is made, so a folder that does not exist is not noticed here.

    ``memory://name/…`` stores live as long as the process and are shared by name, so that one part of a program can
    write what another opens. ``external_locations`` are the folders of other accounts or buckets that the table's log
    may lead to, each with its own storage options; with ``use_environment`` among them, also those of the environment.
    """
    if retries < 0 or request_timeout <= 0:
        message = f"retries must not be negative and request_timeout must be positive: {retries}, {request_timeout}"
        raise OptionError(message)
    given = normalise(storage_options)
    left_behind = given.pop(LEFT_BEHIND, None) is not None
    location, options = parse_location(uri, given)
    external = external_locations_of(
        external_locations, retries=retries, request_timeout=request_timeout, opener=_open_at
    )
    settings = Settings(
        options, secrets_of(options), retries, request_timeout, _open_at, external, left_behind=left_behind
    )
    return _open_at(location, settings)
