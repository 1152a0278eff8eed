"""The errors that people catch, under deltalake's names; `lazydelta.errors` has the whole tree.

A class here may cover more than deltalake's of the same name, never less: code that catches
deltalake's errors catches what is raised here in their place.
"""

from __future__ import annotations

from lazydelta.errors import LazyDeltaError as DeltaError
from lazydelta.errors import SchemaMismatchError, TableNotFoundError
from lazydelta.errors import UnsupportedFeatureError as DeltaProtocolError
from lazydelta.errors import WriteError as CommitFailedError

__all__ = [
    "CommitFailedError",
    "DeltaError",
    "DeltaProtocolError",
    "SchemaMismatchError",
    "TableNotFoundError",
]
