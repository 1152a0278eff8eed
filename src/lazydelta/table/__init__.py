"""``DeltaTable`` under the module name that deltalake uses.

The class is defined in another module, so that it exists only once: a program that substitutes lazydelta for deltalake
loads this module a second time, as ``deltalake.table``.
"""

from __future__ import annotations

from lazydelta.table.delta_table import DeltaTable

__all__ = ["DeltaTable"]
# What other packages of lazydelta import besides; programs use the names above.
SHARED = ("delta_table", "information", "pinned_table")
