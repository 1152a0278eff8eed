"""Tables of the Delta compatibility suite, written by other engines and kept beside the project, not in it."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

__all__ = ["SUFFIX", "find_golden", "golden_names", "unpack"]

SUFFIX = ".tar.zst"
_ROOT = Path(__file__).resolve().parents[2]


def find_golden() -> Path:
    """Return where the suite should be: LAZYDELTA_GOLDEN, else `../shared/golden` from the project's root."""
    return Path(os.environ.get("LAZYDELTA_GOLDEN") or _ROOT.parent / "shared" / "golden")


def golden_names(group: str) -> list[str]:
    """Return the archives of a group (`tables` or `more`) as `group/NAME`, none where the suite is absent."""
    folder = find_golden() / group
    return sorted(f"{group}/{path.name.removesuffix(SUFFIX)}" for path in folder.glob(f"*{SUFFIX}"))


def unpack(golden: Path, name: str, into: Path) -> Path:
    """Unpack `tables/NAME`, `more/NAME` or a bare NAME (`tables` first) and return its folder."""
    import zstandard  # noqa: PLC0415  needed only where there is something to unpack

    groups = [""] if "/" in name else ["tables", "more"]
    archive = next((path for group in groups if (path := golden / group / f"{name}{SUFFIX}").exists()), None)
    if archive is None:
        message = f"no archive {name}{SUFFIX} in {golden}"
        raise FileNotFoundError(message)
    target = into / archive.parent.name
    with (
        archive.open("rb") as compressed,
        zstandard.ZstdDecompressor().stream_reader(compressed) as stream,
        tarfile.open(fileobj=stream, mode="r|") as tar,
    ):
        tar.extractall(target, filter="data")
    return target / archive.name.removesuffix(SUFFIX)
