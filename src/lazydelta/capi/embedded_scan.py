"""The Python half of ``libdelta_lazy``: scans that pass their files to C functions."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

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
from lazydelta.protocol.actions import DeletionVector
from lazydelta.protocol.deletion_vectors import read_deletion_vector
from lazydelta.runtime.metrics import ScanMetrics
from lazydelta.scan.file import FILES_SCHEMA
from lazydelta.scan.stream import FileStream
from lazydelta.sidecar.handle import TableHandle, snapshot_of
from lazydelta.table.delta_table import table_at

__all__ = ["define"]

_DONE = 1
_CANCELLED, _INTERNAL = -6, -7
# The first match counts: a missing version is also a log error.
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
_VECTORS = "handles_deletion_vectors"
_OPEN = "\1"  # begins the name of an open table
_HANDLES = 64  # tables whose connections are kept for the next call
_METRICS = 1_000  # named scans whose metrics are kept
_PIECE = 1 << 16  # positions of deleted rows that are handed over at once
_ROWS = frozenset({"where", "limit", "columns"})
_TABLE = frozenset({"version", "storage_options", "external_locations", "options"})
_OTHER = frozenset({"of", "scan_id"})


class _Options(msgspec.Struct, omit_defaults=True):
    """The options with their types. Which of them a call accepts is checked by name."""

    where: str | dict[str, Any] | list[Any] | None = None
    limit: int | None = None
    row_limit: int | None = None
    strategy: Literal["auto", "reverse", "forward"] | None = None
    stats_columns: list[str] | None = None
    columns: list[str] | None = None
    version: int | str | None = None
    storage_options: dict[str, str] | None = None
    external_locations: dict[str, dict[str, str] | None] | None = None
    handles_deletion_vectors: bool | None = None
    options: dict[str, Any] | None = None
    of: str | None = None
    scan_id: str | None = None


class _Stopped(threading.Event):
    """Whether a scan was stopped, also for the half that is in C."""

    def __init__(self, flag: Any) -> None:
        super().__init__()
        self._seen_by_c = flag

    def set(self) -> None:
        super().set()
        if self._seen_by_c is not None:
            self._seen_by_c[0] = 1


class _Scans:
    """The running scans by name, so that callers can stop them."""

    def __init__(self) -> None:
        self._running: dict[str | None, list[tuple[Any, _Stopped]]] = {}
        self._metrics: dict[str, ScanMetrics] = {}
        self._lock = threading.Lock()

    def begin(self, name: str | None, stream: Any, flag: Any = None) -> _Stopped:
        """Register a scan. Return the event that is set when it is stopped; ``flag`` is C's own."""
        stopped = _Stopped(flag)
        with self._lock:
            self._running.setdefault(name, []).append((stream, stopped))
            if name is not None and isinstance(stream, FileStream):
                self._metrics.pop(name, None)
                self._metrics[name] = stream.metrics
                while len(self._metrics) > _METRICS:
                    del self._metrics[next(iter(self._metrics))]
        return stopped

    def metrics(self, name: str) -> dict[str, Any]:
        """Return the metrics of the newest scan of files with a name."""
        with self._lock:
            found = self._metrics.get(name)
        if found is None:
            raise OptionError(f"There was no scan of files {name!r}", hint="pass the scan_id of an earlier scan")
        return found.as_dict()

    def end(self, name: str | None, stopped: _Stopped) -> None:
        """Unregister a scan."""
        with self._lock:
            left = [each for each in self._running.get(name, []) if each[1] is not stopped]
            if left:
                self._running[name] = left
            else:
                self._running.pop(name, None)

    def stop(self, name: str | None) -> int:
        """Stop the scans with a name, or all of them. Return how many there were."""
        with self._lock:
            every = [each for scans in self._running.values() for each in scans]
            found = every if name is None else list(self._running.get(name, []))
            for _, stopped in found:
                stopped.set()  # under the lock: C's flag is gone once the scan is unregistered
        for stream, _ in found:
            stream.close()
        return len(found)


_SCANS = _Scans()


