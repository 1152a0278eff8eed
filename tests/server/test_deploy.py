"""The container, its table and the dashboard, as far as they can be checked without a container engine."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import httpx
import yaml

from lazydelta.server.config import read_config
from tests.server.http_server import http_serving, write_every_type
from tests.support.azurite import Azurite

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"


def test_the_table_of_the_container_is_made_in_azurite_and_served(azurite: Azurite, tmp_path: Path) -> None:
    text = (DEPLOY / "serve.toml").read_text(encoding="utf-8")
    there = text.replace("http://azurite:10000/devstoreaccount1", azurite.endpoint).replace("demo/", "deployed/")
    (tmp_path / "serve.toml").write_text(there, encoding="utf-8")
    command = [sys.executable, str(DEPLOY / "make_table.py"), str(tmp_path / "serve.toml"), str(tmp_path / "tokens")]
    made = subprocess.run(command, capture_output=True, text=True, check=False, timeout=250)
    assert made.returncode == 0, made.stderr
    assert re.fullmatch(r"page\.\S+\n", made.stdout)
    config = read_config(str(tmp_path / "serve.toml")).checked()
    tables = config.served_tables()
    from lazydelta.server.tables import ANYONE  # noqa: PLC0415 - beside its use

    table = tables.open("readings", ANYONE)
    assert table.rows([], limit=5).read_all().num_rows == 5
    again = subprocess.run(command, capture_output=True, text=True, check=True, timeout=250)
    assert again.stdout == ""


def test_the_files_of_the_container_name_what_there_is() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    assert set(compose["services"]) == {"azurite", "table", "server"}
    assert [
        name for name, each in compose["services"].items() if "user" in each
    ] == []  # the image's own, which is not root
    assert re.findall(r"^USER (.+)$", (DEPLOY / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE) == ["10001"]
    mounts = [each for service in compose["services"].values() for each in service["volumes"]]
    assert all((DEPLOY / each.split(":")[0]).exists() for each in mounts if each.startswith("./"))
    assert all(each.startswith("127.0.0.1:") for each in compose["services"]["server"]["ports"])
    copied = re.findall(r"^COPY (?!--)(.+) \S+$", (DEPLOY / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    assert all((ROOT / name).exists() for line in copied for name in line.split())
    ports = {
        tomllib.loads((DEPLOY / "serve.toml").read_text(encoding="utf-8"))["server"][name]
        for name in ("port", "http_port")
    }
    assert ports == {8815, 8080}


def test_the_dashboard_asks_for_metrics_that_there_are(tmp_path: Path) -> None:
    dashboard = json.loads((ROOT / "docs" / "grafana-dashboard.json").read_text(encoding="utf-8"))
    asked = {
        name
        for panel in dashboard["panels"]
        for each in panel["targets"]
        for name in re.findall(r"(?:lazydelta|delta)_\w+", each["expr"])
    }
    with http_serving({"T": write_every_type(tmp_path / "T")}) as (_, address):
        httpx.post(
            f"{address}/api/query", json={"language": "kql", "text": "T | count"}, timeout=120
        ).raise_for_status()
        told = httpx.get(f"{address}/metrics").text
    known = set(re.findall(r"^(\w+)(?:\{| )", told, re.MULTILINE))
    assert len(asked) > 10
    assert asked - known == set()


def test_the_command_opens_the_page_and_ends_when_told(tmp_path: Path) -> None:
    place = write_every_type(tmp_path / "T")
    command = [sys.executable, "-m", "lazydelta.cli", "ui", f"odd={place}", "--no-open", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = json.loads(process.stdout.readline())["location"]
        assert httpx.get(f"{address}/healthz", timeout=60).json() == {"status": "ok"}
        assert '"name":"odd"' in httpx.get(f"{address}/api/tables", timeout=60).text
        process.terminate()
        assert process.wait(60) == 0
