"""From the errors of the client and the operating system to ours, with nothing secret in them.

Translated errors are raised without their cause: the cause's text may hold signed URLs, and tracebacks print causes.
"""

from __future__ import annotations

import errno
import os
import re
from typing import TYPE_CHECKING
from urllib.parse import quote, quote_plus, unquote

from lazydelta.errors import (
    AccessDeniedError,
    LazyDeltaError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    OptionError,
    StorageError,
    StorageTimeoutError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["option_fault", "redact", "translate"]

_SECRET_ENVIRONMENT = (
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_ACCESS_KEY",
    "AZURE_STORAGE_MASTER_KEY",
    "AZURE_STORAGE_CLIENT_SECRET",
    "AZURE_CLIENT_SECRET",
    "AZURE_STORAGE_SAS_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_STORAGE_TOKEN",
    "AZURE_ENCRYPTION_KEY",
    "AZURE_STORAGE_CONNECTION_STRING",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
)
_MIN_SECRET = 4
_MAX_DETAIL = 400

_QUERY = re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s?\"'<>]*)\?[^\s\"'<>)]*", re.IGNORECASE)
_PAIR = re.compile(
    r"\b(sig|skoid|sktid|AccountKey|SharedAccessSignature|X-Amz-[A-Za-z-]+|client_secret|access_token|AWSAccessKeyId"
    r"|Signature|SignatureProvided|StringToSign)(\s*[=:>]\s*)[^\s&;\"'<,]+",
    re.IGNORECASE,
)
_AUTHORIZATION = re.compile(r"\b(Bearer|SharedKey|AWS4-HMAC-SHA256)\s+[^\"'<]+", re.IGNORECASE)
_CODE = re.compile(r"<Code>([A-Za-z0-9]{1,80})</Code>")
_STATUS = re.compile(r"\b(401|403)\b")
_MISSING_CREDENTIALS = (
    "credential",
    "token request",
    "tokenrequest",
    "metadata/instance",
    "169.254.169.254",
    "az account get-access-token",
    "azure cli",
)
# As the HTTP library writes them; "timeout" alone is also the name of settings in its debug dumps.
_TIMEOUTS = ("timed out", "timedout")


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Return ``text`` without secrets: the known values, query strings of URLs, and anything that looks like a key."""
    known = {secret for secret in secrets if len(secret) >= _MIN_SECRET}
    known.update(value for name in _SECRET_ENVIRONMENT if len(value := os.environ.get(name, "")) >= _MIN_SECRET)
    forms = {form for value in known for form in (value, quote(value, safe=""), quote_plus(value), unquote(value))}
    for form in sorted(forms, key=len, reverse=True):
        text = text.replace(form, "***")
    text = _QUERY.sub(r"\1?***", text)
    text = _PAIR.sub(r"\1\2***", text)
    return _AUTHORIZATION.sub(r"\1 ***", text)


def _detail(error: BaseException, secrets: Iterable[str]) -> str:
    """Return the useful part of a client's message: the client appends a debug dump after a blank line."""
    text = str(error).partition("\n\nDebug source")[0]
    text, _, body = text.partition("<?xml")
    code = _CODE.search(body)
    text = " ".join(redact(text, secrets).split()) + (f" {code.group(1)}" if code else "")
    return text if len(text) <= _MAX_DETAIL else text[: _MAX_DETAIL - 1] + "…"


def _from_os_error(error: OSError, verb: str, uri: str, path: str) -> StorageError:
    code = error.errno
    reason = os.strerror(code) if code else type(error).__name__
    if isinstance(error, FileNotFoundError | IsADirectoryError | NotADirectoryError) or code in (
        errno.ENAMETOOLONG,
        errno.ELOOP,
    ):
        return ObjectNotFoundError(f"{uri} does not exist", path=path)
    if isinstance(error, FileExistsError):
        return ObjectExistsError(f"{uri} already exists", path=path)
    if isinstance(error, PermissionError) or code == errno.EROFS:
        return AccessDeniedError(
            f"{verb} of {uri} was refused: {reason}", path=path, hint="check the file's owner and permissions"
        )
    if isinstance(error, TimeoutError):
        return StorageTimeoutError(f"{verb} of {uri} timed out", path=path, hint="try again, or raise request_timeout")
    if code in (errno.ENOSPC, errno.EDQUOT):
        return StorageError(f"the disk is full: {verb} of {uri} failed", path=path, hint="free some space")
    return StorageError(f"{verb} of {uri} failed: {reason}", path=path)


