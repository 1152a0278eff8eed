"""Columns of a table in Spark's words, and rows as Spark's Arrow has them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from lazydelta.errors import OptionError
from lazydelta.handle import TableHandle
from lazydelta.log.snapshot import Snapshot

__all__ = ["as_spark_has_it", "opened_table", "struct_of"]

_STORAGE = "storage."


def opened_table(options: Mapping[str, str]) -> TableHandle:
    """Return the table that the options of a source name, with its credentials in its pickles."""
    uri = options.get("path")
    if not uri:
        raise OptionError("There is no table to read", hint="name it: load(uri)")
    lowered = {key.lower(): value for key, value in options.items()}
    storage = {key.removeprefix(_STORAGE): value for key, value in lowered.items() if key.startswith(_STORAGE)}
    return TableHandle.open(uri, storage or None).carrying_credentials()


def struct_of(snapshot: Snapshot) -> StructType:
    """Return the columns of a version, from the log alone."""
    return StructType.fromJson(_without_notes(json.loads(snapshot.metadata.schema_string)))


def as_spark_has_it(batch: pa.RecordBatch, struct: StructType) -> pa.RecordBatch:
    """Return rows under the Arrow schema that Spark compares them with, to the letter."""
    wanted = to_arrow_schema(struct, timezone="UTC")
    return batch if batch.schema.equals(wanted) else batch.select(wanted.names).cast(wanted)


def _without_notes(raw: Any) -> Any:
    """Return a schema whose fields have no notes of the table's, such as the ids of column mapping."""
    if isinstance(raw, list):
        return [_without_notes(each) for each in raw]
    if not isinstance(raw, dict):
        return raw
    return {key: {} if key == "metadata" else _without_notes(value) for key, value in raw.items()}
