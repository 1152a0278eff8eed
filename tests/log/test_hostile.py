"""Damaged logs: a right answer or an error of ours that names the object; never anything else."""

from __future__ import annotations

import signal
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from lazydelta import DeltaTable
from lazydelta.errors import LazyDeltaError
from tests.oracle.mutate import COMMIT_MUTATORS
from tests.oracle.mutate_checkpoint import CHECKPOINT_MUTATORS
from tests.oracle.mutate_objects import OBJECT_MUTATORS
from tests.oracle.observe import observed_facts
from tests.oracle.replay import dv_id
from tests.oracle.victim import Mutant, Verdict, Victim

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.oracle.replay import FileFacts

TIMEOUT_SECONDS = 60
MUTANTS = 300
LOG_MUTATORS = {**COMMIT_MUTATORS, **OBJECT_MUTATORS}


@contextmanager
def no_hang() -> Iterator[None]:
    """Fail a case that does not end; generous, because it guards against hangs and measures nothing."""

    def give_up(_signal: int, _frame: object) -> None:
        message = f"no answer within {TIMEOUT_SECONDS} s"
        raise TimeoutError(message)

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(TIMEOUT_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def use_everything(path: Path) -> list[FileFacts]:
    """Read all that a log can tell, so that damage cannot hide in a part that is never read."""
    table = DeltaTable(str(path))
    facts = observed_facts(table)
    for file in table.files():
        assert file.stats is None or isinstance(file.stats, dict)
        assert isinstance(file.uri, str)
    table.version()
    table.schema()
    table.metadata()
    table.protocol()
    table.transaction_version("app")
    list(table.history(None))
    return facts


def outcome(path: Path) -> list[FileFacts] | LazyDeltaError:
    """Return the files or our error; any other exception is the test's failure."""
    with no_hang():
        try:
            return use_everything(path)
        except LazyDeltaError as error:
            return error


def check(mutant: Mutant, result: list[FileFacts] | LazyDeltaError) -> None:
    """Hold the outcome against the verdict."""
    if isinstance(result, LazyDeltaError):
        assert mutant.verdict is not Verdict.MUST_EQUAL, f"refused: {result}"
        named = f"{result} {result.path}"
        assert any(name in named for name in mutant.names), f"names none of {mutant.names}: {type(result)} {named}"
        return
    assert mutant.verdict is not Verdict.MUST_ERROR, f"{len(result)} files instead of an error about {mutant.names}"
    if mutant.verdict is Verdict.ANY:
        return
    assert mutant.expected is not None
    if mutant.keys_only:
        wanted = sorted(((add["path"], dv_id(add)) for add in mutant.expected.files.values()), key=repr)
        assert sorted(((fact.path, fact.dv_id) for fact in result), key=repr) == wanted
    else:
        assert result == mutant.expected.facts


def test_there_are_as_many_mutants_as_promised() -> None:
    """The suite damages logs in at least 300 ways."""
    assert len(LOG_MUTATORS) + len(CHECKPOINT_MUTATORS) >= MUTANTS


@pytest.mark.parametrize("kind", ["", "classic", "plain", "multipart", "parquet+2", "json+2", "classic+1"])
def test_the_undamaged_table_reads(kind: str, tmp_path: Path) -> None:
    """The tables that the others damage are healthy to begin with."""
    victim = Victim(tmp_path, seed=1, kind=kind)
    check(Mutant(Verdict.MUST_EQUAL, (), victim.healthy()), outcome(victim.table))


@pytest.mark.filterwarnings("ignore::lazydelta.warned.ChecksumWarning")  # some damage is a checksum that lies
@pytest.mark.parametrize("name", LOG_MUTATORS)
def test_a_damaged_commit_is_read_right_or_refused_by_name(name: str, tmp_path: Path) -> None:
    """Damage to commits, checksums, hints and names."""
    victim = Victim(tmp_path, seed=zlib.crc32(name.encode()))
    mutant = LOG_MUTATORS[name](victim)
    check(mutant, outcome(victim.table))


@pytest.mark.parametrize("name", CHECKPOINT_MUTATORS)
def test_a_damaged_checkpoint_is_read_right_or_refused_by_name(name: str, tmp_path: Path) -> None:
    """Damage to checkpoints whose commits are gone."""
    kind, mutate = CHECKPOINT_MUTATORS[name]
    victim = Victim(tmp_path, seed=zlib.crc32(name.encode()), kind=kind)
    mutant = mutate(victim)
    check(mutant, outcome(victim.table))
