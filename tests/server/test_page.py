"""The page in a real Chromium: tables, timeline, files, queries, stop, downloads, explanation, and who can use it."""

from __future__ import annotations

import datetime as dt
import io
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pyarrow.parquet as pq
import pytest

from lazydelta import DeltaTable, sidecar, write_arrow
from lazydelta.server.http import page as page_api
from lazydelta.server.tokens import add_token
from lazydelta.testing import make_table
from scripts.install_axe import AXE
from tests.server.flight_sql_server import WAIT, Gate, is_gone
from tests.server.http_server import SCRIPT, every_type, http_serving, write_every_type

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: scripts/find_chromium --install")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync", "--host-resolver-rules=MAP rebound.example 127.0.0.1"]
MARKUP = "<img src=x onerror=\"document.title='owned'\">"
FILES, HOURS = 20_000, 48
SHOTS = os.environ.get("LAZYDELTA_SCREENSHOTS")
"""A folder for the pictures in the documentation."""


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("page")
    make_table(folder / "events", files=FILES, hours=HOURS, columns=2, tail=2)
    sidecar.build(str(folder / "events"))
    make_table(folder / "lopsided", files=200, hours=200, columns=2, tail=30)  # 300 files of the newest hour
    hours = [dt.datetime(2026, 1, 1, hour, tzinfo=dt.UTC) for hour in (1, 2)]
    write_arrow(str(folder / "marked"), {"at": hours, "s": [MARKUP, SCRIPT], "n": [1, 2]}, partition_by=["s"])
    table = DeltaTable(str(folder / "marked"))
    table.alter.set_table_properties({"delta.columnMapping.mode": "name"})
    table.alter.rename_column("s", MARKUP)
    found = {name: folder / name for name in ("events", "lopsided")}
    return found | {"marked": folder / "marked", "odd": write_every_type(folder / "odd")}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - only where there is a browser

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield found
        found.close()


@pytest.fixture(scope="module")
def address(places: dict[str, Path]) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch, http_serving(places) as (_, found):
        # The table is large by this measure, so that its timeline comes from the manifest.
        patch.setattr(page_api, "_EXACT_FILES", 1000)
        patch.setattr(page_api, "_LONG_TAIL", 1)  # and has two things worth knowing
        yield found


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """Yield a page that may talk to the server only, and must not complain."""
    found = browser.new_page(viewport={"width": 1200, "height": 800})
    found.set_default_timeout(WAIT * 1000)
    asked: list[str] = []
    wrong: list[str] = []
    found.on("request", lambda request: asked.append(request.url))
    found.on("pageerror", lambda error: wrong.append(str(error)))
    found.on("console", lambda said: wrong.append(said.text) if "Content Security Policy" in said.text else None)
    yield found
    found.close()
    assert [url for url in asked if not url.startswith(("http://127.0.0.1:", "data:", "blob:"))] == []
    assert wrong == []


def shoot(page: Any, name: str) -> None:
    if SHOTS:
        page.screenshot(path=f"{SHOTS}/{name}.png")


def check_access(page: Any) -> None:
    """Let axe-core look for what keeps people out."""
    source = AXE.entry_point(AXE.location())
    if not source.exists():
        pytest.skip("needs axe-core: make axe")
    page.evaluate(source.read_text(encoding="utf-8"))
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    bad = [each for each in found["violations"] if each["impact"] in {"serious", "critical"}]
    assert [(each["id"], [node["html"][:120] for node in each["nodes"]]) for each in bad] == []


def run_query(page: Any, address: str, **text: str) -> None:
    page.goto("about:blank")
    page.goto(f"{address}/#/query?{urlencode(text)}")
    page.wait_for_selector("#rows-note[data-state]", state="attached")


def test_the_tables_are_listed(page: Any, address: str) -> None:
    page.goto(f"{address}/")
    page.wait_for_selector("tbody tr:nth-child(4)")
    assert page.locator("tbody tr td:first-child").all_text_contents() == ["events", "lopsided", "marked", "odd"]
    assert page.text_content("tbody tr:first-child td:nth-child(2)") == "2 commits since the checkpoint no checksum"
    assert page.locator("tbody tr:last-child td").all_text_contents()[1:5] == ["good", "0", "1", "6"]
    shoot(page, "ui-tables")
    check_access(page)


