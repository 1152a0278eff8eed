"""Translate errors of the client and the operating system into errors of lazydelta, without secrets.

Translated errors are raised without their cause: its message may contain signed URLs, and tracebacks print causes.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import quote, quote_plus, unquote

import msgspec

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
from lazydelta.storage.address import from_environment, was_redirected
from lazydelta.storage.options import is_secret

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Attempt", "option_fault", "redact", "translate"]

_MIN_SECRET = 4
_MAX_DETAIL = 400
_MAX_SEARCHED = 20_000
_MISSING = (FileNotFoundError, IsADirectoryError, NotADirectoryError)

# Not compiled here: a program without faults needs none of them.
_QUERY = r"(?i)(\b[a-z][a-z0-9+.-]*://[^\s?\"'<>]*)\?[^\s\"'<>)]*"
_PAIR = (
    r"(?i)\b(sig|skoid|sktid|AccountKey|SharedAccessSignature|X-Amz-[A-Za-z-]+|client_secret|access_token|AWSAccessKeyId"
    r"|Signature|SignatureProvided|StringToSign)(\s*[=:>]\s*)[^\s&;\"'<,]+"
)
_AUTHORIZATION = r"(?i)\b(Bearer|SharedKey|AWS4-HMAC-SHA256)\s+[^\"'<]+"
_CODE = r"<Code>([A-Za-z0-9]{1,80})</Code>"
_STATUS = r"status code: 40[13]\b"
_MISSING_CREDENTIALS = (
    "credential",
    "token request",
    "tokenrequest",
    "metadata/instance",
    "169.254.169.254",
    "az account get-access-token",
    "azure cli",
)
# As the HTTP library writes them. "timeout" alone is also the name of settings in its debug dumps.
_TIMEOUTS = ("timed out", "timedout")


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Return ``text`` without secrets: known values, query strings of URLs, and anything that looks like a key."""
    known = {secret for secret in secrets if len(secret) >= _MIN_SECRET}
    for kind in ("azure", "s3", "gcs"):
        around = from_environment(kind).items()
        known.update(value for name, (_, value) in around if is_secret(name, value) and len(value) >= _MIN_SECRET)
    forms = {form for value in known for form in (value, quote(value, safe=""), quote_plus(value), unquote(value))}
    for form in sorted(forms, key=len, reverse=True):
        text = text.replace(form, "***")
    text = re.sub(_QUERY, r"\1?***", text)
    text = re.sub(_PAIR, r"\1\2***", text)
    return re.sub(_AUTHORIZATION, r"\1 ***", text)


def _detail(error: BaseException, secrets: Iterable[str]) -> str:
    """Return the useful part of a client message. The client appends a debug dump after a blank line."""
    text = str(error).partition("\n\nDebug source")[0]
    text, _, body = text.partition("<?xml")
    code = re.search(_CODE, body)
    text = " ".join(redact(text, secrets).split()) + (f" {code.group(1)}" if code else "")
    return text if len(text) <= _MAX_DETAIL else text[: _MAX_DETAIL - 1] + "…"


class Attempt(msgspec.Struct, frozen=True):
    """The attempted operation, for the message: ``uri`` is for people, ``path`` for the error's attribute."""

    verb: str
    uri: str
    path: str
    secrets: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Attempt({self.verb!r}, {self.uri!r})"


def translate(error: BaseException, attempt: Attempt) -> BaseException:
    """Return the lazydelta error for ``error``. Interrupts and lazydelta errors are returned unchanged."""
    if isinstance(error, LazyDeltaError):
        return error
    # The client reports a failed upload as a plain OSError without an errno.
    if isinstance(error, OSError) and (error.errno is not None or type(error) is not OSError):
        return _from_system(error, attempt)
    # Compared by name: importing the client's classes would load the client with the error module.
    name = type(error).__name__
    make = _BY_CLASS.get(name)
    if make is not None:
        return make(error, attempt)
    return _from_text(error, attempt) if isinstance(error, Exception) else error


def _from_system(error: OSError, attempt: Attempt) -> StorageError:
    code = error.errno
    reason = os.strerror(code) if code else type(error).__name__
    what = f"{attempt.verb} of {attempt.uri}"
    if code == errno.ELOOP:
        message = f"{attempt.uri} leads through too many symbolic links, one of which may lead to itself"
        failure: StorageError = StorageError(message, path=attempt.path, hint="check the links' targets")
    elif isinstance(error, _MISSING) or code == errno.ENAMETOOLONG:
        failure = ObjectNotFoundError(f"{attempt.uri} does not exist", path=attempt.path)
    elif isinstance(error, FileExistsError):
        failure = _exists(error, attempt)
    elif isinstance(error, PermissionError) or code == errno.EROFS:
        failure = AccessDeniedError(f"{what} was refused: {reason}", path=attempt.path)
        failure.hint = "check the file's owner and permissions"
    elif isinstance(error, TimeoutError):
        failure = _timed_out(attempt)
    elif code in (errno.ENOSPC, errno.EDQUOT):
        failure = StorageError(f"the disk is full: {what} failed", path=attempt.path, hint="free some space")
        failure.is_full = True
    else:
        failure = StorageError(f"{what} failed: {reason}", path=attempt.path)
    return failure


