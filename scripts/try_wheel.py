"""Build the wheel and the sdist into ``dist``, and try the wheel in empty environments without Java.

The lines of the README run with the bare package; what needs an extra there names it. Then each extra is installed
alone: its ways in, which named it before, work.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Files that are no Python: types, headers, the grammar of KQL, the page.
NEEDED = sorted(
    str(each.relative_to(ROOT / "src"))
    for each in (ROOT / "src").rglob("*")
    if each.is_file() and each.suffix not in {".py", ".pyc"}
)
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Expressions in which ``uri`` is a table with the columns timestamp, device_id and value. ``cli`` runs a command.
PROBES = {
    "aws": "table('s3://bucket/table', {'credential': 'profile:none', 'aws_region': 'us-east-1'})",
    "azure": "table('abfss://c@a.dfs.core.windows.net/t', {'credential': 'default'})",
    "capi": "__import__('lazydelta.capi.build', fromlist=['build']).build(__import__('pathlib').Path('capi'))",
    "charts": "cli('kql', 'T | summarize n = count() by device_id | render columnchart', 'T=' + uri, '--chart')",
    "datafusion": "lazydelta.QueryBuilder()",
    "duckdb": "lazydelta.sql('select count(*) as n from t', t=uri).first()",
    "http": "importlib.import_module('lazydelta.server.http.app') if has('starlette') else cli('ui', 't=' + uri)",
    "kql": "lazydelta.kql('T | count', T=uri).first()",
    "kql-geo": "lazydelta.kql('print x = geo_point_to_h3cell(1.0, 2.0)').first()",
    "kql-series": "lazydelta.kql('print x = erf(1.0)').first()",
    "kql-user-agent": 'lazydelta.kql(\'print x = parse_user_agent("Mozilla/5.0", "browser")\').first()',
    "pandas": "lazydelta.DeltaTable(uri).to_pandas()",
    "polars": "lazydelta.DeltaTable(uri).to_polars().collect()",
    "serve": "importlib.import_module('lazydelta.server.flight')",
    "shell": "cli('shell', uri, '--help') if has('prompt_toolkit') else cli('shell', '--server', 'grpc://localhost:1')",
    "spark": "importlib.import_module('lazydelta.spark').read",
}
# An extra that another one asks for first.
BELOW = {"charts": "kql", "http": "serve", "kql-geo": "kql", "kql-series": "kql", "kql-user-agent": "kql"}
# They add what is used where it is there, or are the sum of others.
WITHOUT_PROBE = {"dev", "engines", "substrait"}
_PROGRAM = """
import importlib, importlib.util, subprocess, sys
import lazydelta
from lazydelta.errors import LazyDeltaError, MissingExtraError
uri, has = "day", importlib.util.find_spec

def table(uri, options):
    try:
        lazydelta.DeltaTable(uri, storage_options=options)
    except MissingExtraError:
        raise
    except (LazyDeltaError, OSError) as error:
        print(type(error).__name__)  # there is no such account; the credential was found

def cli(*line):
    done = subprocess.run([sys.executable, "-m", "lazydelta", *line], capture_output=True, text=True)
    if done.returncode:
        raise MissingExtraError(done.stderr)

try:
    eval(sys.argv[1])
except MissingExtraError as error:
    sys.exit(str(error))
