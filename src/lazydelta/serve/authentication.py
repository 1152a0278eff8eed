"""Who is asking: the bearer token of each call, checked before anything else of it is looked at."""

from __future__ import annotations

from typing import Any

import pyarrow.flight as fl

from lazydelta.errors import UnauthenticatedError
from lazydelta.serve.served_tables import ANYONE, Identity
from lazydelta.serve.tokens import TokenFile
from lazydelta.wire import error_in_json

__all__ = ["MIDDLEWARE", "IdentityFactory", "identity_of"]

MIDDLEWARE = "identity"
_BEARER = "bearer "


class _Known(fl.ServerMiddleware):  # type: ignore[misc]
    def __init__(self, identity: Identity) -> None:
        self.identity = identity


class IdentityFactory(fl.ServerMiddlewareFactory):  # type: ignore[misc]
    """Makes an identity of the header ``authorization: Bearer TOKEN``; without a file of tokens all are anyone."""

    def __init__(self, tokens: TokenFile | None) -> None:
        self._tokens = tokens

    def start_call(self, info: Any, headers: dict[str, list[Any]]) -> _Known:  # noqa: ARG002 - gRPC's call
        """Return who asks, or refuse the call."""
        if self._tokens is None:
            return _Known(ANYONE)
        try:
            return _Known(self._tokens.identity(_token(headers)))
        except UnauthenticatedError as error:
            raise fl.FlightUnauthenticatedError(str(error), error_in_json(error, str(error.args[0]))) from None
        except Exception as error:
            # Whatever is wrong with the file, nobody is let in, nor told.
            failed = UnauthenticatedError("The server cannot check tokens", hint="its operator can tell why")
            raise fl.FlightUnauthenticatedError(str(failed), error_in_json(failed, str(failed.args[0]))) from error


def identity_of(context: Any) -> Identity:
    """Return who makes a call."""
    known = context.get_middleware(MIDDLEWARE)
    if known is None:
        raise UnauthenticatedError("The call has no identity", hint="send a bearer token")
    identity: Identity = known.identity
    return identity


def _token(headers: dict[str, list[Any]]) -> str:
    given = [value for name, values in headers.items() if name.lower() == "authorization" for value in values]
    texts = [each if isinstance(each, str) else each.decode("latin-1") for each in given]
    if len(texts) != 1 or not texts[0].lower().startswith(_BEARER):
        message = "This server wants a token, and there is none" if not texts else "The header is no bearer token"
        raise UnauthenticatedError(message, hint="send the header authorization: Bearer NAME.SECRET")
    return texts[0][len(_BEARER) :].strip()
