"""Paths as a Delta log writes them, resolved.

The protocol says RFC 2396: percent-encoded, relative to the table's root or absolute. They come from a file that
anyone may have written, so a path that leaves the root is refused here, before any request is made.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

from lazydelta.errors import DataFileError
from lazydelta.storage.location import is_half_uri, split_scheme

__all__ = ["decode_path", "is_plain", "within"]

_NOT_PLAIN = re.compile(r"[%:\0]|^/|//|(?:^|/)\.{1,2}(?:/|$)|/$|^$")


def is_plain(path: str) -> bool:
    """Tell whether a logged path is relative, needs no decoding and has no odd segment: nearly all of them."""
    return _NOT_PLAIN.search(path) is None


def decode_path(path: str) -> tuple[str, str]:
    """Return (scheme, decoded path): ``""`` for paths relative to the root, ``"/"`` for absolute ones without scheme.

    For other URIs the path is what follows the scheme, still encoded: the place decides how to take it apart.
    """
    if "\0" in path or "%00" in path:
        message = f"the log names a data file with a NUL byte: {path!r}"
        raise DataFileError(message, path=path, hint="the log is damaged or hostile")
    split = split_scheme(path)
    if split is not None:
        return split
    half = is_half_uri(path)
    if half is not None and path[len(half) + 1 :].startswith("/"):
        # Hadoop's way to write an absolute path of a file system; below the table's root it would be another file.
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
    """Resolve ``.`` and ``..`` by text; links on disk are the owner's business."""
    kept: list[str] = []
    for segment in decoded.split("/"):
        if segment in ("", "."):
            continue
        if segment == "..":
            if not kept:
                message = f"the log names a data file outside the table: {path!r}"
                raise DataFileError(message, path=path, hint="the log is damaged or hostile")
            kept.pop()
        else:
            kept.append(segment)
    if not kept:
        message = f"the log names a data file without a name: {path!r}"
        raise DataFileError(message, path=path, hint="the log is damaged")
    return "/".join(kept)


def within(root: str, key: str) -> str | None:
    """Return ``key`` relative to the folder ``root``, or None if it is elsewhere."""
    if not root:
        return key
    return key[len(root) + 1 :] if key.startswith(f"{root}/") else None
