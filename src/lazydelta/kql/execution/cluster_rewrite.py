"""Rewrite a query for a cluster: each table becomes ``externaldata`` over exactly the files that may hold its rows.

A cluster that reads a Delta table through ``external_table`` first loads its whole log. Here it reads only the listed
files. Data files do not contain partition columns, so files are grouped by partition, and each group gets the values as
constants.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Mapping
from urllib.parse import quote, unquote

from lazydelta.errors import KqlError, OptionError, UnsupportedFeatureError
from lazydelta.kql.binding.plan import Scan
from lazydelta.kql.execution.pushdown import Pushed
from lazydelta.kql.execution.query import reached
from lazydelta.kql.execution.tables import KqlTables, Queryable
from lazydelta.kql.language import syntax
from lazydelta.kql.language.syntax import QueryText
from lazydelta.protocol.properties import Key
from lazydelta.scan.file import DataFile
from lazydelta.table.delta_table import DeltaTable

__all__ = ["DEFAULT_CAP", "rewrite"]

DEFAULT_CAP = 100 << 20
"""Total file size up to which Microsoft's documentation recommends ``externaldata``."""

_REFERENCE = re.compile(
    r"(?:external_table|table)\s*\(\s*(?:[hH]?@?(?:'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\"))\s*\)"
    r"|\[\s*(?:\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*')\s*\]|\w+"
)
_PATTERN = re.compile(r"\w*\*[\w*]*")
_REACHABLE = ("https://", "abfss://")
_UNQUOTED = frozenset({"bool", "int", "long", "real", "decimal", "datetime"})


def rewrite(
    text: str,
    tables: Mapping[str, Queryable],
    *,
    now: dt.datetime | None = None,
    cluster_uris: Mapping[str, str] | None = None,
    secret: str | None = None,
    managed_identity: str | None = None,
    cap: int = DEFAULT_CAP,
    open_table: Callable[[str], DeltaTable] | None = None,
) -> str:
    """Return the query with every table replaced by ``externaldata`` over the files that may match.

    ``cluster_uris`` maps a table to the address that the cluster uses, if it is not the table's own. ``secret`` (a SAS
    token or ``;account key``) is appended to each address in a string that the cluster does not log;
    ``managed_identity`` (``system`` or an object id) replaces it. Raises if the files have more than ``cap`` bytes.
    """
    if secret is not None and managed_identity is not None:
        raise OptionError("A secret and a managed identity are mutually exclusive", hint="pass only one of them")
    suffix = secret or ("" if managed_identity is None else f";managed_identity={managed_identity}")
    known = KqlTables(tables, open_table)
    query = QueryText(text)
    found = reached(text, known, now)
    edits = [edit for node in {each.at: each for each in found.text_orders}.values() for edit in _ordered(text, node)]
    by_place: dict[int, list[tuple[Scan, Pushed]]] = {}
    for scan, pushed in found.scans.items():
        by_place.setdefault(scan.at, []).append((scan, pushed))
    left = cap
    for at in sorted(by_place):
        scan = by_place[at][0][0]
        if (pattern := _PATTERN.match(text, at)) is not None:
            raise query.error(
                at, f"{pattern[0]} may be several tables, which cannot be replaced", hint="name each table"
            )
        table = known.open(scan.table)
        if not isinstance(table, DeltaTable):
            raise query.error(
                at, f"{scan.table!r} is not a Delta table, so a cluster cannot read it", hint="pass its URI"
            )
        files = _files(query, at, table, [pushed for _, pushed in by_place[at]], left)
        left -= sum(file.size for file in files)
        columns = known.columns(scan.table) or []
        root = (cluster_uris or {}).get(scan.table) or table.table_uri
        source = _TableSource(query, at, columns, tuple(table.metadata().partition_columns), root, suffix).text(files)
        match = _REFERENCE.match(text, at)
        assert match is not None  # noqa: S101 - the parser found a reference here
        edits.append((at, match.end(), source))
    return _edited(text, edits)


def _ordered(text: str, node: syntax.Binary | syntax.Between) -> list[tuple[int, int, str]]:
    """Return the edits that turn a string comparison into ``strcmp``, the only way Kusto orders strings."""
    if isinstance(node, syntax.Binary):
        start, after, end = node.places
        return [(start, start, "strcmp("), (node.at, after, ","), (end, end, f") {node.op} 0")]
    start, after, dots, low_from, end = node.places
    opening = text.index("(", after)
    value = text[start : node.at].strip()
    negation = "not" if node.negated else ""
    return [
        (start, start, f"{negation}(strcmp("),
        (node.at, opening + 1, ", "),
        (dots, low_from, f") >= 0 and strcmp({value}, "),
        (end - 1, end, ") <= 0)"),
    ]


