"""moto's S3 as a real HTTP server in a process of its own, one per test process."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from tests.support import unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["S3Server", "s3_server"]

# The child chooses the port, so none can be lost to another process, and leaves when its standard input closes, so
# it cannot outlive a test process that was killed. Objects that are named there it puts into a bucket itself.
_SERVER = """
import json, logging, sys
from moto.core import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
for line in sys.stdin:
    bucket, keys = json.loads(line)
    for key in keys:
        s3_backends[DEFAULT_ACCOUNT_ID]["aws"].put_object(bucket, key, b"x")
    print(len(keys), flush=True)
server.stop()
"""


@dataclass(frozen=True)
class S3Server:
    """The address of a running server; it accepts any credentials."""

    port: int
    process: subprocess.Popen[bytes]
    region: str = "us-east-1"

    @property
    def endpoint(self) -> str:
        """Return the server's URL."""
        return f"http://127.0.0.1:{self.port}"

    def bucket(self, name: str) -> str:
        """Create a bucket, unless it exists, and return its name."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)) as connection:
            connection.request("PUT", f"/{name}", headers={"Content-Length": "0"})
            response = connection.getresponse()
            body = response.read()
        if response.status not in {http.client.OK, http.client.CONFLICT}:
            message = f"the S3 server refused to create bucket {name!r}: {response.status} {body!r}"
            raise RuntimeError(message)
        return name

    def fill(self, bucket: str, keys: list[str]) -> None:
        """Put small objects into a bucket without a request for each, which would take longer than the test of them."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([bucket, keys]).encode() + b"\n")
        self.process.stdin.flush()
        assert int(self.process.stdout.readline()) == len(keys)

    def storage_options(self) -> dict[str, str]:
        """Return the options that users of deltalake and object_store give."""
        return {
            "aws_access_key_id": "testing",
            "aws_secret_access_key": "testing",
            "aws_region": self.region,
            "aws_endpoint_url": self.endpoint,
            "aws_allow_http": "true",
        }


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """Run moto's server for the length of the session."""
    if find_spec("moto") is None:
        unavailable("moto is not installed: run `make setup`")
    with subprocess.Popen([sys.executable, "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        if process.stdout is None or process.stdin is None:
            message = "the S3 server has no pipes"
            raise RuntimeError(message)
        line = process.stdout.readline()
        if not line:
            message = f"the S3 server did not start: exit code {process.wait()}"
            raise RuntimeError(message)
        try:
            yield S3Server(int(line), process)
        finally:
            process.stdin.close()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
