"""The demo's story: steps over a real table, each the answer of a command that the reader can type.

What a step shows is data; ``demo_command`` prints it.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from lazydelta.cli.commands import describe_table, file_records
from lazydelta.cli.demo_table import Made, deltalake
from lazydelta.table import DeltaTable

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from lazydelta.cli.output import TableInfo
    from lazydelta.cli.values import Record

__all__ = ["Comparison", "Explained", "Files", "Info", "Rows", "Same", "Step", "steps"]

_EARLY = 10
_NEWEST = 5


class Comparison(msgspec.Struct, frozen=True):
    """One question put to lazydelta and to deltalake, with the number of files each found."""

    question: str
    lazydelta: int
    deltalake: int
    equal: bool


@dataclass(frozen=True, slots=True)
class Info:
    """What the table is."""

    info: TableInfo


@dataclass(frozen=True, slots=True)
class Files:
    """Files, while they are found."""

    batches: Iterator[Iterator[Record]]


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of the table."""

    batches: list[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class Explained:
    """How a scan went."""

    explanation: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Same:
    """Whether two readers agree."""

    comparisons: list[Comparison]


Shown: TypeAlias = Info | Files | Rows | Explained | Same


@dataclass(frozen=True, slots=True)
class Step:
    """A sentence, the command that shows it (None where there is none), and what it shows."""

    title: str
    command: str | None
    shown: Shown


def steps(made: Made) -> Iterator[Step]:
    """Yield the steps; each does its work when the one before has been printed."""
    uri = made.path
    table = DeltaTable(uri)
    yield Step("What the table is, without a look at its files", _typed("info", uri), Info(describe_table(table)))

    title = f"Its {_NEWEST} newest files, printed as they are found; the scan stops there"
    with table.files(limit=_NEWEST) as stream:
        yield Step(title, _typed("files", uri, "--limit", str(_NEWEST)), Files(file_records(stream)))

    where = f"_event_hour >= '{made.last_hour}'"
    with table.files(where) as stream:
        yield Step("The files of the last hour", _typed("files", uri, "--where", where), Files(file_records(stream)))
        explanation = stream.explain().as_dict()
    title = "How these were found: files are pruned by what the log says of them"
    yield Step(title, _typed("explain", uri, "--where", where), Explained(explanation))

    condition = f"{where} AND value > 25"
    rows = list(table.rows(where=condition))
    yield Step("The hot devices of that hour", _typed("rows", uri, "--where", condition), Rows(rows))

    earlier = DeltaTable(uri, version=_EARLY)
    title = f"The table as it was at version {_EARLY}: {_NEWEST} of its files"
    with earlier.files(limit=_NEWEST) as stream:
        command = _typed("files", uri, "--version", str(_EARLY), "--limit", str(_NEWEST))
        yield Step(title, command, Files(file_records(stream)))

    questions = [
        ("every file", {}, None),
        ("the last hour", {}, where),
        (f"every file at version {_EARLY}", {"version": _EARLY}, None),
        (
            f"every file before the delete (version {made.delete_version - 1})",
            {"version": made.delete_version - 1},
            None,
        ),
    ]
    same = [_compare(uri, question, where, **version) for question, version, where in questions]
    yield Step("The same questions put to deltalake", None, Same(same))


def _compare(uri: str, question: str, where: str | None, version: int | None = None) -> Comparison:
    ours = sorted(file.path for file in DeltaTable(uri, version=version).files(where))
    actions = deltalake().DeltaTable(uri, version=version).get_add_actions(flatten=True)
    paths, hours = (actions.column(name).to_pylist() for name in ("path", "partition._event_hour"))
    hour = "" if where is None else where.split("'")[1]
    theirs = sorted(path for path, each in zip(paths, hours, strict=True) if each >= hour)
    return Comparison(question, len(ours), len(theirs), ours == theirs)


def _typed(*words: str) -> str:
    # A predicate in double quotes is easier to read than one whose single quotes are escaped.
    return " ".join(["lazydelta", *(f'"{word}"' if "'" in word else shlex.quote(word) for word in words)])
