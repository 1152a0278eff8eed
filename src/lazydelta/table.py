"""``DeltaTable``, under deltalake's name of its module.

The class is defined elsewhere, so that there is one of it: a program that has put lazydelta in deltalake's place loads
this module a second time, as ``deltalake.table``.
"""

from __future__ import annotations

from lazydelta.delta_table import DeltaTable

__all__ = ["DeltaTable"]
