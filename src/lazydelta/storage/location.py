"""Where a table is: any URI or path, taken apart into back end, container and key.

A bare path is taken as it is: ``#``, ``?``, ``%`` and spaces are part of the name. A URI is percent-decoded. No
credential stays in a :class:`Location`: a SAS in the query string moves to the options.
"""

from __future__ import annotations

import os
import posixpath
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from lazydelta.errors import OptionError
from lazydelta.storage.options import EMULATOR_ACCOUNT, EMULATOR_KEY, sort_options

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Location", "parse_location", "split_scheme"]

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.\-]*):")
_KIND_OF = {
    "file": "local",
    "memory": "memory",
    "abfs": "azure",
    "abfss": "azure",
    "adl": "azure",
    "az": "azure",
    "azure": "azure",
    "wasb": "azure",
    "wasbs": "azure",
    "http": "azure",
    "https": "azure",
    "s3": "s3",
    "s3a": "s3",
    "s3n": "s3",
    "gs": "gcs",
    "gcs": "gcs",
}
_PUBLIC_SUFFIXES = ("dfs.core.windows.net", "blob.core.windows.net")
_FABRIC_SUFFIXES = ("dfs.fabric.microsoft.com", "blob.fabric.microsoft.com")
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]", "::1")
# Readable in a URI; what is left out ("%", "?", "#", controls, space, non-ASCII) is escaped in ``Location.uri``.
_SAFE = "/=-_.~!$&'()*+,;:@"


@dataclass(frozen=True, slots=True)
class Location:
    """A folder of a store. ``base`` is the container's URI as the user writes it, ``root`` the decoded key below it."""

    kind: str
    base: str
    container: str
    root: str
    account: str = ""
    implied: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @property
    def uri(self) -> str:
        """The canonical URI: escaped, without credentials, without a trailing slash."""
        if self.root:
            return f"{self.base}/{quote(self.root, safe=_SAFE)}"
        return "file:///" if self.kind == "local" else self.base

    @property
    def plain(self) -> str:
        """The readable form: a plain absolute path for local tables, else the URI with its key not escaped."""
        if self.kind == "local":
            return f"/{self.root}"
        return f"{self.base}/{self.root}" if self.root else self.base

    @property
    def container_id(self) -> tuple[str, str, str]:
        """What two locations share when one connection can serve both, whatever scheme they were written with."""
        return (self.kind, self.account, self.container)

    def at(self, root: str) -> Location:
        """Return another folder of the same container."""
        return Location(self.kind, self.base, self.container, root, self.account, self.implied)


def split_scheme(text: str) -> tuple[str, str] | None:
    """Return (scheme, rest) if ``text`` is an absolute URI: ``file:…`` or anything with ``://``; else None."""
    match = _SCHEME.match(text)
    if match is None:
        return None
    scheme, rest = match.group(1).lower(), text[match.end() :]
    if scheme == "file" or rest.startswith("//"):
        return scheme, rest
    return None


def parse_location(uri: str | os.PathLike[str], options: Mapping[str, str]) -> tuple[Location, dict[str, str]]:
    """Return where ``uri`` points, and the options with what the URI itself adds to them (a SAS)."""
    try:
        text = os.fsdecode(uri)
    except TypeError:
        message = f"a table's place must be text or a path, not {type(uri).__name__}"
        raise OptionError(message) from None
    if not text:
        message = "a table's place must not be empty"
        raise OptionError(message)
    if "\0" in text:
        message = f"a table's place must not contain a NUL byte: {text!r}"
        raise OptionError(message)
    if any("\ud800" <= character <= "\udfff" for character in text):
        message = f"a table's place must be text, and {text!r} has bytes or halves of characters that are none"
        raise OptionError(message, hint="give the folder a name in UTF-8")
    split = None if isinstance(uri, os.PathLike) else split_scheme(text)
    if split is None:
        return _local(os.path.abspath(text)), dict(options)  # noqa: PTH100 - Path.resolve would follow links
    scheme, rest = split
    kind = _KIND_OF.get(scheme)
    if kind is None:
        known = ", ".join(sorted(_KIND_OF))
        message = f"no store for URIs that begin with {scheme}:"
        raise OptionError(message, path=f"{scheme}:…", hint=f"known: local paths and {known}")
    if kind == "local":
        return _local(_file_path(rest, text)), dict(options)
    authority, _, key = rest[2:].partition("/")
    if kind == "azure":
        return _azure(scheme, authority, key, options)
    return _bucket(kind, scheme, authority, key), dict(options)


