"""Why a checkpoint has no sidecar: never built, or built for an older one and not refreshed since."""

from __future__ import annotations

from lazydelta.errors import LazyDeltaError
from lazydelta.sidecar.layout.folder import list_folder
from lazydelta.storage import Store

__all__ = ["why_absent"]


def why_absent(store: Store, version: int) -> str:
    """Say it in words, at the cost of one listing; ``version`` is the checkpoint's."""
    absent = f"none of version {version}"
    try:
        found = [file.version for file in list_folder(store) if file.kind in {"manifest", "single"}]
    except LazyDeltaError as error:
        return f"{absent}; whether there are others cannot be told: {error}"
    older = [each for each in found if each < version]
    if older:
        return (
            f"{absent}: stale, the newest is of version {max(older)}; `lazydelta sidecar refresh` brings it up to date"
        )
    return f"{absent}, nor of an older one; `lazydelta sidecar build` makes one"
