"""Plugins that Python computes over batches of rows."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from lazydelta.kql.computing.steps import batch_of

__all__ = ["ip_keys", "ip_network", "merged_schema"]


def merged_schema(*, preserve: bool) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function from rows of several schemas to one schema."""

    def step(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        columns: dict[str, list[tuple[int, str, str]]] = {}
        for batch in batches:
            for name, ordinal, data, kind in zip(*(each.to_pylist() for each in batch.columns), strict=True):
                columns.setdefault(name, []).append((ordinal, data, kind))
        rows: list[tuple[Any, ...]] = []
        for name, found in columns.items():
            ordinals, kinds = {each[0] for each in found}, {each[2] for each in found}
            if preserve and len(ordinals) > 1:
                rows.append((name, -1, *_failed("columns are out of order")))
            elif len(kinds) > 1:
                rows.append((name, -1, *_failed("type mismatch")))
            else:
                rows.append((name, max(ordinals), *found[0][1:]))
        rows.sort(key=lambda row: (row[1] < 0, row[1]))
        if not preserve:
            rows = [(name, index if at >= 0 else at, *rest) for index, (name, at, *rest) in enumerate(rows)]
        yield from batch_of(("string", "long", "string", "string"), rows)

    return step


def _failed(why: str) -> tuple[str, str]:
    return f"ERROR(unknown CSL type:ERROR({why}))", f"ERROR({why})"


# Networks: an address belongs to one network for each length of prefix.


def ip_keys(bits: int) -> Callable[[pa.RecordBatch], list[pa.Array]]:
    """Return a function from addresses to JSON lists of the networks that may contain each."""

    def step(batch: pa.RecordBatch) -> list[pa.Array]:
        return [pa.array([_networks(text, bits) for text in batch.column(0).to_pylist()], pa.string())]

    return step


def ip_network(bits: int) -> Callable[[pa.RecordBatch], list[pa.Array]]:
    """Return a function from networks, as people write them, to the form that ``ip_keys`` returns."""

    def step(batch: pa.RecordBatch) -> list[pa.Array]:
        return [pa.array([_network(text, bits) for text in batch.column(0).to_pylist()], pa.string())]

    return step


def _number(text: str, bits: int) -> int | None:
    try:
        address = ipaddress.ip_address(text.strip())
    except ValueError:
        return None
    if address.version == 4 and bits == 128:  # noqa: PLR2004 - an IPv4 address inside IPv6
        return 0xFFFF_0000_0000 | int(address)
    return int(address) if address.max_prefixlen == bits else None


def _networks(text: str | None, bits: int) -> str:
    number = _number((text or "").partition("/")[0], bits)
    if number is None:
        return "[]"
    return json.dumps([_key(number, length, bits) for length in range(bits + 1)])


def _network(text: str | None, bits: int) -> str:
    address, _, length = (text or "").partition("/")
    number = _number(address, bits)
    if number is None or not (length.isdigit() or not length):
        return ""
    size = int(length) if length else bits
    if length and bits == 128 and "." in address:  # noqa: PLR2004 - an IPv4 network inside IPv6
        size += 96
    return _key(number, size, bits) if size <= bits else ""


def _key(number: int, length: int, bits: int) -> str:
    return f"{length}/{number >> (bits - length):x}"
