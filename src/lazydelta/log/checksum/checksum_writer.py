"""Writing the version checksum beside its commit.

Delta-Spark takes a wrong checksum for a broken table, so one is written only where its totals are known exactly: from
an earlier checksum and every commit since, or from a replay. It is never overwritten, and a commit does not depend on
it: a failure to write one is logged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from lazydelta.errors import LazyDeltaError, ObjectExistsError, UnsupportedFeatureError
from lazydelta.log.action_bodies import domain_body, metadata_body, protocol_body, txn_body
from lazydelta.log.actions import Metadata, Protocol, Txn
from lazydelta.log.checksum.checksum_totals import State, state_from_replay
from lazydelta.log.features.writable import check_writable, uses_in_commit_timestamps
from lazydelta.log.names import LOG, checksum_name
from lazydelta.log.properties import TableProperties
from lazydelta.log.snapshot import Snapshot
from lazydelta.log.travel import commit_info
from lazydelta.storage import Store

__all__ = ["start_checksums", "write_checksum"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

# The bound that Delta-Spark has for the lists in a checksum.
_MAX_LISTED = 100


def write_checksum(
    store: Store,
    version: int,
    state: State,
    *,
    protocol: Protocol,
    metadata: Metadata,
    txn_id: str | None = None,
    in_commit_timestamp: int | None = None,
) -> bool:
    """Write the checksum of a committed version, unless there is one; tell whether this call wrote it."""
    path = f"{LOG}/{checksum_name(version)}"
    body: dict[str, Any] = {
        "txnId": txn_id,
        "tableSizeBytes": state.size,
        "numFiles": state.num_files,
        "numMetadata": 1,
        "numProtocol": 1,
        "inCommitTimestampOpt": in_commit_timestamp,
        "setTransactions": _listed(_lasting(state.transactions, metadata), txn_body),
        "domainMetadata": _listed(state.domains, domain_body),
        "metadata": metadata_body(metadata),
        "protocol": protocol_body(protocol),
    }
    present = {key: value for key, value in body.items() if value is not None}
    try:
        store.put_if_absent(path, msgspec.json.encode(present) + b"\n")
    except ObjectExistsError:
        return False
    except LazyDeltaError as error:
        logger.warning("the checksum of version %d was not written: %s", version, error)
        return False
    return True


def start_checksums(snapshot: Snapshot, *, num_files: int, size: int) -> bool:
    """Write the checksum of a version whose files were just counted, where its writer wrote none; tell whether.

    Later commits take theirs from it. Tables that we may not write to are left to those who know their features. It is
    a help and no more, so that whatever goes wrong is logged.
    """
    file = snapshot.segment.checksum
    if file is not None and file.version == snapshot.version:
        return False
    try:
        check_writable(snapshot.protocol, snapshot.metadata)
        # A checkpoint at the very version leaves no tail, and the log may have been cleaned up to it.
        commit = snapshot.segment.commits[-1] if snapshot.segment.commits else snapshot.segment.checkpoint_commit
        if commit is None:
            return False
        info = commit_info(snapshot.store, commit)
        stamp, txn_id = info.get("inCommitTimestamp"), info.get("txnId")
        if uses_in_commit_timestamps(snapshot.protocol, snapshot.metadata) and not isinstance(stamp, int):
            return False
        return write_checksum(
            snapshot.store,
            snapshot.version,
            state_from_replay(snapshot, num_files=num_files, size=size),
            protocol=snapshot.protocol,
            metadata=snapshot.metadata,
            txn_id=txn_id if isinstance(txn_id, str) else None,
            in_commit_timestamp=stamp if isinstance(stamp, int) else None,
        )
    except UnsupportedFeatureError as error:
        logger.debug("version %d gets no checksum from its checkpoint: %s", snapshot.version, error)
    except Exception:
        # The checkpoint is there and whole.
        logger.exception("the checksum of version %d was not written", snapshot.version)
    return False


def _lasting(transactions: tuple[Txn, ...] | None, metadata: Metadata) -> tuple[Txn, ...] | None:
    # Where transactions expire, which of them still count depends on when one looks: nothing to write down.
    return None if TableProperties.of(metadata).transaction_retention is not None else transactions


def _listed(actions: Sequence[T] | None, body: Callable[[T], dict[str, Any]]) -> list[dict[str, Any]] | None:
    return None if actions is None or len(actions) > _MAX_LISTED else [body(each) for each in actions]
