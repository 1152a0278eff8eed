"""Options of a write. Each option is one field, which defines its Python keyword and its Spark option.

The Spark name is the field name in camel case (``merge_schema``, ``mergeSchema``), unless the field sets another one.
The field type determines how the option string from Spark is parsed. A new option is one line here, and one in
docs/spark-reference.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from inspect import Parameter, signature
from typing import Any, TypeVar

from lazydelta.errors import OptionError
from lazydelta.predicates import Where
from lazydelta.protocol.actions import Txn
from lazydelta.protocol.properties import PROPERTIES, Key, split_columns
from lazydelta.storage import CarriedOptions, shipped_options
from lazydelta.write.data_files import COMPRESSIONS, MEMORY_BUDGET, TARGET_FILE_SIZE
from lazydelta.write.plan import Creation, MaxRejected, WritePlan

__all__ = ["WriteOptions", "shows_options"]

F = TypeVar("F", bound=Callable[..., Any])

_SIZE = re.compile(r"\s*(\d+)\s*([kmg]?)i?b?\s*", re.IGNORECASE)
_FACTORS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_STORAGE = "storage."
_DELTA = "delta."
_NAME = "spark"  # key in the field metadata: the name of the Spark option
# Options that Spark itself adds to those of a source.
_OF_SPARK = frozenset({"path", "checkpointlocation", "queryname", "outputmode"})
# The option that ``partitionBy(…)`` of a Spark writer sets, as JSON.
_PARTITION_COLUMNS = "__partition_columns"
# Spark lowercases option names, but Delta properties must be spelled as Delta does.
_PROPERTIES = sorted(
    {each.key for each in PROPERTIES.values()} - {Key.CHECKPOINT_PROTECTED_BEFORE}
    | {Key.CHANGE_DATA_FEED, Key.COLUMN_MAPPING_MODE, Key.TARGET_FILE_SIZE}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Options for writing rows to a table.

    ``timestamp_column`` aligns data files to time: each file holds one ``boundary`` (hour by default) in UTC, and the
    partition column ``partition_column`` (``_event_hour``) holds its value: digits (``2026021022``), or as
    ``partition_format`` says (``%Y-%m-%d-%H``), which must sort as time. A table records these four.
    ``partition_generated`` makes it a generated column of Delta, whose format is by default one that Delta-Spark knows.
    ``partition_by`` names further partition columns. Rows without a timestamp go to the null partition or, with
    ``null_timestamps="reject"``, to the table ``rejected_table`` (default: next to the table, with the suffix
    ``_rejected``). ``max_rejected`` limits their number, or their share of all rows (0.01, "1%").

    ``app_id`` and ``app_version`` make a batch write idempotent. A stream sets its own, with ``app_id`` as a prefix of
    the query id. ``overwrite_schema`` lets an overwrite of the whole table replace its columns with those of the data.
    ``partition_overwrite_mode="dynamic"`` replaces only the partitions that the data contains. The default is
    ``"static"``, or in Spark the session setting. ``user_metadata`` is recorded in the commit. ``create_only`` refuses
    an existing table. ``max_attempts`` limits the commit attempts while other writers win. ``properties``, ``name`` and
    ``description`` apply to a new table. ``maintain`` writes the checkpoint and the sidecar when they are due.
    """

    timestamp_column: str | None = None
    boundary: str | None = None
    partition_column: str | None = None
    partition_format: str | None = None
    partition_generated: bool = False
    partition_by: Sequence[str] | None = None
    target_file_size: int | str = TARGET_FILE_SIZE
    memory_budget: int | str = MEMORY_BUDGET
    stats_columns: Sequence[str] | str | None = None
    compression: str = "zstd"
    null_timestamps: str = "null-partition"
    rejected_table: str | None = field(default=None, repr=False)
    max_rejected: float | str | None = None
    merge_schema: bool = False
    overwrite_schema: bool = False
    partition_overwrite_mode: str | None = None
    user_metadata: str | None = None
    create_only: bool = False
    overwrite_where: Where = field(default=None, metadata={_NAME: "replaceWhere"})
    app_id: str | None = field(default=None, metadata={_NAME: "txnAppId"})
    app_version: int | None = field(default=None, metadata={_NAME: "txnVersion"})
    maintain: bool = True
    max_attempts: int = 15
    name: str | None = None
    description: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """Validate the options before any work begins."""
        for name in ("properties", "storage_options"):
            if getattr(self, name) is None:
                object.__setattr__(self, name, {})
        for name in ("target_file_size", "memory_budget"):
            object.__setattr__(self, name, _size(name, getattr(self, name)))
        if self.stats_columns is not None:
            given = self.stats_columns
            object.__setattr__(self, "stats_columns", split_columns(given) if isinstance(given, str) else tuple(given))
        if self.partition_by is not None and not isinstance(self.partition_by, str):
            object.__setattr__(self, "partition_by", tuple(self.partition_by))
        if self.compression not in COMPRESSIONS:
            message = f"compression={self.compression!r} is not valid"
            raise OptionError(message, hint=f"use one of {', '.join(COMPRESSIONS)}")
        if self.max_rejected is not None:
            MaxRejected.of(self.max_rejected)
            object.__setattr__(self, "max_rejected", str(self.max_rejected))
        if self.app_version is not None and self.app_id is None:
            raise OptionError("app_version is not valid without app_id", hint="pass both or neither")
        if self.max_attempts < 1:
            raise OptionError(f"max_attempts={self.max_attempts} is not valid", hint="pass a number of at least 1")
        overwrites = self.overwrite_schema or (self.partition_overwrite_mode or "").lower() == "dynamic"
        self.plan("overwrite" if overwrites or self.overwrite_where is not None else "append")

    def __getstate__(self) -> dict[str, Any]:
        """Return the pickled state: without credentials, unless ``carrying_credentials`` was called."""
        state = {each.name: getattr(self, each.name) for each in fields(self)}
        return state | {"storage_options": shipped_options(self.storage_options)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the pickled state, which was validated before."""
        for name, value in state.items():
            object.__setattr__(self, name, value)

    def carrying_credentials(self) -> WriteOptions:
        """Return a copy whose pickle includes all storage options.

        The options reach Spark's tasks this way. The traffic between driver and executors is as confidential as Spark
        is configured to make it (``spark.network.crypto.enabled``, ``spark.io.encryption.enabled``).
        """
        return replace(self, storage_options=CarriedOptions(self.storage_options))

    def plan(self, mode: str) -> WritePlan:
        """Return the plan of the write."""
        properties = dict(self.properties)
        if self.stats_columns is not None:
            properties[Key.STATS_COLUMNS] = ",".join(self.stats_column_names or ())
        return WritePlan.of(
            mode=mode,
            partition_by=self.partition_by,
            timestamp_column=self.timestamp_column,
            boundary=self.boundary,
            partition_column=self.partition_column,
            partition_format=self.partition_format,
            partition_generated=self.partition_generated,
            overwrite_where=self.overwrite_where,
            schema_mode="merge" if self.merge_schema else None,
            replaces_schema=self.overwrite_schema,
            partition_overwrite_mode=self.partition_overwrite_mode or "static",
            user_metadata=self.user_metadata,
            creates_only=self.create_only,
            null_timestamps=self.null_timestamps,
            creation=Creation(properties, self.name, self.description),
        )

    @property
    def stats_column_names(self) -> tuple[str, ...] | None:
        """Return the columns with statistics, or None for those that the table configures."""
        return None if self.stats_columns is None else tuple(self.stats_columns)

    @property
    def txn(self) -> Txn | None:
        """Return the application transaction of a batch write, or None."""
        if self.app_id is None or self.app_version is None:
            return None
        return Txn(app_id=self.app_id, version=self.app_version)

    def stream_app_id(self, query: str) -> str:
        """Return the application id under which the micro-batches of a stream are recorded.

        A fixed name is not enough: a fresh checkpoint location counts batches from 0 again, and they would be mistaken
        for batches that the table already has.
        """
        return query if self.app_id is None else f"{self.app_id}:{query}"

    def rejected_uri(self, uri: str) -> str:
        """Return the URI of the table of rejected rows."""
        if self.rejected_table is not None:
            return self.rejected_table
        place, mark, signature = uri.partition("?") if "://" in uri else (uri, "", "")
        return f"{place.rstrip('/')}_rejected{mark}{signature}"

    def to_spark(self) -> dict[str, str]:
        """Return the options as Spark options."""
        defaults = WriteOptions()
        given: dict[str, str] = {}
        for spelled, option in _NAMES.values():
            value, default = getattr(self, option.name), getattr(defaults, option.name)
            if value is not default and not (isinstance(value, type(default)) and value == default):
                given[spelled] = _text(spelled, map(_quoted, value) if option.name == "partition_by" else value)
        given |= self.properties
        return given | {f"{_STORAGE}{key}": value for key, value in self.storage_options.items()}

    @classmethod
    def from_keywords(cls, options: Mapping[str, Any]) -> WriteOptions:
        """Create options from the keywords of a function, spelled as here or as in Spark."""
        values: dict[str, Any] = {}
        known = {each.name for each in fields(cls)}
        for given, value in options.items():
            name = given if given in known or given.lower() not in _NAMES else _NAMES[given.lower()][1].name
            if name not in known:
                raise OptionError(f"There is no option {given!r}", hint=f"known: {', '.join(sorted(known))}")
            if name in values:
                raise OptionError(f"{name} is passed twice, once as {given}", hint="pass only one of them")
            values[name] = value
        return cls(**values)

    @classmethod
    def from_spark(cls, options: Mapping[str, str]) -> WriteOptions:
        """Parse the options of a Spark reader or writer. An unknown option is an error, as it may be a typo."""
        values: dict[str, Any] = {}
        properties: dict[str, str] = {}
        storage: dict[str, str] = {}
        by_call: tuple[str, ...] | None = None
        for given, text in options.items():
            key = given.lower()
            if key.startswith(_STORAGE):
                storage[key.removeprefix(_STORAGE)] = text
            elif key.startswith(_DELTA):
                properties[_property(key)] = text
            elif key in _NAMES:
                spelled, option = _NAMES[key]
                values[option.name] = _READERS.get(str(option.type), _as_is)(spelled, text)
            elif key == _PARTITION_COLUMNS:
                by_call = tuple(json.loads(text))
            elif key not in _OF_SPARK:
                known = ", ".join(sorted(spelled for spelled, _ in _NAMES.values()))
                hint = f"known: {known}, Delta's table properties and storage.… for credentials"
                raise OptionError(f"There is no option {given!r}", hint=hint)
        if by_call is not None and values.setdefault("partition_by", by_call) != by_call:
            raise OptionError("partitionBy(…) and the option partitionBy differ", hint="pass only one of them")
        return cls(**values, properties=properties, storage_options=storage)


def shows_options(*left_out: str) -> Callable[[F], F]:
    """Add the options that a function takes as ``**options`` to its signature, except ``left_out``."""

    def decorate(function: F) -> F:
        own = signature(function)
        named = [each for each in own.parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
        taken = {each.name for each in named} | set(left_out)
        more = [each for each in signature(WriteOptions).parameters.values() if each.name not in taken]
        function.__signature__ = own.replace(parameters=[*named, *more])  # type: ignore[attr-defined]
        return function

    return decorate


def _humped(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


# Options by lowercase name, as Spark may pass them. Delta properties and storage options are recognized by prefix.
_NAMES: dict[str, tuple[str, Field[Any]]] = {
    spelled.lower(): (spelled, each)
    for each in fields(WriteOptions)
    if each.type != "Mapping[str, str]"
    for spelled in [each.metadata.get(_NAME) or _humped(each.name)]
}


def _flag(spelled: str, text: str) -> bool:
    if text.strip().lower() not in {"true", "false"}:
        raise OptionError(f"{spelled}={text!r} is not valid", hint="use true or false")
    return text.strip().lower() == "true"


def _number(spelled: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise OptionError(f"{spelled}={text!r} is not valid", hint="pass a number") from None


def _columns(_: str, text: str) -> tuple[str, ...]:
    return tuple(_unquoted(each) for each in split_columns(text))


def _as_is(_: str, text: str) -> str:
    return text


_READERS: dict[str, Callable[[str, str], Any]] = {
    "bool": _flag,
    "int": _number,
    "int | None": _number,
    "Sequence[str] | None": _columns,
}


def _text(spelled: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int):
        return str(value)
    texts = list(value) if isinstance(value, Iterable) else [value]
    if not all(isinstance(each, str) for each in texts):
        raise OptionError(f"{spelled}={value!r} is not a string, and Spark passes only strings", hint="write it as SQL")
    return ",".join(texts)


def _quoted(name: str) -> str:
    """Return a column name quoted for a list. Backquotes protect commas and spaces."""
    plain = name and name == name.strip() and "," not in name and "`" not in name
    return name if plain else f"`{name.replace('`', '``')}`"


def _unquoted(name: str) -> str:
    return name[1:-1].replace("``", "`") if len(name) > 1 and name[0] == name[-1] == "`" else name


def _size(name: str, value: int | str) -> int:
    """Parse a size in bytes: a number, or a string such as 128MB."""
    match = _SIZE.fullmatch(str(value))
    size = 0 if match is None else int(match[1]) * _FACTORS[match[2].lower()]
    if size < 1:
        raise OptionError(f"{name}={value!r} is not valid", hint="pass a number of bytes, or a size such as 128MB")
    return size


def _property(lowered: str) -> str:
    found = next((each for each in _PROPERTIES if each.lower() == lowered), None)
    if found is None:
        hint = f"known: {', '.join(_PROPERTIES)}; for others create the table first, with `lazydelta create`"
        raise OptionError(f"The table property {lowered!r} cannot be given as an option", hint=hint)
    return found
