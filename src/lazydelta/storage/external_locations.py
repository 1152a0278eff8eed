"""Locations that a log may refer to: the table's own account, and those that the user has allowed.

Anyone with write access to the table can write to its log. Each location in it is checked here before a client is
built: the credentials of the table, and those of the environment, are used for the table's account only.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import TYPE_CHECKING

import msgspec

from lazydelta.errors import DataFileError, ExternalLocationError, LazyDeltaError, OptionError
from lazydelta.storage.address import address_of, client_config, is_true, same_owner
from lazydelta.storage.credentials import check_own_credentials
from lazydelta.storage.faults import redact
from lazydelta.storage.location import ExternalLocation, Location, Settings, parse_location, within
from lazydelta.storage.options import normalise, secrets_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from lazydelta.storage.store import Store

__all__ = ["Place", "external_locations_of", "judge"]

_USE_ENVIRONMENT = "use_environment"


class Place(msgspec.Struct, frozen=True):
    """A container, a key in it, and the external location that allows access; None for the table's own account."""

    container: Location
    key: str
    allowed: ExternalLocation | None = None


def external_locations_of(
    given: object,
    *,
    retries: int,
    request_timeout: float,
    opener: Callable[[Location, Settings], Store],
) -> tuple[ExternalLocation, ...]:
    """Return the locations that the user allows, most specific first, each with its own options and nothing else."""
    given = {} if given is None else given
    if not isinstance(given, Mapping) or not all(each is None or isinstance(each, Mapping) for each in given.values()):
        message = "external_locations must map prefixes to their storage options"
        raise OptionError(message, hint='write {"s3://bucket/folder": {"aws_access_key_id": …}}')
    found = []
    for prefix, options in given.items():
        own = normalise(options)
        environment: dict[str, str] | None = None if is_true(own.pop(_USE_ENVIRONMENT, "false")) else {}
        location, own = parse_location(prefix, own, environment)
        if location.kind == "local":
            message = f"the external location {prefix!r} is on this machine"
            raise OptionError(message, hint="only folders of object stores can be allowed; a local log needs no leave")
        if environment is not None:
            check_own_credentials(location, client_config(location, own, environment))
        settings = Settings(own, secrets_of(own), retries, request_timeout, opener, environment=environment)
        found.append(ExternalLocation(location, settings))
    return tuple(sorted(found, key=lambda each: len(each.location.root), reverse=True))


def judge(
    logged: str, home: Location, settings: Settings, known: Container[tuple[Location, Location | None]] = ()
) -> Place:
    """Return the location that an absolute URI in a log points to, or raise if access to it is not allowed.

    ``known`` holds containers already found to be the table's own: logs repeat a few of them a million times.
    """
    found, reason = None, None
    try:
        found, _ = parse_location(logged, settings.options, settings.environment)
    except LazyDeltaError as error:
        reason = error
    if found is not None and not found.root:
        message = f"the log of {home.uri} names a data file without a name: {redact(logged)!r}"
        raise DataFileError(message, path=logged)
    if found is not None and (
        found.base == home.base
        or (found.at(""), None) in known
        or same_owner(home, found, settings.options, settings.environment)
    ):
        return Place(found.at(""), found.root)
    for each in settings.external:
        inside = _below(logged, each)
        if inside is not None:
            return Place(each.location.at(""), inside, each)
    if found is None:
        message = f"the log of {home.uri} names a data file that cannot be resolved: {redact(str(reason))}"
        raise DataFileError(message, path=logged)
    raise _foreign(logged, found, home, settings)


def _below(logged: str, allowed: ExternalLocation) -> str | None:
    """Return the key of a logged URI in an allowed folder, matched by host, container and whole path segments."""
    own = allowed.settings
    try:
        found, _ = parse_location(logged, own.options, own.environment)
    except LazyDeltaError:
        return None
    here = allowed.location
    if found.container != here.container or not same_owner(here, found, own.options, own.environment):
        return None
    return found.root if found.root and within(here.root, found.root) is not None else None


def _foreign(logged: str, found: Location, home: Location, settings: Settings) -> ExternalLocationError:
    there = address_of(found, settings.options, settings.environment)
    named = f"host {found.host}" if there is not None and found.host and found.host not in there.service else there
    where = f"{found.uri} ({named or found.kind})"
    message = f"the log of {home.uri} leads to {where}, which the table's credentials are not for; it was not opened"
    hint = f"if it may be read, allow it: external_locations={{{found.base!r}: {{its own storage options}}}}"
    return ExternalLocationError(message, path=logged, hint=hint)
