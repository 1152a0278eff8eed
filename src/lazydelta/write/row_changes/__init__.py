"""DELETE, UPDATE and overwrites by predicate."""
