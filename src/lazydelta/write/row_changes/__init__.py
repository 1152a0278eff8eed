"""DELETE, UPDATE, MERGE and overwrites by predicate, over one rewriter of files.

They know rows and files; conflicts with other writers belong to ``write.transaction``.
"""

__all__ = ["choice", "merge", "merge_clauses", "rewriter", "statements"]
