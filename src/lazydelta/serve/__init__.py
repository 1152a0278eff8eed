"""Tables served to other processes and languages over Arrow Flight and Flight SQL."""

from __future__ import annotations

__all__: list[str] = []
