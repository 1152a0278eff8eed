"""The Delta log: parse its files, and resolve which of them make up a version."""
