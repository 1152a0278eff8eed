"""An error at a chosen line of the package, in the thread that called it, from a chosen function on.

Ctrl-C arrives between any two lines, and so does ``MemoryError``. A call is first followed from the start of its commit
to its end, which gives the lines that it executes; then it is done again for each of them, and the line raises.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import lazydelta

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    import pytest

__all__ = ["Line", "Lines", "from_start_of"]

Line = tuple[str, int]
_ROOT = lazydelta.__file__.removesuffix("__init__.py")


class Lines:
    """The lines of one call in the order of their first execution; ``error`` is raised where ``at`` is executed.

    ``of_callers`` are those of the functions that had called the first one, which go on when it is over.
    """

    def __init__(self, at: Line | None = None, error: BaseException | None = None) -> None:
        self.seen: dict[Line, None] = {}
        self.of_callers: dict[Line, None] = {}
        self.has_raised = False
        self._at, self._error = at, error
        self._callers: set[FrameType] = set()

    def follow(self, frame: FrameType | None) -> None:
        """Follow what is called from now on, and what the callers of this do after it."""
        sys.settrace(self._called)
        while frame is not None:
            if frame.f_code.co_filename.startswith(_ROOT):
                frame.f_trace = self._executed
                self._callers.add(frame)
            frame = frame.f_back

    def release(self) -> None:
        """Let go of the frames of the call, and of the files that it left open."""
        self._callers.clear()
        if self._error is not None:
            self._error.__traceback__ = self._error.__context__ = None

    def _called(self, frame: FrameType, event: str, arg: Any) -> Any:  # noqa: ARG002 - Python's
        return self._executed if frame.f_code.co_filename.startswith(_ROOT) else None

    def _executed(self, frame: FrameType, event: str, arg: Any) -> Any:  # noqa: ARG002 - Python's
        if event == "line":
            line = frame.f_code.co_filename.removeprefix(_ROOT), frame.f_lineno
            self.seen[line] = None
            if frame in self._callers:
                self.of_callers[line] = None
            if line == self._at and self._error is not None:
                self.has_raised = True
                sys.settrace(None)
                raise self._error
        return self._executed


@contextmanager
def from_start_of(
    patch: pytest.MonkeyPatch, owner: Any, name: str, lines: Lines, first: Callable[[], None] | None = None
) -> Iterator[None]:
    """Follow a call from where it enters the function ``name`` of ``owner``; ``first`` is done there before."""
    original, entered = getattr(owner, name), False

    def entering(*args: Any, **keywords: Any) -> Any:
        nonlocal entered
        if not entered:
            entered = True
            if first is not None:
                first()
            lines.follow(sys._getframe(1))
        return original(*args, **keywords)

    before = sys.gettrace()
    with patch.context() as patched:
        patched.setattr(owner, name, entering)
        try:
            yield
        finally:
            sys.settrace(before)
    assert entered, f"{name} was not called"
