"""The version checksum: read, write and verify it."""
