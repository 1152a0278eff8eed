"""The options of a stream, under the names that Delta-Spark has for them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lazydelta.errors import OptionError
from lazydelta.log.travel import milliseconds

__all__ = ["LATEST", "StreamOptions"]

LATEST = "latest"
# As many as Delta-Spark admits.
_MAX_FILES = 1000
_STORAGE = "storage."
_SIZE = re.compile(r"\s*(\d+)\s*([kmgt]?)i?b?\s*", re.IGNORECASE)
_FACTORS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
# What a batch asks for, and what a stream says in its place.
_OF_BATCHES = {
    "versionasof": "startingVersion says where a stream begins",
    "timestampasof": "startingTimestamp says where a stream begins",
    "where": "filter what is loaded: load(uri).where(…)",
    "columns": "choose among what is loaded: load(uri).select(…)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """Where a stream begins, how much it takes at once, and what it makes of changes.

    ``starting_version`` is a number or ``"latest"``; ``starting_timestamp`` is in epoch milliseconds. Without either
    the files of the newest version come first. A commit that removes files is an error unless one of these is set:
    ``ignore_deletes`` passes over commits that only remove, ``ignore_changes`` also hands out what a rewrite added
    (rows that were there before come again), ``skip_change_commits`` passes over all of them.
    """

    max_files: int | None = _MAX_FILES
    max_bytes: int | None = None
    starting_version: int | str | None = None
    starting_timestamp: int | None = None
    ignore_deletes: bool = False
    ignore_changes: bool = False
    skip_change_commits: bool = False
    fail_on_data_loss: bool = True
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        if self.starting_version is not None and self.starting_timestamp is not None:
            raise OptionError("startingVersion and startingTimestamp exclude each other", hint="give one of them")

    @classmethod
    def from_spark(cls, options: Mapping[str, str]) -> StreamOptions:
        """Read the options of Spark's reader; an unknown one is an error, as it may be a typo."""
        values: dict[str, Any] = {}
        storage: dict[str, str] = {}
        for given, text in options.items():
            key = given.lower()
            if key.startswith(_STORAGE):
                storage[key.removeprefix(_STORAGE)] = text
            elif key in _NAMES:
                spelled, name, read = _NAMES[key]
                values[name] = read(spelled, text)
            elif key in _OF_BATCHES:
                message = f"The option {given!r} makes no sense for a stream"
                raise OptionError(message, hint=_OF_BATCHES[key])
            elif key != "path":
                known = ", ".join(spelled for spelled, _, _ in _NAMES.values())
                raise OptionError(f"There is no option {given!r}", hint=f"known are {known} and storage.…")
        return cls(**values, storage_options=storage)


def _flag(spelled: str, text: str) -> bool:
    if text.strip().lower() not in {"true", "false"}:
        raise OptionError(f"{spelled}={text!r} makes no sense", hint="say true or false")
    return text.strip().lower() == "true"


def _number(spelled: str, text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise OptionError(f"{spelled}={text!r} makes no sense", hint="give a number from 1")
    return int(text)


def _bytes(spelled: str, text: str) -> int:
    match = _SIZE.fullmatch(text)
    size = 0 if match is None else int(match[1]) * _FACTORS[match[2].lower()]
    if size < 1:
        raise OptionError(f"{spelled}={text!r} makes no sense", hint="give bytes, or a size such as 128MB")
    return size


def _version(spelled: str, text: str) -> int | str:
    if text.strip().lower() == LATEST:
        return LATEST
    if not text.strip().isdecimal():
        raise OptionError(f"{spelled}={text!r} makes no sense", hint="give a version, or latest")
    return int(text)


def _moment(_: str, text: str) -> int:
    return milliseconds(text)


_NAMES: dict[str, tuple[str, str, Callable[[str, str], Any]]] = {
    spelled.lower(): (spelled, name, read)
    for spelled, name, read in (
        ("maxFilesPerTrigger", "max_files", _number),
        ("maxBytesPerTrigger", "max_bytes", _bytes),
        ("startingVersion", "starting_version", _version),
        ("startingTimestamp", "starting_timestamp", _moment),
        ("ignoreDeletes", "ignore_deletes", _flag),
        ("ignoreChanges", "ignore_changes", _flag),
        ("skipChangeCommits", "skip_change_commits", _flag),
        ("failOnDataLoss", "fail_on_data_loss", _flag),
    )
}
