"""What a server of tables and its clients say to each other."""

from __future__ import annotations

from lazydelta.wire.error_details import error_from, error_in_json
from lazydelta.wire.scan_command import MAX_COMMAND_BYTES, ScanCommand, parse_command

__all__ = ["MAX_COMMAND_BYTES", "ScanCommand", "error_from", "error_in_json", "parse_command"]
