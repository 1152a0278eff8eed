"""``StatementEnd``: what became of a statement, for whoever counts what a server does."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
from pyarrow import flight

from lazydelta.errors import LazyDeltaError, StreamClosedError

__all__ = ["StatementEnd", "counted"]


class StatementEnd:
    """The tables of a statement, the rows and bytes that were sent of it, and how it ended, with its error.

    ``how`` is ``done``, ``cancelled``, ``deadline``, ``dropped`` (its rows were not taken to their end) or ``failed``.
    """

    def __init__(self, tables: tuple[str, ...]) -> None:
        self.tables = tables
        self.rows = 0
        self.size = 0
        self.how = "dropped"
        self.error: BaseException | None = None


def counted(
    batches: Iterator[pa.RecordBatch], tables: tuple[str, ...], report: Callable[[StatementEnd], None]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a statement, and report its end once, however it comes."""
    end = StatementEnd(tables)
    try:
        for batch in batches:
            end.rows += batch.num_rows
            end.size += batch.nbytes
            yield batch
        end.how = "done"
    except GeneratorExit:
        raise
    except BaseException as error:
        # What leaves here is Flight's; why it does is ours.
        ours = error.__context__
        end.how, end.error = _how(error), ours if isinstance(ours, LazyDeltaError) else error
        raise
    finally:
        report(end)


def _how(error: BaseException) -> str:
    if isinstance(error, StreamClosedError | flight.FlightCancelledError):
        return "cancelled"
    return "deadline" if isinstance(error, flight.FlightTimedOutError) else "failed"
