"""Every code block of README and docs is run, page by page as one story, or stands in the list with the reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import lazydelta
from tests.support.code_blocks import PAGES, ROOT, blocks, make_world, run_python, run_shell

# Pictures and output; data that is parsed.
NOT_CODE = {"", "text"}
RUN = {"python", "sh", "console", "json"}
# By page and first line: what is not run here, and why. A line that no page has any more is a failure, too.
NOT_RUN = {
    ("README.md", "pip install ."): "installs what is being tested; scripts/try_wheel.py does it",
    ("CONTRIBUTING.md", "$ make setup"): "make has set up what these tests run in",
    (
        "docs/cli.md",
        'lazydelta ingest ./incoming ./telemetry --timestamp-column timestamp --stream --trigger "5 seconds"',
    ): ("goes on until Ctrl-C; tests/cli/test_ingest.py has streams that end"),
    ("docs/cli.md", "lazydelta sidecar watch ./telemetry ./table --interval 30 --checkpoint 100 --checksum"): (
        "goes on until Ctrl-C; tests/maintenance/test_watch_command.py ends it"
    ),
    ("docs/spark-production.md", "from lazydelta.spark import build_sidecar"): (
        "needs a table with a checkpoint; tests/spark/test_sidecar_building.py has one"
    ),
    ("docs/spark-production.md", "from lazydelta.spark import SidecarListener"): (
        "listens to a stream of its reader's; tests/spark/test_sidecar_following.py has one"
    ),
    ("docs/cli.md", 'eval "$(_LAZYDELTA_COMPLETE=zsh_source lazydelta)"'): "needs zsh and fish",
    ("docs/cli.md", "lazydelta serve --table telemetry=./telemetry --port 8815"): (
        "goes on until it is ended; tests/server/test_processes.py has servers that end"
    ),
    (
        "docs/serving.md",
        "lazydelta serve --table telemetry=abfss://data@account.dfs.core.windows.net/telemetry --port 8815",
    ): "as above",
    (
        "docs/cli.md",
        "lazydelta ui telemetry=./telemetry ./events",
    ): "as above; tests/server/test_page.py opens the page",
    ("docs/ui.md", "pip install 'lazydelta[http]'"): "installs what is being tested, and goes on until Ctrl-C",
    ("docs/kusto.md", "lazydelta serve --table telemetry=./telemetry --http 8080"): (
        "goes on until it is ended; tests/server/test_kusto.py asks one like this"
    ),
    ("docs/spark-production.md", "python3 -m venv env && env/bin/pip install 'lazydelta[spark]' venv-pack"): (
        "downloads half a gigabyte for another machine"
    ),
    ("docs/c-abi.md", "pip install 'lazydelta[capi]'"): "installs what is being tested; tests/capi builds the library",
    (
        "docs/c-abi.md",
        "await foreach (var file in scanner.StreamFilesAsync(table, options).WithCancellation(token))",
    ): "tests/capi/test_csharp.py compiles and runs one like this where DOTNET_ROOT has an SDK",
    (
        "docs/c-abi.md",
        "public sealed class DeltaFlightScanner // NuGet: Apache.Arrow.Flight, Grpc.Net.Client",
    ): "the page says that it was not compiled",
    ("docs/flight-sql.md", "import adbc_driver_flightsql.dbapi as adbc"): (
        "needs a server; tests/server/test_flight_sql_adbc.py asks one like this"
    ),
    ("docs/spark-production.md", "spark-submit --master yarn --deploy-mode cluster \\"): "needs a cluster of YARN",
}
# Run with Spark, in tests/spark/test_code_blocks_of_spark.py.
WITH_SPARK = {
    ("README.md", 'stream.writeStream.format("lazydelta") \\'),
    ("docs/cli.md", "lazydelta ingest ./incoming ./telemetry --timestamp-column timestamp"),
    ("docs/spark.md", "from lazydelta.spark import ingest_stream, start_session, write"),
    ("docs/spark.md", "from lazydelta.spark import attach, read"),
    (
        "docs/spark-reference.md",
        'stream = spark.readStream.format("lazydelta").option("maxFilesPerTrigger", "200").load(uri)',
    ),
    ("docs/spark-production.md", "from lazydelta.spark.source import LazyDeltaSource"),
}
# Run with a Ray of its own, in tests/engines/test_fragments_elsewhere.py.
WITH_RAY = {("docs/engines.md", "import ray")}
ALL = [block for page in PAGES for block in blocks(page)]


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_runs_from_top_to_bottom(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = make_world(tmp_path)
    monkeypatch.chdir(tmp_path)
    names = {
        "DeltaTable": lazydelta.DeltaTable,
        "credentials": None,
        "dt": lazydelta.DeltaTable("telemetry"),
        "lazydelta": lazydelta,
        "rows": rows,
        "storage_options": None,
        "uri": "telemetry",
    } | _for_page(page.name)
    for block in blocks(page):
        if block.title in NOT_RUN or block.title in WITH_SPARK | WITH_RAY or block.language in NOT_CODE:
            continue
        if block.language == "python":
            run_python(block, names)
        elif block.language == "json":
            json.loads(block.code)
        else:
            assert block.language in RUN, f"{block.page}:{block.line}: how is a block of {block.language} run?"
            run_shell(block, tmp_path)


def _for_page(name: str) -> dict[str, object]:
    """Return the names that a page says its reader has."""
    if name == "security.md":
        return {"key": "c2VjcmV0", "sas": "sv=1&sig=x"}
    return {}


def test_the_lists_name_blocks_that_exist() -> None:
    titles = {block.title for block in ALL}
    assert {title for title in {*NOT_RUN, *WITH_SPARK, *WITH_RAY} if title not in titles} == set()
    assert not set(NOT_RUN) & (WITH_SPARK | WITH_RAY)


def test_most_blocks_are_run() -> None:
    """What is left out is counted, and each has its reason."""
    code = [block for block in ALL if block.language not in NOT_CODE]
    left_out = [block for block in code if block.title in NOT_RUN]
    assert len(left_out) == len(NOT_RUN)
    assert len(left_out) < len(code) / 2
    assert all(NOT_RUN.values())
