"""Make a table in Azurite for compose.yaml, and a token for the page, which is printed. What is there stays."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import hmac
import math
import sys
import tomllib
import urllib.error
import urllib.request
from email.utils import format_datetime
from pathlib import Path

import pyarrow as pa

from lazydelta import DeltaTable, sidecar, write_arrow
from lazydelta.server.tokens import add_token

_ROWS = 50_000
_CONFLICT = 409


def create_container(endpoint: str, account: str, key: str, name: str) -> None:
    """Create a container. No library here can, so the request is signed by hand (Shared Key)."""
    headers = {"x-ms-date": format_datetime(dt.datetime.now(dt.UTC), usegmt=True), "x-ms-version": "2021-08-06"}
    signed = "".join(f"{each}:{value}\n" for each, value in sorted(headers.items()))
    text = "PUT" + "\n" * 12 + signed + f"/{account}/{account}/{name}\nrestype:container"
    digest = hmac.new(base64.b64decode(key), text.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {account}:{base64.b64encode(digest).decode()}"
    request = urllib.request.Request(f"{endpoint}/{name}?restype=container", None, headers, method="PUT")  # noqa: S310
    try:
        urllib.request.urlopen(request, timeout=30).close()  # noqa: S310 - the address in the settings
    except urllib.error.HTTPError as error:
        if error.code != _CONFLICT:
            raise


def rows() -> pa.Table:
    """Return half a day of readings of three sites."""
    start = dt.datetime(2026, 2, 9, tzinfo=dt.UTC)
    seconds = range(_ROWS)
    sites = ["oslo", "porto", "lima"]
    return pa.table(
        {
            "at": pa.array([start + dt.timedelta(seconds=each) for each in seconds], pa.timestamp("us", "UTC")),
            "site": [sites[each % 3] for each in seconds],
            "value": [20 + each % 3 * 5 + 4 * math.sin(each / 20_000) for each in seconds],
        }
    )


def main(settings: str, tokens: str) -> None:
    """Make what the server's settings name."""
    table = tomllib.loads(Path(settings).read_text(encoding="utf-8"))["tables"]["readings"]
    uri, options = table["uri"], table["storage_options"]
    account, key = options["azure_storage_account_name"], options["azure_storage_account_key"]
    create_container(options["azure_storage_endpoint"], account, key, uri.split("/")[2])
    if not DeltaTable.is_deltatable(uri, options):
        write_arrow(uri, rows(), timestamp_column="at", storage_options=options)
        DeltaTable(uri, storage_options=options).create_checkpoint()
        sidecar.build(uri, storage_options=options)
    if not Path(tokens).exists():
        print(add_token(tokens, "page"))  # noqa: T201 - shown once, in the log of this service


if __name__ == "__main__":
    main(*sys.argv[1:])
