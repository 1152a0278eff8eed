"""Errors that show the place in the query they are about."""

from __future__ import annotations

from lazydelta.errors import KqlError

__all__ = ["QueryText"]

_SHOWN = 100


class QueryText:
    """The text of a query, to which every complaint refers."""

    def __init__(self, text: str) -> None:
        self.text = text

    def error(self, at: int, what: str, *, hint: str | None = None) -> KqlError:
        """Return an error about the character at ``at``; its note shows the line with a caret in tracebacks."""
        at = min(max(at, 0), len(self.text))
        start = self.text.rfind("\n", 0, at) + 1
        end = self.text.find("\n", at)
        shown = self.text[start : end if end >= 0 else len(self.text)].rstrip("\r")
        line, column = self.text.count("\n", 0, at) + 1, at - start + 1
        excerpt = _excerpt(shown, column - 1)
        error = KqlError(
            f"KQL, line {line}, column {column}: {what}", line=line, column=column, excerpt=excerpt, hint=hint
        )
        error.add_note(excerpt)
        return error


def _excerpt(line: str, position: int) -> str:
    # A query may be one line of a megabyte: what is shown lies around the place.
    cut = max(0, position - _SHOWN // 2)
    window = line[cut : cut + _SHOWN].expandtabs(1)
    before, after = "… " if cut else "", " …" if len(line) > cut + _SHOWN else ""
    return f"{before}{window}{after}\n{' ' * (len(before) + position - cut)}^"
