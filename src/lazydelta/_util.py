"""Names that programs import from the inside of deltalake."""

from __future__ import annotations

from lazydelta.deltalake_names.parameters import deprecate_positional_commit_args
from lazydelta.protocol.values import encode_partition_value

__all__ = ["deprecate_positional_commit_args", "encode_partition_value"]
