"""A real Azurite blob service, one per test process.

It is the emulator's own account, whose name and key are published by Microsoft, so options such as `use_emulator`
behave as users know them.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import os
import signal
import subprocess
import time
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import TYPE_CHECKING, Self
from urllib.parse import urlencode

import pytest

from scripts import install_azurite
from tests.support import free_port, unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

__all__ = ["Azurite", "AzuriteToStop", "azurite", "azurite_script", "running_azurite"]

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

_API_VERSION = "2023-11-03"
_START_SECONDS = 60.0
_ATTEMPTS = 3
# Azurite leaves when its standard input closes, so it cannot outlive a test process that was killed.
_LEAVE_WITH_PARENT = "data:text/javascript,process.stdin.resume().on('end',()=>process.exit())"


@dataclass(frozen=True)
class Azurite:
    """The address of a running service."""

    port: int
    account: str = ACCOUNT
    key: str = KEY

    @property
    def endpoint(self) -> str:
        """Return the account's URL: emulators carry the account in the path."""
        return f"http://127.0.0.1:{self.port}/{self.account}"

    def container(self, name: str) -> str:
        """Create a container, unless it exists, and return its name."""
        status, body = self._put_container(name)
        if status not in {http.client.CREATED, http.client.CONFLICT}:
            message = f"Azurite refused to create container {name!r}: {status} {body!r}"
            raise RuntimeError(message)
        return name

    def storage_options(self) -> dict[str, str]:
        """Return the options that users of deltalake and object_store give."""
        return {
            "azure_storage_account_name": self.account,
            "azure_storage_account_key": self.key,
            "azure_storage_endpoint": self.endpoint,
            "azure_allow_http": "true",
        }

    def sas(self, container: str, expires: str = "2099-01-01T00:00:00Z") -> str:
        """Return a service SAS for reading a container, as Microsoft describes it."""
        fields = {"sp": "rl", "se": expires, "sv": "2020-10-02", "sr": "c"}
        resource = f"/blob/{self.account}/{container}"
        signed = [fields["sp"], "", fields["se"], resource, *[""] * 3, fields["sv"], fields["sr"], *[""] * 6]
        return urlencode(fields | {"sig": self._signature("\n".join(signed))})

    def _signature(self, to_sign: str) -> str:
        digest = hmac.new(base64.b64decode(self.key), to_sign.encode(), hashlib.sha256).digest()
        return base64.b64encode(digest).decode()

    def _put_container(self, name: str) -> tuple[int, bytes]:
        # No client at hand can create containers, so the request is signed here (Shared Key, 2015-02-21 and later).
        headers = {"x-ms-date": format_datetime(datetime.now(UTC), usegmt=True), "x-ms-version": _API_VERSION}
        canonical_headers = "".join(f"{key}:{value}\n" for key, value in sorted(headers.items()))
        # The account stands twice: once for itself, once as the first part of the emulator's path.
        resource = f"/{self.account}/{self.account}/{name}\nrestype:container"
        to_sign = "PUT" + "\n" * 12 + canonical_headers + resource
        headers["Authorization"] = f"SharedKey {self.account}:{self._signature(to_sign)}"
        headers["Content-Length"] = "0"
        with closing(_connect(self.port)) as connection:
            connection.request("PUT", f"/{self.account}/{name}?restype=container", headers=headers)
            response = connection.getresponse()
            return response.status, response.read()


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azurite]:
    """Run Azurite's blob service in memory for the length of the session."""
    if not azurite_script().exists():
        unavailable(f"Azurite {install_azurite.AZURITE_VERSION} is not installed: run `make setup`")
    with running_azurite(tmp_path_factory.mktemp("azurite")) as service:
        yield service


def azurite_script() -> Path:
    """Return where Azurite is, if it is installed."""
    return install_azurite.entry_point(install_azurite.location())


@contextmanager
def running_azurite(folder: Path) -> Iterator[Azurite]:
    """Run the service for the length of a block; its log goes to the folder."""
    process, port = _start(azurite_script(), folder)
    try:
        yield Azurite(port)
    finally:
        _stop(process)


class AzuriteToStop:
    """A service of one test, on one port, whose data are in a folder and outlive it."""

    def __init__(self, folder: Path) -> None:
        self._script = install_azurite.entry_point(install_azurite.location())
        if not self._script.exists():
            unavailable(f"Azurite {install_azurite.AZURITE_VERSION} is not installed: run `make setup`")
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._process, port = _start(self._script, folder, kept=True)
        self.service = Azurite(port)

    def settle(self, last: str) -> None:
        """Wait until it has written down that it has ``last``, which it does in its own time."""
        deadline = time.monotonic() + _START_SECONDS
        while last not in self._index():
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def _index(self) -> str:
        place = self._folder / "__azurite_db_blob__.json"
        return place.read_text(encoding="utf-8") if place.exists() else ""

    def stop(self) -> None:
        """End it at once, with all its connections: asked kindly, it waits for those who keep one."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            _stop(self._process)
        self._process = None

    def start(self) -> None:
        """Start it again, where it was."""
        if self._process is None:
            self._process, _ = _start(self._script, self._folder, kept=True, port=self.service.port)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _connect(port: int) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", port, timeout=30)


def _start(
    script: Path, folder: Path, *, kept: bool = False, port: int | None = None
) -> tuple[subprocess.Popen[bytes], int]:
    """Start on a free port; try again if another process took the port in between."""
    log, asked = folder / "azurite.log", port
    for _ in range(_ATTEMPTS):
        port = free_port() if asked is None else asked
        persistence = ["--location", str(folder)] if kept else ["--inMemoryPersistence"]
        flags = [*persistence, "--skipApiVersionCheck", "--disableTelemetry", "--silent"]
        address = ["--blobHost", "127.0.0.1", "--blobPort", str(port)]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [install_azurite.node_bin() / "node", "--import", _LEAVE_WITH_PARENT, script, *flags, *address],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                start_new_session=True,
            )
        if _answers(process, port):
            return process, port
        _stop(process)
    message = f"Azurite did not start: {log.read_text(errors='replace')[-2000:]}"
    raise RuntimeError(message)


def _answers(process: subprocess.Popen[bytes], port: int) -> bool:
    deadline = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        # Any answer will do: an unsigned request is refused, and that takes a service that is up.
        with suppress(OSError, http.client.HTTPException), closing(_connect(port)) as connection:
            connection.request("GET", f"/{ACCOUNT}?comp=list")
            connection.getresponse().read()
            return process.poll() is None
        time.sleep(0.05)
    return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        process.stdin.close()
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=5)
            return
