"""Ways to damage the commits of a log, each with what a reader may make of it.

A mutator takes a fresh :class:`Victim`, damages its files and returns a :class:`Mutant`: which object was damaged, and
whether a reader must refuse, must give the right answer, or may do either.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from tests.oracle.victim import Mutant, Verdict, Victim

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tests.oracle.replay import Json

Mutator: TypeAlias = "Callable[[Victim], Mutant]"

DEPTH = 20_000
DEEP_LIST = "[" * DEPTH + "]" * DEPTH
DEEP_OBJECT = '{"a":' * DEPTH + "1" + "}" * DEPTH


def refuse(*paths: Path) -> Mutant:
    """Say that a reader must refuse and name one of these objects."""
    return Mutant(Verdict.MUST_ERROR, tuple(path.name for path in paths))


def _raw(action: str, field: str, text: str) -> Callable[[bytes], bytes]:
    """Return a change of a line that puts raw JSON text in a field, which no JSON writer of ours would emit."""

    def change(line: bytes) -> bytes:
        body = json.loads(line)
        body[action][field] = "@@raw@@"
        return json.dumps(body).encode().replace(b'"@@raw@@"', text.encode())

    return change


# Text that is no JSON, no UTF-8, or not all there.


def cut_line(victim: Victim) -> Mutant:
    """Cut one line in its middle and leave the others."""
    cut = victim.rng.random()
    return refuse(victim.edit_line("add", lambda line: line[: max(1, int(len(line) * cut))]))


def cut_file(victim: Victim) -> Mutant:
    """Cut a commit inside its last line."""
    path = victim.commit()
    data = path.read_bytes().rstrip(b"\n")
    last = data.rindex(b"\n") + 1
    path.write_bytes(data[: victim.rng.randrange(last + 1, len(data))])
    return refuse(path)


def cut_at_line(victim: Victim) -> Mutant:
    """Cut a commit between two lines: shorter, and still a commit."""
    path = victim.commit()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[: victim.rng.randrange(1, len(lines))]))
    return Mutant(Verdict.MUST_EQUAL, (path.name,), victim.damaged())


def empty_commit(victim: Victim) -> Mutant:
    """Leave a commit without a byte, as an interrupted upload does."""
    path = victim.commit()
    path.write_bytes(b"")
    return refuse(path)


def blank_commit(victim: Victim) -> Mutant:
    """Leave a commit of empty lines."""
    path = victim.commit()
    path.write_bytes(b"\n" * victim.rng.randrange(1, 9))
    return Mutant(Verdict.EITHER, (path.name,), victim.damaged())


def random_commit(victim: Victim) -> Mutant:
    """Replace a commit by random bytes."""
    path = victim.commit()
    path.write_bytes(b"\xff" + victim.rng.randbytes(victim.rng.randrange(1, 4000)))
    return refuse(path)


def invalid_utf8(victim: Victim) -> Mutant:
    """Put bytes that are no UTF-8 into a path."""
    bad = victim.rng.choice([b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80"])
    return refuse(victim.edit_line("add", lambda line: line.replace(b"file-", b"fi" + bad + b"le-")))


def utf16_commit(victim: Victim) -> Mutant:
    """Encode a commit as UTF-16."""
    path = victim.commit()
    path.write_bytes(path.read_bytes().decode().encode("utf-16"))
    return refuse(path)


def byte_order_mark(victim: Victim) -> Mutant:
    """Begin a commit with a UTF-8 byte order mark, as some editors do."""
    path = victim.commit()
    expected = victim.healthy()
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    return Mutant(Verdict.EITHER, (path.name,), expected)


def nul_bytes(victim: Victim) -> Mutant:
    """Overwrite the end of a commit with NUL, as a crashed file system does."""
    path = victim.commit()
    data = path.read_bytes()
    keep = victim.rng.randrange(1, len(data) - 1)
    path.write_bytes(data[:keep] + b"\0" * (len(data) - keep))
    return refuse(path)


def glued_lines(victim: Victim) -> Mutant:
    """Lose the line break between two actions: both are still whole."""
    path = victim.commit()
    path.write_bytes(path.read_bytes().replace(b"}\n{", b"}{", 1))
    return Mutant(Verdict.EITHER, (path.name,), victim.healthy())


def scalar_line(text: str, victim: Victim) -> Mutant:
    """Put a JSON value that is no object on a line."""
    return refuse(victim.edit_line("add", lambda _: text.encode()))


# Values of the wrong type, out of range, or absent.


def wrong_value(action: str, field: str, value: Any, victim: Victim) -> Mutant:
    """Put a value in a field that the field cannot hold."""
    return refuse(victim.edit(action, lambda body: body.update({field: value})))


def odd_value(action: str, field: str, value: Any, victim: Victim) -> Mutant:
    """Put a value in a field that a reader may take or refuse."""
    path = victim.edit(action, lambda body: body.update({field: value}))
    names = (path.name, "metadata of") if action == "metaData" else (path.name,)
    return Mutant(Verdict.EITHER, names, victim.damaged(), keys_only=True)


def odd_path(value: str, victim: Victim) -> Mutant:
    """Log a path that leads elsewhere: listing gives it as logged or refuses it, and touches nothing."""
    path = victim.edit("add", lambda body: body.update({"path": value}))
    return Mutant(Verdict.EITHER, (path.name, value[:40] or "''"), victim.damaged())


def raw_value(action: str, field: str, text: str, victim: Victim) -> Mutant:
    """Put raw text in a field, legal JSON that no 64-bit field can hold."""
    return refuse(victim.edit_line(action, _raw(action, field, text)))


def odd_stats(text: str, victim: Victim) -> Mutant:
    """Log statistics that do not make sense: the file must stay, what is known about it may go."""
    path = victim.edit("add", lambda body: body.update({"stats": text}))
    names = (path.name, "file-")
    return Mutant(Verdict.EITHER, names, victim.damaged(), keys_only=True)


def absent_field(action: str, field: str, victim: Victim) -> Mutant:
    """Leave out a field without which an action means nothing."""
    return refuse(victim.edit(action, lambda body: body.pop(field)))


def optional_field(action: str, field: str, victim: Victim) -> Mutant:
    """Leave out a field that the protocol requires and a reader can do without."""
    path = victim.edit(action, lambda body: body.pop(field))
    return Mutant(Verdict.EITHER, (path.name,), victim.healthy(), keys_only=True)


def replaced_action(text: str, victim: Victim) -> Mutant:
    """Replace the body of an add."""
    return refuse(victim.edit_line("add", lambda _: f'{{"add":{text}}}'.encode()))


def two_actions(victim: Victim) -> Mutant:
    """Put two actions in one line, which the protocol does not define."""
    path = victim.edit_line("add", lambda line: line[:-1] + b',"txn":{"appId":"x","version":1}}')
    return Mutant(Verdict.ANY, (path.name,))


def commit_info(text: str, victim: Victim) -> Mutant:
    """Damage the one action that says nothing about the table's state."""
    path = victim.edit_line("commitInfo", lambda _: f'{{"commitInfo":{text}}}'.encode())
    return Mutant(Verdict.EITHER, (path.name,), victim.healthy())


