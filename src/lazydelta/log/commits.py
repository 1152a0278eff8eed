"""Lines of JSON actions, read chunk by chunk: a commit of a million adds is never held whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from lazydelta.errors import CorruptLogError, MissingCommitError, ObjectNotFoundError, StorageError
from lazydelta.log.actions import LogLine
from lazydelta.log.names import FileKind, LogFile
from lazydelta.storage import Store

__all__ = ["CHUNK_SIZE", "decode_actions", "read_actions"]

CHUNK_SIZE = 1 << 20
# No honest action comes near this; without a bound, a file without line ends would be read into memory whole.
_MAX_LINE = 256 << 20

_decoder = msgspec.json.Decoder(LogLine)


def read_actions(store: Store, file: LogFile) -> Iterator[list[LogLine]]:
    """Yield the actions of a JSON log file in lists of about one chunk; small files take a single request."""
    try:
        if 0 <= file.info.size <= CHUNK_SIZE:
            # A commit never changes; a checkpoint may be replaced, and is read more than once.
            etag = file.info.etag if file.kind is FileKind.CHECKPOINT else None
            yield from decode_actions([bytes(store.get(file.path, if_match=etag))], file.path, file.version)
            return
        stream = store.stream(file.path, chunk_size=CHUNK_SIZE)
        try:
            yield from decode_actions(_not_empty(stream, file), file.path, file.version)
        finally:
            stream.close()
    except ObjectNotFoundError as error:
        message = f"{file.path} was listed and is gone: the log was cleaned up or the table replaced meanwhile"
        raise MissingCommitError(message, path=file.path, version=file.version, hint="open the table again") from error
    except StorageError as error:
        error.version = file.version
        raise


def _not_empty(chunks: Iterable[bytes], file: LogFile) -> Iterator[bytes]:
    empty = True
    for chunk in chunks:
        empty = empty and not chunk
        yield chunk
    if empty:
        raise CorruptLogError(f"{file.path} is an empty commit", path=file.path, version=file.version)


def decode_actions(chunks: Iterable[bytes], path: str, version: int) -> Iterator[list[LogLine]]:
    """Decode chunks of a JSON log file; an undecodable line is an error that names the file and the line."""
    line_number = 1
    pieces: list[bytes] = []
    held = 0
    for chunk in chunks:
        data = bytes(chunk)
        cut = data.rfind(b"\n") + 1
        if cut == 0:
            pieces.append(data)
            held += len(data)
            if held > _MAX_LINE:
                message = f"{path} has a line of more than {_MAX_LINE} bytes at line {line_number}"
                raise CorruptLogError(message, path=path, version=version)
            continue
        lines = b"".join([*pieces, data[:cut]])
        yield _decode(lines, path, version, line_number)
        line_number += lines.count(b"\n")
        pieces = [data[cut:]]
        held = len(data) - cut
    rest = b"".join(pieces)
    if rest.strip():
        yield _decode(rest, path, version, line_number)


def _decode(lines: bytes, path: str, version: int, first_line: int) -> list[LogLine]:
    try:
        return _decoder.decode_lines(lines)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        number, error = _first_bad_line(lines, first_line)
        message = f"{path} cannot be decoded at line {number}: {error}"
        hint = "the file is damaged or was not written by a Delta writer"
        raise CorruptLogError(message, path=path, version=version, hint=hint) from error


def _first_bad_line(lines: bytes, first_line: int) -> tuple[int, Exception]:
    for number, line in enumerate(lines.split(b"\n"), first_line):
        if not line.strip():
            continue
        try:
            _decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            return number, error
    return first_line, ValueError("the lines decode one by one but not together")
