"""Commands of Kusto that clients send to learn what there is: ``.show …`` and ``.cancel query``.

A command may be followed by operators of a query, as in ``.show tables | project TableName``.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from typing import Any

import msgspec

from lazydelta.errors import KqlError, LazyDeltaError, OptionError
from lazydelta.kql.binding.types import SQL_TYPES
from lazydelta.kql.execution.query import KIND
from lazydelta.kql.execution.tables import KqlTables
from lazydelta.server.flight_sql.guard import CATALOG
from lazydelta.server.http.kusto_frames import Column, columns_of, encoded_rows, span_text
from lazydelta.server.http.queries import Call, Queries
from lazydelta.server.tables import TableListing
from lazydelta.sidecar.handle import snapshot_of

__all__ = ["Answer", "Commands"]

_SYSTEM = {
    "bool": "System.SByte",
    "int": "System.Int32",
    "long": "System.Int64",
    "real": "System.Double",
    "string": "System.String",
    "dynamic": "System.Object",
    "guid": "System.Guid",
    "datetime": "System.DateTime",
    "timespan": "System.TimeSpan",
    "decimal": "System.Data.SqlTypes.SqlDecimal",
}
assert set(_SYSTEM) == set(SQL_TYPES)  # noqa: S101 - every type of ours has a name there
_NAME = r"""(?P<name>\[\s*"[^"]+"\s*\]|\[\s*'[^']+'\s*\]|"[^"]+"|'[^']+'|[\w.*-]+)"""
_DATABASE = rf"(?:\s+(?:\[['\"]?)?(?:{CATALOG}|NetDefaultDB)(?:['\"]?\])?)?"
_WITH = r"(?: with \((?P<options>.*)\))?"
_WORDS = re.compile(r"\s+")
_WORD = re.compile(r"\w+")
_MOST_ROWS = 10_000


@dataclass
class Answer:
    """The table that a command returns."""

    columns: Sequence[Column]
    rows: list[list[Any]] = field(default_factory=list)

    def summary(self) -> dict[str, int]:
        """Return facts for the completion table."""
        return {"rows": len(self.rows)}


def _columns(**kinds: str) -> tuple[Column, ...]:
    return tuple(Column(name, kind) for name, kind in kinds.items())


_DATABASES = _columns(
    DatabaseName="string",
    PersistentStorage="string",
    Version="string",
    IsCurrent="bool",
    DatabaseAccessMode="string",
    PrettyName="string",
    ReservedSlot1="bool",
    DatabaseId="guid",
    InTransitionTo="string",
    SuspensionState="string",
)
_TABLES = _columns(TableName="string", DatabaseName="string", Folder="string", DocString="string")
_TABLE_DETAILS = _columns(
    TableName="string",
    DatabaseName="string",
    Folder="string",
    DocString="string",
    TotalExtents="long",
    TotalExtentSize="real",
    TotalOriginalSize="real",
    TotalRowCount="long",
    HotExtents="long",
    HotExtentSize="real",
    HotOriginalSize="real",
    HotRowCount="long",
)
_ENTITIES = _columns(
    DatabaseName="string",
    EntityType="string",
    EntityName="string",
    DocString="string",
    Folder="string",
    CslInputSchema="string",
    Content="string",
    CslOutputSchema="string",
    Properties="dynamic",
)
_EXTERNAL = _columns(
    TableName="string",
    TableType="string",
    Folder="string",
    DocString="string",
    Properties="dynamic",
    ConnectionStrings="dynamic",
    Partitions="dynamic",
    PathFormat="string",
)
_TABLE_SCHEMA = _columns(
    TableName="string", Schema="string", DatabaseName="string", Folder="string", DocString="string"
)
_DATABASE_SCHEMA = _columns(
    DatabaseName="string",
    TableName="string",
    ColumnName="string",
    ColumnType="string",
    IsDefaultTable="bool",
    IsDefaultColumn="bool",
    PrettyName="string",
    Version="string",
    Folder="string",
    DocString="string",
)
_FUNCTIONS = _columns(Name="string", Parameters="string", Body="string", Folder="string", DocString="string")
_VIEWS = _columns(
    Name="string",
    SourceTable="string",
    Query="string",
    MaterializedTo="datetime",
    LastRun="datetime",
    LastRunResult="string",
    IsHealthy="bool",
    IsEnabled="bool",
    Folder="string",
    DocString="string",
)
_VERSION = _columns(
    BuildVersion="string",
    BuildTime="datetime",
    ServiceType="string",
    ProductVersion="string",
    ServiceOffering="string",
)
_CLUSTER = _columns(
    NodeId="string",
    Address="string",
    Name="string",
    StartTime="datetime",
    IsAdmin="bool",
    MachineTotalMemory="long",
    MachineAvailableMemory="long",
    ProcessorCount="int",
    EnvironmentDescription="string",
)
_DIAGNOSTICS = _columns(
    IsHealthy="bool",
    NotHealthyReason="string",
    IsAttentionRequired="bool",
    AttentionRequiredReason="string",
    IsScaleOutRequired="bool",
    MachinesTotal="long",
    MachinesOffline="long",
    NodeLastRestartedOn="datetime",
    AdminLastElectedOn="datetime",
    BuildVersion="string",
    BuildTime="datetime",
)
_ROLES = _columns(Scope="string", DisplayName="string", AADObjectID="string", Role="string")
_ACCESS = _columns(Scope="string", DisplayName="string", AccessType="string", IsAllowed="bool")
_QUERIES = _columns(
    ClientActivityId="string",
    Text="string",
    Database="string",
    StartedOn="datetime",
    LastUpdatedOn="datetime",
    Duration="timespan",
    State="string",
    RootActivityId="guid",
    User="string",
    FailureReason="string",
    TotalRows="long",
    Language="string",
)
_CANCELLED = _columns(ClientRequestId="string", ReasonPhrase="string", RunningQueryCanceled="bool")
_IDENTITY = _columns(DatabaseName="string", PrettyName="string", DatabaseId="guid")


class Commands:
    """Answers commands, each for the tables that its client may read. At most ``most`` tables are listed."""

    def __init__(self, queries: Queries, *, most: int) -> None:
        self._queries = queries
        self._most = most
        self._began = dt.datetime.now(dt.UTC).isoformat().replace("+00:00", "Z")
        made: tuple[tuple[str, Callable[..., Answer]], ...] = (
            (r"\.show databases(?: details)?", self._databases),
            (rf"\.show database{_DATABASE}(?: details)?", self._databases),
            (rf"\.show databases? entities{_WITH}", self._entities),
            (r"\.show databases identity", self._identity),
            (r"\.show cluster databases", self._databases),
            (r"\.show (?:databases? |cluster )?schema as json", self._schema_json),
            (r"\.show (?:cluster )?schema(?: details)?", self._schema),
            (rf"\.show databases?{_DATABASE} schema as json", self._schema_json),
            (rf"\.show database{_DATABASE} cslschema(?: script)?", self._all_csl),
            (rf"\.show databases?{_DATABASE} schema(?: details)?", self._schema),
            (r"\.show tables", self._tables),
            (r"\.show tables details", self._details),
            (r"\.show external tables(?: details)?", self._external),
            (rf"\.show (?:external )?table {_NAME} (?:schema as json|schema)", self._table_json),
            (rf"\.show (?:external )?table {_NAME} cslschema", self._table_csl),
            (rf"\.show table {_NAME} details", self._details),
            (rf"\.show (?:external )?table {_NAME}(?: details)?", self._one_table),
            (r"\.show functions", lambda _: Answer(_FUNCTIONS)),
            (r"\.show materialized-views", lambda _: Answer(_VIEWS)),
            (r"\.show entity_groups", lambda _: Answer(_columns(Name="string", Entities="string"))),
            (r"\.show version", self._version),
            (r"\.show cluster", self._cluster),
            (r"\.show diagnostics", self._diagnostics),
            (rf"\.show principal access{_WITH}", self._access),
            (rf"\.show (?:(?:database{_DATABASE}|cluster) )?principal roles", self._roles),
            (r"\.show (?P<running>running )?queries", self._shown_queries),
            (rf"\.cancel query {_NAME}{_WITH}", self._cancel),
        )
        self._known = [(re.compile(_WORDS.sub(r"\\s+", text), re.IGNORECASE), work) for text, work in made]

    def answer(self, call: Call, text: str) -> Answer:
        """Answer a command. One that is not known is refused by name."""
        command, pipe, rest = text.strip().rstrip(";").partition("|")
        for pattern, work in self._known:
            if (match := pattern.fullmatch(command.strip())) is not None:
                named = {key: value for key, value in match.groupdict().items() if value is not None}
                found = work(call, **named)
                return found if not pipe else self._piped(call, found, rest)
        shown = " ".join(command.split()[:4])[:100]
        hint = "see the list of commands in docs/kusto.md; .show databases, tables, schema and queries are among them"
        error = KqlError(f"The command {shown!r} is not supported", line=1, column=1, hint=hint)
        raise error

    def columns(self, call: Call, name: str) -> list[tuple[str, str]]:
        """Return the columns of a table with their types in Kusto."""
        table = self._queries.tables.open(name, call.identity)
        return list(KqlTables({name: table}).columns(name) or ())

    # --- databases and tables

    def _databases(self, _: Call) -> Answer:
        return Answer(_DATABASES, [[CATALOG, "", "v1.0", True, "ReadOnly", CATALOG, None, _ZERO, "", ""]])

    def _identity(self, _: Call) -> Answer:
        return Answer(_IDENTITY, [[CATALOG, CATALOG, _ZERO]])

    def _names(self, call: Call) -> list[str]:
        # Tables below roots have names with slashes, which queries cannot use.
        listing = TableListing(self._queries.tables, call.identity, most=self._most, left=call.left.is_set)
        return [name for name in listing.names() if "/" not in name]

    def _tables(self, call: Call) -> Answer:
        return Answer(_TABLES, [[name, CATALOG, "", ""] for name in self._names(call)])

    def _external(self, call: Call) -> Answer:
        empty = msgspec.Raw(b"[]")
        rows = [[name, "Delta", "", "", msgspec.Raw(b"{}"), empty, empty, ""] for name in self._names(call)]
        return Answer(_EXTERNAL, rows)

    def _one_table(self, call: Call, name: str) -> Answer:
        found = _bare(name)
        self.columns(call, found)
        return Answer(_TABLES, [[found, CATALOG, "", ""]])

    def _details(self, call: Call, name: str | None = None) -> Answer:
        """Answer the files and bytes of tables as extents, where the version checksum has them."""
        rows = []
        for each in self._names(call) if name is None else [_bare(name)]:
            try:
                checksum = snapshot_of(self._queries.tables.open(each, call.identity)).checksum
            except LazyDeltaError:
                if name is not None:
                    raise
                continue  # a table that cannot be opened must not hide the others
            files, size = (None, None) if checksum is None else (checksum.num_files, checksum.table_size_bytes)
            rows.append([each, CATALOG, "", "", *[files, size, size, None] * 2])
        return Answer(_TABLE_DETAILS, rows)

    def _entities(self, call: Call, options: str | None = None) -> Answer:  # noqa: ARG002 - about secrets and functions
        nothing = msgspec.Raw(b"{}")
        rows = [
            [CATALOG, "Table", name, "", "", "", "", _csl(found["OrderedColumns"]), nothing]
            for name, found in self._all_described(call).items()
        ]
        return Answer(_ENTITIES, rows)

    def _described(self, call: Call, name: str) -> dict[str, Any]:
        shown = [
            {"Name": column, "Type": _SYSTEM[kind], "CslType": kind, "DocString": None}
            for column, kind in self.columns(call, name)
        ]
        return {"Name": name, "EntityType": "Table", "Folder": None, "DocString": None, "OrderedColumns": shown}

    def _all_described(self, call: Call) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for name in self._names(call):
            with contextlib.suppress(LazyDeltaError):  # a table that cannot be opened must not hide the others
                found[name] = self._described(call, name)
        return found

    def _schema_json(self, call: Call) -> Answer:
        empty: dict[str, Any] = {}
        database = {
            "Name": CATALOG,
            "Tables": self._all_described(call),
            "ExternalTables": empty,
            "MaterializedViews": empty,
            "EntityGroups": empty,
            "MajorVersion": 1,
            "MinorVersion": 0,
            "Functions": empty,
            "DatabaseAccessMode": "ReadOnly",
        }
        text = msgspec.json.encode({"Plugins": [], "Databases": {CATALOG: database}}).decode()
        return Answer(_columns(DatabaseSchema="string"), [[text]])

    def _schema(self, call: Call) -> Answer:
        row = partial(_schema_row, CATALOG)
        rows = [row("", "", "")]
        for name, table in self._all_described(call).items():
            rows.append(row(name, "", ""))
            rows += [row(name, each["Name"], each["Type"]) for each in table["OrderedColumns"]]
        return Answer(_DATABASE_SCHEMA, rows)

    def _table_json(self, call: Call, name: str) -> Answer:
        found = _bare(name)
        text = msgspec.json.encode(self._described(call, found)).decode()
        return Answer(_TABLE_SCHEMA, [[found, text, CATALOG, "", ""]])

    def _table_csl(self, call: Call, name: str) -> Answer:
        found = _bare(name)
        text = _csl(self._described(call, found)["OrderedColumns"])
        return Answer(_TABLE_SCHEMA, [[found, text, CATALOG, "", ""]])

    def _all_csl(self, call: Call) -> Answer:
        rows = [
            [name, _csl(found["OrderedColumns"]), CATALOG, "", ""] for name, found in self._all_described(call).items()
        ]
        return Answer(_TABLE_SCHEMA, rows)

    # --- the server

    def _version(self, _: Call) -> Answer:
        return Answer(_VERSION, [[version("lazydelta"), None, "Engine", f"lazydelta {version('lazydelta')}", ""]])

    def _cluster(self, _: Call) -> Answer:
        """Answer one node. Its memory and its host are not for clients."""
        node = ["lazydelta", "", "lazydelta", self._began, True, None, None, None, "{}"]
        return Answer(_CLUSTER, [node])

    def _diagnostics(self, _: Call) -> Answer:
        machine = [True, "", False, "", False, 1, 0, self._began, self._began, version("lazydelta"), None]
        return Answer(_DIAGNOSTICS, [machine])

    def _roles(self, call: Call) -> Answer:
        scope = f"Database {CATALOG}"
        return Answer(_ROLES, [[scope, call.identity.name, "", f"{scope} Viewer"]])

    def _access(self, call: Call, options: str | None = None) -> Answer:
        """Answer that a client may read, and may not do anything else."""
        asked = re.search(r"accesstype\s*=\s*['\"]?(\w+)", options or "", re.IGNORECASE)
        kind = "view" if asked is None else asked[1].lower()
        return Answer(_ACCESS, [[f"Database {CATALOG}", call.identity.name, kind, kind in {"view", "query", "read"}]])

    def _shown_queries(self, call: Call, running: str | None = None) -> Answer:
        rows = []
        for each in self._queries.shown(call.identity):
            if running is not None and each.state != "InProgress":
                continue
            began = each.began.isoformat().replace("+00:00", "Z")
            ended = (each.began + dt.timedelta(seconds=each.seconds)).isoformat().replace("+00:00", "Z")
            span = span_text(int(each.seconds * 1_000_000))
            state = [span, each.state, _ZERO, each.user, each.failure or "", each.rows, each.language]
            rows.append([each.id, each.text, CATALOG, began, ended, *state])
        return Answer(_QUERIES, rows)

    def _cancel(self, call: Call, name: str, options: str | None = None) -> Answer:  # noqa: ARG002 - a reason, for logs
        identifier = _bare(name)
        number = self._queries.cancel(call.identity, identifier)
        return Answer(_CANCELLED, [[identifier, "" if number else "no such query is running", bool(number)]])

    # --- operators after a command

    def _piped(self, call: Call, found: Answer, rest: str) -> Answer:
        """Run the operators that follow a command over its rows."""
        shown = ", ".join(f"['{each.name}']:{each.kind}" for each in found.columns)
        values = ", ".join(_literal(value, each.kind) for row in found.rows for value, each in _paired(row, found))
        text = f"datatable({shown})[{values}] | {rest}"
        # A command is no query: in the list of queries its text would contain that list.
        with self._queries.run(call, "kql", text, identifier="command", is_listed=False) as query:
            columns = columns_of(query.schema, KIND)
            rows: list[list[Any]] = []
            for batch in query:
                rows += msgspec.json.decode(b"[" + encoded_rows(batch, columns) + b"]", type=list[list[Any]])
                if len(rows) > _MOST_ROWS:
                    raise OptionError(f"The command has more than {_MOST_ROWS} rows", hint="filter the rows")
        return Answer(columns, rows)


_ZERO = "00000000-0000-0000-0000-000000000000"


def _csl(columns: Sequence[dict[str, Any]]) -> str:
    """Return columns as Kusto writes a schema. A name that is not a word is quoted."""
    names = ((each["Name"], each["CslType"]) for each in columns)
    return ",".join(f"{name if _WORD.fullmatch(name) else _quoted(name)}:{kind}" for name, kind in names)


def _quoted(name: str) -> str:
    return f"[{msgspec.json.encode(name).decode()}]"


def _schema_row(database: str, table: str, column: str, kind: str) -> list[Any]:
    return [database, table, column, kind, False, False, "", "v1.0", "", ""]


def _paired(row: list[Any], found: Answer) -> list[tuple[Any, Column]]:
    return list(zip(row, found.columns, strict=True))


def _literal(value: Any, kind: str) -> str:
    if kind == "string":
        return msgspec.json.encode("" if value is None else value).decode()
    if value is None:
        return f"{kind}(null)"
    if kind == "dynamic":
        return f"dynamic({bytes(value).decode()})"
    return f"{kind}({str(value).lower() if kind == 'bool' else value})"


def _bare(name: str) -> str:
    text = name.strip()
    if text.startswith("["):
        text = text[1:-1].strip()
    return text[1:-1] if text[:1] in {"'", '"'} else text
