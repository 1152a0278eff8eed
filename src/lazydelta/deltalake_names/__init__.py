"""Names that exist only for compatibility with deltalake."""