class _Tables:
    """Tables that C keeps open, and the handles of those that were opened last, with their connections."""

    def __init__(self) -> None:
        self._open: dict[str, DeltaTable] = {}
        self._handles: dict[bytes, TableHandle] = {}
        self._count = 0
        self._lock = threading.Lock()

    def handle(self, table: str, asked: Mapping[str, Any]) -> TableHandle:
        """Return the handle of a table; calls with the same options share it."""
        given = _chosen(asked, _TABLE - {"version"})
        key = msgspec.json.encode([table, given], order="deterministic")
        with self._lock:
            known = self._handles.pop(key, None)
        found = known or TableHandle.open(
            table,
            given.get("storage_options"),
            given.get("options"),
            external_locations=given.get("external_locations"),
        )
        with self._lock:
            self._handles[key] = found
            while len(self._handles) > _HANDLES:
                del self._handles[next(iter(self._handles))]
        return found

    def open(self, table: str, asked: Mapping[str, Any]) -> str:
        """Open a table and return the name that C knows it by."""
        opened = table_at(self.handle(table, asked), asked.get("version"))
        with self._lock:
            self._count += 1
            name = f"{_OPEN}{self._count}"
            self._open[name] = opened
        return name

    def get(self, name: str) -> DeltaTable:
        """Return an open table."""
        with self._lock:
            found = self._open.get(name)
        if found is None:
            raise OptionError("The table was closed", hint="open the table again")
        return found

    def refresh(self, name: str) -> None:
        """Move an open table to its newest version; scans under way keep theirs."""
        known = self.get(name)
        newest = table_at(snapshot_of(known).table)
        with self._lock:
            if name in self._open:
                self._open[name] = newest

    def close(self, name: str) -> None:
        """Forget an open table."""
        with self._lock:
            self._open.pop(name, None)


_TABLES = _Tables()


def define(ffi: Any) -> None:  # noqa: C901 - one small function for each that C calls
    """Define the functions that C calls."""

    def told(call: Callable[..., int]) -> Callable[..., int]:
        def answered(*arguments: Any) -> int:
            error, size = arguments[-2:]
            try:
                return call(*arguments[:-2])
            except BaseException as raised:  # noqa: BLE001 - C has no exceptions
                # Cut between characters. C strings end at a zero byte.
                shown = _words(raised).replace("\0", " ").encode("utf-8", "replace")[: size - 1]
                shown = shown.decode("utf-8", "ignore").encode()
                ffi.memmove(error, shown + b"\0", len(shown) + 1)
                return _code(raised)

        return answered

    def text(pointer: Any) -> str | None:
        return None if pointer == ffi.NULL else _decoded(ffi.string(pointer))

    def flag(address: int) -> Any:
        return ffi.cast("int *", address) if address else None

    def simple(table: Any, predicate: Any, limit: int, out: int, cancelled: int) -> int:
        where = _json(text(predicate), "the predicate")
        asked = _checked({"where": where, "limit": limit or None})
        return _export(str(text(table)), asked, out, flag(cancelled))

    def objects(table: Any, options: Any, callback: Any, user_data: Any) -> int:
        asked = _options(text(options))
        return _files(
            str(text(table)), asked, lambda file: callback(msgspec.json.encode(file, enc_hook=str), user_data)
        )

    def stream(table: Any, options: Any, out: int, cancelled: int) -> int:
        asked = _options(text(options))
        if cancelled and (asked.get("stats_columns") or asked.get("of") not in {None, "files"}):
            raise OptionError("A struct carries neither rows nor column statistics", hint="use delta_scan_stream")
        return _export(str(text(table)), asked, out, flag(cancelled))

    def vector(*given: Any) -> int:
        table, options, path, kind, stored = (str(text(each) or "") for each in given[:5])
        offset, size, cardinality, callback, user_data = given[5:]
        described = DeletionVector(
            storage_type=kind,
            path_or_inline_dv=stored,
            offset=None if offset < 0 else offset,
            size_in_bytes=size,
            cardinality=cardinality,
        )
        for rows in _deleted_rows(table, _options(options), path, described):
            if not callback(ffi.from_buffer("uint64_t[]", rows), len(rows), user_data):
                break
        return _DONE

    def open_table(table: Any, options: Any, out: Any, size: int) -> int:
        asked = _options(text(options))
        _check_table(asked)
        name = _TABLES.open(str(text(table)), asked).encode() + b"\0"
        if len(name) > size:
            raise OptionError("There are too many tables", hint="close tables that are no longer needed")
        ffi.memmove(out, name, len(name))
        return _DONE

    def close_table(name: Any) -> int:
        _TABLES.close(str(text(name)))
        return _DONE

    def refresh(name: Any) -> int:
        _TABLES.refresh(str(text(name)))
        return _DONE

    def metrics(name: Any, out: Any, size: int) -> int:
        found = msgspec.json.encode(_SCANS.metrics(str(text(name))))
        if len(found) < size:
            ffi.memmove(out, found + b"\0", len(found) + 1)
        return len(found) + 1

    def cancel(name: Any) -> int:
        return _SCANS.stop(str(text(name))) + 1

    def stop() -> int:
        return _SCANS.stop(None) + 1

    calls: dict[str, Callable[..., int]] = {"simple": simple, "objects": objects, "stream": stream, "vector": vector}
    calls |= {"open": open_table, "close": close_table, "refresh": refresh, "metrics": metrics}
    calls |= {"cancel": cancel, "start": _start, "stop": stop}
    for name, call in calls.items():
        ffi.def_extern(name=f"lazydelta_{name}")(told(call))