def translate(error: BaseException, *, verb: str, uri: str, path: str, secrets: Iterable[str] = ()) -> BaseException:
    """Return our error for ``error``; interrupts and our own errors come back as they are."""
    if isinstance(error, LazyDeltaError):
        return error
    name = type(error).__name__
    if not isinstance(error, Exception) and name != "PanicException":
        return error
    if isinstance(error, FileNotFoundError) and error.errno is None:
        return ObjectNotFoundError(f"{uri} does not exist", path=path)
    if isinstance(error, OSError):
        return _from_os_error(error, verb, uri, path)
    # By name: importing the client's classes here would load the client with the error module.
    by_name = _by_class_name(name, verb, uri, path, error, secrets)
    if by_name is not None:
        return by_name
    detail = _detail(error, secrets)
    lowered = detail.lower()
    if " 404 " in detail:
        return ObjectNotFoundError(f"{uri} does not exist: its container or bucket is not there", path=path)
    if " 416 " in detail or "invalid range" in lowered:
        return StorageError(f"{uri} is shorter than the range that was asked for", path=path)
    if any(word in lowered for word in _MISSING_CREDENTIALS) or (_CODE.search(str(error)) and _STATUS.search(detail)):
        return _denied(verb, uri, path, error)
    if any(word in f"{lowered} {str(error)[:20_000].lower()}" for word in _TIMEOUTS):
        return StorageTimeoutError(
            f"{verb} of {uri} timed out", path=path, hint="check the network, or raise request_timeout"
        )
    return StorageError(f"{verb} of {uri} failed: {detail or name}", path=path)


def _by_class_name(
    name: str, verb: str, uri: str, path: str, error: BaseException, secrets: Iterable[str]
) -> StorageError | None:
    if name == "AlreadyExistsError":
        return ObjectExistsError(f"{uri} already exists", path=path)
    if name in ("PreconditionError", "NotModifiedError"):
        return ObjectChangedError(
            f"{uri} is not the object it was (its etag differs)", path=path, hint="read the table again"
        )
    if name in ("PermissionDeniedError", "UnauthenticatedError"):
        return _denied(verb, uri, path, error)
    if name in ("InvalidPathError", "UnicodeEncodeError"):
        return StorageError(f"the store cannot hold a name like {path!r}: {_detail(error, secrets)}", path=path)
    if name == "PanicException":
        return StorageError(
            f"the storage client failed on {verb} of {uri}: {_detail(error, secrets)}",
            path=path,
            hint="open the store in this process, after any fork",
        )
    return None


def _denied(verb: str, uri: str, path: str, error: BaseException) -> AccessDeniedError:
    """Say so without the server's text: it quotes the signature and the string that was signed."""
    code = _CODE.search(str(error))
    said = f" ({code.group(1)})" if code else ""
    return AccessDeniedError(
        f"access to {uri} was denied on {verb}{said}",
        path=path,
        hint="check the credentials in storage_options or the environment, and what they may do",
    )


def option_fault(error: BaseException, *, uri: str, secrets: Iterable[str] = ()) -> BaseException:
    """Return our error for a client that could not even be built."""
    if isinstance(error, LazyDeltaError) or (
        not isinstance(error, Exception) and type(error).__name__ != "PanicException"
    ):
        return error
    return OptionError(
        f"cannot open {uri}: {_detail(error, secrets) or type(error).__name__}",
        path=uri,
        hint="check the URI and storage_options",
    )
