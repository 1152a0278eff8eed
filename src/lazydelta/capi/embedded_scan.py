"""What ``libdelta_lazy`` does once its Python runs: scans, whose files go to functions of C."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
import pyarrow as pa

from lazydelta import DeltaTable
from lazydelta.errors import (
    DataFileError,
    LazyDeltaError,
    LogError,
    OptionError,
    PredicateError,
    StorageError,
    StreamClosedError,
    TableNotFoundError,
    UnsupportedFeatureError,
    VersionNotFoundError,
)
from lazydelta.scan.files_schema import FILES_SCHEMA

__all__ = ["define"]

_DONE = 1
_CANCELLED, _INTERNAL = -6, -7
# The first that fits; a version that is not there is an error of the log, too.
_CODES: tuple[tuple[type[LazyDeltaError], int], ...] = (
    (OptionError, -1),
    (PredicateError, -1),
    (TableNotFoundError, -3),
    (VersionNotFoundError, -3),
    (StorageError, -2),
    (LogError, -4),
    (DataFileError, -4),
    (UnsupportedFeatureError, -5),
    (StreamClosedError, _CANCELLED),
)
_FILES = frozenset({"where", "limit", "row_limit", "strategy", "stats_columns"})
_ROWS = frozenset({"where", "limit", "columns"})
_TABLE = frozenset({"version", "storage_options", "options"})
_OTHER = frozenset({"of", "scan_id"})


class _Scans:
    """The scans that are running under a name, for whoever wants to stop them."""

    def __init__(self) -> None:
        self._running: dict[str, list[tuple[Any, threading.Event]]] = {}
        self._lock = threading.Lock()

    def begin(self, name: str | None, stream: Any) -> threading.Event:
        """Remember a scan; return what is set when it is stopped."""
        stopped = threading.Event()
        if name is not None:
            with self._lock:
                self._running.setdefault(name, []).append((stream, stopped))
        return stopped

    def end(self, name: str | None, stopped: threading.Event) -> None:
        """Forget a scan."""
        if name is None:
            return
        with self._lock:
            left = [each for each in self._running.get(name, []) if each[1] is not stopped]
            if left:
                self._running[name] = left
            else:
                self._running.pop(name, None)

    def stop(self, name: str) -> int:
        """Stop the scans of a name; return how many there were."""
        with self._lock:
            found = list(self._running.get(name, []))
        for stream, stopped in found:
            stopped.set()
            stream.close()
        return len(found)


_SCANS = _Scans()


def define(ffi: Any) -> None:
    """Put functions behind the names that C calls."""

    def told(call: Callable[..., int]) -> Callable[..., int]:
        def answered(*arguments: Any) -> int:
            error, size = arguments[-2:]
            try:
                return call(*arguments[:-2])
            except BaseException as raised:  # noqa: BLE001 - C has no exceptions
                words = str(raised) if isinstance(raised, LazyDeltaError) else f"{type(raised).__name__}: {raised}"
                # Cut at a character, and C's texts end at a zero.
                shown = words.replace("\0", " ").encode("utf-8", "replace")[: size - 1]
                shown = shown.decode("utf-8", "ignore").encode()
                ffi.memmove(error, shown + b"\0", len(shown) + 1)
                return _code(raised)

        return answered

    def text(pointer: Any) -> str | None:
        return None if pointer == ffi.NULL else ffi.string(pointer).decode("utf-8")

    def files(table: Any, predicate: Any, limit: int, callback: Any) -> int:
        where = _json(text(predicate), "the predicate")
        asked = {"where": where, "limit": limit or None}
        return _files(str(text(table)), asked, lambda file: callback(file["path"].encode(), file["size"]))

    def objects(table: Any, options: Any, callback: Any, user_data: Any) -> int:
        asked = _options(text(options))
        return _files(
            str(text(table)), asked, lambda file: callback(msgspec.json.encode(file, enc_hook=str), user_data)
        )

    def stream(table: Any, options: Any, out: int) -> int:
        return _export(str(text(table)), _options(text(options)), out)

    def cancel(name: Any) -> int:
        return _SCANS.stop(str(text(name))) + 1

    for name, call in (("files", files), ("objects", objects), ("stream", stream), ("cancel", cancel)):
        ffi.def_extern(name=f"lazydelta_{name}")(told(call))


def _files(table: str, asked: Mapping[str, Any], take: Callable[[dict[str, Any]], bool]) -> int:
    """Hand files over one by one until they end or enough were taken."""
    name = asked.get("scan_id")
    _check(asked, _FILES)
    with _opened(table, asked).files(**_chosen(asked, _FILES)) as stream:
        stopped = _SCANS.begin(name, stream)
        try:
            for file in _records(stream.batches()):
                if stopped.is_set() or not take(file):
                    break
        except LazyDeltaError:
            if not stopped.is_set():
                raise
        finally:
            _SCANS.end(name, stopped)
        if stopped.is_set():
            raise StreamClosedError(f"The scan {name!r} was cancelled")
    return _DONE


def _export(table: str, asked: Mapping[str, Any], out: int) -> int:
    of = asked.get("of", "files")
    if of not in {"files", "rows"}:
        raise OptionError(f"A stream is of files or rows, not of {of!r}", hint='write "of": "rows"')
    known = _ROWS if of == "rows" else _FILES
    _check(asked, known)
    opened = _opened(table, asked)
    stream: Any = opened.rows(**_chosen(asked, known)) if of == "rows" else opened.files(**_chosen(asked, known))
    name = asked.get("scan_id")
    stopped = _SCANS.begin(name, stream)
    try:
        batches = iter(stream) if of == "rows" else stream.batches()
        # The columns of files are known with the first of them: statistics join where they were asked for.
        first = None if of == "rows" else next(batches, None)
        schema = stream.schema if of == "rows" else FILES_SCHEMA if first is None else first.schema
    except BaseException:
        _SCANS.end(name, stopped)
        stream.close()
        raise

    def pulled() -> Iterator[pa.RecordBatch]:
        try:
            yield from _after(first, batches)
            if stopped.is_set():
                raise StreamClosedError(f"The scan {name!r} was cancelled")
        finally:
            _SCANS.end(name, stopped)
            stream.close()

    pa.RecordBatchReader.from_batches(schema, pulled())._export_to_c(out)  # noqa: SLF001 - PyArrow's name for it
    return _DONE


def _after(first: pa.RecordBatch | None, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if first is not None:
        yield first
    yield from rest


def _records(batches: Iterator[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        for row in batch.to_pylist():
            row["partition_values"] = dict(row["partition_values"] or ())
            yield row


def _opened(table: str, asked: Mapping[str, Any]) -> DeltaTable:
    given = _chosen(asked, _TABLE)
    return DeltaTable(table, given.pop("version", None), given.pop("storage_options", None), **given)


def _chosen(asked: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any]:
    return {name: asked[name] for name in names if asked.get(name) is not None}


def _check(asked: Mapping[str, Any], known: frozenset[str]) -> None:
    if unknown := set(asked) - known - _TABLE - _OTHER:
        names = ", ".join(sorted(known | _TABLE | _OTHER))
        raise OptionError(f"There is no option {min(unknown)!r}", hint=f"known are {names}")


def _options(text: str | None) -> dict[str, Any]:
    found = _json(text, "the options")
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise OptionError("The options are no JSON object", hint='write {"limit": 10}')
    return found


def _json(text: str | None, what: str) -> Any:
    if not text:
        return None
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise OptionError(f"{what.capitalize()} cannot be read as JSON: {error}", hint="give a JSON object") from error


def _code(error: BaseException) -> int:
    return next((code for kind, code in _CODES if isinstance(error, kind)), _INTERNAL)
