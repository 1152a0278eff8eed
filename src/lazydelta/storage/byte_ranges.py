"""Byte ranges: how they become requests, and how they are cut out of the answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from obstore import GetOptions

__all__ = ["coalesced", "cut_out", "get_options"]


def get_options(start: int, length: int | None, if_match: str | None) -> GetOptions:
    """Return what the client needs to know about one read."""
    options: GetOptions = {}
    if length is not None:
        options["range"] = (start, start + length)
    elif start:
        options["range"] = {"offset": start}
    if if_match is not None:
        options["if_match"] = if_match
    return options


def coalesced(ranges: Sequence[tuple[int, int]], gap: int) -> list[tuple[int, int]]:
    """Return the requests that cover ``ranges``, reading over gaps that are cheaper than a round trip."""
    runs: list[list[int]] = []
    for start, length in sorted(item for item in ranges if item[1] > 0):
        if runs and start <= runs[-1][1] + gap:
            runs[-1][1] = max(runs[-1][1], start + length)
        else:
            runs.append([start, start + length])
    return [(start, end - start) for start, end in runs]


def cut_out(ranges: Sequence[tuple[int, int]], runs: Sequence[tuple[int, int]], blocks: Sequence[bytes]) -> list[bytes]:
    """Cut the ranges that were asked for out of the blocks that were read."""
    if list(ranges) == list(runs):
        return list(blocks)
    parts = []
    for start, length in ranges:
        index = next((i for i, (at, size) in enumerate(runs) if at <= start < at + size), None)
        if index is None or length == 0:
            parts.append(b"")
        else:
            offset = start - runs[index][0]
            parts.append(blocks[index][offset : offset + length])
    return parts
