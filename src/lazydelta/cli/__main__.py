"""``python -m lazydelta.cli``, for environments whose scripts are not on the path."""

from __future__ import annotations

from lazydelta.cli.app import main

main()
