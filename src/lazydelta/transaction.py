"""What goes with a commit, under deltalake's names."""

from __future__ import annotations

from typing import Any, NoReturn

from lazydelta.deltalake_names.actions import AddAction, RemoveAction
from lazydelta.deltalake_names.commit_properties import CommitProperties, PostCommitHookProperties, Transaction
from lazydelta.deltalake_names.parameters import refuse

__all__ = [
    "AddAction",
    "CommitProperties",
    "PostCommitHookProperties",
    "RemoveAction",
    "Transaction",
    "create_table_with_add_actions",
]


def create_table_with_add_actions(*_: Any, **__: Any) -> NoReturn:
    """Refuse to create a table of files that are there: deltalake does this."""
    refuse("create_table_with_add_actions", "create tables of files that are there")
