"""The version checksum ``N.crc``: protocol, metadata and totals of version N, without log replay."""

from __future__ import annotations

import logging

import msgspec

from lazydelta.errors import ObjectNotFoundError
from lazydelta.log.commits import CommitCache
from lazydelta.protocol.actions import Count, DomainMetadata, Long, Metadata, Protocol, Txn
from lazydelta.protocol.file_names import LogFile
from lazydelta.storage import Store

__all__ = ["VersionChecksum", "read_checksum"]

logger = logging.getLogger(__name__)


class VersionChecksum(msgspec.Struct, rename="camel", frozen=True):
    """The fields of a version checksum that lazydelta uses; the lists are None if the writer did not know them."""

    table_size_bytes: Count
    num_files: Count
    num_metadata: int
    num_protocol: int
    metadata: Metadata
    protocol: Protocol
    txn_id: str | None = None
    in_commit_timestamp_opt: Long | None = None
    set_transactions: tuple[Txn, ...] | None = None
    domain_metadata: tuple[DomainMetadata, ...] | None = None


def read_checksum(store: Store, file: LogFile, cache: CommitCache) -> VersionChecksum | None:
    """Read a checksum; None if it is unusable, because the log itself holds the same information."""
    if file.info.size == 0:
        logger.warning("%s is empty and is ignored", file.path)
        return None
    try:
        data = cache.get(file.path, file.info.etag)
        if data is None:
            data = store.get(file.path)
            cache.put(file.path, data, file.info.etag)
        checksum = msgspec.json.decode(data, type=VersionChecksum)
    except ObjectNotFoundError:
        return None
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        logger.warning("%s is unreadable and is ignored: %s", file.path, error)
        return None
    if checksum.num_metadata != 1 or checksum.num_protocol != 1:
        logger.warning("%s does not count one protocol and one metadata and is ignored", file.path)
        return None
    return checksum
