"""The services that other tests rely on are the real thing."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import obstore
import pytest
from obstore.exceptions import AlreadyExistsError
from obstore.store import AzureStore, S3Store

from tests.support import unavailable
from tests.support.golden import golden_names

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.azurite import Azurite
    from tests.support.s3 import S3Server


def test_azurite_keeps_objects_and_refuses_a_second_create(azurite: Azurite) -> None:
    store = AzureStore(azurite.container("services"), config=azurite.storage_options())  # type: ignore[arg-type]
    obstore.put(store, "a/b", b"first", mode="create")
    with pytest.raises(AlreadyExistsError):
        obstore.put(store, "a/b", b"second", mode="create")
    assert bytes(obstore.get(store, "a/b").bytes()) == b"first"


def test_azurite_refuses_a_wrong_key(azurite: Azurite) -> None:
    options = azurite.storage_options() | {"azure_storage_account_key": "d3Jvbmc="}
    store = AzureStore(azurite.container("services"), config=options)  # type: ignore[arg-type]
    with pytest.raises(obstore.exceptions.BaseError, match="403"):
        obstore.put(store, "x", b"")


def test_creating_a_container_twice_is_no_error(azurite: Azurite) -> None:
    assert azurite.container("twice") == azurite.container("twice") == "twice"


def test_the_s3_server_keeps_objects_and_refuses_a_second_create(s3_server: S3Server) -> None:
    store = S3Store(s3_server.bucket("services"), config=s3_server.storage_options())  # type: ignore[arg-type]
    obstore.put(store, "a/b", b"first", mode="create")
    with pytest.raises(AlreadyExistsError):
        obstore.put(store, "a/b", b"second", mode="create")
    assert bytes(obstore.get(store, "a/b").bytes()) == b"first"


def test_golden_tables_unpack_with_their_log(unpack_golden: Callable[[str], Path]) -> None:
    assert "tables/basic-decimal-table" in golden_names("tables")
    assert (unpack_golden("tables/basic-decimal-table") / "delta" / "_delta_log").is_dir()
    assert (unpack_golden("more/basic-decimal-table") / "_delta_log").is_dir()


def test_a_missing_service_is_a_skip_for_people_and_a_failure_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no such thing"):
        unavailable("no such thing")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no such thing"):
        unavailable("no such thing")


def test_the_peers_have_their_own_duckdb_with_its_delta_extension(pytestconfig: pytest.Config) -> None:
    python = pytestconfig.rootpath / ".venv-peers" / "bin" / "python"
    if not python.exists():
        unavailable("the environment of the peers is not installed: run `make setup`")
    program = "import duckdb, duckdb_extension_delta, deltalake; print(duckdb.__version__, deltalake.__version__)"
    child = subprocess.run([python, "-c", program], capture_output=True, text=True, check=False)
    assert (child.stdout.split(), child.stderr) == (["1.5.5", "1.6.6"], "")
