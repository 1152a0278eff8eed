"""Publishing a commit, whatever happens to the answer."""

from __future__ import annotations

import logging
import time

from lazydelta.errors import AccessDeniedError, ObjectNotFoundError, StorageError
from lazydelta.log.names import LOG, commit_name
from lazydelta.storage import Store

__all__ = ["commit_path", "publish"]

logger = logging.getLogger(__name__)

_PAUSES = (0.1, 0.4)
# The id stands at the beginning of the first line; nobody else's commit has it.
_BYTES_WITH_ID = 256


def commit_path(version: int) -> str:
    """Return where a version's commit is."""
    return f"{LOG}/{commit_name(version)}"


def publish(store: Store, version: int, data: bytes, txn_id: str) -> bool:
    """Write the commit of ``version``; tell whether it is ours now or was somebody else's before.

    A request that failed may have arrived, or may still be on its way: writing the same bytes under the same name once
    more does no harm. What is there in the end is told by its content.
    """
    path = commit_path(version)
    for pause in (*_PAUSES, None):
        try:
            store.put_if_absent(path, data)
        except AccessDeniedError:
            raise
        except StorageError as error:
            failure = error
        else:
            return True
        try:
            return txn_id.encode() in bytes(store.get(path, length=_BYTES_WITH_ID))
        except ObjectNotFoundError:
            pass
        except StorageError as error:
            logger.warning("version %d may have been committed, and looking at it failed: %s", version, error)
        if pause is None:
            break
        time.sleep(pause)
    failure.hint = (
        f"whether version {version} was committed is not known: keep its data files, and look for {txn_id} in {path}"
    )
    raise failure
