"""When a table may be vacuumed: features that we know, and a retention that breaks no reader unasked."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from lazydelta.errors import OptionError, UnsupportedFeatureError
from lazydelta.log.actions import Metadata, Protocol
from lazydelta.log.properties import TableProperties
from lazydelta.log.travel import milliseconds

__all__ = ["Retention", "check_vacuumable"]

_TABLE_FEATURES_VERSION = 7
# Under these, files are referred to by `add` and `remove` actions and their deletion vectors, and by nothing else that
# we would overlook. Who may commit to such a table is another question.
_KNOWN = frozenset(
    {
        "allowColumnDefaults",
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "checkpointProtection",
        "clustering",
        "columnMapping",
        "deletionVectors",
        "domainMetadata",
        "generatedColumns",
        "icebergCompatV1",
        "icebergCompatV2",
        "identityColumns",
        "inCommitTimestamp",
        "invariants",
        "rowTracking",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        "variantType",
        "variantType-preview",
    }
)


def check_vacuumable(protocol: Protocol, *, path: str) -> None:
    """Raise if the table has a writer feature that we do not know: it may refer to files in ways of its own.

    That is what the feature ``vacuumProtocolCheck`` asks of everybody who vacuums; here it holds for every table.
    """
    version, features = protocol.min_writer_version, set(protocol.writer_features or ())
    unknown = tuple(sorted(features - _KNOWN))
    if version > _TABLE_FEATURES_VERSION:
        unknown = (f"minWriterVersion {version}",)
    if unknown:
        message = f"The table has features under which lazydelta does not know what to keep: {', '.join(unknown)}"
        hint = "vacuum it with a writer that implements them; nothing was deleted"
        raise UnsupportedFeatureError(message, features=unknown, path=path, hint=hint)


class Retention:
    """How long files stay that were removed; ``cutoff`` is the moment (epoch milliseconds) before which they go."""

    def __init__(self, asked: timedelta | None, metadata: Metadata, *, enforce: bool, now: datetime | None) -> None:
        promised = TableProperties.of(metadata).deleted_file_retention
        self.asked, self.promised = asked, promised
        self.duration = promised if asked is None else asked
        if self.duration < timedelta():
            raise OptionError(f"A retention of {self.duration} makes no sense", hint="0 or more")
        if enforce and self.duration < promised:
            message = (
                f"A retention of {_hours(self.duration)} hours is shorter than the {_hours(promised)} hours that the "
                "table promises (delta.deletedFileRetentionDuration): readers of older versions and writers at work "
                "may lose files"
            )
            hint = (
                "ask for more, or switch the check off if nobody reads or writes the table: --no-retention-check, "
                "in Python enforce_retention_duration=False"
            )
            raise OptionError(message, hint=hint)
        try:
            self.cutoff = milliseconds((now or datetime.now(UTC)) - self.duration)
        except OverflowError:
            self.cutoff = -(2**62)  # a retention longer than there is time: everything stays

    @property
    def exceeds_promise(self) -> bool:
        """Tell whether more is asked for than checkpoints remember."""
        return self.duration > self.promised


def _hours(duration: timedelta) -> str:
    return f"{duration / timedelta(hours=1):g}"
