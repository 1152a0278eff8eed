"""Categories of the warnings that lazydelta issues through Python's ``warnings``, for filters."""

from __future__ import annotations

__all__ = ["ChecksumWarning", "LazyDeltaWarning", "PredicateWarning", "RetentionWarning"]


class LazyDeltaWarning(UserWarning):
    """Root of every lazydelta warning."""


class ChecksumWarning(LazyDeltaWarning):
    """The log and its version checksum disagree: one of them is damaged."""


class RetentionWarning(LazyDeltaWarning):
    """A scan reads an old version, and VACUUM may have deleted some of its files."""


class PredicateWarning(LazyDeltaWarning):
    """A predicate has a condition that cannot prune any file, so all files are returned for it."""
