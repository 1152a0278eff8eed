"""``DeltaManifest``: which delta sidecars there are, of which commits, and where in them which versions lie.

One small object with a fixed name, so that whoever finds a long tail can ask for it at once. It is replaced as a whole
(if-match) and sealed like every manifest. A delta sidecar is believed only for commits that are, by the store's own
word, the very objects that it was made of: name, size, etag and time of each are recorded as a short digest, compared
with the listing at no cost. There is no second proof as there is for checkpoints (see ``mirrored``): it would take
reading the commits, which is what the delta sidecar is there to save.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from lazydelta.log.actions import Count
from lazydelta.log.names import LogFile
from lazydelta.sidecar.layout.manifest import SidecarError
from lazydelta.sidecar.layout.seal import UNSEALED, is_sealed, sealed
from lazydelta.sidecar.layout.sidecar_columns import FOLDER

__all__ = ["DeltaEntry", "DeltaGroup", "DeltaManifest", "commit_digests", "delta_path"]

DELTA_FORMAT = 1
_DIGEST = 12
_END = len('"}')


def delta_path(first: int, last: int, unique: str | None = None) -> str:
    """Return where the delta sidecar of commits ``first`` to ``last`` lies: A is the version before the first."""
    return f"{FOLDER}/v{first - 1}_{last}{'' if unique is None else f'-{unique}'}.delta.parquet"


class DeltaGroup(msgspec.Struct, frozen=True, array_like=True):
    """A row group: where its core is, and which versions it holds, the newest first."""

    byte_offset: Count
    core_byte_length: Count
    num_rows: Count
    newest: Count
    oldest: Count


class DeltaEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A delta sidecar: the commits ``first`` to ``last``, which have neither protocol nor metadata among them."""

    file: str
    first: Count
    last: Count
    table_id: str
    schema_hash: str
    size: Count
    footer_offset: Count
    footer_length: Count
    footer_sha256: str
    num_adds: Count
    num_removes: Count
    commits: str
    row_groups: tuple[DeltaGroup, ...]

    @property
    def num_rows(self) -> int:
        """Return how many actions about files it holds."""
        return self.num_adds + self.num_removes

    def stale_commit(self, commits: Sequence[LogFile]) -> int | None:
        """Return the first of these commits that is not the one that this was made of, None if there is none."""
        recorded = base64.b64decode(self.commits)
        for commit in commits:
            place = (commit.version - self.first) * _DIGEST
            if commit.info.etag is None or recorded[place : place + _DIGEST] != _digest(commit):
                return commit.version
        return None

    def check(self) -> None:
        """Raise where the entry contradicts itself."""
        groups = self.row_groups
        versions = [version for group in groups for version in (group.newest, group.oldest)]
        if not (
            1 <= self.first <= self.last
            and self.file.rpartition("/")[0] == FOLDER
            and len(base64.b64decode(self.commits, validate=True)) == (self.last - self.first + 1) * _DIGEST
            and sum(group.num_rows for group in groups) == self.num_rows
            and all(newer >= older for newer, older in pairwise(versions))
            and all(self.first <= version <= self.last for version in versions)
        ):
            message = f"what it says of {self.file} contradicts itself"
            raise SidecarError(message)


class DeltaManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The delta sidecars of a table, ascending, none of them with a version of another."""

    format_version: int = DELTA_FORMAT
    spans: tuple[DeltaEntry, ...] = ()
    sha256: str = UNSEALED

    def encode(self) -> bytes:
        """Return the manifest's bytes, sealed."""
        data = msgspec.json.encode(msgspec.structs.replace(self, sha256=UNSEALED))
        return sealed(data, _place(data))

    @classmethod
    def decode(cls, data: bytes) -> DeltaManifest:
        """Check and parse a manifest's bytes."""
        if len(data) < len(UNSEALED) + _END or not is_sealed(data, _place(data)):
            message = "its digest does not match"
            raise SidecarError(message)
        try:
            manifest = msgspec.json.decode(data, type=cls)
            if manifest.format_version == DELTA_FORMAT:
                for entry in manifest.spans:
                    entry.check()
        except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError) as error:
            message = f"it cannot be decoded: {error}"
            raise SidecarError(message) from error
        if manifest.format_version != DELTA_FORMAT:
            message = f"its format version is {manifest.format_version}, and we read {DELTA_FORMAT}"
            raise SidecarError(message)
        if any(before.last >= after.first for before, after in pairwise(manifest.spans)):
            message = "its delta sidecars overlap"
            raise SidecarError(message)
        return manifest


def commit_digests(commits: Sequence[LogFile]) -> str:
    """Return what tells commits from others of the same versions, for an entry."""
    return base64.b64encode(b"".join(map(_digest, commits))).decode()


def _digest(commit: LogFile) -> bytes:
    info = commit.info
    facts = "\0".join(map(str, (info.path, info.size, info.etag, info.last_modified)))
    return hashlib.sha256(facts.encode()).digest()[:_DIGEST]


def _place(data: bytes) -> int:
    """Return where the digest stands: it is the value of the last field."""
    return len(data) - _END - len(UNSEALED)
