"""The lists of features in a protocol, of readers and of writers, as far as its versions let them stand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from lazydelta.errors import CorruptLogError

if TYPE_CHECKING:
    from lazydelta.log.actions import Protocol

__all__ = ["LISTS_SINCE", "listed_features"]

LISTS_SINCE = {"reader": 3, "writer": 7}
"""The versions from which on a protocol lists its features, instead of meaning them."""


def listed_features(protocol: Protocol, who: Literal["reader", "writer"], path: str | None) -> tuple[str, ...]:
    """Return the features listed for readers or writers; a protocol that contradicts itself is corrupt."""
    is_reader, since = who == "reader", LISTS_SINCE[who]
    version = protocol.min_reader_version if is_reader else protocol.min_writer_version
    features = protocol.reader_features if is_reader else protocol.writer_features
    if version < 1:
        raise CorruptLogError(f"The table's protocol has the impossible {who} version {version}", path=path)
    if version < since and features:
        # Who has such a version is told nothing about features, so a list contradicts it.
        message = f"The table's protocol lists {who} features but has {who} version {version} instead of {since}"
        raise CorruptLogError(message, path=path)
    if version == since and features is None:
        message = f"The table's protocol has {who} version {since} but no list of {who} features"
        raise CorruptLogError(message, path=path)
    return features or ()
