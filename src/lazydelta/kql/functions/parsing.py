"""Functions that read and write formats: URLs, paths, CSV, XML, versions, base64, compression and Unicode."""

from __future__ import annotations

import base64
import binascii
import csv
import re
import urllib.parse
import uuid
import zlib
from typing import Any
from xml.etree import ElementTree as ET

from lazydelta.errors import require
from lazydelta.kql.binding.types import Typed
from lazydelta.kql.functions.declaration import Function, Given, built, rows

__all__ = ["PARSING"]

_ESCAPE = re.compile(r"%[0-9A-F]{2}")
_UNESCAPED = "-_.!*()"
_PORT = re.compile(r":(\d*)$")
_PARTS_OF_VERSION = 4
_DIGITS_OF_VERSION = 8
_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_HIDDEN = re.compile(r"<!DOCTYPE|<!ENTITY", re.IGNORECASE)


# URLs and paths


def _quoted(text: str, *, plus: bool) -> str:
    made = urllib.parse.quote(text, safe=_UNESCAPED)
    made = _ESCAPE.sub(lambda match: match[0].lower(), made)
    return made.replace("%20", "+") if plus else made


def _url_encode(text: str) -> str:
    return _quoted(text, plus=True)


def _url_encode_component(text: str) -> str:
    return _quoted(text, plus=False)


def _query_parameters(text: str) -> dict[str, str]:
    return dict(urllib.parse.parse_qsl(text.removeprefix("?"), keep_blank_values=True))


def _parse_url(text: str) -> Any:
    scheme, has_scheme, rest = text.partition("://")
    if not has_scheme:
        scheme, rest = "", text
    rest, _, fragment = rest.partition("#")
    rest, _, query = rest.partition("?")
    authority, slash, path = rest.partition("/")
    if not has_scheme and not authority:
        authority = ""
    user, at, host = authority.rpartition("@")
    username, _, password = user.partition(":") if at else ("", "", "")
    port = _PORT.search(host)
    return {
        "Scheme": scheme,
        "Host": host[: port.start()] if port else host,
        "Port": port[1] if port else "",
        "Path": slash + path,
        "Username": username,
        "Password": password,
        "Query Parameters": _query_parameters(query),
        "Fragment": fragment,
    }


def _parse_urlquery(text: str) -> Any:
    return {"Query Parameters": _query_parameters(text)}


def _parse_path(text: str) -> Any:
    scheme, has_scheme, rest = text.partition("://")
    scheme, rest = (scheme, rest) if has_scheme else ("", text)
    drive = re.match(r"[A-Za-z]:", rest)
    root = drive[0] if drive else ""
    stream = ""
    colon = rest.rfind(":")
    if colon > len(root) - 1 and not re.search(r"[/\\]", rest[colon:]):
        rest, stream = rest[:colon], rest[colon + 1 :]
    cut = max(rest.rfind("/"), rest.rfind("\\"))
    directory, name = (rest[:cut], rest[cut + 1 :]) if cut >= 0 else ("", rest)
    folder = re.split(r"[/\\]", directory)[-1]
    return {
        "Scheme": scheme,
        "RootPath": root,
        "DirectoryPath": directory,
        "DirectoryName": "" if folder == root else folder,
        "Filename": name,
        "Extension": name.rpartition(".")[2] if "." in name else "",
        "AlternateDataStreamName": stream,
    }


# Text formats


def _parse_csv(text: str) -> Any:
    try:
        return next(csv.reader(text.splitlines(keepends=True), strict=False), [""])
    except csv.Error:
        return None


def _parse_command_line(text: str, kind: str | None) -> Any:
    if kind is not None and kind.lower() != "windows":
        return None
    return _windows_arguments(text)


