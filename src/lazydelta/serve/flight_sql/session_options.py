"""Options that a client sets for its connection, here the language of its statements.

Flight knows no connections; clients that keep cookies are told one. ``SessionCookies`` is the middleware that carries
it, under ``SESSION_MIDDLEWARE`` in a server's list.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from http.cookies import CookieError, SimpleCookie
from threading import Lock
from typing import Any

from pyarrow import flight

from lazydelta.serve.flight_sql.messages import MESSAGES
from lazydelta.serve.flight_sql.sql_guard import CATALOG, SCHEMA

__all__ = ["SESSION_MIDDLEWARE", "SessionCookies", "SessionOptions"]

SESSION_MIDDLEWARE = "flight-sql-session"
_COOKIE = "arrow_flight_session_id"
_INVALID_NAME, _INVALID_VALUE, _ERROR = 1, 2, 3
_CLOSED = 1
_ALLOWED = {"language": ("sql", "kql"), "catalog": (CATALOG,), "schema": (SCHEMA,)}
_MOST_SESSIONS = 10_000
_LONGEST = 64


class _SessionCookie(flight.ServerMiddleware):  # type: ignore[misc]
    def __init__(self, session: str, *, is_new: bool) -> None:
        self.session = session
        self._is_new = is_new

    def sending_headers(self) -> Mapping[str, str]:
        return {"set-cookie": f"{_COOKIE}={self.session}"} if self._is_new else {}


class SessionCookies(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Finds the session of a call in its cookies.

    Headers leave before a call is looked at, so every action of a client without a cookie gets one: one of them sets
    options.
    """

    def start_call(self, info: Any, headers: Mapping[str, list[str]]) -> _SessionCookie | None:
        """Return what the call's handlers ask for the session, None if there is none."""
        for value in (value for name, values in headers.items() if name.lower() == "cookie" for value in values):
            try:
                cookies = SimpleCookie(str(value))
            except CookieError:
                continue
            if _COOKIE in cookies:
                return _SessionCookie(cookies[_COOKIE].value[:_LONGEST], is_new=False)
        if info.method == flight.FlightMethod.DO_ACTION:
            return _SessionCookie(secrets.token_hex(16), is_new=True)
        return None


class SessionOptions:
    """The options of the sessions that were used last; each belongs to an identity: a cookie alone opens nothing."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[tuple[Hashable, str], dict[str, str]] = OrderedDict()
        self._lock = Lock()

    def language(self, context: Any, identity: Hashable) -> str:
        """Return the language of a call's statements."""
        return self._of(context, identity).get("language", "sql")

    def set(self, context: Any, identity: Hashable, request: Any) -> bytes:
        """Set options; what is wrong with one of them is told by its name."""
        cookie = context.get_middleware(SESSION_MIDDLEWARE)
        errors: dict[str, int] = {}
        chosen: dict[str, str] = {}
        for entry in request.session_options:
            value = entry.value.string_value if entry.value.HasField("string_value") else ""
            if entry.key not in _ALLOWED:
                errors[entry.key] = _INVALID_NAME
            elif value.lower() not in _ALLOWED[entry.key]:
                errors[entry.key] = _INVALID_VALUE
            elif cookie is None:
                errors[entry.key] = _ERROR
            else:
                chosen[entry.key] = value.lower()
        if chosen:
            with self._lock:
                options = self._sessions.setdefault((identity, cookie.session), {})
                options.update(chosen)
                while len(self._sessions) > _MOST_SESSIONS:
                    self._sessions.popitem(last=False)
        entries = [
            MESSAGES["SessionErrorEntry"](key=key, value=MESSAGES["SessionOptionError"](value=error))
            for key, error in errors.items()
        ]
        return bytes(MESSAGES["SetSessionOptionsResult"](errors=entries).SerializeToString())

    def get(self, context: Any, identity: Hashable) -> bytes:
        """Return the options of a session."""
        entries = [
            MESSAGES["SessionOptionEntry"](key=key, value=MESSAGES["SessionOptionValue"](string_value=value))
            for key, value in self._of(context, identity).items()
        ]
        return bytes(MESSAGES["GetSessionOptionsResult"](session_options=entries).SerializeToString())

    def close(self, context: Any, identity: Hashable) -> bytes:
        """Forget a session."""
        cookie = context.get_middleware(SESSION_MIDDLEWARE)
        with self._lock:
            self._sessions.pop((identity, "" if cookie is None else cookie.session), None)
        return bytes(MESSAGES["CloseSessionResult"](status=_CLOSED).SerializeToString())

    def _of(self, context: Any, identity: Hashable) -> dict[str, str]:
        cookie = context.get_middleware(SESSION_MIDDLEWARE)
        key = (identity, "" if cookie is None else cookie.session)
        with self._lock:
            if key not in self._sessions:
                return {}
            self._sessions.move_to_end(key)
            return dict(self._sessions[key])
