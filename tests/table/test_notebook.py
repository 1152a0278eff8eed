"""What a notebook shows, run in a real kernel: tables, streams, results, plans and findings, not object addresses."""

from __future__ import annotations

import re
from pathlib import Path

import nbclient
import nbformat
import pytest

# A cell each, with what its HTML has to hold.
CELLS = [
    ("t", ["Delta table at version 2", "partitioned by", "_event_day", "<svg", "files", "%3Cb%3E"]),
    ("t.info()", ["Delta table at version 2", "timestamp[us, tz=UTC]"]),
    ("t.files('id > 20')", ["FileStream(", "strategy", "id &gt; 20"]),
    ("t.rows(['id'])", ["RowStream(id: int64)", "version"]),
    ("t.sql('select id, note from self order by id limit 3')", ["<td>0</td>", "<td>2</td>", "&lt;b&gt;bold&lt;/b&gt;"]),
    ("t.kql('where id < 2 | project id | order by id asc')", ["<td>0</td>", "<td>1</td>"]),
    ("t.sql('select * from range(50)')", ["the first 20 rows", "to_pandas()"]),
    ("t.explain('id > 20')", ["<pre>", "strategy", "id &gt; 20"]),
    ("t.doctor()", ["<pre>", "nothing wrong"]),
]
# Cells whose answer is text.
TEXTS = [
    ("t.head(2, ['id']).num_rows", "2"),
    ("t.to_pandas(where='id < 3').shape", "(3, 4)"),
    ("await_rows = [batch.num_rows async for batch in t.rows()]; sum(await_rows)", "30"),
    ("result = t.sql('select id from self'); result._repr_html_(); result.count()", "30"),
]


def test_a_notebook_shows_tables_and_not_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    setup = f"""
import datetime as dt
import lazydelta
day = dt.datetime(2026, 2, 8, tzinfo=dt.UTC)
for start in (0, 10, 20):
    timestamps = [(n, day + dt.timedelta(hours=2.4 * n)) for n in range(start, start + 10)]
    rows = [{{"id": n, "ts": timestamp, "note": "<b>bold</b>"}} for n, timestamp in timestamps]
    lazydelta.write_arrow({str(tmp_path / "events <b>")!r}, rows, timestamp_column="ts", boundary="day")
t = lazydelta.DeltaTable({str(tmp_path / "events <b>")!r})
"""
    sources = [setup, *(source for source, _ in CELLS), *(source for source, _ in TEXTS)]
    notebook = nbformat.v4.new_notebook(  # type: ignore[no-untyped-call]
        cells=[nbformat.v4.new_code_cell(source) for source in sources]  # type: ignore[no-untyped-call]
    )
    nbclient.NotebookClient(notebook, timeout=240, kernel_name="python3").execute()
    _, *cells = notebook.cells
    for (source, words), cell in zip(CELLS, cells, strict=False):
        (shown,) = [each for each in cell.outputs if each.output_type == "execute_result"]
        html = shown["data"]["text/html"]
        assert [word for word in words if word not in html] == [], source
        assert "<b>" not in html, "values are escaped"
        assert "<script" not in html
        assert not re.search(r" object at 0x", html + shown["data"]["text/plain"]), source
    for (source, text), cell in zip(TEXTS, cells[len(CELLS) :], strict=True):
        (shown,) = [each for each in cell.outputs if each.output_type == "execute_result"]
        assert shown["data"]["text/plain"] == text, source