def test_a_brushed_range_of_the_timeline_shows_its_files(page: Any, address: str, places: dict[str, Path]) -> None:
    with page.expect_response(lambda answer: "/api/timeline" in answer.url) as answer:
        page.goto(f"{address}/#/table/events")
    told = answer.value.json()
    assert told["exact"] is False
    assert len(told["files"]) == HOURS
    assert abs(sum(told["files"]) - FILES) < HOURS
    page.wait_for_selector("#timeline[data-drawn=files]")
    box = page.locator("#timeline .u-over").bounding_box()
    hour = box["width"] / (HOURS - 1)
    page.mouse.move(box["x"] + 10.3 * hour, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + 11.7 * hour, box["y"] + 60, steps=4)
    page.mouse.up()
    page.wait_for_selector("#brushed-sum[data-state=done]")
    first, last = (page.input_value(f"input[aria-label={each}]").replace("T", " ") for each in ("from", "to"))
    # An independent count: the hours are in the paths of the files.
    files = [file.path for file in DeltaTable(str(places["events"])).files(strategy="forward")]
    hours = {text.replace("-", "").replace(" ", "")[:10] for text in (first, last)}
    inside = [path for path in files if min(hours) <= path.partition("=")[2][:10] < max(hours)]
    assert len(inside) > 100
    assert page.text_content("#brushed-sum").startswith(f"{len(inside):,} files")
    assert page.locator("#brushed tbody tr").count() == min(len(inside), 500)
    for name, word in (("History", "WRITE"), ("Partitions", "_event_hour"), ("Schema", "Greatest")):
        page.click(f"button[role=tab]:text-is('{name}')")
        page.wait_for_selector(f"[role=tabpanel]:has-text('{word}')")
    page.evaluate("window.scrollTo(0, 0)")
    shoot(page, "ui-table")
    check_access(page)


def test_a_finding_shows_its_command(page: Any, address: str, places: dict[str, Path]) -> None:
    expected = DeltaTable(str(places["events"])).doctor().findings
    assert expected
    page.goto(f"{address}/#/table/events")
    page.click("role=tab[name=Health]")
    page.wait_for_selector("[role=tabpanel] .card code")
    cards = page.locator("[role=tabpanel] .card")
    assert cards.locator("strong").all_text_contents() == [each.what for each in expected]
    assert all(each.startswith("lazydelta ") for each in cards.locator("code").all_text_contents())


def test_queries_stream_sort_filter_and_draw_and_nothing_in_them_runs(page: Any, address: str) -> None:
    run_query(page, address, kql="odd | project x, s, f | sort by x desc")
    assert "6 rows" in page.text_content("#rows-note")
    assert page.locator("#result tbody tr td:first-child").all_text_contents() == ["5", "4", "3", "2", "1", "null"]
    page.click("#result th button:text-is('x')")
    assert page.locator("#result tbody tr td:first-child").all_text_contents() == ["1", "2", "3", "4", "5", "null"]
    page.fill("input[type=search]", "script")
    assert page.locator("#result tbody td:nth-child(2)").all_text_contents() == [SCRIPT]
    assert page.title() != "owned"
    run_query(page, address, sql="SELECT s, count(*) AS n, list(x) AS l FROM odd GROUP BY s ORDER BY s")
    assert page.locator("#result tbody tr").count() == 6
    run_query(page, address, kql="range i from 1 to 20000 step 1")
    assert "20,000 rows" in page.text_content("#rows-note")
    assert page.locator("#result tbody tr").count() == 500
    run_query(page, address, kql="odd | summarize rows = count() by bin(ts, 1h) | render timechart with (title='rows')")
    page.wait_for_selector("#chart canvas")
    assert page.text_content("#chart strong") == "rows"
    shoot(page, "ui-query")
    check_access(page)
    page.click("summary:text-is('History')")
    assert page.locator(".history button").count() == 4


DRAWING = """async ([render, columns, rows]) => {
  const {draw} = await import("/charts.js"), box = document.createElement("div");
  document.querySelector("main").append(box);
  draw(box, render, columns.map(([name, kind]) => ({name, kind})), rows, "");
  const legend = box.querySelector(".u-legend, .legend")?.textContent;
  const found = {legend, label: box.querySelector("[role=img]").ariaLabel,
    marks: box.querySelectorAll("svg[role=img] > :is(rect, path)").length, width: box.querySelector("canvas")?.width};
  box.remove();
  return found;
}"""


