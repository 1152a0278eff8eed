"""What clients ask about before they ask for rows: catalogs, schemas, tables with their columns, keys, types.

There is one catalog with one schema, and only the tables that the client may read are in it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lazydelta.errors import LazyDeltaError
from lazydelta.serve.flight_sql.column_types import XDBC_SCHEMA, with_type_names, xdbc_types
from lazydelta.serve.flight_sql.sql_guard import CATALOG, SCHEMA
from lazydelta.serve.flight_sql.sql_info import SQL_INFO_SCHEMA, sql_info
from lazydelta.serve.flight_sql.statement import TablesOfServer

__all__ = ["CATALOG_COMMANDS", "catalog_answer", "catalog_schema"]

_log = logging.getLogger(__name__)
_TABLE = "TABLE"

_CATALOGS = pa.schema([pa.field("catalog_name", pa.string(), nullable=False)])
_SCHEMAS = pa.schema([pa.field("catalog_name", pa.string()), pa.field("db_schema_name", pa.string(), nullable=False)])
_TABLES = pa.schema(
    [
        pa.field("catalog_name", pa.string()),
        pa.field("db_schema_name", pa.string()),
        pa.field("table_name", pa.string(), nullable=False),
        pa.field("table_type", pa.string(), nullable=False),
    ]
)
_TABLES_WITH_SCHEMA = _TABLES.append(pa.field("table_schema", pa.binary(), nullable=False))
_TABLE_TYPES = pa.schema([pa.field("table_type", pa.string(), nullable=False)])
_PRIMARY_KEYS = pa.schema(
    [
        pa.field("catalog_name", pa.string()),
        pa.field("db_schema_name", pa.string()),
        pa.field("table_name", pa.string(), nullable=False),
        pa.field("column_name", pa.string(), nullable=False),
        pa.field("key_name", pa.string()),
        pa.field("key_sequence", pa.int32(), nullable=False),
    ]
)
_FOREIGN_KEYS = pa.schema(
    [
        *(
            field
            for side in ("pk", "fk")
            for field in (
                pa.field(f"{side}_catalog_name", pa.string()),
                pa.field(f"{side}_db_schema_name", pa.string()),
                pa.field(f"{side}_table_name", pa.string(), nullable=False),
                pa.field(f"{side}_column_name", pa.string(), nullable=False),
            )
        ),
        pa.field("key_sequence", pa.int32(), nullable=False),
        pa.field("fk_key_name", pa.string()),
        pa.field("pk_key_name", pa.string()),
        pa.field("update_rule", pa.uint8(), nullable=False),
        pa.field("delete_rule", pa.uint8(), nullable=False),
    ]
)


def _catalogs(_command: Any, _tables: TablesOfServer, _identity: Hashable) -> pa.Table:
    return _of(_CATALOGS, [{"catalog_name": CATALOG}])


def _schemas(command: Any, _tables: TablesOfServer, _identity: Hashable) -> pa.Table:
    shown = _is_here(command) and _matches(command, "db_schema_filter_pattern", SCHEMA)
    return _of(_SCHEMAS, [{"catalog_name": CATALOG, "db_schema_name": SCHEMA}] if shown else [])


def _listed(command: Any, tables: TablesOfServer, identity: Hashable) -> pa.Table:
    schema = _tables_schema(command)
    wanted = _is_here(command) and _matches(command, "db_schema_filter_pattern", SCHEMA)
    if not wanted or (command.table_types and _TABLE not in command.table_types):
        return _of(schema, [])
    rows: list[dict[str, Any]] = []
    for name in sorted(tables.names_for(identity)):
        if not _matches(command, "table_name_filter_pattern", name):
            continue
        row: dict[str, Any] = {
            "catalog_name": CATALOG,
            "db_schema_name": SCHEMA,
            "table_name": name,
            "table_type": _TABLE,
        }
        if command.include_schema:
            row["table_schema"] = _columns(tables, name, identity).serialize().to_pybytes()
        rows.append(row)
    return _of(schema, rows)


def _columns(tables: TablesOfServer, name: str, identity: Hashable) -> pa.Schema:
    try:
        return with_type_names(tables.open(name, identity).schema().to_arrow(), name)
    except LazyDeltaError as error:
        # One table that cannot be read does not hide the others; who queries it is told why.
        _log.warning("The columns of the table %r are not shown: %s", name, error)
        return pa.schema([])


def _table_types(_command: Any, _tables: TablesOfServer, _identity: Hashable) -> pa.Table:
    return _of(_TABLE_TYPES, [{"table_type": _TABLE}])


def _tables_schema(command: Any) -> pa.Schema:
    return _TABLES_WITH_SCHEMA if command.include_schema else _TABLES


def _no(schema: pa.Schema) -> Callable[[Any, TablesOfServer, Hashable], pa.Table]:
    return lambda *_: _of(schema, [])


_Answer = Callable[[Any, TablesOfServer, Hashable], pa.Table]
CATALOG_COMMANDS: dict[str, tuple[pa.Schema | Callable[[Any], pa.Schema], _Answer]] = {
    "CommandGetCatalogs": (_CATALOGS, _catalogs),
    "CommandGetDbSchemas": (_SCHEMAS, _schemas),
    "CommandGetTables": (_tables_schema, _listed),
    "CommandGetTableTypes": (_TABLE_TYPES, _table_types),
    "CommandGetPrimaryKeys": (_PRIMARY_KEYS, _no(_PRIMARY_KEYS)),
    "CommandGetExportedKeys": (_FOREIGN_KEYS, _no(_FOREIGN_KEYS)),
    "CommandGetImportedKeys": (_FOREIGN_KEYS, _no(_FOREIGN_KEYS)),
    "CommandGetCrossReference": (_FOREIGN_KEYS, _no(_FOREIGN_KEYS)),
    "CommandGetSqlInfo": (SQL_INFO_SCHEMA, lambda command, *_: sql_info(list(command.info))),
    "CommandGetXdbcTypeInfo": (
        XDBC_SCHEMA,
        lambda command, *_: xdbc_types(command.data_type if command.HasField("data_type") else None),
    ),
}
"""For each command of the catalog its columns and its answer."""


def catalog_schema(name: str, command: Any) -> pa.Schema:
    """Return the columns of a command's answer."""
    schema = CATALOG_COMMANDS[name][0]
    return schema(command) if callable(schema) else schema


def catalog_answer(name: str, command: Any, tables: TablesOfServer, identity: Hashable) -> pa.Table:
    """Return the answer to a command of the catalog."""
    return CATALOG_COMMANDS[name][1](command, tables, identity)


def _of(schema: pa.Schema, rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=schema)


def _is_here(command: Any) -> bool:
    # Absent means any; empty means objects without a catalog, of which there are none.
    return not command.HasField("catalog") or command.catalog == CATALOG


def _matches(command: Any, field: str, name: str) -> bool:
    if not command.HasField(field):
        return True
    return bool(pc.match_like(pa.array([name]), getattr(command, field))[0].as_py())
