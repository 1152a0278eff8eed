"""Parse the URI or path of a table into back end, container and key.

A bare path is taken literally: ``#``, ``?``, ``%`` and spaces are part of the name. A URI is percent-decoded. A
:class:`Location` holds no credentials: a SAS in the query string moves to the options. Hosts and buckets become parts
of URLs, so names that could turn a URL into a different one are rejected.
"""

from __future__ import annotations

import os
import posixpath
import re
import unicodedata
from collections.abc import Callable, Container, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import msgspec

from lazydelta.errors import DataFileError, ExternalLocationError, LazyDeltaError, OptionError
from lazydelta.storage.address import address_of, client_config, is_true, same_owner
from lazydelta.storage.credentials import check_own_credentials
from lazydelta.storage.faults import redact
from lazydelta.storage.options import (
    EMULATOR_ACCOUNT,
    EMULATOR_KEY,
    normalise,
    secrets_of,
    sort_options,
    without_secrets,
)

if TYPE_CHECKING:
    from lazydelta.storage.store import Store  # noqa: TC004

__all__ = [
    "ExternalLocation",
    "Location",
    "Place",
    "Settings",
    "decode_path",
    "expand_home",
    "external_locations_of",
    "folded",
    "has_known_scheme",
    "is_half_uri",
    "is_plain",
    "judge",
    "parse_location",
    "refuse_half_uri",
    "split_scheme",
    "within",
]


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
_OPENDAL_LOCAL = frozenset({"fs", "opendal+fs"})
_NOT_READ = {
    "dbfs": "use the URI of the storage behind it, such as s3://… or abfss://…, or /dbfs/… on a cluster of Databricks",
    "hdfs": "mount it (NFS gateway, FUSE) and give the local path, or copy the data to a store that is supported",
    "ftp": "copy the data to a store that is supported",
    "r2": "write s3://… with the storage option aws_endpoint_url",
    "sftp": "copy the data to a store that is supported",
    "viewfs": "mount it and give the local path, or copy the data to a store that is supported",
    "webhdfs": "mount it and give the local path, or copy the data to a store that is supported",
}
# A name of these characters can neither end a host or bucket early nor hide another one behind it.
_HOST = r"(?:[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?"
_BUCKET = r"[^\x00-\x1f\x7f/\\#?@]+"
_PUBLIC_SUFFIXES = ("dfs.core.windows.net", "blob.core.windows.net")
_FABRIC_SUFFIXES = ("dfs.fabric.microsoft.com", "blob.fabric.microsoft.com")
_SHOWN = 100
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]", "::1")
# Readable in a URI. Other characters ("%", "?", "#", controls, space, non-ASCII) are escaped in ``Location.uri``.
_SAFE = "/=-_.~!$&'()*+,;:@"


class Location(msgspec.Struct, frozen=True):
    """A folder of a store. ``base`` is the container's URI as the user writes it, ``root`` the decoded key below it."""

    kind: str
    base: str
    container: str
    root: str
    account: str = ""
    implied: tuple[tuple[str, str], ...] = ()
    host: str = ""
    """The service named by the URI, such as a blob endpoint; empty if only the options determine it."""

    def __repr__(self) -> str:
        # The implied options may contain a signature.
        return f"Location({self.uri!r})"

    @property
    def uri(self) -> str:
        """The canonical URI: escaped, without credentials and without a trailing slash."""
        if self.root:
            return f"{self.base}/{quote(self.root, safe=_SAFE)}"
        return "file:///" if self.kind == "local" else self.base

    @property
    def plain(self) -> str:
        """The readable form: a plain absolute path for local tables, otherwise the URI with its key unescaped."""
        if self.kind == "local":
            return f"/{self.root}"
        return f"{self.base}/{self.root}" if self.root else self.base

    def at(self, root: str) -> Location:
        """Return another folder of the same container."""
        return msgspec.structs.replace(self, root=root)


def split_scheme(text: str) -> tuple[str, str] | None:
    """Return (scheme, rest) if ``text`` is an absolute URI: ``file:…`` or anything with ``://``; otherwise None."""
    match = _SCHEME.match(text)
    if match is None:
        return None
    scheme, rest = match.group(1).lower(), text[match.end() :]
    if scheme == "file" or rest.startswith("//"):
        return scheme, rest
    return None


