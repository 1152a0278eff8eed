"""A scan of rows divided among workers: by its files where they are few, by ranges of the scan where they are many.

Whoever divides must not hold the list of files, or a table of ten million takes its memory however small a worker's
share is. So only a scan whose places hold few files is looked at: then shares are of the same size, and large files are
divided by their row groups. Any other is divided by the places alone, which a manifest or footers tell, and each worker
discovers its own files.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from msgspec.structs import replace

from lazydelta.log.snapshot import Snapshot
from lazydelta.row_scan.row_scanner import RowScanner, stream_files
from lazydelta.row_scan.row_stream import RowStream
from lazydelta.scan.data_file import StoredFile
from lazydelta.scan.scan_range import ScanRange, divided, tail_bytes

__all__ = ["RowShare", "ShareSize", "row_shares", "share_stream"]

FEW_FILES = 20_000
_FEW_BYTES_OF_TAIL = 16 << 20
_UNKNOWN_FILE = 128 << 10  # what a file counts as in a table that says nothing of its size


@dataclass(frozen=True, slots=True)
class RowShare:
    """What one worker reads: these files, or else a range of the scan whose files it discovers."""

    files: tuple[StoredFile, ...] = ()
    within: ScanRange | None = None

    @property
    def size(self) -> int:
        """Return the bytes of its files, as far as they are known."""
        return sum(_size(file) for file in self.files)


@dataclass(frozen=True, slots=True)
class ShareSize:
    """How large shares are: of ``most`` bytes, but smaller where there would be fewer than ``workers`` of them.

    To open a file costs as much as to read ``opening`` bytes. No share is made smaller than that.
    """

    most: int = 128 << 20
    workers: int = 2
    opening: int = 4 << 20

    def of(self, total: int) -> int:
        """Return the bytes of a share where there are so many in all."""
        return max(1, min(self.most, max(self.opening, total // max(1, self.workers))))


def row_shares(scanner: RowScanner, size: ShareSize) -> list[RowShare]:
    """Divide a scan of rows; together the shares hold each row once."""
    snapshot = scanner.snapshot
    of_a_file = _bytes_of_a_file(snapshot)
    at_once = max(1, size.most // (of_a_file + size.opening // 8))
    places = scanner.handle.places(snapshot, scanner.files_where, at_once)
    known = sum(place.files for place in places)
    if known <= FEW_FILES and tail_bytes(snapshot.segment) <= _FEW_BYTES_OF_TAIL:
        return _by_files(list(scanner.found_files()), size)
    # Where a file is more than a worker is to have, several have a part of its row groups each.
    wanted = at_once if of_a_file <= size.most else size.most / of_a_file
    ranges = divided(snapshot.segment, places, wanted, share_bytes=size.most)
    return [RowShare(within=each) for each in ranges]


def share_stream(scanner: RowScanner, share: RowShare) -> RowStream:
    """Return the rows of a share of what a scanner scans."""
    if share.within is None:
        return stream_files(scanner.handle, scanner.request, list(share.files))
    return scanner.narrowed(share.within).stream()


def _by_files(files: list[StoredFile], size: ShareSize) -> list[RowShare]:
    most = size.of(sum(_size(file) + size.opening for file in files))
    pieces: list[tuple[int, StoredFile]] = []
    for file in files:
        count = max(1, -(-_size(file) // most))
        whole = _size(file) // count + size.opening
        pieces += [(whole, file if count == 1 else replace(file, share=(number, count))) for number in range(count)]
    total = sum(cost for cost, _ in pieces)
    shares: list[list[StoredFile]] = [[] for _ in range(min(len(pieces), max(1, -(-total // most))))]
    # The largest piece goes to the smallest share, one after the other.
    smallest = [(0, number) for number in range(len(shares))]
    for cost, file in sorted(pieces, key=lambda piece: -piece[0]):
        held, number = heapq.heappop(smallest)
        shares[number].append(file)
        heapq.heappush(smallest, (held + cost, number))
    return [RowShare(tuple(share)) for share in shares]


def _size(file: StoredFile) -> int:
    size = max(0, file.size)
    if file.share is None:
        return size
    return size // file.share[1]


def _bytes_of_a_file(snapshot: Snapshot) -> int:
    """Return the mean size of a file, by the checksum of the version where there is one."""
    checksum = snapshot.checksum
    if checksum is None or not checksum.num_files:
        return _UNKNOWN_FILE
    return checksum.table_size_bytes // checksum.num_files
