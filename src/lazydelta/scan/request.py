"""``ScanRequest``: what a caller wants of a scan, checked once."""

from __future__ import annotations

import datetime as dt
import enum
from collections.abc import Callable, Sequence

import msgspec

from lazydelta.errors import OptionError
from lazydelta.pruning import Predicate, Where, check_conjuncts, conjunction, parse_predicate
from lazydelta.scan.named_files import NamedFiles
from lazydelta.scan.time_window import last_window, moment_of
from lazydelta.types.schema import Column, TableSchema

__all__ = ["RetentionGuard", "ScanRequest", "ScanStrategy"]

RetentionGuard = Callable[[int, int], bool]
"""Called with the version and timestamp (epoch ms) of a scan's floor; False refuses the scan."""


class ScanStrategy(enum.Enum):
    """In which order files are found; which files does not depend on it."""

    AUTO = "auto"
    REVERSE = "reverse"
    FORWARD = "forward"


class ScanRequest(msgspec.Struct, frozen=True):
    """A bound predicate, limits, and what to report of each file.

    ``stats_columns`` None reports no statistics, so none are read for it; an empty tuple asks for ``num_records``.
    ``extra`` keeps whatever else an ``add`` carries, for those who copy it. ``named`` are the only files of interest: a
    base that is sorted may look where their paths say that they are, and nowhere else.
    """

    predicate: Predicate | None = None
    limit: int | None = None
    row_limit: int | None = None
    strategy: ScanStrategy = ScanStrategy.AUTO
    stats_columns: tuple[Column, ...] | None = None
    batch_size: int = 8192
    retention_guard: RetentionGuard | None = None
    extra: bool = False
    named: NamedFiles | None = None

    @classmethod
    def of(  # noqa: PLR0913 - keywords, as the caller wrote them
        cls,
        schema: TableSchema,
        *,
        where: Where = None,
        limit: int | None = None,
        row_limit: int | None = None,
        strategy: str = "auto",
        stats_columns: Sequence[str] | None = None,
        batch_size: int = 8192,
        retention_guard: RetentionGuard | None = None,
        strict: bool = False,
        last: str | dt.timedelta | None = None,
        now: dt.datetime | str | None = None,
        time_column: Callable[[], Column] | None = None,
        trust_float_max: bool = False,
    ) -> ScanRequest:
        """Bind what the caller wrote to the table's schema; what makes no sense is an error here.

        ``time_column`` is asked for the column of ``last``. Conditions by which no file can be left out are warned of,
        or refused with ``strict``.
        """
        for name, value in (("limit", limit), ("row_limit", row_limit)):
            if value is not None and not _whole(value, least=0):
                raise OptionError(f"{name}={value!r} makes no sense", hint="give a number from 0, or None for no limit")
        if not _whole(batch_size, least=1):
            raise OptionError(f"batch_size={batch_size!r} makes no sense", hint="give a number of files from 1")
        try:
            chosen = ScanStrategy(strategy)
        except ValueError:
            known = ", ".join(each.value for each in ScanStrategy)
            raise OptionError(f"There is no strategy {strategy!r}", hint=f"known: {known}") from None
        if isinstance(stats_columns, str):
            raise OptionError("stats_columns is a list of names, not a text", hint=f"write [{stats_columns!r}]")
        predicate = parse_predicate(where, schema, now=moment_of(now), trust_float_max=trust_float_max)
        if last is not None:
            if time_column is None:
                raise OptionError(f"last={last!r} needs a table whose time is known", hint="write the condition out")
            window = last_window(time_column(), last, now)
            predicate = window if predicate is None else conjunction([predicate, window])
        check_conjuncts(predicate, strict=strict)
        return cls(
            predicate=predicate,
            limit=limit,
            row_limit=row_limit,
            strategy=chosen,
            stats_columns=None if stats_columns is None else tuple(schema.column(name) for name in stats_columns),
            batch_size=batch_size,
            retention_guard=retention_guard,
        )


def _whole(value: object, *, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
