"""A table's dataset with the parameters that deltalake has for it."""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa

from lazydelta.errors import OptionError
from lazydelta.handle import TableHandle
from lazydelta.log.snapshot import Snapshot
from lazydelta.pruning import Predicate
from lazydelta.row_scan.rows_dataset import RowsDataset

__all__ = ["table_dataset"]


def table_dataset(
    handle: TableHandle,
    snapshot: Snapshot,
    predicate: Predicate | None,
    files_where: Predicate | None,
    *,
    filesystem: object = None,
    schema: pa.Schema | None = None,
    as_large_types: bool = False,
    dictionary_columns: Collection[str] = (),
) -> RowsDataset:
    """Return the dataset of the rows for which ``predicate`` holds, in files that may match ``files_where``.

    ``dictionary_columns`` are those whose values are given once, with an index for each row.
    """
    if filesystem is not None:
        raise OptionError("lazydelta reads through its own store", hint="leave filesystem out; use storage_options")
    dataset = RowsDataset(handle, snapshot, predicate=predicate, files_where=files_where)
    if schema is None and as_large_types:
        schema = pa.schema([each.with_type(_large(each.type)) for each in dataset.schema])
    if dictionary_columns:
        asked = dataset.schema if schema is None else schema
        unknown = sorted(set(dictionary_columns) - set(asked.names))
        if unknown:
            raise OptionError(f"The dataset has no columns {unknown} to read as dictionaries", hint="name its columns")
        schema = pa.schema([_encoded(each) if each.name in dictionary_columns else each for each in asked])
    return dataset if schema is None else dataset.replace_schema(schema)


def _encoded(field: pa.Field) -> pa.Field:
    return field.with_type(pa.dictionary(pa.int32(), field.type))


def _large(kind: pa.DataType) -> pa.DataType:
    """Return the type with 64-bit offsets wherever it has offsets; a map has no such variant, but its parts may."""
    if pa.types.is_string(kind):
        return pa.large_string()
    if pa.types.is_binary(kind):
        return pa.large_binary()
    if pa.types.is_list(kind):
        return pa.large_list(kind.value_field.with_type(_large(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(_large(each.type)) for each in kind])
    if pa.types.is_map(kind):
        key, item = (each.with_type(_large(each.type)) for each in (kind.key_field, kind.item_field))
        return pa.map_(key, item)
    return kind
