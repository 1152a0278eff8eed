from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Put together from pieces, so that this file does not find itself.
PLACES = re.compile(
    "|".join(
        [
            r"(?<![\w.~}])/(?:home|Users)/\w",
            r"(?<![\w.])/" + r"root\b",
            r"(?<![\w.])/" + r"work/",
            r"(?<![\w.])/" + r"opt/wheels",
        ]
    )
)
HOSTS = re.compile(
    r"pypi\.org/simple|files\.pythonhosted|registry\.(?:npmjs|yarnpkg)|artifactory|--(?:extra-)?index-url"
)


def _project_files() -> list[Path]:
    """List what is in the repository or about to be, by git; ignored files do not count."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = (ROOT / name for name in listing.split("\0") if name)
    return [path for path in files if path.is_file() and path != Path(__file__).resolve()]


def _lines_matching(pattern: re.Pattern[str]) -> list[str]:
    found = []
    for path in _project_files():
        text = path.read_bytes()
        if b"\0" in text:
            continue
        for number, line in enumerate(text.decode(errors="replace").splitlines(), start=1):
            if pattern.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}")
    return found


def test_the_listing_sees_the_project() -> None:
    assert ROOT / "pyproject.toml" in _project_files()


def test_no_file_names_a_folder_of_one_machine() -> None:
    assert _lines_matching(PLACES) == []


def test_no_file_names_a_package_registry() -> None:
    assert _lines_matching(HOSTS) == []