def test_every_kind_of_chart_draws_its_series(page: Any, address: str) -> None:
    page.goto(f"{address}/")
    page.wait_for_selector("tbody tr")
    columns = [["t", "datetime"], ["site", "string"], ["n", "long"]]
    rows = [[f"2026-01-01T0{hour}:00:00Z", site, hour] for hour in range(5) for site in ("oslo", "lima")]
    for kind in ("timechart", "areachart", "stackedareachart", "scatterchart"):
        found = page.evaluate(DRAWING, [{"visualization": kind}, columns, rows])
        assert found["width"] > 200
        assert "oslo" in found["legend"]
        assert found["label"] == f"{kind} of n by t: lima, oslo"
    for kind, further, marks in (("columnchart", {}, 10), ("barchart", {"kind": "stacked"}, 10), ("piechart", {}, 5)):
        found = page.evaluate(DRAWING, [{"visualization": kind, **further}, columns, rows])
        assert found["marks"] == marks
        assert ("oslo" if kind != "piechart" else "8 (40.0 %)") in found["legend"]
        assert "n by t: " in found["label"]


def test_an_error_is_underlined_at_its_position(page: Any, address: str) -> None:
    run_query(page, address, kql="odd\n| where nope > 1")
    assert "no column or value 'nope'" in page.text_content(".failure")
    assert page.locator(".editor .cm-lintRange-error").all_text_contents() == ["nope"]
    page.click(".editor .cm-content")
    page.keyboard.press("Control+a")
    page.keyboard.type("odd | summ")
    page.wait_for_selector(".editor .cm-tooltip-autocomplete li:has-text('summarize')")
    page.keyboard.press("Escape")
    page.keyboard.type("arize count()")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("#rows-note[data-state=done]")
    assert page.locator("#result tbody td").all_text_contents() == ["6"]
    assert page.locator(".editor .cm-lintRange-error").count() == 0
    assert "kql=odd+%7C+summarize" in page.url


def test_sql_is_completed_and_its_errors_are_underlined(page: Any, address: str) -> None:
    for text, place in (
        ("SELECT 'nope',\n  nope FROM odd", ["nope"]),
        ("SELECT x\nFORM odd x y", ["odd"]),
        ("SELECT 1 FROM nowhere", ["nowhere"]),
    ):
        run_query(page, address, sql=text)
        assert page.locator(".editor .cm-lintRange-error").all_text_contents() == place
    page.click(".editor .cm-content")
    page.keyboard.press("Control+a")
    page.keyboard.press("Delete")  # Chromium tries to keep the style of text that is typed over
    for typed, known in (("SELECT strft", "strftime"), (", s FROM od", "odd"), (" GROU", "GROUP")):
        page.keyboard.type(typed)
        page.wait_for_selector(f".editor .cm-tooltip-autocomplete li:has-text('{known}')")
        page.keyboard.press("Escape")
    assert page.locator(".editor .cm-tooltip-autocomplete").count() == 0


def test_names_and_values_with_markup_are_text_everywhere(page: Any, address: str) -> None:
    page.goto(f"{address}/#/table/marked")
    page.wait_for_selector("#timeline[data-drawn]")
    page.wait_for_selector("td:has-text('2026-01-01T01:00:00')")  # the statistics, which a small table has in its log
    for name in ("Schema", "Partitions", "History", "Health"):
        page.click(f"role=tab[name={name}]")
        page.wait_for_selector("#panel:not(:has(.busy))")
        assert name == "Health" or MARKUP in page.text_content("#panel") or "partition" in page.text_content("#panel")
    page.click("text=Show files")
    page.wait_for_selector("#brushed-sum[data-state=done]")
    column = MARKUP.replace("'", "\\'")
    for kind in ("columnchart", "barchart", "piechart", "timechart"):
        by = "at" if kind == "timechart" else f"['{column}']"
        run_query(
            page, address, kql=f"marked | project {by}, n, s=['{column}'] | render {kind} with (title='{column}')"
        )
        page.wait_for_selector("#chart canvas, #chart svg")
        assert MARKUP in page.text_content("#chart")
    quoted = '"' + MARKUP.replace('"', '""') + '"'
    page.goto(f"{address}/#/explain?{urlencode({'table': 'marked', 'where': f'n > 1 AND {quoted} IS NOT NULL'})}")
    page.wait_for_selector("#picture")
    assert page.locator("img[onerror], main script").count() == 0
    assert page.title() != "owned"