def _local(path: str) -> Location:
    return Location("local", "file://", "", path.strip("/"))


def _file_path(rest: str, text: str) -> str:
    """Return the path of ``file:`` URIs in all the spellings that logs use: ``file:/x``, ``file:///x``."""
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        if host not in ("", "localhost"):
            message = f"a file URI must not name a host: {text!r}"
            raise OptionError(message, hint="write file:///absolute/path, or a plain path")
        rest = slash + path
    if not rest.startswith("/"):
        message = f"a file URI must be absolute: {text!r}"
        raise OptionError(message, hint="write file:///absolute/path, or a plain path")
    return posixpath.normpath(_decode(rest, text))


def _decode(text: str, whole: str) -> str:
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        message = f"the percent-encoding is not valid UTF-8: {whole.partition('?')[0]!r}"
        raise OptionError(message) from None


def _folder(key: str, whole: str) -> str:
    """Return a decoded key without empty or dot segments; object stores know no ``..``."""
    decoded = _decode(key, whole)
    segments = [segment for segment in decoded.split("/") if segment not in ("", ".")]
    if ".." in segments or "\0" in decoded:
        message = f"a URI must not contain '..' or NUL: {whole.partition('?')[0]!r}"
        raise OptionError(message)
    return "/".join(segments)


def _bucket(kind: str, scheme: str, authority: str, key: str) -> Location:
    whole = f"{scheme}://{authority}/{key}"
    if not authority and kind != "memory":
        message = f"no bucket in {whole!r}"
        raise OptionError(message, hint=f"write {scheme}://bucket/path")
    if "@" in authority:
        message = "credentials do not belong into a URI"
        raise OptionError(message, path=f"{scheme}://***@{authority.rpartition('@')[2]}", hint="use storage_options")
    return Location(kind, f"{scheme}://{authority}", authority, _folder(key, whole))


def _azure(scheme: str, authority: str, key: str, options: Mapping[str, str]) -> tuple[Location, dict[str, str]]:
    merged = dict(options)
    key, _, query = key.partition("?") if scheme.startswith("http") or "sig=" in key else (key, "", "")
    if "sig=" in query:
        merged["sas_key"] = query
    _apply_connection_string(merged)
    config = sort_options("azure", merged).config
    whole = f"{scheme}://{authority}/{key}"
    if scheme.startswith("http"):
        location = _azure_http(scheme, authority, key, config, whole)
    else:
        location = _azure_named(scheme, authority, key, config, whole)
    return location, merged


def _account_of(config: Mapping[str, str]) -> str:
    named = config.get("account_name") or os.environ.get("AZURE_STORAGE_ACCOUNT_NAME", "")
    return named or (EMULATOR_ACCOUNT if config.get("use_emulator", "").lower() in ("true", "1") else "")


def _azure_named(scheme: str, authority: str, key: str, config: Mapping[str, str], whole: str) -> Location:
    """``abfss://container@account.dfs.core.windows.net/p`` and ``az://container/p``."""
    container, at, host = authority.partition("@")
    if not container:
        message = f"no container in {whole!r}"
        raise OptionError(message, hint="write abfss://container@account.dfs.core.windows.net/path")
    account = _account_of(config)
    implied: tuple[tuple[str, str], ...] = ()
    if at:
        account, _, suffix = host.partition(".")
        implied = _implied_by_host(account, suffix, config)
    return Location("azure", f"{scheme}://{authority}", container, _folder(key, whole), account, implied)


