"""The lazy scan: files while they are found, in memory that does not grow with the table."""