def has_known_scheme(place: str | os.PathLike[str]) -> bool:
    """Return whether a store exists for this location. Paths count as locations."""
    split = split_scheme(os.fsdecode(place))
    return split is None or split[0] in _KIND_OF or split[0] in _OPENDAL_LOCAL


def expand_home(path: str) -> str:
    """Return a path with ``~`` replaced by the home folder. A name that only starts with ``~`` is kept."""
    if path != "~" and not path.startswith("~/"):
        return path
    return os.path.expanduser(path)  # noqa: PTH111 - without a home folder, Path raises and this returns the path


def is_half_uri(text: str) -> str | None:
    """Return the scheme of an incomplete URI such as ``s3:/bucket``; None for anything else.

    Only for schemes that a user may have meant: other names with a colon are plain names.
    """
    match = _SCHEME.match(text)
    if match is None or text[match.end() :].startswith("//"):
        return None
    scheme = match.group(1).lower()
    return scheme if scheme != "file" and (scheme in _KIND_OF or scheme in _NOT_READ) else None


def refuse_half_uri(place: str | os.PathLike[str]) -> None:
    """Raise for an incomplete URI, which would otherwise become a local folder named after a scheme."""
    text = os.fsdecode(place)
    scheme = is_half_uri(text)
    if scheme is None:
        return
    rest = text.partition(":")[2]
    if isinstance(place, os.PathLike):
        # `Path` collapses two slashes into one.
        if not rest.startswith("/"):
            return
        hint = f"pass {scheme}://… as a string, not as a path" if scheme in _KIND_OF else _NOT_READ[scheme]
    elif scheme in _KIND_OF:
        slashes = "///" if scheme == "memory" else "//"
        hint = f"write {scheme}:{slashes}…, or ./{scheme}:… for a local folder of this name"
    else:
        hint = f"{_NOT_READ[scheme]}; or write ./{scheme}:… for a local folder of this name"
    message = f"{scheme}:{_shortened(rest)} is neither a URI nor a path"
    raise OptionError(message, path=f"{scheme}:…", hint=hint)


def _shortened(rest: str) -> str:
    # The part after a question mark may be a signature.
    shown = rest.partition("?")[0]
    return shown if len(shown) <= _SHOWN and "@" not in shown else "…"


def parse_location(
    uri: str | os.PathLike[str],
    options: Mapping[str, str],
    environment: Mapping[str, str] | None = None,
    *,
    logged: bool = False,
) -> tuple[Location, dict[str, str]]:
    """Return the location of ``uri``, and the options plus those that the URI itself adds (a SAS).

    ``environment`` defaults to that of the process. ``logged`` tells that a log names the URI: OpenDAL's are the
    caller's alone.
    """
    try:
        text = os.fsdecode(uri)
    except TypeError:
        message = f"the location of a table must be a string or a path, not {type(uri).__name__}"
        raise OptionError(message) from None
    if not text:
        message = "a table's location must not be empty"
        raise OptionError(message)
    if "\0" in text:
        message = f"a table's location must not contain a NUL byte: {text!r}"
        raise OptionError(message)
    if any("\ud800" <= character <= "\udfff" for character in text):
        message = (
            f"the location of a table must be valid Unicode, and {text!r} contains bytes or surrogates that are not"
        )
        raise OptionError(message, hint="rename the folder to valid UTF-8")
    split = None if isinstance(uri, os.PathLike) else split_scheme(text)
    if split is None:
        refuse_half_uri(uri)
        return _local(os.path.abspath(expand_home(text))), dict(options)  # noqa: PTH100 - Path.resolve would follow links
    scheme, rest = split
    root = options.get("opendal.root")
    if scheme in _OPENDAL_LOCAL and not logged:
        # OpenDAL's folder service: the host says nothing, and the path is below the option's folder.
        folder = posixpath.normpath("/" + _decode(rest[2:].partition("/")[2], text))
        own = {key: value for key, value in options.items() if not key.startswith("opendal.")}
        return _local(os.path.abspath(expand_home(root or "/") + folder)), own  # noqa: PTH100 - as above
    kind = _KIND_OF.get(scheme)
    if kind is None:
        known = f"known: local paths and {', '.join(sorted(_KIND_OF))}"
        message = f"no store for URIs that begin with {scheme}:"
        raise OptionError(message, path=f"{scheme}:…", hint=_NOT_READ.get(scheme, known))
    if kind == "local":
        return _local(_file_path(rest, text)), dict(options)
    authority, _, key = rest[2:].partition("/")
    if kind == "azure":
        return _azure(scheme, authority, key, options, os.environ if environment is None else environment)
    return _bucket(kind, scheme, authority, key), dict(options)


