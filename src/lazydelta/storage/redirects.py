"""Redirects are not followed to other hosts.

The HTTP client follows them for GET and HEAD, takes most headers along, and has no switch against it. It has one for
proxies, with a list of hosts that are reached without: so the hosts that a store has to do with are reached directly,
and everything else through a proxy that does not exist. Requests of ours never see it; redirected ones end there.

Where a real proxy is in use, the client needs the switch for that, and redirects are followed.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lazydelta.storage.address import Address

__all__ = ["fence", "was_redirected"]

# No socket can listen there, so a connection is refused at once, and an error that names it can have no other cause.
_NOWHERE = "127.0.0.1:0"
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
_METADATA = "169.254.169.254"
# Whom a client asks for a token when it has nothing lasting to sign with.
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
    """Return the client options that keep a client at its own host; ``around`` is what the environment adds."""
    if _has_proxy():
        return {}
    hosts = [address.host]
    if str(config.get("s3_express", "")).lower() in ("true", "1"):
        hosts.append("amazonaws.com")  # the zone is part of the host's name
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
    """Tell whether the client would find a proxy by itself: in the environment, or in the system's settings."""
    if any(os.environ.get(name) or os.environ.get(name.lower()) for name in _PROXIES):
        return True
    if sys.platform in ("darwin", "win32"):
        from urllib.request import getproxies  # noqa: PLC0415 - only these systems have settings of their own

        return bool(getproxies())
    return False


def _host(url: str) -> str:
    try:
        return urlsplit(url if "://" in url else f"https://{url}").hostname or ""
    except ValueError:
        return ""


def was_redirected(text: str) -> bool:
    """Tell from the client's account of an error whether it tried to follow a redirect."""
    return _NOWHERE in text and "tcp connect error" in text
