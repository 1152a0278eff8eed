"""Categories of the warnings that lazydelta gives by Python's ``warnings``, for whoever wants to filter them."""

from __future__ import annotations

__all__ = ["ChecksumWarning", "LazyDeltaWarning", "PredicateWarning"]


class LazyDeltaWarning(UserWarning):
    """Root of every warning of lazydelta."""


class ChecksumWarning(LazyDeltaWarning):
    """The log and its version checksum disagree: one of them was damaged."""


class PredicateWarning(LazyDeltaWarning):
    """A predicate holds a condition by which no file can be left out, so that all files are returned for it."""