"""


class Environment:
    """A virtual environment with the wheel and one extra, or none, in a folder where commands run."""

    def __init__(self, folder: Path, wheel: Path, extra: str | None) -> None:
        self.bin = folder / f"env-{extra or 'bare'}" / "bin"
        self._folder = folder
        uv = Path(sys.executable).with_name("uv")
        _run([str(uv), "venv", "--quiet", "--python", sys.executable, str(self.bin.parent)])
        what = str(wheel) if extra is None else f"{wheel}[{extra}]"
        _run([str(uv), "pip", "install", "--quiet", "--python", str(self.bin / "python"), what])

    def run(self, line: list[str]) -> subprocess.CompletedProcess[str]:
        """Run a command of the environment, without Java and without what else is active."""
        kept = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}
        env = {**kept, "PATH": f"{self.bin}:/usr/bin:/bin", "JAVA_HOME": "/nonexistent"}
        return subprocess.run(line, cwd=self._folder, env=env, capture_output=True, text=True, check=False)

    def probe(self, extra: str) -> str:
        """Return what the way into an extra says: nothing if it works."""
        done = self.run([str(self.bin / "python"), "-c", _PROGRAM, PROBES[extra]])
        if done.returncode and "Traceback" in done.stderr:
            raise SystemExit(f"{extra}: {done.stderr}")
        return done.stderr.strip() if done.returncode else ""


def check_contents(wheel: Path) -> list[str]:
    """Return what is wrong with the files of a wheel."""
    names = zipfile.ZipFile(wheel).namelist()
    wrong = [f"{name} is missing" for name in NEEDED if name not in names]
    foreign = [
        each for each in names if not re.match(r"(lazydelta|pyspark_lazydelta|lazydelta-[\d.]+\.dist-info)/", each)
    ]
    left = [each for each in names if "__pycache__" in each or each.endswith((".pyc", ".log"))]
    return [*wrong, *(f"{each} does not belong there" for each in foreign + left)]


def readme_lines() -> tuple[list[str], list[str], list[str]]:
    """Return of the README: the commands of its first example, its Python programs, and the commands it shows."""
    blocks = _FENCE.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    first = [line for kind, code in blocks if kind == "sh" and "make-table" in code for line in code.splitlines()]
    programs = [code for kind, code in blocks if kind == "python" and "write_arrow" in code]
    shown = [line[2:] for kind, code in blocks if kind == "console" for line in code.splitlines() if line[:2] == "$ "]
    return [line for line in first if line.strip()], programs, shown


def try_readme(bare: Environment, folder: Path) -> None:
    """Run what the README shows. A command that needs an extra has to name it."""
    first, programs, shown = readme_lines()
    for line in first:
        _expect(bare.run(["sh", "-c", line]), line)
    for code in programs:
        _expect(bare.run([str(bare.bin / "python"), "-c", code]), "Python of the README")
    shutil.copytree(folder / "day", folder / "table")
    new = "import lazydelta, pyarrow.parquet as pq; pq.write_table(lazydelta.read('day', limit=9), 'new.parquet')"
    checkpoint = "lazydelta.DeltaTable('table').create_checkpoint(sidecar=False)"
    _expect(bare.run([str(bare.bin / "python"), "-c", f"{new}; {checkpoint}"]), "a Parquet file and a checkpoint")
    for line in shown:
        done = bare.run(["sh", "-c", line])
        needs_extra = line.startswith(("lazydelta query", "lazydelta kql"))
        if needs_extra and (done.returncode != 2 or "(pip install 'lazydelta[" not in done.stderr):  # noqa: PLR2004
            raise SystemExit(f"{line}\n  does not say what to install: {done.stderr}")
        if not needs_extra:
            _expect(done, line)


def try_extras(bare: Environment, folder: Path, wheel: Path, extras: list[str]) -> None:
    """Try each extra alone: the way into it names it while it is missing, and works once it is there."""
    made: dict[str, Environment] = {}

    def with_extra(name: str, together: str) -> Environment:
        if name not in made:
            made[name] = Environment(folder, wheel, together)
        return made[name]

    for extra in extras:
        below = BELOW.get(extra)
        without = bare if below is None else with_extra(below, below)
        told = without.probe(extra)
        if f"pip install 'lazydelta[{extra}]'" not in told or len(told.splitlines()) != 1:
            raise SystemExit(f"without the extra {extra}: {told or 'no error'}")
        together = f"{extra},{below}" if extra == "charts" else extra
        told = with_extra(extra, together).probe(extra)
        if told:
            raise SystemExit(f"with the extra {extra}: {told}")
        print(f"{extra}: named when missing, works when there", flush=True)


def build() -> Path:
    """Build both distributions and return the wheel."""
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    for target in ("sdist", "wheel"):
        _run([sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(ROOT / "dist")])
    (wheel,) = (ROOT / "dist").glob("*.whl")
    return wheel


def _run(line: list[str]) -> None:
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    _expect(done, " ".join(line))


def _expect(done: subprocess.CompletedProcess[str], what: str) -> None:
    if done.returncode:
        raise SystemExit(f"{what}\n  failed with {done.returncode}: {done.stdout}{done.stderr}")


def main() -> None:
    """Build, check and try; the arguments are extras, all of them without any."""
    wheel = build()
    if wrong := check_contents(wheel):
        raise SystemExit("\n".join(wrong))
    known = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    extras = sys.argv[1:] or sorted(set(known) - WITHOUT_PROBE)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        bare = Environment(folder, wheel, None)
        try_readme(bare, folder)
        print("the README runs with the bare package", flush=True)
        try_extras(bare, folder, wheel, extras)
    print(f"{wheel.relative_to(ROOT)} and its sdist are ready")


if __name__ == "__main__":
    main()
