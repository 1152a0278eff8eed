"""Ingestion of Arrow, CSV, JSON lines and Parquet data into a table."""
