"""What grows with what: time and memory against the size of the table, its tail, its statistics and its removed files.

Tables of up to ten million files are made and measured; larger ones have a made-up manifest and the few parts of their
sidecar that a query touches, where ``benchmarks.synthetic_manifest`` can make them.
"""

from __future__ import annotations

import importlib
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmarks.ladder import Asked, ask_all
from benchmarks.ladder_tables import LADDER_TABLE, indexed_table
from benchmarks.measure import Measurement, measure
from benchmarks.questions import HOURS, PARTITION, Question, questions
from benchmarks.records import Key, Record, record_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from lazydelta.testing import MadeTable

__all__ = ["AGAINST", "SECTIONS", "WITHOUT_SIDECAR", "WITH_SIDECAR", "growth", "sizes", "synthetic"]

AGAINST = ("files", "tail", "columns", "removes")
SECTIONS = tuple(f"growth: {each}" for each in AGAINST)
WITH_SIDECAR, WITHOUT_SIDECAR = "lazydelta", "lazydelta, no sidecar"
_SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
_SYNTHETIC = (100_000_000, 1_000_000_000)
_TAILS = (10, 100, 1_000, 10_000)
_COLUMNS = (10, 100, 1_000, 3_000)
_REMOVES = (0, 10_000, 1_000_000)
_SMALL, _WIDE = 100_000, 1_000
# Without a sidecar, a checkpoint whose statistics lie in one page has to be given room for it: else they prune nothing,
# and the answers of contenders could not be compared.
_COLUMNS_IN_A_PAGE, _ROOM_FOR_A_PAGE = 1_000, 512 << 20
_MODULE = "benchmarks.synthetic_manifest"
_OURS = ("lazydelta", "pyarrow.parquet", "obstore")


def growth(scale: int, rounds: int, against: str, done: Collection[Key] = ()) -> Iterator[Record]:
    """Measure tables of up to so many files against one of ``AGAINST``; what is ``done`` is not measured again."""
    measured = partial(_measured, done=done)
    names: tuple[str, ...]
    match against:
        case "files":
            for size in sizes(scale):
                names = ("one hour", "all files", "statistics")
                yield from measured(SECTIONS[0], size, rounds, names, {"files": size})
            for size in _SYNTHETIC:
                if Record(SECTIONS[0], WITH_SIDECAR, "one hour", _synthetic_variant(size)).key not in done:
                    yield synthetic(size)
        case "tail":
            small = min(scale, _SMALL)
            for tail in _TAILS:
                variant = {"files": small, "tail": tail}
                names = ("one hour", "take 100")
                yield from measured(SECTIONS[1], small, rounds, names, variant, tail=tail, removes=0)
        case "columns":
            for columns in _COLUMNS:
                variant = {"files": _WIDE, "columns": columns}
                names = ("one hour", "statistics")
                yield from measured(SECTIONS[2], _WIDE, rounds, names, variant, columns=columns, removes=0)
        case "removes":
            for removes in (each for each in _REMOVES if 2 * each <= scale):
                variant = {"files": scale, "removes": removes}
                names = ("one hour", "all files")
                yield from measured(SECTIONS[3], scale, rounds, names, variant, removes=removes)
        case _:
            raise ValueError(f"growth is not measured against {against!r}: choose from {', '.join(AGAINST)}")


def sizes(scale: int) -> list[int]:
    """Return the sizes of table up to the one that was asked for."""
    return sorted({size for size in _SIZES if size < scale} | {scale})


def _measured(
    section: str,
    files: int,
    rounds: int,
    names: Sequence[str],
    variant: dict[str, Any],
    *,
    done: Collection[Key],
    **recipe: Any,
) -> Iterator[Record]:
    click.echo(f"{section}: {variant}", err=True)
    folder, made = indexed_table(files, **(LADDER_TABLE | {"hours": HOURS} | recipe))
    wide = variant.get("columns", 0) > _COLUMNS_IN_A_PAGE
    asked = _contenders(folder, {"memory_budget": _ROOM_FOR_A_PAGE} if wide else {})
    yield from ask_all(section, asked, _chosen(made, names), rounds, variant, done)


def _chosen(made: MadeTable, names: Sequence[str]) -> list[Question]:
    return [each for each in questions(made) if each.name in names]


def _contenders(folder: Path, without: dict[str, Any]) -> list[Asked]:
    """Return who is asked; ``without`` are further options of ours without a sidecar."""
    return [
        Asked(WITH_SIDECAR, _lazydelta(str(folder), {"cache_size": 0})),
        Asked(WITHOUT_SIDECAR, _lazydelta(str(folder), {"cache_size": 0, "delta.sidecar.enabled": False, **without})),
        Asked("deltalake", _deltalake(str(folder))),
    ]


def _lazydelta(uri: str, options: dict[str, Any]) -> Callable[[Question], Measurement]:
    work = "benchmarks.ladder_work:ask"
    return lambda question: measure(work, uri, question.as_dict(), options, True, False, imports=_OURS)  # noqa: FBT003


def _deltalake(uri: str) -> Callable[[Question], Measurement]:
    work = "benchmarks.peer_work:deltalake"
    return lambda question: measure(work, uri, question.as_dict(), imports=("deltalake", "pyarrow"))


def synthetic(files: int) -> Record:
    """Measure an hour of a table of so many files of which only the manifest and the touched parts exist.

    The generator's ``make_long_table(folder, files)`` makes such a table; ``REAL_HOURS`` are those whose files it has.
    """
    name, variant = "one hour", _synthetic_variant(files)
    try:
        generator = importlib.import_module(_MODULE)
    except ModuleNotFoundError:
        failure = "not available: there is no generator of such manifests"
        return Record(SECTIONS[0], WITH_SIDECAR, name, variant, failure=failure)
    click.echo(f"{SECTIONS[0]}: {variant}", err=True)
    question = Question(name, f"{PARTITION} = '{generator.REAL_HOURS[1]}'")
    with tempfile.TemporaryDirectory(prefix="lazydelta-bench-synthetic-") as folder:
        generator.make_long_table(Path(folder) / "table", files)
        run = _lazydelta(str(Path(folder) / "table"), {"cache_size": 0})(question)
    return record_of(SECTIONS[0], WITH_SIDECAR, name, [run], variant)


def _synthetic_variant(files: int) -> dict[str, Any]:
    return {"files": files, "synthetic": True}
