"""One place per test on every kind of store."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from lazydelta.storage import Store, open_store

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.azurite import Azurite
    from tests.support.s3 import S3Server

KINDS = ["memory", "local", "abfss", "az", "https", "s3"]
REMOTE = ["abfss", "s3"]


@dataclass(frozen=True)
class Place:
    """A URI and the options that open it; ``port`` is the service's, for a relay in between."""

    uri: str
    options: dict[str, str] = field(default_factory=dict)
    port: int = 0

    def open(self, **changes: float) -> Store:
        """Open the store here."""
        return open_store(self.uri, self.options, **changes)  # type: ignore[arg-type]

    def through(self, port: int) -> Place:
        """Return the same place, reached through another port of this machine."""
        there = {key: value.replace(f":{self.port}", f":{port}") for key, value in self.options.items()}
        return Place(self.uri.replace(f":{self.port}", f":{port}"), there, port)


def _azure(kind: str, azurite: Azurite) -> Place:
    container = azurite.container("behaviour")
    folder = f"t able/{uuid.uuid4().hex}"
    uris = {
        "abfss": f"abfss://{container}@{azurite.account}.dfs.core.windows.net/{folder}",
        "az": f"az://{container}/{folder}",
        "https": f"{azurite.endpoint}/{container}/{folder}",
    }
    return Place(uris[kind], azurite.storage_options(), azurite.port)


def make_place(kind: str, request: pytest.FixtureRequest) -> Place:
    """Return an empty place of this kind."""
    if kind == "memory":
        return Place(f"memory://{uuid.uuid4().hex}/t able")
    if kind == "local":
        folder: Path = request.getfixturevalue("tmp_path")
        return Place(str(folder / "t able%20#?é"))
    if kind == "s3":
        server: S3Server = request.getfixturevalue("s3_server")
        bucket = server.bucket("behaviour")
        return Place(f"s3://{bucket}/t able/{uuid.uuid4().hex}", server.storage_options(), server.port)
    return _azure(kind, request.getfixturevalue("azurite"))


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest) -> Place:
    """Give an empty place on each kind of store in turn."""
    return make_place(request.param, request)


@pytest.fixture
def store(place: Place) -> Store:
    """Give an empty store of each kind in turn."""
    return place.open()


@pytest.fixture(params=REMOTE)
def remote(request: pytest.FixtureRequest) -> Place:
    """Give an empty place on each kind of store that is reached over HTTP."""
    return make_place(request.param, request)
