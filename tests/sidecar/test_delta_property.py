"""Random logs with delta sidecars over random stretches, whole and damaged: we see what a plain replay sees."""

from __future__ import annotations

import random
import shutil
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from lazydelta import DeltaTable
from lazydelta.log.tail_spans import FoundSpans
from lazydelta.sidecar.format import part_file
from lazydelta.sidecar.reading import delta_spans
from lazydelta.sidecar.reading.base import SidecarBase
from lazydelta.sidecar.reading.discovery import shared_cache
from tests.log.test_differential import differences, versions_of
from tests.oracle.random_log import RandomLog, random_log
from tests.oracle.replay import commit_name
from tests.scan.judging import Facts, may_keep, must_keep
from tests.scan.predicates import FORMS, is_expression, predicate_for, written
from tests.scan.test_properties import assert_newest_first, distinct
from tests.scan.typed_log import added_at
from tests.sidecar.deltas import DAMAGES, cover
from tests.support.rounds import quick

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore::lazydelta.PredicateWarning")
_LEAST = 6
STRATEGIES = ("auto", "reverse", "forward")


@pytest.fixture(autouse=True)
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let short tails use delta sidecars too, in small row groups, each of them a read of its own."""
    monkeypatch.setattr(delta_spans, "LONG_TAIL", 1)
    monkeypatch.setattr(delta_spans, "_WHOLE", 2_000)
    monkeypatch.setattr(part_file, "ROWS_PER_GROUP", 12)


def covered_logs(first_seed: int, logs: int, root: Path) -> Iterator[tuple[RandomLog, random.Random]]:
    """Yield so many random logs of some length that have delta sidecars, each deleted after use."""
    seeds = count(first_seed)
    while logs:
        seed = next(seeds)
        log = random_log(seed, root / str(seed))
        rng = random.Random(seed)
        shared_cache.clear()
        if log.earliest == 0 and rng.random() < 0.7 and (log.log / commit_name(0)).exists():
            # Then all of the log is its tail: the answers are those of the history, which is kept elsewhere.
            for path in (*log.log.glob("*.checkpoint*"), *log.log.glob("_last_checkpoint*")):
                path.unlink()
        if log.latest > _LEAST and cover(log.path, rng, log.readable[1:] or log.readable):
            logs -= 1
            yield log, rng
        shutil.rmtree(root / str(seed))


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> list[FoundSpans]:
    """Return what is found of delta sidecars from now on."""
    found: list[FoundSpans] = []
    plain = SidecarBase.find_spans

    def find(*arguments: Any) -> FoundSpans:
        found.append(plain(*arguments))
        return found[-1]

    monkeypatch.setattr(SidecarBase, "find_spans", find)
    return found


@pytest.mark.parametrize("chunk", quick(range(20), 1))
def test_every_random_log_reads_as_its_plain_replay(chunk: int, tmp_path: Path, spans: list[FoundSpans]) -> None:
    """Files, metadata, protocol, transactions and domains of several versions, wherever the delta sidecars lie."""
    failures = []
    for log, _ in covered_logs(70_000 + 1_000 * chunk, 8, tmp_path):
        for version in versions_of(log):
            pinned = None if version == log.latest else version
            found = differences(DeltaTable(str(log.path), version=pinned), log.expected(version))
            failures += [f"seed {log.seed} version {version} of {log.latest} {log.notes}: {text}" for text in found]
    assert not failures, "\n".join(failures)
    assert sum(len(each.spans) for each in spans) > 5
    assert sum(len(each.rejected) for each in spans) == 0


@pytest.mark.parametrize("chunk", quick(range(12), 1))
def test_predicates_leave_what_the_judge_allows(chunk: int, tmp_path: Path) -> None:
    """Native statistics prune as the logged ones do, under every strategy, newest first where that is asked for."""
    from_deltas = pruned = 0
    for log, rng in covered_logs(90_000 + 1_000 * chunk, 2, tmp_path):
        snapshot = log.expected(log.latest)
        table, added = DeltaTable(str(log.path)), added_at(log, log.latest)
        for _ in range(3):
            node, form = predicate_for(rng, snapshot), rng.choice(FORMS)
            facts = {name: Facts.of(add, snapshot) for name, add in snapshot.files.items()}
            must = {name for name, known in facts.items() if must_keep(node, known)}
            may = {name for name, known in facts.items() if may_keep(node, known)}
            found = {}
            for strategy in STRATEGIES:
                stream = table.files(written(node, form), strategy=strategy)
                files = stream.collect()
                found[strategy] = distinct(files)
                from_deltas += stream.metrics.delta_commits
                pruned += stream.metrics.files_pruned
                if strategy == "reverse":
                    assert_newest_first(files, added)
            story = (log.seed, node, form, log.notes)
            assert found["auto"] == found["reverse"] == found["forward"], story
            assert must <= found["auto"] <= set(snapshot.files), story
            if not is_expression(form):
                assert found["auto"] <= may, (*story, found["auto"] - may)
    assert from_deltas > 5
    assert pruned or chunk


@pytest.mark.parametrize("kind", DAMAGES)
@pytest.mark.parametrize("chunk", quick(range(12), 1))
def test_no_damage_changes_the_answer(kind: str, chunk: int, tmp_path: Path) -> None:
    """Torn, missing, stale or another's: the commits answer, and it is counted."""
    failures, rejected = [], 0
    for log, rng in covered_logs(110_000 + 1_000 * chunk + 50 * list(DAMAGES).index(kind), 2, tmp_path):
        DAMAGES[kind](log.path, rng)
        shared_cache.clear()
        table = DeltaTable(str(log.path))
        failures += [f"seed {log.seed} {text}" for text in differences(table, log.expected(log.latest))]
        stream = table.files(strategy=rng.choice(STRATEGIES))
        stream.collect()
        rejected += stream.metrics.delta_sidecars_rejected
        if stream.metrics.delta_sidecars_rejected:
            assert "not used" in str(stream.explain())
    assert not failures, "\n".join(failures)
    if not chunk:
        assert rejected
