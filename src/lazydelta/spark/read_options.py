"""``ReadOptions``: the options of ``spark.read.format("lazydelta").option(…)``, validated once."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lazydelta.errors import OptionError
from lazydelta.log.time_travel import milliseconds, version_at
from lazydelta.protocol.values import short_repr
from lazydelta.rows.scanner import ShareSize
from lazydelta.sidecar.handle import Snapshot, TableHandle

__all__ = ["ReadOptions", "pinned_version", "split_version"]

_STORAGE, _DELTA = "storage.", "delta."
_KNOWN = {
    "path": "uri",
    "versionasof": "version",
    "timestampasof": "timestamp",
    "where": "where",
    "columns": "columns",
    "maxpartitionbytes": "max_partition_bytes",
    "minpartitions": "min_partitions",
    "pushfilters": "push_filters",
}
_SPELLED = "columns, maxPartitionBytes, minPartitions, pushFilters, timestampAsOf, versionAsOf, where"
_VIEW = "type CREATE TEMPORARY VIEW v USING lazydelta OPTIONS (path '…')"
_NO_PLACE = (
    "name it: load(uri); of a table in its catalog Spark tells a data source in Python neither location nor options: "
    f"{_VIEW}"
)
# Options that Spark's catalog adds when a table is created.
_OF_THE_CATALOG = frozenset({"provider", "owner"})
_UNITS = {"kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "b": 1}


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Table and version, rows and columns to read, and the number of partitions.

    ``push_filters`` states that the DataFrame is used once (see ``LazyDeltaReader.narrow``).
    """

    uri: str
    version: int | None = None
    timestamp: str | None = None
    where: str | None = None
    columns: tuple[str, ...] | None = None
    max_partition_bytes: int = ShareSize().most
    min_partitions: int | None = None
    push_filters: bool = False
    storage_options: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_spark(cls, given: Mapping[str, str], *, strict: bool = True) -> ReadOptions:
        """Parse the options of a Spark reader. An unknown option is an error, because it may be a typo.

        Without ``strict`` it is ignored, for callers that cannot tell a batch from a stream, which has other options.
        """
        if {name.lower() for name in given} >= _OF_THE_CATALOG:
            message = "A table of CREATE TABLE … USING lazydelta could not be read: Spark does not pass its location"
            raise OptionError(f"{message} to a Python data source", hint=_VIEW)
        values: dict[str, Any] = {}
        storage: dict[str, str] = {}
        options: dict[str, Any] = {}
        for name, text in given.items():
            key = name.lower()
            if key.startswith(_STORAGE):
                storage[key.removeprefix(_STORAGE)] = text
            elif key.startswith(_DELTA):
                options[key] = _plain(text)
            elif key in _KNOWN:
                values[_KNOWN[key]] = _READERS.get(key, _as_it_is)(name, text)
            elif strict:
                hint = f"known: {_SPELLED}, delta.… for table properties and storage.… for credentials"
                raise OptionError(f"There is no option {name!r} of reading", hint=hint)
        if not values.get("uri"):
            raise OptionError("There is no table to read", hint=_NO_PLACE)
        values["uri"], suffix = split_version(values["uri"])
        if suffix is not None and not {"version", "timestamp"}.isdisjoint(values):
            raise OptionError(f"A version is given twice: @v{suffix} and as an option", hint="pass only one of them")
        if "version" in values and "timestamp" in values:
            raise OptionError("versionAsOf and timestampAsOf are both given", hint="pass only one of them")
        if suffix is not None:
            values["version"] = suffix
        return cls(**values, storage_options=storage, options=options)

    def open(self) -> TableHandle:
        """Open the table without making a request."""
        return TableHandle.open(self.uri, dict(self.storage_options) or None, dict(self.options) or None)

    def pin(self, handle: TableHandle) -> Snapshot:
        """Pin the requested version."""
        return pinned_version(handle, self.version if self.timestamp is None else self.timestamp)


def pinned_version(handle: TableHandle, version: int | str | None) -> Snapshot:
    """Pin a version by number or by timestamp. None is the newest version."""
    if not isinstance(version, str):
        return handle.snapshot(version)
    newest = handle.snapshot()
    number = version_at(handle.store, newest.metadata, milliseconds(version))
    return newest if number == newest.version else handle.snapshot(number)


def split_version(uri: str) -> tuple[str, int | None]:
    """Return a location and the version that it names as Delta-Spark does: ``…/table@v12``."""
    found = re.fullmatch(r"(.+)@v(\d{1,19})", uri)
    if found is None or Path(uri).is_dir():
        return uri, None
    return found[1], int(found[2])


def _as_it_is(_: str, text: str) -> str:
    return text


def _number(name: str, text: str) -> int:
    if not text.strip().isdigit():
        raise OptionError(f"{name}={short_repr(text)} is not a whole number", hint="pass a whole number of at least 0")
    return int(text)


def _pieces(name: str, text: str) -> int:
    return max(1, _number(name, text))


def _is_true(name: str, text: str) -> bool:
    word = text.strip().lower()
    if word not in {"true", "false"}:
        raise OptionError(f"{name}={short_repr(text)} is neither true nor false", hint="use true or false")
    return word == "true"


def _bytes(name: str, text: str) -> int:
    word = text.strip().lower()
    digits = word.rstrip("bgkm")
    unit = word[len(digits) :] or "b"
    if not digits.strip().isdigit() or unit not in _UNITS or not int(digits):
        raise OptionError(f"{name}={short_repr(text)} is not a size", hint="write 134217728 or 128MB")
    return int(digits) * _UNITS[unit]


def _columns(name: str, text: str) -> tuple[str, ...]:
    """Parse comma-separated names, or a JSON list for names that contain commas."""
    found: Any = None
    if text.lstrip().startswith("["):
        try:
            found = json.loads(text)
        except ValueError:
            found = None
    else:
        found = [each.strip() for each in text.split(",") if each.strip()]
    if not isinstance(found, list) or not found or not all(isinstance(each, str) for each in found):
        hint = "separate them with commas, or pass a JSON list"
        raise OptionError(f"{name}={short_repr(text)} names no columns", hint=hint)
    return tuple(found)


def _plain(text: str) -> Any:
    word = text.strip().lower()
    if word in {"true", "false"}:
        return word == "true"
    return int(word) if word.isdigit() else text


_READERS: dict[str, Any] = {
    "versionasof": _number,
    "columns": _columns,
    "maxpartitionbytes": _bytes,
    "minpartitions": _pieces,
    "pushfilters": _is_true,
}