def deep_unknown(text: str, victim: Victim) -> Mutant:
    """Nest an unknown field deeper than any stack."""
    path = victim.edit_line("add", lambda line: line[:-2] + b',"future":' + text.encode() + b"}}")
    return Mutant(Verdict.EITHER, (path.name,), victim.healthy())


def deep_schema(victim: Victim) -> Mutant:
    """Declare a column of structs in structs without end."""
    inner = '{"type":"struct","fields":[{"name":"a","nullable":true,"metadata":{},"type":'
    schema = inner * 3000 + '"long"' + "}]}" * 3000
    path = victim.edit("metaData", lambda body: body.update({"schemaString": schema}))
    return Mutant(Verdict.EITHER, (path.name, "schema"), victim.healthy())


def bad_schema(schema: str, victim: Victim) -> Mutant:
    """Log a schema that is none."""
    path = victim.edit("metaData", lambda body: body.update({"schemaString": schema}))
    return Mutant(Verdict.MUST_ERROR, (path.name, "schema"))


def unknown_protocol(change: Json, name: str, victim: Victim) -> Mutant:
    """Ask for what we do not implement."""
    victim.edit("protocol", lambda body: body.update(change))
    return Mutant(Verdict.MUST_ERROR, (name,))


_WRONG_VALUES: list[tuple[str, str, Any]] = [
    ("add", "path", 5),
    ("add", "path", None),
    ("add", "path", {"a": 1}),
    ("add", "size", "ten"),
    ("add", "size", 1.5),
    ("add", "size", {}),
    ("add", "size", 2**70),
    ("add", "size", -(2**70)),
    ("add", "modificationTime", []),
    ("add", "modificationTime", 2**64),
    ("add", "partitionValues", "p=a"),
    ("add", "partitionValues", [1]),
    ("add", "partitionValues", {"p": {}}),
    ("add", "deletionVector", "u"),
    ("add", "deletionVector", {"storageType": "u"}),
    ("add", "deletionVector", {"storageType": 1, "pathOrInlineDv": []}),
    ("remove", "path", None),
    ("remove", "path", []),
    ("remove", "deletionVector", 1),
    ("metaData", "schemaString", {"type": "struct"}),
    ("metaData", "partitionColumns", "p"),
    ("metaData", "configuration", [1]),
    ("metaData", "id", 7),
    ("protocol", "minReaderVersion", "3"),
    ("protocol", "minReaderVersion", 2**70),
    ("protocol", "readerFeatures", "all"),
]
_ODD_VALUES: list[tuple[str, str, Any]] = [
    ("add", "size", -1),
    ("add", "size", None),
    ("add", "modificationTime", -(2**62)),
    ("add", "dataChange", "yes"),
    ("add", "tags", 5),
    ("add", "stats", 7),
    ("add", "stats", {"numRecords": 1}),
    ("add", "partitionValues", {}),
    ("add", "partitionValues", {"other": "x"}),
    ("add", "partitionValues", None),
    ("remove", "size", "x"),
    ("remove", "deletionTimestamp", 2**70),
    ("remove", "path", "../../outside"),
    ("txn", "version", "v"),
    ("txn", "version", 2**70),
    ("txn", "appId", 4),
    ("metaData", "createdTime", "now"),
    ("metaData", "partitionColumns", ["nope"]),
    ("metaData", "format", "parquet"),
    ("protocol", "minWriterVersion", 2**31),
]
_ODD_PATHS = [
    "../../../../etc/passwd",
    "%2e%2e/%2e%2e/secret",
    "a/../a",
    "./././x",
    "/etc/passwd",
    "file:///etc/passwd",
    "file://host/x",
    "s3://other-bucket/x.parquet",
    "http://169.254.169.254/latest",
    "C:\\windows\\x",
    "%zz",
    "%",
    "%ff%fe",
    "nul\0byte",
    "%00",
    "",
    ".",
    "/",
    "_delta_log/00000000000000000000.json",
    "x" * 100_000,
    "a/" * 5_000,
    "line\nbreak",
    "\ud800",
    "?query#fragment",
]
_ODD_STATS = [
    '{"numRecords":1e400}',
    '{"numRecords":-5}',
    f'{{"numRecords":{2**70}}}',
    '{"numRecords":"10"}',
    '{"numRecords":10,"minValues":[],"maxValues":7,"nullCount":"x"}',
    '{"numRecords":10,"minValues":{"id":"x"},"maxValues":{"id":{}},"nullCount":{"id":-1}}',
    f'{{"numRecords":10,"minValues":{{"id":{"9" * 5000}}}}}',
    "[]",
    "null",
    '"{}"',
    "{",
    "\0",
    DEEP_LIST,
    DEEP_OBJECT,
]
_RAW = [
    ("add", "size", "1e400"),
    ("add", "size", "-1e400"),
    ("add", "size", "NaN"),
    ("add", "size", "9" * 5000),
    ("add", "size", "0x10"),
    ("add", "modificationTime", "Infinity"),
    ("add", "path", "undefined"),
]
_ABSENT = [
    ("add", "path"),
    ("remove", "path"),
    ("protocol", "minReaderVersion"),
]
_OPTIONAL = [
    ("add", "size"),
    ("add", "modificationTime"),
    ("add", "partitionValues"),
    ("add", "dataChange"),
    ("metaData", "schemaString"),
    ("metaData", "id"),
    ("metaData", "format"),
    ("metaData", "partitionColumns"),
    ("metaData", "configuration"),
    ("protocol", "minWriterVersion"),
    ("protocol", "writerFeatures"),
    ("txn", "appId"),
    ("txn", "version"),
]
_BAD_SCHEMAS = [
    "",
    "{",
    "[]",
    "null",
    '"struct"',
    '{"type":"struct"}',
    '{"type":"struct","fields":{}}',
    '{"type":"struct","fields":[{"type":"long"}]}',
    '{"type":"struct","fields":[{"name":"id","type":"quaternion","nullable":true,"metadata":{}}]}',
    '{"type":"struct","fields":[{"name":"id","type":"decimal(99,1)","nullable":true,"metadata":{}}]}',
    '{"type":"struct","fields":[{"name":"id","type":"decimal(x)","nullable":true,"metadata":{}}]}',
    '{"type":"struct","fields":[{"name":"id","type":{"type":"array"},"nullable":true,"metadata":{}}]}',
    '{"type":"struct","fields":[5]}',
]


