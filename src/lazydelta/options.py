"""The options of a table or a scan, from a mapping or from the environment, never from the table itself."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from lazydelta.errors import OptionError

__all__ = ["Options"]

_Positive = Annotated[int, msgspec.Meta(ge=1)]
_Seconds = Annotated[float, msgspec.Meta(ge=0)]
_MB = 1 << 20
_FILE_BYTES = 2_000


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every option with its default.

    The dotted names are the documented ones. Environment variables are the same names in upper case with underscores,
    prefixed with ``DELTA_`` if they do not begin with ``delta.`` (``DELTA_COMMIT_PARALLELISM``, ``DELTA_BATCH_SIZE``).
    """

    sidecar_enabled: bool = msgspec.field(default=True, name="delta.sidecar.enabled")
    commit_parallelism: _Positive | None = msgspec.field(default=None, name="delta.commit.parallelism")
    sidecar_row_groups_per_batch: _Positive = msgspec.field(default=5, name="delta.sidecar.row_groups_per_batch")
    use_manifest: bool = True
    project_columns: bool = True
    prune_row_groups: bool = True
    reverse_window: _Positive = msgspec.field(default=1000, name="delta.reverse.window")
    open_prefetched_versions: Annotated[int, msgspec.Meta(ge=0, le=100)] = msgspec.field(
        default=10, name="delta.open.prefetched_versions"
    )
    batch_size: _Positive = 8192
    remove_set_memory_limit: _Positive = 64 * _MB
    memory_budget: _Positive = 150 * _MB
    cache_size: Annotated[int, msgspec.Meta(ge=0)] = 64 * _MB
    enable_fallback: bool = True
    checksum: Literal["warn", "error", "off"] = "warn"
    max_staleness: _Seconds = 0.0
    float_max: Literal["ignore", "trust"] = "ignore"
    page_checksums: Literal["ignore", "verify"] = "ignore"
    page_sizes: Literal["any", "footers", "pages"] = "any"
    retries: Annotated[int, msgspec.Meta(ge=0)] = 5
    request_timeout: _Seconds = 30.0

    @property
    def rows_in_memory(self) -> int:
        """Return how many files a batch may hold so that a scan stays within its memory budget.

        A file with its statistics takes about 2 kB while it is decoded, and up to eight batches are alive at once.
        """
        return min(self.batch_size, max(64, self.memory_budget // (8 * _FILE_BYTES)))

    @property
    def keys_in_memory(self) -> int:
        """Return how many bytes the keys of the tail may take before they spill to disk."""
        return min(self.remove_set_memory_limit, self.memory_budget // 2)

    @classmethod
    def load(cls, given: Mapping[str, Any] | None = None, env: Mapping[str, str] | None = None) -> Options:
        """Merge the given options over the environment over the defaults."""
        environment = os.environ if env is None else env
        values: dict[str, Any] = {
            name: environment[variable] for name in _NAMES if (variable := _variable(name)) in environment
        }
        return cls._checked(_limiting_pages(values | _named(given)))

    def changed(self, given: Mapping[str, Any]) -> Options:
        """Return these options overridden by the options of one call."""
        named = _named(given)
        changes = _limiting_pages(named) if self.page_sizes == "any" else named
        return self._checked(msgspec.to_builtins(self) | changes)

    @classmethod
    def _checked(cls, values: dict[str, Any]) -> Options:
        try:
            # Not strict: environment variables and mappings like storage options hold strings.
            return msgspec.convert(values, cls, strict=False)
        except msgspec.ValidationError as error:
            raise OptionError(f"A bad option: {error}", hint=_allowed(str(error))) from error


def _limiting_pages(given: dict[str, Any]) -> dict[str, Any]:
    """Return the given options; a budget that is given limits the pages of data files too."""
    return {"page_sizes": "footers"} | given if "memory_budget" in given else given


def _allowed(error: str) -> str | None:
    """Return the allowed values of the option that the error names, if it has a fixed set."""
    for name, kind in get_type_hints(Options).items():
        if get_origin(kind) is Literal and f"`$.{_spelled(name)}`" in error:
            return f"{_spelled(name)} is one of {', '.join(map(repr, get_args(kind)))}"
    return None


def _spelled(field: str) -> str:
    return _NAMES[Options.__struct_fields__.index(field)]


_NAMES = Options.__struct_encode_fields__
# Aliases of options.
_ALSO_CALLED = {"commit_read_parallelism": "delta.commit.parallelism"}
# Hints for options that do not exist but that users may expect.
_INSTEAD = {
    "checkpoint_row_groups_per_batch": (
        "some writers make one row group of a whole checkpoint, so it is read page by page: memory_budget says how "
        "much at once; for a sidecar it is delta.sidecar.row_groups_per_batch"
    )
}


def _named(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the given options under their documented names; raise on an unknown name."""
    values: dict[str, Any] = {}
    for key, value in (given or {}).items():
        name = _ALSO_CALLED.get(key, key)
        if name not in _NAMES:
            raise OptionError(f"There is no option {key!r}", hint=_INSTEAD.get(key) or _near(key))
        if name in values and values[name] != value:
            raise OptionError(
                f"The option {name!r} is given twice: {values[name]!r} and {value!r}", hint="pass one of them"
            )
        values[name] = value
    return values


def _near(key: str) -> str:
    import difflib  # noqa: PLC0415 - only needed for errors

    near = difflib.get_close_matches(key, _NAMES, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known options: {', '.join(_NAMES)}"


def _variable(name: str) -> str:
    dotted = name if name.startswith("delta.") else f"delta.{name}"
    return dotted.replace(".", "_").upper()
