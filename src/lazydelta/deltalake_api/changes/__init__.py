"""What changes a table by deltalake's methods: rows that are deleted, actions that the caller has made."""
