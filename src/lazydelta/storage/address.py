"""Where a client would really connect: the one answer to "whose credentials are these".

A label such as the account's name proves nothing: the host does, and the host comes from the URI, the options or the
environment. So the address is computed from the very configuration that the client is built with.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from lazydelta.storage.storage_options import EMULATOR_ACCOUNT, EMULATOR_KEY, canonical_option, sort_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lazydelta.storage.location import Location

__all__ = ["LOOPBACK", "Address", "address_of", "client_config", "from_environment", "is_true", "same_owner"]

LOOPBACK = ("127.0.0.1", "localhost", "::1")
_PREFIX = {"azure": "AZURE_", "s3": "AWS_", "gcs": "GOOGLE_"}
# What of the environment decides on the host; a client would take it from there itself, and is given it instead, so
# that it connects to what was judged.
_OPTIONS_THAT_DECIDE = {
    "azure": ("endpoint", "use_emulator", "use_fabric_endpoint"),
    "s3": ("endpoint", "region", "default_region", "virtual_hosted_style_request"),
    "gcs": ("base_url",),
}
_EMULATOR_URL = "http://127.0.0.1:10000"
_PORTS = {"https": 443, "http": 80}


class Address(msgspec.Struct, frozen=True):
    """A service, by its URL, and the account at it; S3 and Google know no account, so the bucket stands for it."""

    service: str
    owner: str

    @property
    def host(self) -> str:
        """The host, without its port."""
        return urlsplit(self.service).hostname or ""

    def __str__(self) -> str:
        return f"{self.owner} at {self.service}"


def is_true(value: object) -> bool:
    """Tell whether an option is switched on."""
    return str(value).lower() in ("true", "1")


def from_environment(kind: str, environment: Mapping[str, str] | None = None) -> dict[str, tuple[str, str]]:
    """Return what the environment would add to the configuration of a client: option, and its variable and value."""
    prefix = _PREFIX.get(kind)
    found: dict[str, tuple[str, str]] = {}
    for variable, value in (os.environ if environment is None else environment).items():
        if prefix is not None and variable.startswith(prefix):
            place = canonical_option(kind, variable.lower())
            if place is not None and place[0] == "config":
                found[place[1]] = (variable, value)
    return found


def client_config(
    location: Location, options: Mapping[str, str], environment: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the configuration that a client for this place is built with; the URI's own word goes before all else."""
    kind = location.kind
    config = {**sort_options(kind, options).config, **dict(location.implied)}
    for name in ("bucket", "container_name", "connection_string"):
        config.pop(name, None)
    around = from_environment(kind, environment)
    for name in _OPTIONS_THAT_DECIDE.get(kind, ()):
        if name in around:
            config.setdefault(name, around[name][1])
    if kind == "azure":
        if location.account:
            config.setdefault("account_name", location.account)
        _settle_emulator(config)
    return config


def _settle_emulator(config: dict[str, str]) -> None:
    """Make the emulator switch and an endpoint work together: the client alone ignores the endpoint then."""
    if not is_true(config.get("use_emulator")) or "endpoint" not in config:
        return
    del config["use_emulator"]
    account = config.setdefault("account_name", EMULATOR_ACCOUNT)
    endpoint = str(config["endpoint"]).rstrip("/")
    if not endpoint.endswith(f"/{account}"):
        endpoint = f"{endpoint}/{account}"
    config["endpoint"] = endpoint
    if account == EMULATOR_ACCOUNT and not {"account_key", "sas_key", "token", "skip_signature"} & config.keys():
        config["account_key"] = EMULATOR_KEY


def address_of(
    location: Location, options: Mapping[str, str], environment: Mapping[str, str] | None = None
) -> Address | None:
    """Return where a client for this place connects to; None where it does not connect to anything."""
    if location.kind not in _PREFIX:
        return None
    config = client_config(location, options, environment)
    if location.kind == "azure":
        account = config.get("account_name", "").lower()
        return Address(_normal(_azure_service(account, config, environment)), f"account {account!r}")
    owner = f"bucket {location.container!r}"
    if location.kind == "gcs":
        return Address(_normal(_google_service(config, environment)), owner)
    region = config.get("region") or config.get("default_region") or "us-east-1"
    return Address(_normal(config.get("endpoint") or f"https://s3.{region}.amazonaws.com"), owner)


def _azure_service(account: str, config: Mapping[str, str], environment: Mapping[str, str] | None) -> str:
    if is_true(config.get("use_emulator")):
        around = os.environ if environment is None else environment
        return f"{around.get('AZURITE_BLOB_STORAGE_URL', _EMULATOR_URL).rstrip('/')}/{account or EMULATOR_ACCOUNT}"
    if config.get("endpoint"):
        return config["endpoint"]
    suffix = "fabric.microsoft.com" if is_true(config.get("use_fabric_endpoint")) else "core.windows.net"
    return f"https://{account}.blob.{suffix}"


def _google_service(config: Mapping[str, str], environment: Mapping[str, str] | None) -> str:
    """Return the base URL: given, or written into the service account's key, which the client believes."""
    if config.get("base_url"):
        return config["base_url"]
    around = {name: value for name, (_, value) in from_environment("gcs", environment).items()}
    merged = {**around, **config}
    text = merged.get("service_account_key")
    if not text and merged.get("service_account"):
        try:
            text = Path(merged["service_account"]).read_text(encoding="utf-8")
        except (OSError, ValueError):
            text = None  # the client says what is wrong with it
    try:
        key = json.loads(text) if text else None
    except ValueError:
        key = None
    said = key.get("gcs_base_url") if isinstance(key, dict) else None
    return said if isinstance(said, str) else "https://storage.googleapis.com"


def _normal(url: str) -> str:
    """Return a URL such that two that lead to one service are equal."""
    try:
        parts = urlsplit(url if "://" in url else f"https://{url}")
        port = parts.port
    except ValueError:
        return url  # no URL at all: equal to itself only, and the client refuses it
    host = (parts.hostname or "").rstrip(".")
    host = f"[{host}]" if ":" in host else host
    scheme = parts.scheme.lower()
    at = "" if port is None or port == _PORTS.get(scheme) else f":{port}"
    return f"{scheme}://{host}{at}{parts.path.rstrip('/')}"


def same_owner(
    home: Location, found: Location, options: Mapping[str, str], environment: Mapping[str, str] | None = None
) -> bool:
    """Tell whether the credentials in ``options``, which are those of ``home``, are meant for ``found`` too.

    On Azure that is every container of the account at the same endpoint. Elsewhere it is the bucket: nothing in a
    name tells whose another bucket is.
    """
    if home.kind != found.kind:
        return False
    here, there = address_of(home, options, environment), address_of(found, options, environment)
    if here is None or there is None:
        return home.container == found.container
    if here != there:
        return False
    # With an endpoint among the options the client goes there whatever the URI names: not what the URI says.
    return home.kind != "azure" or found.host in {
        "",
        home.host,
        urlsplit(here.service).netloc,
        f"{found.account.lower()}.blob.core.windows.net",
    }