def _windows_arguments(text: str) -> list[str] | None:
    """Split a command line as Windows does: backslashes escape only before quotes."""
    found: list[str] = []
    current: list[str] | None = None
    quoted = False
    position = 0
    while position < len(text):
        slashes = len(text) - position - len(text[position:].lstrip("\\"))
        if slashes:
            position += slashes
            current = current if current is not None else []
            if position < len(text) and text[position] == '"':
                current.append("\\" * (slashes // 2))
                if slashes % 2:
                    current.append('"')
                    position += 1
            else:
                current.append("\\" * slashes)
            continue
        letter = text[position]
        position += 1
        if letter == '"':
            current = current if current is not None else []
            if quoted and text.startswith('"', position):
                current.append('"')
                position += 1
            else:
                quoted = not quoted
        elif letter in " \t" and not quoted:
            if current is not None:
                found.append("".join(current))
            current = None
        else:
            current = current if current is not None else []
            current.append(letter)
    if current is not None:
        found.append("".join(current))
    return found or None


def _parse_version(text: str) -> str | None:
    parts = text.split(".")
    if len(parts) > _PARTS_OF_VERSION or not all(
        re.fullmatch(rf"\d{{1,{_DIGITS_OF_VERSION}}}", each) for each in parts
    ):
        return None
    parts += ["0"] * (_PARTS_OF_VERSION - len(parts))
    return str(int("".join(each.rjust(_DIGITS_OF_VERSION, "0") for each in parts)))


def _parse_xml(text: str) -> Any:
    # A document type may define entities that expand without bound.
    if _HIDDEN.search(text):
        return None
    try:
        root = ET.fromstring(text)  # noqa: S314 - as above
    except ET.ParseError:
        return None
    made: dict[str, Any] = {}
    declaration = re.match(r"\s*<\?xml\s+(.*?)\?>", text, re.DOTALL)
    if declaration:
        pairs = re.findall(r"(\w+)\s*=\s*[\"']([^\"']*)[\"']", declaration[1])
        made["?xml"] = {f"@{name}": value for name, value in pairs}
    made[_local(root.tag)] = _element(root)
    return made


def _local(tag: str) -> str:
    return tag.rpartition("}")[2]


def _element(node: ET.Element) -> Any:
    made: dict[str, Any] = {f"@{_local(name)}": _scalar(value) for name, value in node.attrib.items()}
    for child in node:
        name, value = _local(child.tag), _element(child)
        if name in made:
            made[name] = [*made[name], value] if isinstance(made[name], list) else [made[name], value]
        else:
            made[name] = value
    text = (node.text or "").strip()
    if not made:
        return _scalar(text) if text else None
    if text:
        made["#text"] = _scalar(text)
    return made


def _scalar(text: str) -> Any:
    if not _NUMBER.fullmatch(text):
        return text
    return int(text) if re.fullmatch(r"[+-]?\d{1,18}", text) else float(text)


def _parse_user_agent(text: str, wanted: Any) -> Any:
    from ua_parser import parse  # noqa: PLC0415 - an extra, and slow to import

    kinds = {str(each).lower() for each in (wanted if isinstance(wanted, list) else [wanted])}
    found = parse(text)
    made: dict[str, Any] = {}
    if "browser" in kinds:
        browser = found.user_agent
        made["Browser"] = {
            "Family": browser.family if browser else "Other",
            "MajorVersion": (browser.major if browser else None) or "",
            "MinorVersion": (browser.minor if browser else None) or "",
            "Patch": (browser.patch if browser else None) or "",
        }
    if "os" in kinds:
        system = found.os
        made["OperatingSystem"] = {
            "Family": system.family if system else "Other",
            "MajorVersion": (system.major if system else None) or "",
            "MinorVersion": (system.minor if system else None) or "",
            "Patch": (system.patch if system else None) or "",
            "PatchMinor": (system.patch_minor if system else None) or "",
        }
    if "device" in kinds:
        device = found.device
        made["Device"] = {
            "Family": device.family if device else "Other",
            "Brand": (device.brand if device else None) or "",
            "Model": (device.model if device else None) or "",
        }
    return made


_USER_AGENT_CALL = "parse_user_agent(text: string, parts: json) -> dynamic"
_USER_AGENT = rows(_USER_AGENT_CALL, "", _parse_user_agent)


def _user_agent(given: Given) -> Typed:
    require("kql-user-agent", "ua_parser")
    return _USER_AGENT.build(given)


# Base64 and compression


def _bytes(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None


def _base64_to_array(text: str) -> Any:
    found = _bytes(text)
    return None if found is None else list(found)


def _base64_to_guid(text: str) -> str | None:
    found = _bytes(text)
    return str(uuid.UUID(bytes_le=found)) if found is not None and len(found) == 16 else None  # noqa: PLR2004 - a guid


def _base64_from_array(array: Any) -> str | None:
    try:
        return base64.b64encode(bytes(array)).decode()
    except (TypeError, ValueError):
        return None


def _base64_from_guid(text: str | None) -> str | None:
    return None if text is None else base64.b64encode(uuid.UUID(text).bytes_le).decode()


def _compressed(text: str, *, gzip: bool) -> str:
    data = text.encode()
    window = 31 if gzip else 15

    def made(level: int) -> bytes:
        compressor = zlib.compressobj(level, zlib.DEFLATED, window)
        return compressor.compress(data) + compressor.flush()

    # Data that does not shrink is stored as it is, as Kusto does.
    body = len(made(6)) - (18 if gzip else 6)
    found = bytearray(made(6 if body < len(data) else 0))
    if gzip:
        found[8:10] = b"\x00\xff"
    return base64.b64encode(found).decode()


def _gzip(text: str) -> str:
    return _compressed(text, gzip=True)


def _zlib(text: str) -> str:
    return _compressed(text, gzip=False)


_MOST_BYTES = 64 << 20


def _expanded(text: str, window: int) -> str | None:
    data = _bytes(text)
    if data is None:
        return None
    try:
        return zlib.decompressobj(window).decompress(data, _MOST_BYTES).decode()
    except (zlib.error, UnicodeDecodeError):
        return None


def _gunzip(text: str) -> str | None:
    return _expanded(text, 31)


def _unzlib(text: str) -> str | None:
    return _expanded(text, 15)


# Unicode


def _codepoints(text: str) -> Any:
    return [ord(each) for each in text]


def _from_codepoints(*values: Any) -> str | None:
    numbers = [each for value in values for each in (value if isinstance(value, list) else [value])]
    try:
        return "".join(chr(int(each)) for each in numbers if each is not None)
    except (TypeError, ValueError):
        return None


def _punycode(text: str) -> str | None:
    try:
        return text.encode("punycode").decode()
    except UnicodeError:
        return None


def _from_punycode(text: str) -> str | None:
    try:
        return text.encode("ascii").decode("punycode")
    except UnicodeError:
        return None


def _punycode_domain(text: str) -> str | None:
    try:
        return ".".join(each if each.isascii() else each.encode("idna").decode() for each in text.split("."))
    except UnicodeError:
        return None


def _from_punycode_domain(text: str) -> str | None:
    labels = [_from_punycode(each[4:]) if each.lower().startswith("xn--") else each for each in text.split(".")]
    return None if None in labels else ".".join(each or "" for each in labels)


def _replace_strings(text: str, searches: Any, rewrites: Any) -> str | None:
    """Replace substrings of the original text only; where two overlap, the one that is searched first counts."""
    if not isinstance(searches, list):
        return text
    taken, found = bytearray(len(text)), []
    for index, search in enumerate(searches):
        rewrite = rewrites
        if isinstance(rewrites, list):
            rewrite = rewrites[index] if index < len(rewrites) else (rewrites[-1] if len(rewrites) == 1 else "")
        for match in re.finditer(re.escape(search), text) if isinstance(search, str) and search else ():
            start, end = match.span()
            if not any(taken[start:end]):
                taken[start:end] = b"x" * (end - start)
                found.append((start, end, rewrite if isinstance(rewrite, str) else search))
    parts, at = [], 0
    for start, end, rewrite in sorted(found):
        parts += [text[at:start], rewrite]
        at = end
    return "".join([*parts, text[at:]])


def _has_any_index(text: str, words: Any) -> int:
    for index, word in enumerate(words if isinstance(words, list) else []):
        wanted = re.escape(str(word))
        before = r"(?<![A-Za-z0-9])" if str(word)[:1].isalnum() else ""
        after = r"(?![A-Za-z0-9])" if str(word)[-1:].isalnum() else ""
        if re.search(before + wanted + after, text, re.IGNORECASE | re.ASCII):
            return index
    return -1


PARSING: list[Function] = [
    rows("base64_decode_toarray(value: string) -> dynamic", "Decodes base64 to an array of bytes.", _base64_to_array),
    rows("base64_decode_toguid(value: string) -> guid", "Decodes base64 to a guid.", _base64_to_guid),
    rows("base64_encode_fromarray(array: dynamic) -> string", "Encodes bytes as base64.", _base64_from_array),
    rows("base64_encode_fromguid(value: guid) -> string", "Encodes a guid as base64.", _base64_from_guid),
    rows("gzip_compress_to_base64_string(value: string) -> string", "Compresses with gzip, to base64.", _gzip),
    rows("gzip_decompress_from_base64_string(value: string) -> string", "Expands base64 of gzip.", _gunzip),
    rows("has_any_index(text: string, words: dynamic) -> long", "Returns the position of the first term found, or -1.",
         _has_any_index),
    rows("make_string(value: json...) -> string", "Former name of `unicode_codepoints_to_string`.", _from_codepoints),
    rows("parse_command_line(text: string, kind?: string) -> dynamic", "Splits a command line as Windows does.",
         _parse_command_line),
    rows("parse_csv(text: string) -> dynamic", "Reads the first record of CSV.", _parse_csv, named=True),
    rows("parse_path(path: string) -> dynamic", "Splits the path of a file.", _parse_path),
    rows("parse_url(url: string) -> dynamic", "Splits a URL.", _parse_url),
    rows("parse_urlquery(query: string) -> dynamic", "Splits the query of a URL.", _parse_urlquery),
    built(_USER_AGENT_CALL, "Reads a user agent (extra `kql-user-agent`).", _user_agent),
    rows("parse_version(text: string) -> decimal", "Converts a version to a number.", _parse_version),
    rows("parse_xml(text: string) -> dynamic", "Converts XML to a bag.", _parse_xml, named=True),
    rows("punycode_domain_from_string(domain: string) -> string", "Encodes a domain name.", _punycode_domain),
    rows("punycode_domain_to_string(domain: string) -> string", "Decodes a domain name.", _from_punycode_domain),
    rows("punycode_from_string(value: string) -> string", "Encodes as Punycode.", _punycode),
    rows("punycode_to_string(value: string) -> string", "Decodes Punycode.", _from_punycode),
    rows("replace_strings(text: string, searches: dynamic, rewrites: json) -> string", "Replaces several substrings.",
         _replace_strings),
    rows("to_utf8(value: string) -> dynamic", "Former name of `unicode_codepoints_from_string`.", _codepoints),
    rows("unicode_codepoints_from_string(value: string) -> dynamic", "Returns the code points.", _codepoints),
    rows("unicode_codepoints_to_string(value: json...) -> string", "Makes a string of code points.", _from_codepoints),
    rows("url_decode(url: string) -> string", "Decodes a URL.", urllib.parse.unquote_plus),
    rows("url_encode(url: string) -> string", "Encodes a URL; a space becomes `+`.", _url_encode),
    rows("url_encode_component(url: string) -> string", "Encodes part of a URL; a space becomes `%20`.",
         _url_encode_component),
    rows("zlib_compress_to_base64_string(value: string) -> string", "Compresses with zlib, to base64.", _zlib),
    rows("zlib_decompress_from_base64_string(value: string) -> string", "Expands base64 of zlib.", _unzlib),
]  # fmt: skip
"""The functions."""
