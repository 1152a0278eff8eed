"""A name that programs import from the inside of deltalake."""

from __future__ import annotations

from typing import Any, NoReturn

from lazydelta.deltalake_api.left_to_deltalake import refuse

__all__ = ["_convert_arro3_schema_to_delta"]


def _convert_arro3_schema_to_delta(*_: Any, **__: Any) -> NoReturn:
    """Refuse: deltalake narrows unsigned integers to signed ones of their width, our writer keeps their values."""
    refuse("_convert_arro3_schema_to_delta", "convert schemas as deltalake's writer does")
