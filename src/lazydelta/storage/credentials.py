"""Whose credentials a client signs with: those among its options, or what the environment has.

The client reads the environment by itself and mixes both: a token from there wins over a key in the options. A table
that was given credentials uses them and no others; a place that a log may lead to never sees the environment's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from lazydelta.errors import OptionError
from lazydelta.storage.address import is_true

if TYPE_CHECKING:
    from lazydelta.storage.address import Address
    from lazydelta.storage.location import Location

__all__ = ["Provider", "check_own_credentials", "isolate", "lasting_credentials"]

Provider: TypeAlias = Callable[[], dict[str, Any]]

# Options that put something secret, or a signature, into a request.
_SIGNING_OPTIONS = {
    "azure": (
        "token",
        "account_key",
        "sas_key",
        "client_secret",
        "federated_token_file",
        "fabric_session_token",
        "use_azure_cli",
    ),
    "s3": ("access_key_id", "secret_access_key", "session_token", "web_identity_token_file"),
    "gcs": ("bearer_token", "service_account", "service_account_key"),
}
# The same, and no other credential takes their place.
_SECRETS_BESIDE = {"azure": ("encryption_key",), "s3": ("sse_customer_key_base64", "server_side_encryption"), "gcs": ()}
_SWITCHES = {
    "azure": ("use_emulator", "use_fabric_endpoint", "use_azure_cli"),
    "s3": ("virtual_hosted_style_request", "s3_express", "request_payer"),
    "gcs": (),
}


def lasting_credentials(kind: str, config: Mapping[str, str]) -> Provider | None:
    """Return what gives a client the credentials in its configuration; None where they have to be fetched first."""
    found: dict[str, Any] = {}
    if kind == "azure":
        for option, name in (("token", "token"), ("account_key", "access_key"), ("sas_key", "sas_token")):
            if config.get(option):
                found = {name: config[option].removeprefix("?")}
                break
    elif kind == "s3":
        if config.get("access_key_id") and config.get("secret_access_key"):
            found = {name: config[name] for name in ("access_key_id", "secret_access_key")}
            found["token"] = config.get("session_token") or None
    elif kind == "gcs" and config.get("bearer_token"):
        found = {"token": config["bearer_token"]}
    if not found:
        return None
    credentials = {**found, "expires_at": None}
    return lambda: credentials


def check_own_credentials(location: Location, config: Mapping[str, str]) -> None:
    """Refuse a place outside the table that was given nothing to sign with: the environment is not to help out."""
    kind = location.kind
    if (
        kind not in _SIGNING_OPTIONS
        or is_true(config.get("skip_signature"))
        or any(config.get(name) for name in _SIGNING_OPTIONS[kind])
    ):
        return
    message = f"the external location {location.uri} has no credentials of its own"
    hint = "give them as its options; or skip_signature=true for public data; or use_environment=true for those around"
    raise OptionError(message, path=location.uri, hint=hint)


def isolate(
    location: Location, config: dict[str, str], address: Address, around: Mapping[str, tuple[str, str]]
) -> Provider | None:
    """Keep what the environment has away from a client that is built with ``config``, or refuse to build it.

    ``config`` gets what the client would else take from ``around``; credentials that last are returned, to be given to
    the client in a way that leaves no room for others.
    """
    kind = location.kind
    check_own_credentials(location, config)
    others = [name for name in around if name not in config]
    for name in _SWITCHES[kind]:
        if name in others:
            config[name] = "false"
    if kind == "azure" and not is_true(config.get("use_emulator")):
        config["endpoint"] = address.service
    elif kind == "gcs":
        config["base_url"] = address.service
    elif kind == "s3":
        config.setdefault("region", config.get("default_region", "us-east-1"))
        if "endpoint" in others and not is_true(config.get("s3_express")):
            hosted = is_true(config.get("virtual_hosted_style_request"))
            host = address.service.removeprefix("https://")
            config["endpoint"] = f"https://{location.container}.{host}" if hosted else address.service
    provider = lasting_credentials(kind, config)
    unsigned = is_true(config.get("skip_signature"))
    mixed = () if provider is not None or unsigned else _SIGNING_OPTIONS[kind]
    clash = sorted(
        around[name][0] for name in others if name in (*mixed, *_SECRETS_BESIDE[kind]) and name not in config
    )
    if clash:
        message = f"the environment's {', '.join(clash)} would be used for the external location {location.uri} too"
        hint = "give it a key or token of its own, or use_environment=true, or unset the variable"
        raise OptionError(message, path=location.uri, hint=hint)
    return None if unsigned else provider