def _azure_http(scheme: str, authority: str, key: str, config: Mapping[str, str], whole: str) -> Location:
    """``https://account.blob.core.windows.net/container/p`` and an emulator's ``http://host:port/account/…``."""
    host = authority.rpartition("@")[2]
    account, _, suffix = host.partition(".")
    first, _, rest = key.partition("/")
    if suffix.startswith(("blob.", "dfs.")) or ".blob." in suffix or ".dfs." in suffix:
        base, container, below = f"{scheme}://{host}/{first}", first, rest
        implied = _implied_by_host(account, suffix, config)
    elif (first and first in (_account_of(config), EMULATOR_ACCOUNT)) or host.rpartition(":")[0] in _LOOPBACK:
        account = first
        container, _, below = rest.partition("/")
        base = f"{scheme}://{host}/{first}/{container}"
        implied = _path_style(f"{scheme}://{host}/{first}", account, config)
    else:
        message = f"{scheme}://{host} is not the address of an Azure storage account"
        raise OptionError(message, hint="write https://account.blob.core.windows.net/container/path")
    if not container:
        message = f"no container in {whole!r}"
        raise OptionError(message, hint="write https://account.blob.core.windows.net/container/path")
    return Location("azure", base, _decode(container, whole), _folder(below, whole), account, implied)


def _implied_by_host(account: str, suffix: str, config: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return what the host name says: the account, and an endpoint outside the public cloud."""
    implied = [("account_name", account)]
    if "endpoint" in config or config.get("use_emulator", "").lower() in ("true", "1"):
        return tuple(implied)
    if suffix in _FABRIC_SUFFIXES:
        implied.append(("use_fabric_endpoint", "true"))
    elif suffix and suffix not in _PUBLIC_SUFFIXES:
        blob = re.sub(r"(^|\.)dfs\.", r"\1blob.", suffix, count=1)
        implied.append(("endpoint", f"https://{account}.{blob}"))
    return tuple(implied)


def _path_style(endpoint: str, account: str, config: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    implied = [("account_name", account), ("endpoint", endpoint)]
    if account == EMULATOR_ACCOUNT and not any(
        name in config for name in ("account_key", "sas_key", "token", "client_secret", "skip_signature")
    ):
        implied.append(("account_key", EMULATOR_KEY))
    return tuple(implied)


def _apply_connection_string(options: dict[str, str]) -> None:
    """Replace a connection string by what it says; options given beside it win."""
    names = ("azure_storage_connection_string", "connection_string")
    text = next((options.pop(name) for name in names if name in options), None)
    if text is None:
        if any(key.endswith(("account_name", "account_key", "use_emulator")) for key in options):
            return
        text = os.environ.get("AZURE_STORAGE_CONNECTION_STRING")
        if text is None:
            return
    parts = {
        name.strip().lower(): value.strip()
        for name, mark, value in (item.partition("=") for item in text.split(";"))
        if mark
    }
    said: dict[str, str] = {}
    if parts.get("usedevelopmentstorage", "").lower() == "true":
        said["use_emulator"] = "true"
    for name, option in (
        ("accountname", "account_name"),
        ("accountkey", "account_key"),
        ("sharedaccesssignature", "sas_key"),
        ("blobendpoint", "endpoint"),
    ):
        if name in parts:
            said[option] = parts[name]
    if not said:
        message = "the Azure connection string names neither an account nor an endpoint"
        raise OptionError(message, hint="copy it from the storage account's page of access keys")
    suffix = parts.get("endpointsuffix", "core.windows.net")
    if "endpoint" not in said and "accountname" in parts and suffix != "core.windows.net":
        scheme = parts.get("defaultendpointsprotocol", "https")
        said["endpoint"] = f"{scheme}://{parts['accountname']}.blob.{suffix}"
    given = sort_options("azure", options).config
    options.update({name: value for name, value in said.items() if name not in given})
