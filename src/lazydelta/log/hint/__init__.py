"""``_last_checkpoint``: a hint where the newest checkpoint is, read and moved forward."""

from __future__ import annotations

from lazydelta.log.hint.checkpoint_hint import HINT_PATH, CheckpointHint, hint_checksum, read_hint

__all__ = ["HINT_PATH", "CheckpointHint", "hint_checksum", "read_hint"]
