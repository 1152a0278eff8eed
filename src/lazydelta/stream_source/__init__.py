"""A table as a stream of files: a snapshot in an order of its own, then the commits, from any point that was noted."""

from __future__ import annotations

from lazydelta.stream_source.admission import Admission
from lazydelta.stream_source.stream_offset import StreamOffset
from lazydelta.stream_source.stream_options import StreamOptions
from lazydelta.stream_source.stream_pieces import StreamPiece, plan_pieces
from lazydelta.stream_source.table_stream import TableStream

__all__ = ["Admission", "StreamOffset", "StreamOptions", "StreamPiece", "TableStream", "plan_pieces"]
