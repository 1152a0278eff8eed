"""The supported messages of Flight SQL and Flight sessions, as ``protobuf`` classes.

They are declared here field by field. The generated module would bring every message of the specification and need a
compiler. They live in a separate descriptor pool: a program that loads another package with the same messages would
otherwise fail to import one of the two.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message

from lazydelta.errors import QueryError

__all__ = ["MESSAGES", "SQL_PREFIX", "kind_of", "packed", "parsed", "unpacked"]

_HOST = "type.googleapis.com/"
_SQL = "arrow.flight.protocol.sql"
_FLIGHT = "arrow.flight.protocol"
SQL_PREFIX = f"{_HOST}{_SQL}."
"""The prefix of every Flight SQL command type."""

_Field = descriptor_pb2.FieldDescriptorProto
_TYPES = {
    "string": _Field.TYPE_STRING,
    "bytes": _Field.TYPE_BYTES,
    "bool": _Field.TYPE_BOOL,
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
    "sfixed64": _Field.TYPE_SFIXED64,
    "double": _Field.TYPE_DOUBLE,
    "uint32": _Field.TYPE_UINT32,
    # Enums are sent as numbers, so that unknown values get a response instead of a parse error.
    "enum": _Field.TYPE_INT32,
}

# Name, number and type of each field. `*` marks a repeated field, `?` one with presence.
_PACKAGES: dict[str, dict[str, str]] = {
    _SQL: {
        "CommandGetSqlInfo": "info=1:uint32*",
        "CommandGetXdbcTypeInfo": "data_type=1:int32?",
        "CommandGetCatalogs": "",
        "CommandGetDbSchemas": "catalog=1:string? db_schema_filter_pattern=2:string?",
        "CommandGetTables": "catalog=1:string? db_schema_filter_pattern=2:string? table_name_filter_pattern=3:string?"
        " table_types=4:string* include_schema=5:bool",
        "CommandGetTableTypes": "",
        "CommandGetPrimaryKeys": "catalog=1:string? db_schema=2:string? table=3:string",
        "CommandGetExportedKeys": "catalog=1:string? db_schema=2:string? table=3:string",
        "CommandGetImportedKeys": "catalog=1:string? db_schema=2:string? table=3:string",
        "CommandGetCrossReference": "pk_catalog=1:string? pk_db_schema=2:string? pk_table=3:string"
        " fk_catalog=4:string? fk_db_schema=5:string? fk_table=6:string",
        "CommandStatementQuery": "query=1:string transaction_id=2:bytes?",
        "CommandStatementUpdate": "query=1:string transaction_id=2:bytes?",
        "CommandStatementSubstraitPlan": "transaction_id=2:bytes?",
        "CommandStatementIngest": "table=2:string",
        "CommandPreparedStatementQuery": "prepared_statement_handle=1:bytes",
        "CommandPreparedStatementUpdate": "prepared_statement_handle=1:bytes",
        "TicketStatementQuery": "statement_handle=1:bytes",
        "ActionCreatePreparedStatementRequest": "query=1:string transaction_id=2:bytes?",
        "ActionCreatePreparedStatementResult": "prepared_statement_handle=1:bytes dataset_schema=2:bytes"
        " parameter_schema=3:bytes",
        "ActionClosePreparedStatementRequest": "prepared_statement_handle=1:bytes",
        "ActionCancelQueryRequest": "info=1:bytes",
        "ActionCancelQueryResult": "result=1:enum",
        "DoPutPreparedStatementResult": "prepared_statement_handle=1:bytes?",
    },
    _FLIGHT: {
        "FlightDescriptor": "type=1:enum cmd=2:bytes path=3:string*",
        "Ticket": "ticket=1:bytes",
        "FlightEndpoint": "ticket=1:Ticket",
        "FlightInfo": "schema=1:bytes flight_descriptor=2:FlightDescriptor endpoint=3:FlightEndpoint*",
        "CancelFlightInfoRequest": "info=1:FlightInfo",
        "CancelFlightInfoResult": "status=1:enum",
        "StringListValue": "values=1:string*",
        # The specification uses a `oneof`, which has the same wire format. `?` shows which field is set.
        "SessionOptionValue": "string_value=1:string? bool_value=2:bool? int64_value=3:sfixed64? double_value=4:double?"
        " string_list_value=5:StringListValue",
        # On the wire a map is a repeated key-value pair.
        "SessionOptionEntry": "key=1:string value=2:SessionOptionValue",
        "SessionOptionError": "value=1:enum",
        "SessionErrorEntry": "key=1:string value=2:SessionOptionError",
        "SetSessionOptionsRequest": "session_options=1:SessionOptionEntry*",
        "SetSessionOptionsResult": "errors=1:SessionErrorEntry*",
        "GetSessionOptionsRequest": "",
        "GetSessionOptionsResult": "session_options=1:SessionOptionEntry*",
        "CloseSessionRequest": "",
        "CloseSessionResult": "status=1:enum",
    },
}


def _classes() -> dict[str, type[Message]]:
    pool = descriptor_pool.DescriptorPool()
    found: dict[str, type[Message]] = {}
    for package, messages in _PACKAGES.items():
        file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
        for name, fields in messages.items():
            message = file.message_type.add(name=name)
            for text in fields.split():
                _declare(message, package, text)
        pool.Add(file)
        for name in messages:
            found[name] = message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
    return found


def _declare(message: Any, package: str, text: str) -> None:
    name, _, rest = text.partition("=")
    number, _, kind = rest.partition(":")
    field = message.field.add(name=name, number=int(number))
    field.label = _Field.LABEL_REPEATED if kind.endswith("*") else _Field.LABEL_OPTIONAL
    if kind.endswith("?"):
        field.proto3_optional = True
        field.oneof_index = len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{name}")
    kind = kind.rstrip("*?")
    if kind in _TYPES:
        field.type = _TYPES[kind]
    else:
        field.type, field.type_name = _Field.TYPE_MESSAGE, f".{package}.{kind}"


MESSAGES: dict[str, type[Message]] = _classes()
"""The classes by their names in the specification, without packages."""


def kind_of(data: bytes) -> str | None:
    """Return the name of the Flight SQL command in an ``Any``. Return None for other data."""
    found = any_pb2.Any()
    try:
        found.ParseFromString(data)
    except DecodeError:
        return None
    return found.type_url.removeprefix(SQL_PREFIX) if found.type_url.startswith(SQL_PREFIX) else None


def unpacked(data: bytes) -> tuple[str, Any]:
    """Return the name and the message in an ``Any``."""
    found = any_pb2.Any()
    try:
        found.ParseFromString(data)
    except DecodeError as error:
        raise QueryError("The request is not a Flight SQL message", hint="use a Flight SQL client") from error
    name = found.type_url.rpartition(".")[2]
    if not found.type_url.startswith(_HOST + _FLIGHT) or name not in MESSAGES:
        message = f"The request is of the type {found.type_url[:200]!r}, which this server does not support"
        raise QueryError(message, hint="use statements, prepared statements and the catalog's commands")
    return name, parsed(name, found.value)


def parsed(name: str, data: bytes) -> Any:
    """Parse a message of a known type."""
    message = MESSAGES[name]()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise QueryError(f"The {name} of the request cannot be read", hint="use a Flight SQL client") from error
    return message


def packed(name: str, **fields: Any) -> bytes:
    """Return a message packed into an ``Any``, as bytes."""
    message: Any = MESSAGES[name](**fields)
    wrapped = any_pb2.Any(type_url=f"{_HOST}{message.DESCRIPTOR.full_name}", value=message.SerializeToString())
    return bytes(wrapped.SerializeToString())
