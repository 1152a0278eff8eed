"""Determine the host that a client connects to, and so the owner of its credentials.

A label such as the account name proves nothing. The host does, and it comes from the URI, the options or the
environment. So the address is computed from the same configuration that the client is built with.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from lazydelta.storage.options import EMULATOR_ACCOUNT, EMULATOR_KEY, canonical_option, sort_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lazydelta.storage.location import Location

__all__ = [
    "LOOPBACK",
    "Address",
    "address_of",
    "client_config",
    "fence",
    "from_environment",
    "is_true",
    "same_owner",
    "was_redirected",
]


LOOPBACK = ("127.0.0.1", "localhost", "::1")
_PREFIX = {"azure": "AZURE_", "s3": "AWS_", "gcs": "GOOGLE_"}
# Options that determine the host. A client would read them from the environment itself; it is given them instead, so
# that it connects to the host that was checked.
_OPTIONS_THAT_DECIDE = {
    "azure": ("endpoint", "use_emulator", "use_fabric_endpoint"),
    "s3": ("endpoint", "region", "default_region", "virtual_hosted_style_request"),
    "gcs": ("base_url",),
}
_EMULATOR_URL = "http://127.0.0.1:10000"
_PORTS = {"https": 443, "http": 80}


class Address(msgspec.Struct, frozen=True):
    """A service URL and the account at it. S3 and Google have no account, so the bucket takes its place."""

    service: str
    owner: str

    @property
    def host(self) -> str:
        """The host, without its port."""
        return urlsplit(self.service).hostname or ""

    def __str__(self) -> str:
        return f"{self.owner} at {self.service}"


def is_true(value: object) -> bool:
    """Return whether an option is switched on."""
    return str(value).lower() in ("true", "1")


def from_environment(kind: str, environment: Mapping[str, str] | None = None) -> dict[str, tuple[str, str]]:
    """Return what the environment would add to a client's configuration: each option with its variable and value."""
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
    """Return the configuration to build a client for this location with. Values in the URI take precedence."""
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
    """Make the emulator switch and an endpoint work together. With the switch on, the client ignores the endpoint."""
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
    """Return the address that a client for this location connects to; None if it does not connect."""
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
    """Return the base URL: from the options, or from the service account key, which the client trusts."""
    if config.get("base_url"):
        return config["base_url"]
    around = {name: value for name, (_, value) in from_environment("gcs", environment).items()}
    merged = {**around, **config}
    text = merged.get("service_account_key")
    if not text and merged.get("service_account"):
        try:
            text = Path(merged["service_account"]).read_text(encoding="utf-8")
        except (OSError, ValueError):
            text = None  # the client reports what is wrong with it
    try:
        key = json.loads(text) if text else None
    except ValueError:
        key = None
    said = key.get("gcs_base_url") if isinstance(key, dict) else None
    return said if isinstance(said, str) else "https://storage.googleapis.com"


def _normal(url: str) -> str:
    """Return a normalised URL, equal for two URLs that lead to the same service."""
    try:
        parts = urlsplit(url if "://" in url else f"https://{url}")
        port = parts.port
    except ValueError:
        return url  # not a URL: equal only to itself, and the client rejects it
    host = (parts.hostname or "").rstrip(".")
    host = f"[{host}]" if ":" in host else host
    scheme = parts.scheme.lower()
    at = "" if port is None or port == _PORTS.get(scheme) else f":{port}"
    return f"{scheme}://{host}{at}{parts.path.rstrip('/')}"


def same_owner(
    home: Location, found: Location, options: Mapping[str, str], environment: Mapping[str, str] | None = None
) -> bool:
    """Return whether the credentials in ``options``, which belong to ``home``, are meant for ``found`` too.

    On Azure they are meant for every container of the account at the same endpoint. On other stores they are meant for
    the bucket only: a name does not tell who owns another bucket.
    """
    if home.kind != found.kind:
        return False
    here, there = address_of(home, options, environment), address_of(found, options, environment)
    if here is None or there is None:
        return home.container == found.container
    if here != there:
        return False
    # With an endpoint in the options the client connects there, whatever host the URI names.
    return home.kind != "azure" or found.host in {
        "",
        home.host,
        urlsplit(here.service).netloc,
        f"{found.account.lower()}.blob.core.windows.net",
    }


# Do not follow redirects to other hosts.
#
# The HTTP client follows them for GET and HEAD with most headers, and has no option against it. But it accepts a proxy
# and a list of hosts to reach directly. So the hosts of a store are on that list, and redirected requests fail at a
# proxy that does not exist. If a real proxy is in use, redirects are followed.


# No socket can listen there, so a connection is refused at once, and an error that names it has no other cause.
_NOWHERE = "127.0.0.1:0"
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
_METADATA = "169.254.169.254"
# Lasting credentials, and the hosts that a client requests a token from without them.
_LASTING_CREDENTIALS = {
    "azure": ("token", "account_key", "sas_key", "skip_signature", "use_emulator"),
    "s3": ("access_key_id", "skip_signature"),
    "gcs": ("bearer_token", "skip_signature"),
}
_TOKEN_HOST_OPTIONS = {
    "azure": ("authority_host", "msi_endpoint", "fabric_token_service_url"),
    "s3": ("sts_endpoint", "metadata_endpoint", "container_credentials_full_uri"),
    "gcs": (),
}
_ASKED_ALWAYS = {
    "azure": ("login.microsoftonline.com", _METADATA),
    "s3": (_METADATA, "169.254.170.2"),
    "gcs": (
        "accounts.google.com",
        "oauth2.googleapis.com",
        "iamcredentials.googleapis.com",
        "metadata.google.internal",
        "metadata",
        _METADATA,
    ),
}


def fence(kind: str, address: Address, config: Mapping[str, Any], around: Mapping[str, str]) -> dict[str, str]:
    """Return the client options that confine a client to its own host. ``around`` is what the environment adds."""
    if _has_proxy():
        return {}
    hosts = [address.host]
    if str(config.get("s3_express", "")).lower() in ("true", "1"):
        hosts.append("amazonaws.com")  # the zone is part of the host name
    known = {**around, **config}
    if not any(known.get(name) for name in _LASTING_CREDENTIALS[kind]) or known.get("fabric_session_token"):
        hosts += _ASKED_ALWAYS[kind]
        if kind == "s3":
            region = known.get("region") or known.get("default_region") or "us-east-1"
            hosts.append(f"sts.{region}.amazonaws.com")
        hosts += [_host(str(known[name])) for name in _TOKEN_HOST_OPTIONS[kind] if known.get(name)]
        hosts += [_host(os.environ[name]) for name in ("IDENTITY_ENDPOINT", "MSI_ENDPOINT") if os.environ.get(name)]
    return {"proxy_url": f"http://{_NOWHERE}", "proxy_excludes": ",".join(dict.fromkeys(hosts))}


def _has_proxy() -> bool:
    """Return whether the client would find a proxy by itself, in the environment or the system settings."""
    if any(os.environ.get(name) or os.environ.get(name.lower()) for name in _PROXIES):
        return True
    if sys.platform in ("darwin", "win32"):
        from urllib.request import getproxies  # noqa: PLC0415 - only these systems have proxy settings

        return bool(getproxies())
    return False


def _host(url: str) -> str:
    try:
        return urlsplit(url if "://" in url else f"https://{url}").hostname or ""
    except ValueError:
        return ""


def was_redirected(text: str) -> bool:
    """Return whether the client's error message shows that it tried to follow a redirect."""
    return _NOWHERE in text and "tcp connect error" in text
