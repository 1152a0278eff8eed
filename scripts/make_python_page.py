"""Write docs/python.md, the page of the Python API, from signatures and docstrings: what is said once, is said there.

Run it after a change of either; a test fails while the page is out of date.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from pathlib import Path
from typing import Any

import msgspec

import lazydelta
from lazydelta import client, errors, kql, maintenance, sidecar, telemetry, warned
from lazydelta.engines.sql import SqlResult
from lazydelta.options import Options
from lazydelta.runtime.metrics import ScanMetrics
from lazydelta.scan.file import FILES_SCHEMA
from lazydelta.table import delta_table

PAGE = Path(__file__).resolve().parents[1] / "docs" / "python.md"

HEAD = """# Python

Made from the docstrings by `scripts/make_python_page.py`. Users of deltalake find each of its methods on
[a page of its own](coming-from-deltalake.md); options, credentials and metrics in operation are in
[Operations](operations.md).
"""
# What deltalake exports and lazydelta only refuses is on the other page.
_REFUSED = ("convert_to_deltalake", "enable_nanosecond_timestamps", "init_tracing", "rust_core_version")
_TABLE = ("DeltaTable", "FileStream", "DataFile")
_READING = ("sql", "kql", "scan", "read")
_WRITING = ("write_arrow", "write_deltalake", "create_table")
_REMOTE = ("Connection", "RemoteTable", "RemoteFileStream", "RemoteRowStream")
_NOT_SHOWN = frozenset({"__init__"})
_FILES = {
    "path": "as logged: percent-encoded, relative to the table's root or absolute",
    "size": "in bytes",
    "modification_time": "in epoch milliseconds",
    "partition_values": "by logical column name, as the log writes them; a null is null or an empty text",
    "num_records": "with the deleted rows; null unless statistics are asked for (`stats_columns=[]` is enough)",
    "deletion_vector": "the descriptor, with the log's field names; null for most files",
    "version": "that added the file; null where it came from the checkpoint",
    "tier": "0 the commits after the checkpoint, 1 and 2 the sidecar, 3 the checkpoint",
}


def page() -> str:
    """Return the whole page."""
    names = [each for each in lazydelta.__all__ if not each.startswith("_") and each not in _REFUSED]
    rest = [
        each
        for each in names
        if each
        not in {
            *_TABLE,
            *_READING,
            *_WRITING,
            "connect",
            "LazyDeltaError",
            "PredicateWarning",
            "RetentionWarning",
            "DataType",
        }
    ]
    parts = [
        HEAD,
        "## Tables and files",
        *(_class(getattr(lazydelta, name)) for name in _TABLE),
        _files_schema(),
        "## Queries and rows in one call",
        _function("sql", lazydelta.sql),
        _function("kql", kql.query),
        _function("scan", delta_table.scan),
        _function("read", delta_table.read),
        _class(SqlResult),
        "## Writing",
        *(_function(name, getattr(lazydelta, name)) for name in _WRITING),
        "## Descriptions: schemas, metadata, properties",
        *(_class(getattr(lazydelta, name), name) for name in rest),
        "## Tables of a server: `lazydelta.connect`",
        _function("connect", lazydelta.connect),
        *(_class(getattr(client, name)) for name in _REMOTE),
        "## The sidecar: `lazydelta.sidecar`",
        _text(sidecar),
        *(_member(f"sidecar.{name}", getattr(sidecar, name)) for name in sidecar.__all__),
        "## Maintenance and telemetry",
        *(_member(f"maintenance.{name}", getattr(maintenance, name)) for name in maintenance.__all__),
        *(_member(f"telemetry.{name}", getattr(telemetry, name)) for name in telemetry.__all__),
        _class(ScanMetrics),
        "## Options",
        _options(),
        "## Errors: `lazydelta.errors`",
        _errors(),
        "## Warnings: `lazydelta.warned`",
        _warnings(),
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _member(name: str, value: Any) -> str:
    return _class(value, name) if inspect.isclass(value) else _function(name, value)


def _class(cls: type, name: str | None = None) -> str:
    parts = [f"### `{name or cls.__name__}`", _own_text(cls)]
    if (
        any("__init__" in vars(base) for base in cls.__mro__[:-1])
        and not issubclass(cls, msgspec.Struct | tuple)
        and _shows_init(cls)
    ):
        parts.append(f"`{_signature(cls.__name__, cls)}`")
    fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
    if fields and "." in (name or ""):
        parts.append("Fields: " + ", ".join(f"`{each.name}`" for each in fields) + ".")
    for member, value in _members(cls):
        parts.append(_property(member, value) if isinstance(value, property) else _method(cls, member, value))
    return "\n\n".join(part for part in parts if part)


def _shows_init(cls: type) -> bool:
    return cls.__name__ not in {"DataFile", "FileStream", "TableFeatures", "TableMetadata"}


def _members(cls: type) -> list[tuple[str, Any]]:
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith("lazydelta"):
            found.update(vars(base))
    shown = (
        (name, value)
        for name, value in found.items()
        if not name.startswith("_")
        and (isinstance(value, property | classmethod | staticmethod) or inspect.isfunction(getattr(cls, name)))
    )
    return sorted(shown)


def _property(name: str, value: property) -> str:
    return f"**`{name}`**: {_plain(inspect.getdoc(value) or '')}"


def _method(cls: type, name: str, value: Any) -> str:
    function = getattr(value, "__func__", value)
    return (
        f"**`{_signature(name, function, bound=not isinstance(value, staticmethod))}`**\n\n{_text(getattr(cls, name))}"
    )


def _function(name: str, function: Any) -> str:
    return f"### `{name}`\n\n`{_signature(name.rpartition('.')[2], function)}`\n\n{_text(function)}"


def _signature(name: str, function: Any, *, bound: bool = False) -> str:
    own = inspect.signature(function)
    given = list(own.parameters.values())[1 if bound else 0 :]
    plain = [each.replace(annotation=inspect.Parameter.empty) for each in given]
    shown = str(inspect.Signature(plain)).replace("<factory>", "{}")
    result = own.return_annotation
    if result is inspect.Signature.empty or inspect.isclass(function):
        return f"{name}{shown}"
    return f"{name}{shown} -> {result if isinstance(result, str) else result.__name__}"


def _own_text(cls: type) -> str:
    # A class without a docstring has its base's, or the signature of a dataclass.
    return _plain(inspect.cleandoc(cls.__doc__ or ""))


def _text(value: Any) -> str:
    return _plain(inspect.getdoc(value) or "")


def _plain(text: str) -> str:
    """Return a docstring as Markdown: arguments and errors as lists, an example as a block that the suite runs."""
    body, *sections = re.split(r"(?m)^(Args|Returns|Raises|Example):\n", text)
    parts = [body.strip()]
    for title, section in zip(sections[::2], sections[1::2], strict=True):
        lines = inspect.cleandoc(section).splitlines()
        if title == "Example":
            code = "\n".join(line[4:] for line in lines if line.startswith((">>> ", "... ")))
            parts.append(f"```python\n{code}\n```")
        elif title == "Returns":
            parts.append(f"Returns: {' '.join(lines)}")
        else:
            entries = [
                re.sub(r"^(\S+):", r"- `\1`:", line) if line[:1] != " " else f"  {line.strip()}" for line in lines
            ]
            parts.append("\n".join([f"{'Arguments' if title == 'Args' else title}:", "", *entries]))
    return re.sub(r"(?<!`)``([^`]+)``(?!`)", r"`\1`", "\n\n".join(parts))


def _files_schema() -> str:
    rows = [f"| `{field.name}` | `{field.type}` | {_FILES[field.name]} |" for field in FILES_SCHEMA]
    return "\n".join(
        [
            "### The schema of `batches()`",
            "",
            "| column | type | what it is |",
            "| --- | --- | --- |",
            *rows,
            "",
            "Each column in `stats_columns` adds `min.`, `max.` and `null_count.` with its name.",
            "`lazydelta.scan.file` has the schema as `FILES_SCHEMA`.",
        ]
    )


def _options() -> str:
    rows = [f"| `{each.encode_name}` | `{each.default}` |" for each in msgspec.structs.fields(Options)]
    return "\n".join([_own_text(Options), "", "| option | default |", "| --- | --- |", *rows])


def _errors() -> str:
    firsts = {name: _text(getattr(errors, name)).partition("\n")[0] for name in errors.__all__}
    lines = [f"- `{name}`: {first}" for name, first in firsts.items()]
    return "\n".join(
        ["The tree is drawn in the module; `lazydelta.exceptions` has deltalake's names for it.", "", *lines]
    )


def _warnings() -> str:
    return "\n".join(f"- `{name}`: {_text(getattr(warned, name))}" for name in warned.__all__)


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{PAGE} is up to date\n")


if __name__ == "__main__":
    main()
