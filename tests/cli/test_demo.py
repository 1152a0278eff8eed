"""One small run of the demo as a process of its own; the tests look at what it claims and at what it left."""

from __future__ import annotations

import importlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import msgspec
import pytest

from lazydelta import DeltaTable, errors
from lazydelta.cli.demo import printer
from lazydelta.demo.pipeline import Growth
from lazydelta.demo.queries import Comparison, Query
from lazydelta.demo.story import Ending, Folders, Ingested
from lazydelta.storage.atomic_files import TEMPORARY
from tests.support.spark import use_java

if TYPE_CHECKING:
    from types import ModuleType

    from tests.cli.conftest import Invoke

pytestmark = [pytest.mark.xdist_group("other sparks"), pytest.mark.timeout(600)]

ROWS = 2_500


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where the demo works."""
    return tmp_path_factory.mktemp("demo") / "new"


@pytest.fixture(scope="module")
def document(folder: Path) -> dict[str, Any]:
    """Run the demo, and return what it says."""
    use_java()
    command = _command(folder, "--json", "--files", "0")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _command(folder: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "lazydelta.cli", "demo", "--folder", str(folder), "--rows", str(ROWS), *options]


def test_files_that_are_being_written_are_neither_checkpoints_nor_sidecars(tmp_path: Path) -> None:
    folders = Folders(tmp_path)
    log = folders.table / "_delta_log"
    (log / "_sidecars").mkdir(parents=True)
    for name in ("00000000000000000012.checkpoint.parquet", "_sidecars/v12.manifest.json"):
        (log / name).touch()
        folder, _, last = name.rpartition("/")
        (log / folder / f"{TEMPORARY}0123-{last}").touch()
    assert (folders.checkpoints(), folders.sidecars()) == ([12], [12])


def test_deltalake_reads_the_rows_that_the_demo_claims(document: dict[str, Any], folder: Path) -> None:
    assert document["agrees"] is True
    assert document["table"] == str(folder / "telemetry")
    table = deltalake.DeltaTable(document["table"]).to_pyarrow_table()
    rejected = deltalake.DeltaTable(document["rejected_table"]).to_pyarrow_table()
    arrived = document["ingested"]["arrived"]
    assert arrived["rows"] == ROWS == table.num_rows + rejected.num_rows
    assert arrived["without_time"] == rejected.num_rows > 0
    assert arrived["late"] > 0
    assert table.column("timestamp").null_count == 0


def test_every_version_that_the_demo_shows_is_in_the_log(document: dict[str, Any]) -> None:
    growth = document["growth"]
    assert [step["version"] for step in growth] == list(range(len(growth)))
    for step in growth:
        table = deltalake.DeltaTable(document["table"], version=step["version"])
        actions = table.get_add_actions(flatten=True)
        assert (step["files"], step["rows"]) == (actions.num_rows, sum(actions.column("num_records").to_pylist()))


def test_the_checkpoint_and_the_sidecar_were_made_on_the_way(document: dict[str, Any]) -> None:
    ends = document["ingested"]["table"]
    assert ends["checkpoints"]
    assert ends["sidecars"] == ends["checkpoints"]
    with DeltaTable(document["table"]).files() as stream:
        list(stream.batches())
        assert stream.explain().as_dict()["metrics"]["delta.lazy.tier"] == 1


def test_the_questions_have_the_answers_of_deltalake(document: dict[str, Any]) -> None:
    queries = document["queries"]
    assert [query["same_as_deltalake"] for query in queries] == [True, True, True]
    assert all(query["num_rows"] > 0 for query in queries)
    assert queries[1]["num_rows"] == 100


def test_the_comparison_is_of_equal_answers(document: dict[str, Any]) -> None:
    assert document["comparisons"]
    for each in document["comparisons"]:
        assert each["lazydelta"]["files"] == each["deltalake"]["files"] > 0
        assert each["faster"] > 0


def test_every_command_that_the_demo_shows_can_be_typed(document: dict[str, Any], invoke: Invoke) -> None:
    for query in document["queries"]:
        name, *args = shlex.split(query["command"])
        assert name == "lazydelta"
        assert invoke(*args).stdout


def test_only_the_tables_are_left(document: dict[str, Any], folder: Path) -> None:
    assert document["kept"] is None
    assert sorted(each.name for each in folder.iterdir() if not each.name.startswith(".")) == [
        "spark.log",
        "telemetry",
        "telemetry_rejected",
    ]


def test_without_a_terminal_the_story_is_plain_lines(
    document: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    story = printer(as_json=False)
    story.begin(document["folder"], **document["generated"])
    growth = msgspec.convert(document["growth"], list[Growth])
    story.growth(iter(growth))
    ingested = {key: value for key, value in document["ingested"].items() if key != "is_complete"}
    story.ingested(msgspec.convert(ingested, Ingested))
    for query in msgspec.convert(document["queries"], list[Query]):
        story.query(query)
    story.comparisons("Finding files", msgspec.convert(document["comparisons"], list[Comparison]))
    names = Ending.__struct_fields__
    story.end(msgspec.convert({name: document[name] for name in names}, Ending))
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert sum(line.split()[:1] == [str(step.micro_batch)] for step in growth for line in shown.splitlines()) >= len(
        growth
    )
    assert "every row that arrived, once." in shown
    assert shown.count("deltalake agrees.") == 3
    assert shown.splitlines()[-2:] == [f"  {document['table']}", f"  {document['rejected_table']}"]


def test_a_folder_of_somebody_else_is_left_alone(invoke: Invoke, tmp_path: Path) -> None:
    precious = tmp_path / "telemetry" / "precious"
    precious.parent.mkdir()
    precious.write_text("mine", encoding="utf-8")
    stderr = invoke("demo", "--folder", tmp_path, code=2).stderr
    assert "is not empty and was not made by the demo" in stderr
    assert precious.read_text(encoding="utf-8") == "mine"


def test_without_deltalake_the_demo_says_what_to_install(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = importlib.import_module

    def refuse(name: str, package: str | None = None) -> ModuleType:
        if name == "deltalake":
            raise ImportError(name)
        return original(name, package)

    monkeypatch.setattr(importlib, "import_module", refuse)
    stderr = invoke("demo", "--folder", tmp_path / "new", code=2).stderr
    assert "pip install deltalake" in stderr
    assert not (tmp_path / "new").exists()


def test_without_pyspark_the_demo_says_what_to_install(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(errors, "find_spec", lambda _: None)
    assert "lazydelta[spark]" in invoke("demo", "--folder", tmp_path / "new", code=2).stderr
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_an_interrupted_demo_leaves_a_readable_table_and_can_be_run_again(tmp_path: Path) -> None:
    use_java()
    process = subprocess.Popen(
        _command(tmp_path / "new"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    log = tmp_path / "new" / "telemetry" / "_delta_log"
    while not (log / f"{2:020}.json").exists():
        assert process.poll() is None, process.stdout and process.stdout.read()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130, output
    assert "interrupted" in output
    deadline = time.monotonic() + 60
    while _group_lives(process.pid):  # the JVM ends by itself
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert deltalake.DeltaTable(str(log.parent)).to_pyarrow_table().num_rows > 0
    assert not (tmp_path / "new" / "scratch").exists()
    again = subprocess.run(_command(tmp_path / "new", "--json", "--files", "1000"), capture_output=True, check=True)
    found = json.loads(again.stdout)
    assert found["agrees"] is True
    assert [each["table_files"] for each in found["comparisons"]][-1] == 1000


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
