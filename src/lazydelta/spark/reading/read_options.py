"""``ReadOptions``: what ``spark.read.format("lazydelta").option(…)`` takes, checked once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lazydelta.errors import OptionError
from lazydelta.handle import TableHandle
from lazydelta.log.snapshot import Snapshot
from lazydelta.log.travel import milliseconds, version_at
from lazydelta.row_scan.row_shares import ShareSize
from lazydelta.types.literals import short_repr

__all__ = ["ReadOptions", "pinned_version"]

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
    "files": "files",
}
_SPELLED = "columns, maxPartitionBytes, minPartitions, pushFilters, timestampAsOf, versionAsOf, where"
_VIEW = "type CREATE TEMPORARY VIEW v USING lazydelta OPTIONS (path '…')"
_NO_PLACE = (
    "name it: load(uri); of a table in its catalog Spark tells a data source in Python neither location nor options: "
    f"{_VIEW}"
)
# What Spark's catalog adds to the options of a table that is being created.
_OF_THE_CATALOG = frozenset({"provider", "owner"})
_UNITS = {"kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "b": 1}


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Which table and version, which of its rows and columns, and in how many pieces.

    ``push_filters`` says that the DataFrame is used once (see ``LazyDeltaReader.narrow``).
    ``files`` is said by `lazydelta.spark.read`: ``others`` are the files that Spark does not read by itself.
    """

    uri: str
    version: int | None = None
    timestamp: str | None = None
    where: str | None = None
    columns: tuple[str, ...] | None = None
    max_partition_bytes: int = ShareSize().most
    min_partitions: int | None = None
    push_filters: bool = False
    files: str | None = None
    storage_options: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_spark(cls, given: Mapping[str, str], *, strict: bool = True) -> ReadOptions:
        """Read the options of a reader of Spark's; an unknown one is an error, as it may be a typo.

        Without ``strict`` it is passed over, for those who cannot tell a batch from a stream, which has others.
        """
        if {name.lower() for name in given} >= _OF_THE_CATALOG:
            message = "CREATE TABLE … USING lazydelta would make a table that cannot be read: Spark keeps where it lies"
            raise OptionError(f"{message} from a data source in Python", hint=_VIEW)
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
                hint = f"known are {_SPELLED}, delta.… of our own options and storage.… for credentials"
                raise OptionError(f"There is no option {name!r} of reading", hint=hint)
        if not values.get("uri"):
            raise OptionError("There is no table to read", hint=_NO_PLACE)
        if "version" in values and "timestamp" in values:
            raise OptionError("versionAsOf and timestampAsOf are both given", hint="give one of them")
        return cls(**values, storage_options=storage, options=options)

    def open(self) -> TableHandle:
        """Open the table; no request is made."""
        return TableHandle.open(self.uri, dict(self.storage_options) or None, dict(self.options) or None)

    def pin(self, handle: TableHandle) -> Snapshot:
        """Pin the version that is asked for."""
        return pinned_version(handle, self.version if self.timestamp is None else self.timestamp)


def pinned_version(handle: TableHandle, version: int | str | None) -> Snapshot:
    """Pin a version by its number, or by the moment at which it was the newest; None is the newest now."""
    if not isinstance(version, str):
        return handle.snapshot(version)
    newest = handle.snapshot()
    number = version_at(handle.store, newest.metadata, milliseconds(version))
    return newest if number == newest.version else handle.snapshot(number)


def _as_it_is(_: str, text: str) -> str:
    return text


def _number(name: str, text: str) -> int:
    if not text.strip().isdigit():
        raise OptionError(f"{name}={short_repr(text)} is not a whole number", hint="give one from 0")
    return int(text)


def _pieces(name: str, text: str) -> int:
    return max(1, _number(name, text))


def _is_true(name: str, text: str) -> bool:
    word = text.strip().lower()
    if word not in {"true", "false"}:
        raise OptionError(f"{name}={short_repr(text)} is neither true nor false", hint="write one of them")
    return word == "true"


def _others(name: str, text: str) -> str:
    if text != "others":
        raise OptionError(f"{name}={short_repr(text)} makes no sense", hint="leave it out: all files are read")
    return text


def _bytes(name: str, text: str) -> int:
    word = text.strip().lower()
    digits = word.rstrip("bgkm")
    unit = word[len(digits) :] or "b"
    if not digits.strip().isdigit() or unit not in _UNITS or not int(digits):
        raise OptionError(f"{name}={short_repr(text)} is not a size", hint="write 134217728 or 128MB")
    return int(digits) * _UNITS[unit]


def _columns(name: str, text: str) -> tuple[str, ...]:
    """Read names with commas between them, or a list in JSON, which a name with a comma needs."""
    found: Any = None
    if text.lstrip().startswith("["):
        try:
            found = json.loads(text)
        except ValueError:
            found = None
    else:
        found = [each.strip() for each in text.split(",") if each.strip()]
    if not isinstance(found, list) or not found or not all(isinstance(each, str) for each in found):
        hint = "write them with commas between them, or as a list in JSON"
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
    "files": _others,
}