def _edited(text: str, edits: list[tuple[int, int, str]]) -> str:
    """Return the query with parts replaced. Edits that start at the same position are nested, outermost first."""
    pieces, position = [], 0
    for start, end, piece in sorted(edits, key=lambda edit: edit[:2]):
        pieces += [text[position:start], piece]
        position = end
    return "".join([*pieces, text[position:]])


def _files(query: QueryText, at: int, table: DeltaTable, asked: list[Pushed], left: int) -> list[DataFile]:
    mode = (table.metadata().configuration or {}).get(Key.COLUMN_MAPPING_MODE) or "none"
    if mode != "none":
        message = f"The table {table.table_uri} maps its columns by {mode}, which externaldata cannot follow"
        raise UnsupportedFeatureError(message, features=("columnMapping",), hint="query it with lazydelta itself")
    found: dict[str, DataFile] = {}
    total = 0
    for pushed in asked:
        with table.files(pushed.where, row_limit=pushed.limit) as files:
            for file in files:
                if file.deletion_vector is not None:
                    message = (
                        f"The file {file.path} has rows that a deletion vector deletes, which externaldata would show"
                    )
                    raise UnsupportedFeatureError(
                        message, features=("deletionVectors",), path=file.path, hint="query it with lazydelta itself"
                    )
                if file.path not in found:
                    found[file.path] = file
                    total += file.size
                if total > left:
                    message = f"more than {left:,} bytes of files may match"
                    raise query.error(at, message, hint="narrow the condition, or raise the limit")
    return list(found.values())


class _TableSource:
    """Writes one table as KQL."""

    def __init__(
        self,
        query: QueryText,
        at: int,
        columns: list[tuple[str, str]],
        partitions: tuple[str, ...],
        root: str,
        suffix: str,
    ) -> None:
        self._query = query
        self._at = at
        self._columns = columns
        self._partitions = partitions
        self._root = root.rstrip("/")
        self._suffix = suffix

    def text(self, files: list[DataFile]) -> str:
        """Return an expression for the rows of the files."""
        if not files:
            return f"datatable({self._schema(self._columns)})[]"
        if not self._root.startswith(_REACHABLE):
            message = f"a cluster cannot reach {self._root}"
            raise self._query.error(
                self._at,
                message,
                hint="pass the URI at which the cluster finds the table: --cluster-uri NAME=https://…",
            )
        groups: dict[tuple[str | None, ...], list[DataFile]] = {}
        for file in files:
            values = tuple(file.partition_values.get(name) or None for name in self._partitions)
            groups.setdefault(values, []).append(file)
        parts = [self._group(values, members) for values, members in groups.items()]
        shown = ", ".join(_name(name) for name, _ in self._columns)
        if len(parts) == 1:
            return f"({parts[0]} | project {shown})"
        return f"((union {', '.join(f'({part})' for part in parts)}) | project {shown})"

    def _group(self, values: tuple[str | None, ...], files: list[DataFile]) -> str:
        stored = [each for each in self._columns if each[0] not in self._partitions]
        listed = ",\n    ".join(self._address(file) for file in files)
        source = f"externaldata({self._schema(stored)})[\n    {listed}\n] with (format='parquet')"
        kinds = dict(self._columns)
        constants = (
            f"{_name(name)} = {_constant(kinds[name], value)}"
            for name, value in zip(self._partitions, values, strict=True)
        )
        return f"{source} | extend {', '.join(constants)}" if self._partitions else source

    def _address(self, file: DataFile) -> str:
        if "://" in file.path or file.path.startswith("/"):
            message = f"The file {file.path} lies outside the table, where the given credentials do not belong"
            raise KqlError(message, path=file.path, hint="query it with lazydelta itself")
        # Writers encode paths in the log differently; the cluster expects URL encoding.
        address = f"{self._root}/{quote(unquote(file.path))}{self._suffix}"
        literal = "@'" + address.replace("'", "''") + "'"
        return f"h{literal}" if self._suffix else literal

    def _schema(self, columns: list[tuple[str, str]]) -> str:
        return ", ".join(f"{_name(name)}:{kind}" for name, kind in columns)


def _name(name: str) -> str:
    if re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        return name
    return "['" + name.replace("\\", "\\\\").replace("'", "\\'") + "']"


def _constant(kind: str, value: str | None) -> str:
    if value is None:
        return "''" if kind == "string" else f"{kind}(null)"
    if kind in _UNQUOTED:
        return f"{kind}({value})"
    return "@'" + value.replace("'", "''") + "'"
