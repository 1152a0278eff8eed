"""Tables in an account with a hierarchical namespace: folders in listings, throttling, ended tokens, access lists."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lazydelta import DeltaTable
from lazydelta.errors import AccessDeniedError, StorageError
from lazydelta.sidecar.building.build import build
from lazydelta.sidecar.reading.discovery import shared_cache
from lazydelta.storage import open_store
from lazydelta.testing import make_table
from tests.storage.hierarchical import BUSY, CONTAINER, EXPIRED, LEASED, NO_ACL, HierarchicalAccount, Refusal

HOUR = "_event_hour = '2026021023'"
URI = f"abfss://{CONTAINER}@account.dfs.core.windows.net/t"


@pytest.fixture
def account(tmp_path: Path) -> Iterator[HierarchicalAccount]:
    """Serve a table with a sidecar and a tail."""
    make_table(tmp_path / "t", files=300, hours=6, tail=12, checksum=True)
    build(tmp_path / "t")
    shared_cache.clear()
    with HierarchicalAccount(tmp_path) as account:
        yield account


def paths(uri: Any, **options: Any) -> list[str]:
    found = sorted(file.path for file in DeltaTable(uri, **options).files(HOUR))
    assert found
    return found


def test_folders_in_listings_are_no_objects(account: HierarchicalAccount) -> None:
    store = open_store(URI, account.options())
    names = [each.path for each in store.list("_delta_log")]
    assert any(verb == "LIST" for verb, _, _ in account.calls)
    assert "_delta_log/_sidecars" not in names
    assert paths(URI, storage_options=account.options()) == paths(account.root / "t")


def test_a_busy_service_is_asked_again_and_gives_the_same(account: HierarchicalAccount) -> None:
    """Every object is refused once, each listing too, with Retry-After."""
    met = Counter[tuple[str, str]]()

    def busy_at_first(verb: str, path: str, _token: str) -> Refusal | None:
        met[verb, path] += 1
        return BUSY if met[verb, path] == 1 else None

    expected = paths(account.root / "t")
    shared_cache.clear()
    account.rule = busy_at_first
    assert paths(URI, storage_options=account.options()) == expected
    assert sum(count > 1 for count in met.values()) > 10


def test_a_service_that_stays_busy_is_an_error_that_says_so(account: HierarchicalAccount) -> None:
    table = DeltaTable(URI, storage_options=account.options(max_retries="1", retry_timeout="2s"))
    account.rule = lambda _verb, path, _token: BUSY if "_sidecars" in path or "checkpoint" in path else None
    with pytest.raises(StorageError, match="503") as refused:
        table.files(HOUR).collect()
    assert refused.value.path


def test_a_token_that_ends_in_the_middle_of_a_scan_is_replaced(account: HierarchicalAccount) -> None:
    """The first token is refused from the tenth request on, as after its hour; the scan goes on with the next one."""
    given: list[str] = []

    def credential() -> tuple[str, float]:
        given.append(f"token{len(given) + 1}")
        return given[-1], time.time() + 60  # so little that the client asks for another one soon

    def only_the_newest(_verb: str, _path: str, token: str) -> Refusal | None:
        time.sleep(0.02)
        return EXPIRED if token == "token1" and len(account.calls) > 10 and len(given) > 1 else None

    expected = paths(account.root / "t")
    shared_cache.clear()
    account.rule = only_the_newest
    options = account.options(credential=credential)
    del options["token"]
    table = DeltaTable(URI, storage_options=options)
    stream = table.files(HOUR, batch_size=1)
    first = next(stream)
    time.sleep(0.2)  # the client does not ask twice within a tenth of a second
    found = [first.path]
    while (file := next(stream, None)) is not None:
        found.append(file.path)
    assert sorted(found) == expected
    assert {token for _, _, token in account.calls} >= {"token1", "token2"}


@pytest.mark.parametrize("secret", ["_delta_log/_last_checkpoint", "_delta_log/0", "_sidecars"])
def test_an_access_list_that_refuses_is_named_and_hides_no_file(account: HierarchicalAccount, secret: str) -> None:
    """What the log has must be readable; a sidecar that is not is done without."""
    expected = paths(account.root / "t")
    shared_cache.clear()
    account.rule = lambda verb, path, _token: NO_ACL if verb == "GET" and secret in path else None
    if secret == "_sidecars":
        assert paths(URI, storage_options=account.options()) == expected
        return
    with pytest.raises(AccessDeniedError, match="AuthorizationPermissionMismatch"):
        paths(URI, storage_options=account.options())


def test_an_object_under_a_lease_is_not_replaced_and_the_lease_is_named(account: HierarchicalAccount) -> None:
    store = open_store(URI, account.options())
    account.rule = lambda verb, _path, _token: LEASED if verb == "PUT" else None
    before = store.get("_delta_log/_last_checkpoint")
    with pytest.raises(StorageError, match=r"under a lease of another program \(LeaseIdMissing\)"):
        store.put("_delta_log/_last_checkpoint", b"{}")
    assert store.get("_delta_log/_last_checkpoint") == before