def _start() -> int:
    # Load these before the library registers its exit handler; see delta_lazy.c.
    for module in ("signal", "obstore", "pyarrow.compute", "pyarrow.dataset", "pyarrow.parquet"):
        importlib.import_module(module)
    return _DONE


def _decoded(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise OptionError(
            f"A string is not UTF-8: {error.reason} at byte {error.start}", hint="encode it as UTF-8"
        ) from None


def _files(table: str, asked: Mapping[str, Any], take: Callable[[dict[str, Any]], bool]) -> int:
    """Pass files to the callback one by one until they end or it stops."""
    name = asked.get("scan_id")
    _check(asked, _FILES | {_VECTORS})
    if asked.get("of") not in {None, "files"}:
        raise OptionError(f"A callback is given files, not {asked['of']!r}", hint="use delta_scan_stream for rows")
    with _opened(table, asked).files(**_chosen(asked, _FILES)) as stream:
        stopped = _SCANS.begin(name, stream)
        try:
            for file in _records(_admitted(stream.batches(), asked)):
                if stopped.is_set() or not take(file):
                    break
        except LazyDeltaError:
            if not stopped.is_set():
                raise
        finally:
            _SCANS.end(name, stopped)
        if stopped.is_set():
            raise _cancelled(name)
    return _DONE


def _admitted(batches: Iterator[pa.RecordBatch], asked: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
    """Yield the batches; raise on a file with a deletion vector, unless the caller says that it handles them."""
    for batch in batches:
        vectors = batch.column("deletion_vector")
        if vectors.null_count < len(vectors) and not asked.get(_VECTORS):
            path = batch.column("path").filter(vectors.is_valid())[0].as_py()
            message = f"{path} has a deletion vector: reading the file alone returns deleted rows"
            hint = (
                'use delta_scan_files with "handles_deletion_vectors": true and skip the rows that '
                'delta_deletion_vector_rows names, or read "of": "rows"'
            )
            raise UnsupportedFeatureError(message, hint=hint)
        yield batch


def _deleted_rows(table: str, asked: Mapping[str, Any], path: str, vector: DeletionVector) -> Iterator[Any]:
    """Yield the positions of the deleted rows of a file, in pieces."""
    _check_table(asked, without="version")
    handle = _TABLES.handle(table, asked)
    return read_deletion_vector(handle.store, vector, data_file=path).pieces(_PIECE)


def _check_table(asked: Mapping[str, Any], without: str | None = None) -> None:
    known = _TABLE - {without}
    if unknown := set(asked) - known:
        raise OptionError(f"There is no option {min(unknown)!r}", hint=f"known: {', '.join(sorted(known))}")


def _export(table: str, asked: Mapping[str, Any], out: int, flag: Any = None) -> int:
    of = asked.get("of", "files")
    if of not in {"files", "rows"}:
        raise OptionError(f"A stream is of files or rows, not of {of!r}", hint='write "of": "rows"')
    known = _ROWS if of == "rows" else _FILES
    _check(asked, known if of == "rows" else known | {_VECTORS})
    opened = _opened(table, asked)
    stream: Any = opened.rows(**_chosen(asked, known)) if of == "rows" else opened.files(**_chosen(asked, known))
    name = asked.get("scan_id")
    stopped = _SCANS.begin(name, stream, flag)
    try:
        batches = iter(stream) if of == "rows" else _admitted(stream.batches(), asked)
        # The columns of files are known with the first batch: it includes the requested statistics.
        first = None if of == "rows" else next(batches, None)
        schema = stream.schema if of == "rows" else FILES_SCHEMA if first is None else first.schema
    except BaseException:
        _SCANS.end(name, stopped)
        stream.close()
        raise

    def pulled() -> Iterator[pa.RecordBatch]:
        try:
            yield from _after(first, batches)
        except Exception as error:  # noqa: BLE001 - C has no exceptions
            raise _for_c(_cancelled(name) if stopped.is_set() else error) from None
        else:
            if stopped.is_set():
                raise _for_c(_cancelled(name))
        finally:
            _SCANS.end(name, stopped)
            stream.close()

    pa.RecordBatchReader.from_batches(schema, pulled())._export_to_c(out)  # noqa: SLF001 - PyArrow's name for it
    return _DONE


def _cancelled(name: str | None) -> StreamClosedError:
    return StreamClosedError("The scan was cancelled" if name is None else f"The scan {name!r} was cancelled")


def _for_c(error: Exception) -> RuntimeError:
    """Return an error with a code. Arrow adds the Python traceback, which `stream_end` in delta_lazy.c cuts off."""
    return RuntimeError(f"\2{_code(error)}\2{_words(error)}\3")


def _words(error: BaseException) -> str:
    """Return the message of an error on one line."""
    words = str(error) if isinstance(error, LazyDeltaError) else f"{type(error).__name__}: {error}"
    return " ".join(words.split())


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
    if not table.startswith(_OPEN):
        return table_at(_TABLES.handle(table, asked), asked.get("version"))
    if given := sorted(_chosen(asked, _TABLE)):
        raise OptionError(f"{given[0]} is an option of delta_lazy_open", hint="pass it when opening the table")
    return _TABLES.get(table)


def _chosen(asked: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any]:
    return {name: asked[name] for name in names if asked.get(name) is not None}


def _check(asked: Mapping[str, Any], known: frozenset[str]) -> None:
    if unknown := set(asked) - known - _TABLE - _OTHER:
        names = ", ".join(sorted(known | _TABLE | _OTHER))
        raise OptionError(f"There is no option {min(unknown)!r}", hint=f"known: {names}")


def _options(text: str | None) -> dict[str, Any]:
    found = _json(text, "the options")
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise OptionError("The options are not a JSON object", hint='write {"limit": 10}')
    _checked(found)
    return found


def _checked(asked: dict[str, Any]) -> dict[str, Any]:
    """Return the options after checking their types."""
    try:
        msgspec.convert(asked, _Options)
    except msgspec.ValidationError as error:
        raise OptionError(f"An option has a value of the wrong type: {error}", hint="delta_lazy.h lists them") from None
    for name in ("limit", "row_limit"):
        if (asked.get(name) or 0) < 0:
            raise OptionError(f"{name} is negative", hint="pass a number of at least 0")
    return asked


def _json(text: str | None, what: str) -> Any:
    if not text:
        return None
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise OptionError(f"{what.capitalize()} cannot be read as JSON: {error}", hint="pass a JSON object") from error


def _code(error: BaseException) -> int:
    return next((code for kind, code in _CODES if isinstance(error, kind)), _INTERNAL)
