"""A stand-in for an Azure account with a hierarchical namespace, which answers as the REST documentation says.

Folders are listed as objects without bytes. Tokens end, access lists refuse, the service is busy, and objects are
leased when a test says so. Azurite has none of these.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import formatdate
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

CONTAINER = "container"


@dataclass(frozen=True)
class Refusal:
    """An answer in place of the object: a status, the service's code, and headers."""

    status: int
    code: str
    headers: dict[str, str] = field(default_factory=dict)


BUSY = Refusal(503, "ServerBusy", {"Retry-After": "0"})
NO_ACL = Refusal(403, "AuthorizationPermissionMismatch")
LEASED = Refusal(412, "LeaseIdMissing")
EXPIRED = Refusal(401, "InvalidAuthenticationInfo", {"WWW-Authenticate": "Bearer"})

Rule = Callable[[str, str, str], Refusal | None]
"""Called with the verb, the path in the container and the token; None lets a request through."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def _serve(self) -> None:
        account = self.server.account
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        path = unquote(url.path).removeprefix(f"/account/{CONTAINER}").lstrip("/")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        is_list = query.get("comp") == "list"
        path = query.get("prefix", "") if is_list else path
        verb = "LIST" if is_list else self.command
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        with account.lock:
            account.calls.append((verb, path, token))
            refusal = account.rule(verb, path, token)
        if refusal is not None:
            xml = f"<?xml version='1.0'?><Error><Code>{refusal.code}</Code><Message>no</Message></Error>".encode()
            self._send(refusal.status, xml, {"x-ms-error-code": refusal.code, **refusal.headers})
        elif is_list:
            self._send(200, account.listing(path, query.get("delimiter")), {"Content-Type": "application/xml"})
        elif verb == "PUT":
            self._put(account.root / path, body)
        else:
            self._object(account.root / path)

    def _put(self, file: Path, body: bytes) -> None:
        if self.headers.get("If-None-Match") == "*" and file.exists():
            self._send(409, b"", {"x-ms-error-code": "BlobAlreadyExists"})
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(body)
        self._send(201, b"", _facts(file))

    def _object(self, file: Path) -> None:
        if not file.is_file():
            self._send(404, b"", {"x-ms-error-code": "BlobNotFound"})
            return
        data, status, more = file.read_bytes(), 200, _facts(file)
        size = len(data)
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("x-ms-range") or self.headers.get("Range") or "")
        if asked is not None:
            first = int(asked[1])
            data = data[first : int(asked[2] or size) + 1]
            status, more["Content-Range"] = 206, f"bytes {first}-{first + len(data) - 1}/{size}"
        self._send(status, data, more)

    def _send(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_GET = do_HEAD = do_PUT = do_DELETE = _serve  # noqa: N815 - the base class's names


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, account: HierarchicalAccount) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.account = account


def _facts(file: Path) -> dict[str, str]:
    stamp = formatdate(file.stat().st_mtime, usegmt=True)
    return {"Last-Modified": stamp, "ETag": f'"{sha256(file.read_bytes()).hexdigest()[:16]}"'}


class HierarchicalAccount:
    """An account whose container is a folder of this machine; ``rule`` refuses requests."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.rule: Rule = lambda *_: None
        self.calls: list[tuple[str, str, str]] = []
        self.lock = threading.Lock()
        self._server = _Server(self)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def options(self, **more: Any) -> dict[str, Any]:
        """Return the storage options of the account."""
        endpoint = f"http://127.0.0.1:{self._server.server_address[1]}/account"
        return {"azure_storage_account_name": "account", "azure_storage_endpoint": endpoint, "token": "t", **more}

    def listing(self, prefix: str, delimiter: str | None) -> bytes:
        """Return one page with all names; folders are entries of their own, as they are in such accounts."""
        names = sorted(each.relative_to(self.root).as_posix() for each in self.root.rglob("*"))
        below = [name for name in names if name.startswith(prefix)]
        if delimiter:
            below = [name for name in below if "/" not in name[len(prefix) :]]
        blobs = "".join(map(self._entry, below))
        for name in below if delimiter else ():
            if (self.root / name).is_dir():
                blobs += f"<BlobPrefix><Name>{escape(name)}/</Name></BlobPrefix>"
        page = f"<?xml version='1.0' encoding='utf-8'?><EnumerationResults><Blobs>{blobs}</Blobs><NextMarker/>"
        return f"{page}</EnumerationResults>".encode()

    def _entry(self, name: str) -> str:
        file = self.root / name
        kind = "directory" if file.is_dir() else "file"
        facts = {"Last-Modified": formatdate(0, usegmt=True), "ETag": '"0"'} if file.is_dir() else _facts(file)
        size = 0 if file.is_dir() else file.stat().st_size
        about = "".join(f"<{key}>{escape(value)}</{key}>" for key, value in facts.items())
        about += f"<Content-Length>{size}</Content-Length><Content-Type>application/octet-stream</Content-Type>"
        about += f"<ResourceType>{kind}</ResourceType><BlobType>BlockBlob</BlobType>"
        folder = "<Metadata><hdi_isfolder>true</hdi_isfolder></Metadata>" if file.is_dir() else "<Metadata/>"
        return f"<Blob><Name>{escape(name)}</Name><Properties>{about}</Properties>{folder}</Blob>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
