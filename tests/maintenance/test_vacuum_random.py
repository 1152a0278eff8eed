"""Random histories: what VACUUM deletes is exactly what a plain replay of the log does not need.

The log is replayed from its JSON commits, version by version, and the disk is walked with the standard library: neither
shares a line with what is tested.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from lazydelta.maintenance.vacuum import vacuum
from lazydelta.sidecar.handle import TableHandle
from tests.maintenance.old_tables import NOW, data_files
from tests.maintenance.random_past import RandomHistory


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.one_in(5)
def test_exactly_what_no_version_within_the_retention_needs_is_deleted(tmp_path: Path, seed: int) -> None:
    history = RandomHistory(tmp_path / "t able", seed)
    retention = timedelta(days=history.dice.choice([0, 3, 7]))
    expected, before = history.expected(retention), data_files(history.table.table)
    handle = TableHandle.open(history.table.table)
    told = vacuum(handle, retention=retention, enforce_retention=False, now=NOW)
    assert set(told.paths) == expected
    done = vacuum(handle, retention=retention, enforce_retention=False, now=NOW, dry_run=False)
    assert set(done.paths) == expected
    assert len(done.paths) == len(expected)
    assert data_files(history.table.table) == before - expected
    assert history.needed(retention) <= data_files(history.table.table)
    again = vacuum(handle, retention=retention, enforce_retention=False, now=NOW, dry_run=False)
    assert again.paths == []


def test_the_histories_have_something_to_delete_and_something_to_keep(tmp_path: Path) -> None:
    """A comparison of two empty sets would prove nothing."""
    deleted, kept, vectors = 0, 0, 0
    for seed in range(25):
        history = RandomHistory(tmp_path / str(seed), seed)
        deleted += len(history.expected(timedelta(days=7)))
        kept += len(history.needed(timedelta(days=7)))
        vectors += len(set(history.places.values()) & history.expected(timedelta(days=7)))
    assert min(deleted, kept) > 50
    assert vectors > 5
