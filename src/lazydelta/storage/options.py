"""``storage_options``: the keys that deltalake and object_store use, sorted by back end.

Keys are case-insensitive. A key of another back end, or one that only deltalake uses, has no effect, so that one
dictionary can serve several tools. A key that nothing knows is an error, which never shows its value.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from lazydelta.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping


__all__ = [
    "CREDENTIAL",
    "EMULATOR_ACCOUNT",
    "EMULATOR_KEY",
    "LEFT_BEHIND",
    "CarriedOptions",
    "Sorted",
    "canonical_option",
    "is_secret",
    "normalise",
    "secrets_of",
    "shipped_options",
    "sort_options",
    "without_secrets",
]

EMULATOR_ACCOUNT = "devstoreaccount1"
# The fixed, public key of all Azure storage emulators (learn.microsoft.com, "Use the Azurite emulator").
EMULATOR_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

CREDENTIAL = "credential"
"""The option that names a credential, or is one; see `lazydelta.storage.credentials`."""

LEFT_BEHIND = "credentials_left_behind"
"""Placeholder option for secrets that were not pickled; see ``shipped_options``."""

_CLIENT = {
    "allow_http",
    "allow_invalid_certificates",
    "connect_timeout",
    "default_content_type",
    "http1_only",
    "http2_only",
    "http2_keep_alive_interval",
    "http2_keep_alive_timeout",
    "http2_keep_alive_while_idle",
    "http2_max_frame_size",
    "pool_idle_timeout",
    "pool_max_idle_per_host",
    "proxy_url",
    "proxy_ca_certificate",
    "proxy_excludes",
    "randomize_addresses",
    "read_timeout",
    "root_certificate",
    "timeout",
    "user_agent",
}
_AZURE = {
    "account_name",
    "account_key",
    "authority_host",
    "client_id",
    "client_secret",
    "connection_string",
    "container_name",
    "credential_type",
    "disable_tagging",
    "encryption_key",
    "endpoint",
    "fabric_cluster_identifier",
    "fabric_session_token",
    "fabric_token_service_url",
    "fabric_workload_host",
    "federated_token_file",
    "msi_endpoint",
    "msi_resource_id",
    "object_id",
    "sas_key",
    "skip_signature",
    "tenant_id",
    "token",
    "use_azure_cli",
    "use_emulator",
    "use_fabric_endpoint",
}
_AZURE_ALIASES = {
    "access_key": "account_key",
    "account": "account_name",
    "authority_id": "tenant_id",
    "bearer_token": "token",
    "identity_endpoint": "msi_endpoint",
    "key": "account_key",
    "master_key": "account_key",
    "sas_token": "sas_key",
}
_S3 = {
    "access_key_id",
    "bucket",
    "checksum_algorithm",
    "conditional_put",
    "container_authorization_token_file",
    "container_credentials_full_uri",
    "container_credentials_relative_uri",
    "copy_if_not_exists",
    "default_region",
    "disable_bulk_delete",
    "disable_tagging",
    "endpoint",
    "imdsv1_fallback",
    "metadata_endpoint",
    "region",
    "request_payer",
    "role_arn",
    "role_session_name",
    "s3_express",
    "secret_access_key",
    "server_side_encryption",
    "session_token",
    "skip_signature",
    "sse_bucket_key_enabled",
    "sse_customer_key_base64",
    "sse_kms_key_id",
    "sts_endpoint",
    "unsigned_payload",
    "virtual_hosted_style_request",
    "web_identity_token_file",
}
_S3_ALIASES = {
    "bucket_name": "bucket",
    "endpoint_url": "endpoint",
    "endpoint_url_s3": "endpoint",
    "endpoint_url_sts": "sts_endpoint",
    "iam_role_arn": "role_arn",
    "iam_role_session_name": "role_session_name",
    "secret_key": "secret_access_key",
    "token": "session_token",
}
_GCS = {
    "application_credentials",
    "base_url",
    "bearer_token",
    "bucket",
    "service_account",
    "service_account_key",
    "skip_signature",
}
_GCS_ALIASES = {
    "bucket_name": "bucket",
    "service_account_path": "service_account",
    "storage_token": "bearer_token",
    "token": "bearer_token",
}
_RETRY = {"max_retries", "retry_timeout"}
# Keys that only deltalake's writer or table loader uses; they need no warning.
_OTHERS = {
    CREDENTIAL,
    "allow_unsafe_rename",
    "aws_s3_allow_unsafe_rename",
    "aws_s3_locking_provider",
    "aws_force_credential_load",
    "mount_allow_unsafe_rename",
}
_OTHER_PREFIXES = ("delta_dynamo", "backoff_config.", "dynamo", "aws_profile")

_KINDS: dict[str, tuple[tuple[str, ...], set[str], dict[str, str]]] = {
    "azure": (("azure_storage_", "azure_", "object_store_"), _AZURE, _AZURE_ALIASES),
    "s3": (("aws_",), _S3, _S3_ALIASES),
    "gcs": (("google_", "gcs_", "gcp_"), _GCS, _GCS_ALIASES),
}
_HIDDEN_NAMES = r"(?i)key|secret|token|sas|password|connection_string|credential"
_NOT_SECRET = {CREDENTIAL, "access_key_id", "aws_access_key_id", "federated_token_file", "web_identity_token_file"}


class Sorted(msgspec.Struct):
    """Options grouped by their consumer."""

    config: dict[str, str] = msgspec.field(default_factory=dict)
    client: dict[str, str] = msgspec.field(default_factory=dict)
    retry: dict[str, str] = msgspec.field(default_factory=dict)

    def __repr__(self) -> str:
        # The other fields may hold credentials.
        return f"Sorted(retry={self.retry})"


def normalise(options: Mapping[str, object] | None) -> dict[str, str]:
    """Return options with lower-case keys and string values. Python's True becomes ``true``."""
    result: dict[str, str] = {}
    for key, value in (options or {}).items():
        if value is not None:
            result[str(key).lower()] = str(value).lower() if isinstance(value, bool) else str(value)
    return result


