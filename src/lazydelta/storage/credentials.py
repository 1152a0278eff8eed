"""Choose the credentials that a client signs with: those in its options, or those of the environment.

The client reads the environment itself and mixes both: a token from there takes precedence over a key in the options. A
table that was given credentials uses those and no others. An external location never sees the credentials of the
environment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeAlias

from lazydelta.errors import OptionError, require
from lazydelta.storage.address import is_true

if TYPE_CHECKING:
    from lazydelta.storage.address import Address
    from lazydelta.storage.location import Location

__all__ = ["Provider", "check_own_credentials", "isolate", "lasting_credentials", "named_credential", "token_provider"]

Provider: TypeAlias = Callable[[], dict[str, Any]]

# Options that add a secret or a signature to a request.
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
# The same, but no other credential can replace them.
_SECRETS_BESIDE = {"azure": ("encryption_key",), "s3": ("sse_customer_key_base64", "server_side_encryption"), "gcs": ()}
_SWITCHES = {
    "azure": ("use_emulator", "use_fabric_endpoint", "use_azure_cli"),
    "s3": ("virtual_hosted_style_request", "s3_express", "request_payer"),
    "gcs": (),
}


def lasting_credentials(kind: str, config: Mapping[str, str]) -> Provider | None:
    """Return a provider of the credentials in the configuration; None if they have to be fetched first."""
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
    """Raise if an external location has no credentials of its own. The environment must not supply them."""
    kind = location.kind
    if (
        kind not in _SIGNING_OPTIONS
        or is_true(config.get("skip_signature"))
        or any(config.get(name) for name in _SIGNING_OPTIONS[kind])
    ):
        return
    message = f"the external location {location.uri} has no credentials of its own"
    hint = "pass them as its options; or skip_signature=true for public data; or use_environment=true"
    raise OptionError(message, path=location.uri, hint=hint)


def isolate(
    location: Location, config: dict[str, str], address: Address, around: Mapping[str, tuple[str, str]]
) -> Provider | None:
    """Keep the environment's credentials away from a client built with ``config``, or raise if that is impossible.

    Adds to ``config`` what the client would otherwise take from ``around``. Returns lasting credentials, which are
    passed to the client in a way that leaves no room for others.
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
        message = f"the environment's {', '.join(clash)} would also be used for the external location {location.uri}"
        hint = "pass its own key or token, or use_environment=true, or unset the variable"
        raise OptionError(message, path=location.uri, hint=hint)
    return None if unsigned else provider


# Credentials that are fetched and end: objects of azure-identity, functions, and those that are known by name. The
# client asks again some minutes before a token ends.


_AZURE_SCOPE = "https://storage.azure.com/.default"
_NAMES = {
    "azure": "default (azure-identity's DefaultAzureCredential), cli (az login), managed_identity",
    "s3": "profile:NAME, role:ARN (both with boto3)",
    "gcs": "default (Application Default Credentials)",
}


def named_credential(kind: str, name: str, config: dict[str, str]) -> Any:
    """Return the provider of a credential known by name, or None if the client has it built in; ``config`` is set up.

    Names are plain storage options, so they work wherever options are text: on servers, in Spark and in C.
    """
    word, _, detail = name.partition(":")
    if kind == "azure" and word == "cli":
        config["use_azure_cli"] = "true"
        return None
    if kind == "azure" and word == "managed_identity":
        if detail:
            config["client_id"] = detail
        return None  # what the client takes if nothing else is given
    if kind == "gcs" and word == "default":
        return None
    if kind == "azure" and word == "default":
        require("azure", "azure.identity")
        from azure.identity import DefaultAzureCredential  # noqa: PLC0415 - optional

        return token_provider(kind, DefaultAzureCredential())
    if kind == "s3" and word in {"profile", "role"} and detail:
        require("aws", "boto3")
        import boto3  # noqa: PLC0415 - optional
        from obstore.auth import boto3 as providers  # noqa: PLC0415

        if word == "profile":
            session = boto3.Session(profile_name=detail)
            return providers.Boto3CredentialProvider(session)
        return providers.StsCredentialProvider(RoleArn=detail, RoleSessionName="lazydelta")
    raise OptionError(f"There is not a credential {name!r} for this store", hint=f"known: {_NAMES[kind]}")


def token_provider(kind: str, credential: Any) -> Any:
    """Return a provider for the client: of an azure-identity credential, or of a function that returns a token.

    A function returns a token and when it ends (a ``datetime``, or seconds since 1970), or for S3 a dictionary with
    ``access_key_id``, ``secret_access_key``, ``token`` and ``expires_at``. Both may be asynchronous.
    """
    import inspect  # noqa: PLC0415 - rarely needed

    if hasattr(credential, "get_token"):
        if kind != "azure":
            raise OptionError("A credential of azure-identity opens Azure only", hint=f"known here: {_NAMES[kind]}")

        def ask() -> Any:
            return credential.get_token(_AZURE_SCOPE)

        is_async = inspect.iscoroutinefunction(credential.get_token)
    elif callable(credential):
        ask = credential
        is_async = inspect.iscoroutinefunction(credential) or inspect.iscoroutinefunction(
            getattr(credential, "__call__", None)  # noqa: B004 - the method itself is looked at
        )
    else:
        message = f"A {type(credential).__name__} is not a credential"
        raise OptionError(
            message, hint="pass a credential of azure-identity, a function that returns (token, expiry), or a name"
        )

    async def ask_async() -> dict[str, Any]:
        return _token(await ask())

    return ask_async if is_async else lambda: _token(ask())


def _token(answer: Any) -> dict[str, Any]:
    """Return the answer of a credential as the client takes it."""
    if isinstance(answer, Mapping):
        found = dict(answer)
    elif hasattr(answer, "token") and hasattr(answer, "expires_on"):
        found = {"token": answer.token, "expires_at": answer.expires_on}
    elif isinstance(answer, tuple) and len(answer) == 2:  # noqa: PLR2004 - the token and its end
        found = {"token": answer[0], "expires_at": answer[1]}
    else:
        hint = "return (token, expiry), with a datetime or seconds since 1970"
        raise OptionError(f"The credential returned a {type(answer).__name__}", hint=hint)
    end = found.get("expires_at")
    if isinstance(end, int | float):
        end = datetime.fromtimestamp(end, UTC)
    if isinstance(end, datetime) and end.tzinfo is None:
        end = end.replace(tzinfo=UTC)
    return {**found, "expires_at": end}
