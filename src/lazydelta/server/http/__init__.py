"""The HTTP server: the page, the Kusto endpoint, metrics and health, over the tables and limits of ``serve``."""
