"""Writing: files first, then one commit that no other writer can have made."""