def test_other_origins_and_rebound_names_read_nothing(browser: Any, address: str) -> None:
    page = browser.new_page()
    port = address.rpartition(":")[2]
    assert page.goto(f"http://rebound.example:{port}/api/tables").status == 421
    for start in (f"http://rebound.example:{port}/", "data:text/html,<p>elsewhere"):
        page.goto(start)
        for options in ({}, {"method": "POST", "body": "{}", "headers": {"content-type": "application/json"}}):
            ask = "([url, options]) => fetch(url, options).then(answer => answer.text(), () => 'refused')"
            assert page.evaluate(ask, [f"{address}/api/tables", options]) == "refused"
    page.close()


def test_the_stop_button_stops_the_requests(page: Any, places: dict[str, Path]) -> None:
    with Gate(free=0) as gate, http_serving(places) as (server, address):
        page.goto(f"{address}/#/query?{urlencode({'kql': 'events | count'})}")
        assert gate.reached.wait(WAIT)
        pid = gate.pid
        page.click("#stop")
        page.wait_for_selector(".failure:has-text('cancelled')")
        assert server.app.queries.budgets.wait_until_idle(WAIT)
        assert is_gone(pid)
        assert gate.pulled == []
        page.goto("about:blank")


def test_downloads_have_all_rows(page: Any, address: str) -> None:
    run_query(page, address, kql="odd | sort by x asc")
    got: dict[str, bytes] = {}
    for kind in ("CSV", "JSON", "Parquet"):
        with page.expect_download() as download:
            page.click(f"button:text-is('{kind}')")
        got[kind] = Path(download.value.path()).read_bytes()
    assert got["CSV"].decode().splitlines()[0].startswith('"ts","x"')
    assert [json.loads(line)["x"] for line in got["JSON"].splitlines()] == [None, 1, 2, 3, 4, 5]
    table = pq.read_table(io.BytesIO(got["Parquet"]))
    assert sorted(filter(None, table["x"].to_pylist())) == sorted(filter(None, every_type()["x"].to_pylist()))


def test_the_explanation_is_a_picture(page: Any, address: str) -> None:
    where = "timestamp >= '2026-02-10 20:00:00'"
    page.goto(f"{address}/#/explain?{urlencode({'table': 'events', 'where': where})}")
    page.wait_for_selector("#picture")
    page.evaluate("document.querySelector('#picture').decode()")
    assert page.evaluate("document.querySelector('#picture').naturalWidth") > 0
    assert " requests" in page.get_attribute("#picture", "alt")
    page.click("summary:text-is('All facts')")
    assert page.locator("#explained tr:has-text('row groups pruned')").count() == 1
    shoot(page, "ui-explain")
    check_access(page)


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_dark_and_narrow_windows_work(browser: Any, address: str, scheme: str) -> None:
    context = browser.new_context(color_scheme=scheme, viewport={"width": 390, "height": 800})
    page = context.new_page()
    page.set_default_timeout(WAIT * 1000)
    page.goto(f"{address}/#/table/odd")
    page.wait_for_selector("#timeline[data-drawn]")
    page.wait_for_selector("text=Greatest")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    shoot(page, f"ui-{scheme}")
    check_access(page)
    page.goto(f"{address}/#/table/lopsided?tab=health")
    page.wait_for_selector("text=optimize lopsided --where")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    check_access(page)
    context.close()


def test_a_token_is_asked_for_and_kept_in_the_tab(browser: Any, tmp_path: Path, places: dict[str, Path]) -> None:
    tokens = tmp_path / "tokens"
    token = add_token(tokens, "one", ["odd"])
    with http_serving(places, tokens) as (_, address):
        page = browser.new_page()
        page.set_default_timeout(WAIT * 1000)
        page.goto(f"{address}/")
        page.fill("#token", token)
        page.keyboard.press("Enter")
        page.wait_for_selector("tbody tr")
        assert page.locator("tbody tr td:first-child").all_text_contents() == ["odd"]
        assert str(places["odd"]) not in page.content()
        assert page.evaluate("localStorage.getItem('token')") is None
        assert page.evaluate("document.cookie") == ""
        # The next user of this tab sees nothing of the first.
        run_query(page, address, kql="odd | count")
        assert "odd | count" in page.text_content(".history")
        page.evaluate("other => sessionStorage.setItem('token', other)", add_token(tokens, "two", ["events"]))
        page.goto("about:blank")
        page.goto(f"{address}/#/query")
        page.wait_for_selector("#who:has-text('two')")
        page.wait_for_selector("text=There are no queries yet.", state="attached")
        assert "odd" not in page.text_content("main")
        page.close()
