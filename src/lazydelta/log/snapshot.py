"""``Snapshot``: a pinned version with the protocol and metadata that are final for it."""

from __future__ import annotations

from dataclasses import dataclass, field

from lazydelta.errors import CorruptLogError
from lazydelta.log.actions import LogLine, Metadata, Protocol
from lazydelta.log.checkpoint import CheckpointReader
from lazydelta.log.checksum import VersionChecksum, read_checksum
from lazydelta.log.features import check_readable, column_mapping_mode
from lazydelta.log.names import LogFile
from lazydelta.log.schema import TableSchema
from lazydelta.log.segment import LogSegment
from lazydelta.log.tail import CommitCache, ReverseCommitReader
from lazydelta.storage import Store

__all__ = ["Snapshot", "load_snapshot"]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything about a version but its files. ``checksum`` is the one of exactly this version, if there is one."""

    store: Store
    segment: LogSegment
    protocol: Protocol
    metadata: Metadata
    schema: TableSchema
    checksum: VersionChecksum | None = None
    commits: CommitCache = field(default_factory=CommitCache, compare=False, repr=False)
    parallelism: int = 10

    @property
    def version(self) -> int:
        """Return V."""
        return self.segment.version

    def transaction_version(self, app_id: str) -> int | None:
        """Return how far the application has come, None if it never wrote."""
        if self.checksum is not None and self.checksum.set_transactions is not None:
            known = {txn.app_id: txn.version for txn in self.checksum.set_transactions}
            return known.get(app_id)
        for commit in self.tail():
            found = None
            for lines in commit.actions:
                for line in lines:
                    if line.txn is not None and line.txn.app_id == app_id:
                        found = line.txn.version
            if found is not None:
                return found
        if self.segment.checkpoint is not None:
            for line in CheckpointReader(self.store, self.segment.checkpoint).actions("txn"):
                if line.txn is not None and line.txn.app_id == app_id:
                    return line.txn.version
        return None

    def domain_metadata(self) -> dict[str, str]:
        """Return the configuration of every live domain."""
        if self.checksum is not None and self.checksum.domain_metadata is not None:
            return {each.domain: each.configuration for each in self.checksum.domain_metadata if not each.removed}
        domains: dict[str, str | None] = {}
        for commit in self.tail():
            newest: dict[str, str | None] = {}
            for lines in commit.actions:
                for line in lines:
                    if (domain := line.domain_metadata) is not None:
                        newest[domain.domain] = None if domain.removed else domain.configuration
            domains = newest | domains
        if self.segment.checkpoint is not None:
            for line in CheckpointReader(self.store, self.segment.checkpoint).actions("domainMetadata"):
                if (domain := line.domain_metadata) is not None:
                    domains.setdefault(domain.domain, None if domain.removed else domain.configuration)
        return {domain: value for domain, value in domains.items() if value is not None}

    def tail(self) -> ReverseCommitReader:
        """Return a reader over the tail, newest first."""
        return ReverseCommitReader(
            self.store, self.segment.tail(), parallelism=self.parallelism, cache=self.commits
        )


def load_snapshot(
    store: Store, segment: LogSegment, *, has_log_tail: bool = False, parallelism: int = 10
) -> Snapshot:
    """Settle protocol and metadata: from the checksum, else the commits after it, else the tail and the checkpoint."""
    cache = CommitCache()
    checksum = None if segment.checksum is None else read_checksum(store, segment.checksum)
    at_version = checksum is not None and segment.checksum is not None and segment.checksum.version == segment.version
    if checksum is not None and at_version:
        protocol, metadata = checksum.protocol, checksum.metadata
    else:
        known = -1 if checksum is None or segment.checksum is None else segment.checksum.version
        found_protocol, found_metadata = _newest(store, segment, known, cache, parallelism)
        if checksum is not None:
            found_protocol = found_protocol or checksum.protocol
            found_metadata = found_metadata or checksum.metadata
        protocol = found_protocol or _absent(segment, "protocol")
        metadata = found_metadata or _absent(segment, "metaData")
    check_readable(protocol, metadata, has_log_tail=has_log_tail, path=store.uri)
    schema = TableSchema.parse(
        metadata.schema_string,
        partition_columns=metadata.partition_columns,
        column_mapping=column_mapping_mode(metadata, protocol),
        origin=f"the metadata of {store.uri} at version {segment.version}",
    )
    return Snapshot(
        store=store,
        segment=segment,
        protocol=protocol,
        metadata=metadata,
        schema=schema,
        checksum=checksum if at_version else None,
        commits=cache,
        parallelism=parallelism,
    )


def _newest(
    store: Store, segment: LogSegment, known: int, cache: CommitCache, parallelism: int
) -> tuple[Protocol | None, Metadata | None]:
    """Look for protocol and metadata in the commits above ``known``, then, if nothing is known, in the checkpoint."""
    protocol: Protocol | None = None
    metadata: Metadata | None = None
    # Plain commits here, never compactions: a compaction may span `known`, and the commits are cached for the scan.
    files: list[LogFile] = segment.tail() if known < 0 else [each for each in segment.commits if each.version > known]
    for commit in ReverseCommitReader(store, files, parallelism=parallelism, cache=cache):
        lines = [line for lines in commit.actions for line in lines if line.protocol or line.meta_data]
        protocol = protocol or _last_protocol(lines)
        metadata = metadata or _last_metadata(lines)
        if protocol is not None and metadata is not None:
            return protocol, metadata
    if known < 0 and segment.checkpoint is not None:
        for line in CheckpointReader(store, segment.checkpoint).actions("protocol", "metaData"):
            protocol = protocol or line.protocol
            metadata = metadata or line.meta_data
            if protocol is not None and metadata is not None:
                break
    return protocol, metadata


def _last_protocol(lines: list[LogLine]) -> Protocol | None:
    return next((line.protocol for line in reversed(lines) if line.protocol is not None), None)


def _last_metadata(lines: list[LogLine]) -> Metadata | None:
    return next((line.meta_data for line in reversed(lines) if line.meta_data is not None), None)


def _absent(segment: LogSegment, action: str) -> Protocol | Metadata:
    message = f"The log has no {action} action up to version {segment.version}"
    file = segment.checkpoint.files[0] if segment.checkpoint is not None else segment.commits[0]
    hint = f"{file.path} should hold one; restore it from a backup"
    raise CorruptLogError(message, path=file.path, version=segment.version, hint=hint)
