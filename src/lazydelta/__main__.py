"""``python -m lazydelta`` is the command ``lazydelta``."""

from __future__ import annotations

from lazydelta.cli import main

if __name__ == "__main__":
    main()