def is_secret(key: str, value: str) -> bool:
    """Return whether an option's value must never be shown, judging by its lower-case key and by the value."""
    if key in _NOT_SECRET:
        return False
    # A signature in a URL, or a password before its host.
    return re.search(_HIDDEN_NAMES, key) is not None or "sig=" in value or ("://" in value and "@" in value)


def without_secrets(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options without secrets."""
    return {key: value for key, value in options.items() if not is_secret(key.lower(), value)}


class CarriedOptions(dict[str, str]):
    """Storage options that are pickled with their secrets, at the caller's request.

    A Spark job needs this: its tasks open the table on other machines. Other options are pickled without secrets, see
    ``shipped_options``.
    """

    def __repr__(self) -> str:
        return f"CarriedOptions({', '.join(sorted(self))})"


def shipped_options(options: Mapping[str, str]) -> Mapping[str, str]:
    """Return the storage options to pickle. A placeholder marks omitted secrets."""
    if isinstance(options, CarriedOptions):
        return options
    public = without_secrets(options)
    return public if len(public) == len(options) else public | {LEFT_BEHIND: "true"}


def secrets_of(options: Mapping[str, str]) -> tuple[str, ...]:
    """Return the values that must never be shown, including the parts of a SAS token or connection string."""
    found: list[str] = []
    for key, value in options.items():
        if not is_secret(key, value):
            continue
        found.append(value)
        for pair in re.split("[;&]", value.removeprefix("?")):
            name, _, part = pair.partition("=")
            if name.lower() in ("sig", "accountkey", "sharedaccesssignature"):
                found.append(part)
    return tuple(found)


def canonical_option(kind: str, key: str) -> tuple[str, str] | None:
    """Return (family, canonical name) of a lower-case key for this back end, or None if the key is unknown."""
    prefixes, known, aliases = _KINDS[kind]
    bare = next((key[len(prefix) :] for prefix in prefixes if key.startswith(prefix)), key)
    # S3's own prefix is also optional in the middle of a name (aws_s3_express).
    for name in (bare, key):
        name = aliases.get(name, name)  # noqa: PLW2901
        if name in known:
            return "config", name
        if name in _CLIENT:
            return "client", name
        if name in _RETRY:
            return "retry", name
    return None


def sort_options(kind: str, options: Mapping[str, str]) -> Sorted:
    """Sort normalised options for one back end. Raise for a key that nothing knows."""
    result = Sorted()
    if kind not in _KINDS:
        return result
    for key, value in options.items():
        place = canonical_option(kind, key)
        if place is not None:
            getattr(result, place[0])[place[1]] = value
        elif key not in _OTHERS and not key.startswith(_OTHER_PREFIXES) and not _of_another_kind(kind, key):
            raise _unknown(kind, key)
    return result


def _of_another_kind(kind: str, key: str) -> bool:
    return any(canonical_option(other, key) is not None for other in _KINDS if other != kind)


def _unknown(kind: str, key: str) -> OptionError:
    prefixes, known, aliases = _KINDS[kind]
    names = [*known, *aliases, *_CLIENT, *(prefix + name for prefix in prefixes for name in (*known, *aliases))]
    import difflib  # noqa: PLC0415 - for mistakes only

    near = difflib.get_close_matches(key, names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "docs/operations.md lists the options; omit what is not one"
    return OptionError(f"There is no storage option {key!r}", hint=hint)
