"""What deltalake's tables can do and ours cannot: each name is here, and says so.

A name that is missing looks like a mistake; one that raises tells whoever changed an import what to write instead.
Both packages may work on one table at the same time: each sees the other's commits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from lazydelta.errors import UnsupportedOperationError

__all__ = ["LeftToDeltalake", "enable_nanosecond_timestamps", "init_tracing", "refuse", "rust_core_version"]


def refuse(name: str, purpose: str) -> NoReturn:
    """Say that something is deltalake's to do."""
    message = f"lazydelta does not {purpose}, so there is no {name}"
    hint = f"deltalake does: use deltalake's {name} on the same table; both packages may share a table"
    raise UnsupportedOperationError(message, hint=hint)


def _method(name: str, purpose: str) -> Callable[..., NoReturn]:
    def method(self: object, *_: Any, **__: Any) -> NoReturn:  # noqa: ARG001 - whatever deltalake's takes
        refuse(f"DeltaTable.{name}", purpose)

    method.__name__ = name
    method.__qualname__ = f"DeltaTable.{name}"
    method.__doc__ = f"Refuse to {purpose}: deltalake does this, and both may share a table."
    return method


class _Noun:
    """What stands for ``table.alter``: whatever is called on it says that deltalake has it."""

    def __init__(self, name: str, purpose: str) -> None:
        self._name = name
        self._purpose = purpose

    def __getattr__(self, verb: str) -> Callable[..., NoReturn]:
        if verb.startswith("__"):
            raise AttributeError(verb)  # who copies or inspects it asks for such names, and means no operation
        name, purpose = f"DeltaTable.{self._name}.{verb}", self._purpose
        return lambda *_, **__: refuse(name, purpose)

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        refuse(f"DeltaTable.{self._name}", self._purpose)


def _noun(name: str, purpose: str) -> property:
    return property(lambda _: _Noun(name, purpose), doc=f"Refuse to {purpose}: deltalake does this.")


class LeftToDeltalake:
    """The methods that deltalake's tables have beside ours; each raises `UnsupportedOperationError`."""

    alter = _noun("alter", "change columns, constraints and properties of a table")
    compact_logs = _method("compact_logs", "combine commits of the log")
    generate = _method("generate", "write manifests for Presto and Athena")
    merge = _method("merge", "merge rows into a table")
    repair = _method("repair", "drop files from the log that are not there")
    restore = _method("restore", "bring an older version back")


def enable_nanosecond_timestamps() -> NoReturn:
    """Refuse nanosecond timestamps, an experiment of delta-rs that no other reader knows."""
    refuse("enable_nanosecond_timestamps", "read or write nanosecond timestamps")


def _disable_nanosecond_timestamps() -> None:
    """Do nothing: they are never on."""


def _nanosecond_timestamps_enabled() -> bool:
    return False


def init_tracing(endpoint: str | None = None) -> NoReturn:  # noqa: ARG001 - deltalake's parameter
    """Refuse to trace delta-rs; `lazydelta.telemetry` hands the metrics of scans to OpenTelemetry."""
    refuse("init_tracing", "trace delta-rs")


def rust_core_version() -> NoReturn:
    """Refuse to name a version of delta-rs: there is none in lazydelta."""
    refuse("rust_core_version", "use delta-rs")