def _local(path: str) -> Location:
    return Location("local", "file://", "", path.strip("/"))


def _file_path(rest: str, text: str) -> str:
    """Return the path of a ``file:`` URI in any spelling that logs use: ``file:/x``, ``file:///x``."""
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
    """Return a decoded key without empty or dot segments. Object stores have no ``..``."""
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
        message = "credentials do not belong in a URI"
        raise OptionError(message, path=f"{scheme}://***@{authority.rpartition('@')[2]}", hint="use storage_options")
    if kind != "memory":
        _check_name(authority, scheme)
    return Location(kind, f"{scheme}://{authority}", authority, _folder(key, whole))


def _check_name(name: str, scheme: str) -> None:
    """Raise for a bucket or container name that would end a URL's host or path early."""
    if re.fullmatch(_BUCKET, name) is None or name in (".", ".."):
        message = f"{name!r} cannot be the name of a bucket or container"
        raise OptionError(message, path=f"{scheme}://…", hint="check the URI")


def _checked_host(host: str, scheme: str) -> str:
    """Return a host in lower case. Raise if a URL parser could read it differently."""
    if re.fullmatch(_HOST, host) is None:
        # The part before an @ may contain a password.
        message = f"{host.rpartition('@')[2]!r} is not a host"
        raise OptionError(message, path=f"{scheme}://…", hint="check the URI; pass credentials as storage_options")
    return host.lower()


def _blob_host(account: str, suffix: str) -> str:
    """Return the host of an account's blob service. The dfs service is another endpoint for the same objects."""
    blob = re.sub(r"(^|\.)dfs\.", r"\1blob.", suffix, count=1)
    return f"{account}.{blob}" if suffix else ""


def _azure(
    scheme: str, authority: str, key: str, options: Mapping[str, str], environment: Mapping[str, str]
) -> tuple[Location, dict[str, str]]:
    merged = dict(options)
    key, _, query = key.partition("?") if scheme.startswith("http") or "sig=" in key else (key, "", "")
    if "sig=" in query:
        merged["sas_key"] = query
    _apply_connection_string(merged, environment)
    config = sort_options("azure", merged).config
    account = _account_of(config, environment)
    if scheme.startswith("http"):
        location = _azure_http(scheme, authority, key, config, account)
    else:
        location = _azure_named(scheme, authority, key, config, account)
    return location, merged


def _account_of(config: Mapping[str, str], environment: Mapping[str, str]) -> str:
    named = config.get("account_name") or environment.get("AZURE_STORAGE_ACCOUNT_NAME", "")
    return named or (EMULATOR_ACCOUNT if config.get("use_emulator", "").lower() in ("true", "1") else "")


def _azure_named(scheme: str, authority: str, key: str, config: Mapping[str, str], account: str) -> Location:
    """Parse ``abfss://container@account.dfs.core.windows.net/p`` and ``az://container/p``."""
    whole = f"{scheme}://{authority}/{key}"
    container, at, host = authority.partition("@")
    if not container:
        message = f"no container in {whole!r}"
        raise OptionError(message, hint="write abfss://container@account.dfs.core.windows.net/path")
    _check_name(container, scheme)
    named = ""
    implied: tuple[tuple[str, str], ...] = ()
    if at:
        account, _, suffix = _checked_host(host, scheme).partition(".")
        implied, named = _implied_by_host(account, suffix, config), _blob_host(account, suffix)
    return Location("azure", f"{scheme}://{authority}", container, _folder(key, whole), account, implied, named)