def _from_text(error: BaseException, attempt: Attempt) -> StorageError:
    """Classify the client's generic errors by their message, which is all that they carry."""
    detail = _detail(error, attempt.secrets)
    lowered = detail.lower()
    if " 404 " in detail:
        message = f"{attempt.uri} does not exist: its container or bucket is not there"
        failure: StorageError = ObjectNotFoundError(message, path=attempt.path)
    elif " 416 " in detail or "wanted range" in lowered:
        failure = StorageError(f"{attempt.uri} is shorter than the range that was asked for", path=attempt.path)
    elif re.search(_STATUS, detail) or any(word in lowered for word in _MISSING_CREDENTIALS):
        failure = _denied(error, attempt)
    elif was_redirected(str(error)[:_MAX_SEARCHED]):
        message = f"{attempt.verb} of {attempt.uri} was answered with a redirect to another host, which is not followed"
        failure = AccessDeniedError(message, path=attempt.path, hint="open the table at its new location")
    elif any(word in str(error)[:_MAX_SEARCHED].lower() for word in _TIMEOUTS):
        failure = _timed_out(attempt)
    else:
        message = f"{attempt.verb} of {attempt.uri} failed: {detail or type(error).__name__}"
        failure = StorageError(message, path=attempt.path)
    return failure


def _exists(_: BaseException, attempt: Attempt) -> StorageError:
    return ObjectExistsError(f"{attempt.uri} already exists", path=attempt.path)


def _changed(error: BaseException, attempt: Attempt) -> StorageError:
    code = re.search(_CODE, str(error)[:_MAX_SEARCHED])
    if code is not None and code[1].startswith("Lease"):
        message = f"{attempt.uri} is under a lease of another program ({code[1]})"
        return StorageError(message, path=attempt.path, hint="wait for that program, or break the lease")
    message = f"{attempt.uri} has changed (its etag differs)"
    return ObjectChangedError(message, path=attempt.path, hint="read the table again")


def _denied(error: BaseException, attempt: Attempt) -> StorageError:
    """Return the error without the server's message, which quotes the signature and the signed string."""
    if "az account get-access-token" in str(error):
        message = f"The Azure CLI gave no token to read {attempt.uri}"
        return AccessDeniedError(message, path=attempt.path, hint="install it, and run az login")
    if (
        failed := re.search(r"External \w+ credential provider: (.{1,300}?)(\n|$)", str(error)[:_MAX_SEARCHED])
    ) is not None:
        message = f"The credential gave no token to read {attempt.uri}: {redact(failed[1], attempt.secrets)}"
        return AccessDeniedError(message, path=attempt.path, hint="fix the function, or log in")
    code = re.search(_CODE, str(error))
    said = f" ({code.group(1)})" if code else ""
    return AccessDeniedError(
        f"access to {attempt.uri} was denied on {attempt.verb}{said}",
        path=attempt.path,
        hint="check the credentials in storage_options or the environment, and their permissions",
    )


def _timed_out(attempt: Attempt) -> StorageError:
    return StorageTimeoutError(
        f"{attempt.verb} of {attempt.uri} timed out",
        path=attempt.path,
        hint="check the network, or raise request_timeout",
    )


def _bad_name(error: BaseException, attempt: Attempt) -> StorageError:
    message = f"the store does not support the name {attempt.path!r}: {_detail(error, attempt.secrets)}"
    return StorageError(message, path=attempt.path)


def _panic(error: BaseException, attempt: Attempt) -> StorageError:
    message = f"the storage client failed on {attempt.verb} of {attempt.uri}: {_detail(error, attempt.secrets)}"
    return StorageError(message, path=attempt.path, hint="please report it with steps to reproduce")


_BY_CLASS: dict[str, Callable[[BaseException, Attempt], StorageError]] = {
    "AlreadyExistsError": _exists,
    "PreconditionError": _changed,
    "NotModifiedError": _changed,
    "PermissionDeniedError": _denied,
    "UnauthenticatedError": _denied,
    "InvalidPathError": _bad_name,
    "UnicodeEncodeError": _bad_name,
    # The client's panics derive from BaseException, but they are failed requests all the same.
    "PanicException": _panic,
}


def option_fault(error: BaseException, *, uri: str, secrets: Iterable[str] = ()) -> BaseException:
    """Return the lazydelta error for a client that could not be built."""
    if isinstance(error, LazyDeltaError) or (
        not isinstance(error, Exception) and type(error).__name__ != "PanicException"
    ):
        return error
    return OptionError(
        f"cannot open {uri}: {_detail(error, secrets) or type(error).__name__}",
        path=uri,
        hint="check the URI and storage_options",
    )
