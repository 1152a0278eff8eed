"""What goes with a commit, under deltalake's names."""

from __future__ import annotations

from typing import Any, NoReturn

from lazydelta.deltalake_api.commit_properties import CommitProperties, PostCommitHookProperties, Transaction
from lazydelta.deltalake_api.left_to_deltalake import refuse

__all__ = [
    "AddAction",
    "CommitProperties",
    "PostCommitHookProperties",
    "RemoveAction",
    "Transaction",
    "create_table_with_add_actions",
]


class _Action:
    def __init__(self, *_: Any, **__: Any) -> None:
        refuse(type(self).__name__, "commit actions that the caller has made")


class AddAction(_Action):
    """A file to be committed as it is: deltalake does this."""


class RemoveAction(_Action):
    """A file to be taken out of a table: deltalake does this."""


def create_table_with_add_actions(*_: Any, **__: Any) -> NoReturn:
    """Refuse to create a table of files that are there: deltalake does this."""
    refuse("create_table_with_add_actions", "commit actions that the caller has made")