def _azure_http(scheme: str, authority: str, key: str, config: Mapping[str, str], configured: str) -> Location:
    """Parse ``https://account.blob.core.windows.net/container/p`` and an emulator's ``http://host:port/account/…``."""
    whole = f"{scheme}://{authority}/{key}"
    host = _checked_host(authority, scheme)
    account, _, suffix = host.partition(".")
    first, _, rest = key.partition("/")
    named = _blob_host(account, suffix)
    if suffix.startswith(("blob.", "dfs.")) or ".blob." in suffix or ".dfs." in suffix:
        base, container, below = f"{scheme}://{host}/{first}", first, rest
        implied = _implied_by_host(account, suffix, config)
    elif (first and first in (configured, EMULATOR_ACCOUNT)) or host.rpartition(":")[0] in _LOOPBACK:
        account, named = first, host
        _check_name(account, scheme)
        container, _, below = rest.partition("/")
        base = f"{scheme}://{host}/{first}/{container}"
        implied = _path_style(f"{scheme}://{host}/{first}", account, config)
    else:
        message = f"{scheme}://{host} is not the address of an Azure storage account"
        raise OptionError(message, hint="write https://account.blob.core.windows.net/container/path")
    if not container:
        message = f"no container in {whole!r}"
        raise OptionError(message, hint="write https://account.blob.core.windows.net/container/path")
    container = _decode(container, whole)
    _check_name(container, scheme)
    return Location("azure", base, container, _folder(below, whole), account, implied, named)


