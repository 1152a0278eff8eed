"""``DeltaTable.create``: our creation of tables behind deltalake's parameters."""

from __future__ import annotations

import os
from collections.abc import Mapping

import pyarrow as pa

from lazydelta.deltalake_api.commit_properties import CommitProperties, PostCommitHookProperties, maintains, note_of
from lazydelta.errors import OptionError
from lazydelta.types.delta_types import Schema
from lazydelta.write.create import create_table

__all__ = ["create"]

_MODES = ("error", "append", "overwrite", "ignore")


def create(  # noqa: PLR0913 - deltalake's parameters
    table_uri: str | os.PathLike[str],
    schema: Schema | pa.Schema,
    *,
    mode: str,
    partition_by: list[str] | str | None,
    name: str | None,
    description: str | None,
    configuration: Mapping[str, str | None] | None,
    storage_options: Mapping[str, str] | None,
    commit_properties: CommitProperties | None,
    post_commithook_properties: PostCommitHookProperties | None,
    raise_if_key_not_exists: bool | None,
) -> None:
    """Create an empty table; an Arrow schema may be anything that exports one."""
    if mode not in _MODES:
        raise OptionError(f"mode={mode!r} makes no sense", hint=f"say one of {', '.join(_MODES)}")
    given = {key: value for key, value in (configuration or {}).items() if value is not None}
    if raise_if_key_not_exists is not False:
        _check_names(given)
    maintains(post_commithook_properties)  # nothing is due after a first commit; what makes no sense is still refused
    create_table(
        table_uri,
        schema if isinstance(schema, Schema | pa.Schema) else pa.schema(schema),
        partition_by=[partition_by] if isinstance(partition_by, str) else partition_by or (),
        properties=given,
        name=name,
        description=description,
        storage_options=storage_options,
        mode="error" if mode == "append" else mode,  # type: ignore[arg-type]  # deltalake refuses it for a table, too
        note=note_of(commit_properties),
    )


def _check_names(properties: Mapping[str, str]) -> None:
    for key in properties:
        if not key.lower().startswith("delta."):
            message = f"{key!r} is no table property of Delta"
            raise OptionError(message, hint="they begin with delta.; for others say raise_if_key_not_exists=False")
