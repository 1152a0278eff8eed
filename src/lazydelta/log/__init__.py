"""The Delta log: what its files are, what they say, and which of them make up a version."""
