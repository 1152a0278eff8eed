"""An object read from front to back, with the right to stop at any moment."""

from __future__ import annotations

from abc import abstractmethod
from typing import Self

from lazydelta.execution import ClosesItself

__all__ = ["ByteStream"]


class ByteStream(ClosesItself):
    """An iterator of chunks; ``close()`` aborts the request in flight, and leaving a ``with`` block closes.

    Chunks have at least the chunk size asked for, except the last. After ``close()`` the stream is at its end.
    """

    def __iter__(self) -> Self:
        return self

    @abstractmethod
    def __next__(self) -> bytes:
        """Return the next chunk."""

    @abstractmethod
    def close(self) -> None:
        """Stop at once; harmless when repeated."""

    def __del__(self) -> None:
        self.close()
