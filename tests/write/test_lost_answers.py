"""A network that loses requests of a commit, or their answers, before a real service: no commit is lost or doubled."""

from __future__ import annotations

import uuid
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from lazydelta.errors import StorageError
from lazydelta.protocol.actions import Txn
from lazydelta.storage import open_store
from lazydelta.write import publication
from tests.write.commits import append, begin, files, new_table, put_file, removal, rows, versions
from tests.write.lossy import Loss, LossyService

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lazydelta.storage import Store
    from tests.support.azurite import Azurite

# Long enough for the emulator to answer what is not lost, on a busy machine too.
# Long enough for a busy machine; only an answer that never comes is waited for.
TIMEOUT, NO_ANSWER_TIMEOUT = 30.0, 10.0
LOSSES: tuple[Loss, ...] = ("request lost", "answer lost", "no answer", "busy")


@pytest.fixture
def service(azurite: Azurite) -> Iterator[LossyService]:
    with LossyService(azurite.port) as service:
        yield service


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publication, "_PAUSES", (0.0, 0.0))


def _stores(azurite: Azurite, service: LossyService, retries: int, timeout: float) -> tuple[Store, Store]:
    """Return a new table with one row, reached directly and through the service that loses things."""
    uri = f"abfss://{azurite.container('lossy')}@{azurite.account}.dfs.core.windows.net/{uuid.uuid4().hex}"
    direct = new_table(uri, azurite.storage_options())
    append(direct, [1])
    through = replace(azurite, port=service.port).storage_options()
    return direct, open_store(uri, through, retries=retries, request_timeout=timeout)


def _commit(store: Store, direct: Store, txn: Txn) -> None:
    """Replace the table's one file by another."""
    transaction = begin(store, txn)
    if not transaction.already_committed:
        transaction.remove(*[removal(file) for file in files(direct)])
        transaction.add(put_file(store, [9]))
        transaction.commit()


def _lose_each(azurite: Azurite, service: LossyService, loss: Loss, retries: int) -> list[bool]:
    """Lose each request of a commit in turn; return whether the commit was acknowledged all the same."""
    outcomes: list[bool] = []
    txn = Txn(app_id="job", version=0)
    for number in range(100):
        direct, lossy = _stores(azurite, service, retries, NO_ANSWER_TIMEOUT if loss == "no answer" else TIMEOUT)
        service.lose(number, loss)
        acknowledged = False
        with suppress(StorageError):
            _commit(lossy, direct, txn)
            acknowledged = True
        if service.lost is None:
            assert acknowledged
            return outcomes
        found = rows(direct)
        # Unacknowledged is absent or whole; acknowledged is there.
        assert found == [9] or (found == [1] and not acknowledged), service.lost
        _commit(direct, direct, txn)
        assert rows(direct) == [9]
        assert versions(direct) == [0, 1, 2]
        outcomes.append(acknowledged)
    pytest.fail("a commit does not take a hundred requests")


@pytest.mark.parametrize(
    "loss", [pytest.param(loss, marks=[pytest.mark.slow] if loss == "no answer" else []) for loss in LOSSES]
)
def test_one_lost_request_or_answer_of_a_commit_does_no_harm(
    azurite: Azurite, service: LossyService, loss: Loss
) -> None:
    outcomes = _lose_each(azurite, service, loss, retries=0)
    assert len(outcomes) >= 6
    # The commit itself is looked for and put again, and its checksum may fail: those two are no failures.
    assert outcomes[-2:] == [True, True]


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES)
def test_a_client_that_tries_again_commits_in_spite_of_any_loss(
    azurite: Azurite, service: LossyService, loss: Loss
) -> None:
    """Its second attempt may meet what its first one wrote."""
    outcomes = _lose_each(azurite, service, loss, retries=3)
    assert len(outcomes) >= 6
    assert all(outcomes)