def _implied_by_host(account: str, suffix: str, config: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the options that the host name implies: the account, and an endpoint outside the public cloud."""
    implied = [("account_name", account)]
    if "endpoint" in config or config.get("use_emulator", "").lower() in ("true", "1"):
        return tuple(implied)
    if suffix in _FABRIC_SUFFIXES:
        implied.append(("use_fabric_endpoint", "true"))
    elif suffix and suffix not in _PUBLIC_SUFFIXES:
        implied.append(("endpoint", f"https://{_blob_host(account, suffix)}"))
    return tuple(implied)


def _path_style(endpoint: str, account: str, config: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    implied = [("account_name", account), ("endpoint", endpoint)]
    if account == EMULATOR_ACCOUNT and not any(
        name in config for name in ("account_key", "sas_key", "token", "client_secret", "skip_signature")
    ):
        implied.append(("account_key", EMULATOR_KEY))
    return tuple(implied)


def _apply_connection_string(options: dict[str, str], environment: Mapping[str, str]) -> None:
    """Replace a connection string by the options in it. Options that are also given explicitly take precedence."""
    names = ("azure_storage_connection_string", "connection_string")
    text = next((options.pop(name) for name in names if name in options), None)
    if text is None:
        if any(key.endswith(("account_name", "account_key", "use_emulator")) for key in options):
            return
        text = environment.get("AZURE_STORAGE_CONNECTION_STRING")
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
        raise OptionError(message, hint="copy it from the access keys page of the storage account")
    suffix = parts.get("endpointsuffix", "core.windows.net")
    if "endpoint" not in said and "accountname" in parts and suffix != "core.windows.net":
        scheme = parts.get("defaultendpointsprotocol", "https")
        said["endpoint"] = f"{scheme}://{parts['accountname']}.blob.{suffix}"
    given = sort_options("azure", options).config
    options.update({name: value for name, value in said.items() if name not in given})


# Resolve paths as a Delta log writes them.
#
# The protocol specifies RFC 2396: percent-encoded, relative to the table root or absolute. Anyone may have written the
# log, so a path that leaves the root is rejected here, before any request.


_NOT_PLAIN = re.compile(r"[%:\0]|^/|//|(?:^|/)\.{1,2}(?:/|$)|/$|^$")


def is_plain(path: str) -> bool:
    """Return whether a logged path is relative, unencoded and without unusual segments, as nearly all are."""
    return _NOT_PLAIN.search(path) is None


def folded(path: str) -> str:
    """Return a common form of all paths that a file system which folds case or accents may treat as one file."""
    if path.isascii():
        return path.lower()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", path).casefold())


def decode_path(path: str) -> tuple[str, str]:
    """Return (scheme, decoded path): ``""`` for paths relative to the root, ``"/"`` for absolute ones without scheme.

    For other URIs the path is the part after the scheme, still encoded: its location determines how to parse it.
    """
    if "\0" in path or "%00" in path:
        message = f"the log names a data file with a NUL byte: {path!r}"
        raise DataFileError(message, path=path, hint="the log is damaged or malicious")
    split = split_scheme(path)
    if split is not None:
        return split
    half = is_half_uri(path)
    if half is not None and path[len(half) + 1 :].startswith("/"):
        # Hadoop's notation for an absolute path of a file system. Below the table root it would be a different file.
        message = f"the log names a data file of another file system: {path!r}"
        raise DataFileError(message, path=path, hint=f"{half}: is not read with one slash; the table was copied")
    try:
        decoded = unquote(path, errors="strict")
    except UnicodeDecodeError:
        message = f"the log names a data file whose percent-encoding is not UTF-8: {path!r}"
        raise DataFileError(message, path=path, hint="the log is damaged") from None
    absolute = decoded.startswith("/")
    return "/" if absolute else "", _normal(decoded, path)


def _normal(decoded: str, path: str) -> str:
    """Resolve ``.`` and ``..`` lexically. Links on disk are up to the owner."""
    kept: list[str] = []
    for segment in decoded.split("/"):
        if segment in ("", "."):
            continue
        if segment == "..":
            if not kept:
                message = f"the log names a data file outside the table: {path!r}"
                raise DataFileError(message, path=path, hint="the log is damaged or malicious")
            kept.pop()
        else:
            kept.append(segment)
    if not kept:
        message = f"the log names a data file without a name: {path!r}"
        raise DataFileError(message, path=path, hint="the log is damaged")
    return "/".join(kept)


def within(root: str, key: str) -> str | None:
    """Return ``key`` relative to the folder ``root``, or None if it is outside."""
    if not root:
        return key
    return key[len(root) + 1 :] if key.startswith(f"{root}/") else None


# Settings of a store: options, their secrets, and the external locations that a log may refer to.


class ExternalLocation(msgspec.Struct, frozen=True):
    """A folder outside the table's own account or bucket that its log may refer to, and the settings to access it."""

    location: Location
    settings: Settings

    def __repr__(self) -> str:
        return f"ExternalLocation({self.location!r})"


class Settings(msgspec.Struct, frozen=True):
    """Settings to access a store and the other stores of its account.

    ``environment`` may add to the options; None means that of the process. ``left_behind`` is set if the options had
    secrets that were not sent to this process, ``carries`` if secrets are included in pickles.
    """

    options: dict[str, str]
    secrets: tuple[str, ...]
    retries: int
    request_timeout: float
    opener: Callable[[Location, Settings], Store]
    external: tuple[ExternalLocation, ...] = ()
    environment: Mapping[str, str] | None = None
    left_behind: bool = False
    carries: bool = False
    credential: Any = None
    """An object or function that returns tokens. It is never pickled."""

    def __repr__(self) -> str:
        # Options may be secrets.
        return f"Settings(retries={self.retries}, request_timeout={self.request_timeout})"

    def carried(self) -> Settings:
        """Return settings whose secrets are included in pickles of their stores."""
        external = tuple(msgspec.structs.replace(each, settings=each.settings.carried()) for each in self.external)
        return msgspec.structs.replace(self, external=external, carries=True)

    def limited(self, *, retries: int, request_timeout: float) -> Settings:
        """Return settings with this number of retries and this timeout."""
        external = tuple(
            msgspec.structs.replace(
                each, settings=each.settings.limited(retries=retries, request_timeout=request_timeout)
            )
            for each in self.external
        )
        return msgspec.structs.replace(self, retries=retries, request_timeout=request_timeout, external=external)

    def to_ship(self) -> Settings:
        """Return the settings to pickle."""
        if self.carries:
            if self.credential is not None:
                message = "A credential object cannot be sent to another process"
                raise OptionError(message, hint="pass its name instead: storage_options={'credential': 'default'}")
            return self
        public = without_secrets(self.options)
        return msgspec.structs.replace(
            self,
            options=public,
            secrets=(),
            external=tuple(msgspec.structs.replace(each, settings=each.settings.to_ship()) for each in self.external),
            left_behind=self.left_behind or self.credential is not None or bool(secrets_of(self.options)),
            credential=None,
        )


# Locations that a log may refer to: the table's own account, and those that the user has allowed.


_USE_ENVIRONMENT = "use_environment"


class Place(msgspec.Struct, frozen=True):
    """A container, a key in it, and the external location that allows access; None for the table's own account."""

    container: Location
    key: str
    allowed: ExternalLocation | None = None


def external_locations_of(
    given: object,
    *,
    retries: int,
    request_timeout: float,
    opener: Callable[[Location, Settings], Store],
) -> tuple[ExternalLocation, ...]:
    """Return the locations that the user allows, most specific first, each with its own options and nothing else."""
    given = {} if given is None else given
    if not isinstance(given, Mapping) or not all(each is None or isinstance(each, Mapping) for each in given.values()):
        message = "external_locations must map prefixes to their storage options"
        raise OptionError(message, hint='write {"s3://bucket/folder": {"aws_access_key_id": …}}')
    found = []
    for prefix, options in given.items():
        own = normalise(options)
        environment: dict[str, str] | None = None if is_true(own.pop(_USE_ENVIRONMENT, "false")) else {}
        location, own = parse_location(prefix, own, environment)
        if location.kind == "local":
            message = f"the external location {prefix!r} is on this machine"
            raise OptionError(message, hint="only folders of object stores need to be allowed, not local ones")
        if environment is not None:
            check_own_credentials(location, client_config(location, own, environment))
        settings = Settings(own, secrets_of(own), retries, request_timeout, opener, environment=environment)
        found.append(ExternalLocation(location, settings))
    return tuple(sorted(found, key=lambda each: len(each.location.root), reverse=True))


def judge(
    logged: str, home: Location, settings: Settings, known: Container[tuple[Location, Location | None]] = ()
) -> Place:
    """Return the location that an absolute URI in a log points to, or raise if access to it is not allowed.

    ``known`` holds containers already found to be the table's own: logs repeat a few of them a million times.
    """
    found, reason = None, None
    try:
        found, _ = parse_location(logged, settings.options, settings.environment, logged=True)
    except LazyDeltaError as error:
        reason = error
    if found is not None and not found.root:
        message = f"the log of {home.uri} names a data file without a name: {redact(logged)!r}"
        raise DataFileError(message, path=logged)
    if found is not None and (
        found.base == home.base
        or (found.at(""), None) in known
        or same_owner(home, found, settings.options, settings.environment)
    ):
        return Place(found.at(""), found.root)
    for each in settings.external:
        inside = _below(logged, each)
        if inside is not None:
            return Place(each.location.at(""), inside, each)
    if found is None:
        message = f"the log of {home.uri} names a data file that cannot be resolved: {redact(str(reason))}"
        raise DataFileError(message, path=logged)
    raise _foreign(logged, found, home, settings)


def _below(logged: str, allowed: ExternalLocation) -> str | None:
    """Return the key of a logged URI in an allowed folder, matched by host, container and whole path segments."""
    own = allowed.settings
    try:
        found, _ = parse_location(logged, own.options, own.environment, logged=True)
    except LazyDeltaError:
        return None
    here = allowed.location
    if found.container != here.container or not same_owner(here, found, own.options, own.environment):
        return None
    return found.root if found.root and within(here.root, found.root) is not None else None


def _foreign(logged: str, found: Location, home: Location, settings: Settings) -> ExternalLocationError:
    there = address_of(found, settings.options, settings.environment)
    named = f"host {found.host}" if there is not None and found.host and found.host not in there.service else there
    where = f"{found.uri} ({named or found.kind})"
    message = (
        f"the log of {home.uri} leads to {where}, for which the table's credentials are not meant; it was not opened"
    )
    hint = f"if it may be read, allow it: external_locations={{{found.base!r}: {{its own storage options}}}}"
    return ExternalLocationError(message, path=logged, hint=hint)
