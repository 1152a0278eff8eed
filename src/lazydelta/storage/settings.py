"""How stores are reached: options, what is secret in them, and which other places a log may lead to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lazydelta.storage.storage_options import secrets_of, without_secrets

if TYPE_CHECKING:
    from lazydelta.storage.location import Location
    from lazydelta.storage.store import Store

__all__ = ["ExternalLocation", "Settings"]


@dataclass(frozen=True, slots=True)
class ExternalLocation:
    """A folder outside the table's own account or bucket that its log may lead to, and how to reach it."""

    location: Location
    settings: Settings = field(repr=False)


@dataclass(frozen=True, slots=True)
class Settings:
    """How to reach a store and the other stores of its account.

    ``environment`` is what may add to the options, None for that of the process. ``left_behind`` says that the options
    had secrets which did not travel to this process, ``carries`` that they travel.
    """

    options: dict[str, str] = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False)
    retries: int
    request_timeout: float
    opener: Callable[[Location, Settings], Store] = field(repr=False)
    external: tuple[ExternalLocation, ...] = field(default=(), repr=False)
    environment: Mapping[str, str] | None = field(default=None, repr=False)
    left_behind: bool = False
    carries: bool = False

    def carried(self) -> Settings:
        """Return settings whose secrets travel with pickles of their stores."""
        external = tuple(replace(each, settings=each.settings.carried()) for each in self.external)
        return replace(self, external=external, carries=True)

    def limited(self, *, retries: int, request_timeout: float) -> Settings:
        """Return settings that ask so often and wait so long."""
        external = tuple(
            replace(each, settings=each.settings.limited(retries=retries, request_timeout=request_timeout))
            for each in self.external
        )
        return replace(self, retries=retries, request_timeout=request_timeout, external=external)

    def to_ship(self) -> Settings:
        """Return what goes into a pickle."""
        if self.carries:
            return self
        public = without_secrets(self.options)
        return replace(
            self,
            options=public,
            secrets=(),
            external=tuple(replace(each, settings=each.settings.to_ship()) for each in self.external),
            left_behind=self.left_behind or bool(secrets_of(self.options)),
        )
