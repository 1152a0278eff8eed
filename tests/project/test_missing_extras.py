"""Without an extra, every way into it says in one sentence what to install. Each extra is taken away in a child."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lazydelta import write_arrow

# Finders that do not find the packages of an extra: the same to all code as if they were not installed.
_WITHOUT = """
import importlib, json, sys, traceback
missing = {missing!r}

class Without:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, *rest):
        gone = any(name == each or name.startswith(each + ".") for each in missing)
        return None if gone else self.finder.find_spec(name, *rest)

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = [Without(each) for each in sys.meta_path]
found = []

def told(*line):
    from click.testing import CliRunner
    from lazydelta.cli.app import cli
    result = CliRunner().invoke(cli, list(line))
    return [result.exit_code, result.stderr]

import lazydelta
from lazydelta.errors import LazyDeltaError
uri = {uri!r}
for entry in {entries!r}:
    try:
        found.append(eval(entry))
    except LazyDeltaError as error:
        found.append([2, "error: " + str(error)])
    except BaseException as error:
        found.append([1, traceback.format_exc()])
print(json.dumps(found))
"""
_KQL = [
    "told('kql', 'T | count', '--table', 'T=' + uri)",
    "told('query', '--kql', 'T | count', '--table', 'T=' + uri)",
    "told('kql', 'T | count', '--table', 'T=' + uri, '--rewrite')",
    "importlib.import_module('lazydelta.kql').query('print 1')",
    "lazydelta.kql('print 1')",
    "lazydelta.DeltaTable(uri).kql('count')",
    "importlib.import_module('lazydelta.kql').rewrite('print 1', {})",
]
_SERVE = ["told('serve', '--table', 't=' + uri)", "importlib.import_module('lazydelta.server.flight')"]
_HTTP = ["told('ui', uri, '--no-open')"]
_SPARK = [
    "told('ingest', uri, uri + '-2')",
    "told('demo')",
    "told('sidecar', 'build', uri, '--engine', 'spark')",
    "told('optimize', uri, '--engine', 'spark')",
    "told('vacuum', uri, '--engine', 'spark')",
    "told('checkpoint', uri, '--engine', 'spark')",
    "importlib.import_module('lazydelta.spark').write",
    "importlib.import_module('lazydelta.spark').read",
    "exec('from lazydelta.spark import ingest, start_session')",
]
_DUCKDB = [
    "told('query', 'SELECT 1')",
    "importlib.import_module('lazydelta.engines.duckdb').connect()",
    "importlib.import_module('lazydelta.engines.duckdb').register(None, 't', uri)",
    "importlib.import_module('lazydelta.engines.duckdb').query(None, 'SELECT 1')",
    "lazydelta.sql('SELECT 1')",
    "lazydelta.DeltaTable(uri).sql('SELECT 1')",
]
_DATAFUSION = [
    "importlib.import_module('lazydelta.engines.datafusion').register_table(None, 't', uri)",
    "importlib.import_module('lazydelta.engines.datafusion').register_function(None)",
    "lazydelta.QueryBuilder()",
    "lazydelta.DeltaTable(uri).update({'n': 'n + 1'})",
]
_PANDAS = [
    "lazydelta.DeltaTable(uri).to_pandas()",
    "importlib.import_module('lazydelta.client.remote_table').RemoteTable.to_pandas(None)",
]
_POLARS = ["lazydelta.DeltaTable(uri).to_polars()", "importlib.import_module('lazydelta.engines.polars').scan(uri)"]
_CAPI = ["importlib.import_module('lazydelta.capi.build').build(importlib.import_module('pathlib').Path(uri))"]

CASES: dict[str, tuple[list[str], dict[str, list[str]]]] = {
    "duckdb": (["duckdb"], {"duckdb": _DUCKDB, "kql": _KQL, "serve": _SERVE}),
    "lark": (["lark"], {"kql": _KQL, "serve": _SERVE}),
    "protobuf": (["google.protobuf"], {"serve": _SERVE, "http": _HTTP}),
    "starlette": (["starlette"], {"http": _HTTP}),
    "prometheus": (["prometheus_client"], {"serve": _SERVE[:1]}),
    "pyspark": (["pyspark", "py4j"], {"spark": _SPARK}),
    "the others": (
        ["polars", "datafusion", "pandas", "cffi"],
        {"polars": _POLARS, "datafusion": _DATAFUSION, "pandas": _PANDAS, "capi": _CAPI},
    ),
}


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("extras") / "t"
    write_arrow(path, pa.table({"n": [1]}))
    return str(path)


@pytest.mark.parametrize("case", CASES)
def test_every_way_into_a_missing_extra_says_what_to_install(case: str, uri: str) -> None:
    missing, by_extra = CASES[case]
    entries = [(extra, entry) for extra, listed in by_extra.items() for entry in listed]
    program = _WITHOUT.format(missing=missing, uri=uri, entries=[entry for _, entry in entries])
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr
    found: list[Any] = json.loads(child.stdout.splitlines()[-1])
    for (extra, entry), (code, text) in zip(entries, found, strict=True):
        assert code == 2, (entry, text)
        assert text.startswith("error: "), (entry, text)
        assert f"(pip install 'lazydelta[{extra}]')" in text, (entry, text)
        assert len(text.strip().splitlines()) == 1, (entry, text)


def test_the_build_of_the_c_library_tells_it_on_the_command_line(tmp_path: Path) -> None:
    preface = _WITHOUT.format(missing=["cffi"], uri="", entries=[])
    program = f"{preface}\nfrom lazydelta.capi.build import main\nmain([{str(tmp_path)!r}])"
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert child.returncode == 2
    assert child.stderr.startswith("error: ")
    assert child.stderr.endswith("(pip install 'lazydelta[capi]')\n")
    assert len(child.stderr.splitlines()) == 1
