"""How stores are reached: options, what is secret in them, and which other places a log may lead to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from lazydelta.storage.location import Location
from lazydelta.storage.storage_options import secrets_of, without_secrets

if TYPE_CHECKING:
    # Stores have settings, so this would go in a circle; nothing decodes settings and needs the class.
    from lazydelta.storage.store import Store  # noqa: TC004

__all__ = ["ExternalLocation", "Settings"]


class ExternalLocation(msgspec.Struct, frozen=True):
    """A folder outside the table's own account or bucket that its log may lead to, and how to reach it."""

    location: Location
    settings: Settings

    def __repr__(self) -> str:
        return f"ExternalLocation({self.location!r})"


class Settings(msgspec.Struct, frozen=True):
    """How to reach a store and the other stores of its account.

    ``environment`` is what may add to the options, None for that of the process. ``left_behind`` says that the options
    had secrets which did not travel to this process, ``carries`` that they travel.
    """

    options: dict[str, str]
    secrets: tuple[str, ...]
    retries: int
    request_timeout: float
    opener: Callable[[Location, Settings], Store]
    external: tuple[ExternalLocation, ...] = ()
    environment: Mapping[str, str] | None = None
    left_behind: bool = False
    carries: bool = False

    def __repr__(self) -> str:
        # Options are secrets, or may be.
        return f"Settings(retries={self.retries}, request_timeout={self.request_timeout})"

    def carried(self) -> Settings:
        """Return settings whose secrets travel with pickles of their stores."""
        external = tuple(msgspec.structs.replace(each, settings=each.settings.carried()) for each in self.external)
        return msgspec.structs.replace(self, external=external, carries=True)

    def limited(self, *, retries: int, request_timeout: float) -> Settings:
        """Return settings that ask so often and wait so long."""
        external = tuple(
            msgspec.structs.replace(
                each, settings=each.settings.limited(retries=retries, request_timeout=request_timeout)
            )
            for each in self.external
        )
        return msgspec.structs.replace(self, retries=retries, request_timeout=request_timeout, external=external)

    def to_ship(self) -> Settings:
        """Return what goes into a pickle."""
        if self.carries:
            return self
        public = without_secrets(self.options)
        return msgspec.structs.replace(
            self,
            options=public,
            secrets=(),
            external=tuple(msgspec.structs.replace(each, settings=each.settings.to_ship()) for each in self.external),
            left_behind=self.left_behind or bool(secrets_of(self.options)),
        )