def each(function: Callable[..., Mutant], rows: list[Any]) -> dict[str, Mutator]:
    """Return one named mutator for each row of arguments."""
    found: dict[str, Mutator] = {}
    for i, row in enumerate(rows):
        arguments = row if isinstance(row, tuple) else (row,)
        label = f"{row[0]}-{row[1]}-{i}" if isinstance(row, tuple) else str(i)
        found[f"{function.__name__}-{label}"] = partial(function, *arguments)
    return found


def _commit_mutators() -> Mapping[str, Mutator]:
    found: dict[str, Mutator] = {}

    plain = [cut_line, cut_file, cut_at_line, empty_commit, blank_commit, random_commit, invalid_utf8, utf16_commit]
    plain += [byte_order_mark, nul_bytes, glued_lines, two_actions, deep_schema]
    found |= {function.__name__: function for function in plain}
    found |= each(scalar_line, ["5", '"add"', "[]", "null", "true", '[{"add":{}}]'])
    found |= each(wrong_value, _WRONG_VALUES)
    found |= each(odd_value, _ODD_VALUES)
    found |= each(odd_path, _ODD_PATHS)
    found |= each(odd_stats, _ODD_STATS)
    found |= each(raw_value, _RAW)
    found |= each(absent_field, _ABSENT)
    found |= each(optional_field, _OPTIONAL)
    found |= each(replaced_action, ["5", "[]", '"x"', "{}", "true"])
    infos = ["5", "[]", "null", "{}", '{"timestamp":"late"}', '{"timestamp":1e400}', DEEP_OBJECT]
    found |= each(commit_info, infos)
    found |= each(deep_unknown, [DEEP_LIST, DEEP_OBJECT])
    found |= each(bad_schema, _BAD_SCHEMAS)
    unknown = {"readerFeatures": ["timeTravelToTheFuture"], "writerFeatures": ["timeTravelToTheFuture"]}
    found["unknown_feature"] = partial(unknown_protocol, unknown, "timeTravelToTheFuture")
    found["unknown_reader_version"] = partial(unknown_protocol, {"minReaderVersion": 99}, "99")
    return found


COMMIT_MUTATORS = _commit_mutators()
