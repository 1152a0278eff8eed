"""Nothing of a CSV file disappears: each of its bytes is in a row of the table or in the text of a rejected one."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lazydelta.errors import OptionError
from lazydelta.ingest.csv import CsvSplitter, cells, lines_of_columns
from lazydelta.ingest.files import SourceFormat, tasks_of
from lazydelta.ingest.lines import BadRow, blocks
from lazydelta.ingest.reading import read_units, rows_of_csv
from lazydelta.ingest.schema import cell_columns, source_schema
from lazydelta.write.plan import WritePlan

NAMES = ["a", "b"]
SCHEMA = pa.schema([(name, pa.string()) for name in NAMES])
Rows = list[list[str | None]]


def read(
    chunks: Iterable[bytes], *, size: int = 1 << 20, longest: int = 1 << 20, header: bool = False
) -> tuple[Rows, list[BadRow]]:
    bad: list[BadRow] = []
    rows: Rows = []
    lines = None if header else lines_of_columns(NAMES, SCHEMA)
    found = blocks(chunks, CsvSplitter(), size, longest)
    for batch in rows_of_csv(found, SCHEMA, lines, "f", bad.extend, {}):
        batch.validate(full=True)
        rows += [list(row.values()) for row in batch.to_pylist()]
    return rows, bad


def in_python(text: str) -> tuple[list[list[str]], Counter[str]]:
    """Return the rows and the rejected texts as Python's own reader has them."""
    lines = list(io.StringIO(text.removeprefix("\ufeff"), newline=""))
    reader = csv.reader(lines)
    rows: list[list[str]] = []
    rejected: Counter[str] = Counter()
    start = 0
    for row in reader:
        mine, start = lines[start : reader.line_num], reader.line_num
        if not row:
            continue
        if start == len(lines) and is_open(mine):  # every line of it is told
            rejected.update(filter(None, (line.rstrip("\r") for line in "".join(mine).split("\n"))))
        elif len(row) == len(NAMES) and is_strict(mine):
            rows.append(row)
        else:
            rejected["".join(mine).rstrip("\r\n")] += 1
    return rows, rejected


def is_open(lines: list[str]) -> bool:
    """Tell whether a row would go on in another line, so that a quote is open."""
    return len(list(csv.reader([*lines[:-1], lines[-1].rstrip("\r\n") + "\n", "another line"]))) == 1


def is_strict(lines: list[str]) -> bool:
    try:
        list(csv.reader(lines, strict=True))
    except csv.Error:
        return False
    return True


def content(texts: Iterable[str | None]) -> Counter[str]:
    """Count what is no sign of CSV's own."""
    return Counter("".join(text or "" for text in texts)) - Counter(dict.fromkeys('",\r\n\ufeff', 1 << 30))


_WORDS = ["x", "é", "5 ", " ", "\0", "\ufeff", "😀", "1", ",", ",", '"', '"', '""', "\n", "\n", "\r\n", "\r"]
_QUOTED = ['"p"', '"p,q"', '"p\nq"', '"p\r\nq"', '"p""q"', '""', '"p', 'p"', '"p"q', '5" pipe']
_CELLS = st.sampled_from([*_WORDS, *_QUOTED, "", "text"])
_PAIRS = st.tuples(_CELLS, _CELLS).map(",".join)
_ENDS = st.sampled_from(["\n", "\n", "\r\n", "\r", "", "\n\n", "\r\r\n"])
_LINES = st.tuples(_PAIRS | _CELLS, _ENDS).map("".join)
TEXTS = st.builds(str.__add__, st.sampled_from(["", "", "\ufeff"]), st.lists(_LINES | _CELLS, max_size=12).map("".join))


@settings(max_examples=400, deadline=None)
@given(TEXTS, st.sampled_from([1, 7, 1 << 20]), st.integers(1, 9))
@example('1,"x\n2,y"\n3,z\n', 1, 1)
@example('1,"x\n2,y\n3,z', 1 << 20, 9)
@example('1,"x"y\n2,z\n', 1, 3)
def test_csv_is_what_python_reads_and_the_rest_is_rejected_whole(text: str, size: int, step: int) -> None:
    data = text.encode()
    rows, bad = read([data[start : start + step] for start in range(0, len(data), step)], size=size)
    wanted, rejected = in_python(text)
    assert [[cell or "" for cell in row] for row in rows] == wanted
    assert Counter(each.record for each in bad) == rejected


@settings(max_examples=150, deadline=None)
@given(TEXTS)
@example('\ufeff"a\r\n""b",c\r\n"d",e\r\rf,"g"h\n"i')
def test_it_does_not_matter_where_the_pieces_of_a_file_are_cut(text: str) -> None:
    data = text.encode()
    whole = read([data])
    for cut in range(len(data) + 1):
        assert read([data[:cut], data[cut:]], size=1) == whole


@settings(max_examples=300, deadline=None)
@given(TEXTS, st.booleans(), st.sampled_from([4, 20, 1 << 20]))
def test_every_character_is_in_a_row_or_in_a_rejected_text(text: str, header: bool, longest: int) -> None:  # noqa: FBT001 - a case
    whole = ("a,b\n" if header else "") + text
    data = whole.encode()
    rows, bad = read(
        [data[start : start + 3] for start in range(0, len(data), 3)], size=1, longest=longest, header=header
    )
    kept = content([*(cell for row in rows for cell in row), *(each.record for each in bad)])
    is_taken = header and not any(each.source == "f:1" for each in bad)
    assert kept == content([whole]) - (content(["ab"]) if is_taken else Counter())


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.text(max_size=5), min_size=2, max_size=2), max_size=8), st.sampled_from(["\n", "\r\n"]))
def test_what_python_writes_is_read_back(rows: list[list[str]], end: str) -> None:
    out = io.StringIO()
    csv.writer(out, lineterminator=end, quoting=csv.QUOTE_ALL).writerows(rows)
    data = out.getvalue().encode("utf-8", "surrogatepass")
    found, bad = read([data[start : start + 5] for start in range(0, len(data), 5)], size=1)
    assert (found, bad) == (rows, [])


def test_a_line_break_in_quotes_is_part_of_its_cell_and_lines_are_numbered_as_in_an_editor() -> None:
    rows, bad = read([b'a,b\n"x\r\ny",1\n\nz\n"p\n\nq","2\n3"\nw\n'], header=True)
    assert rows == [["x\r\ny", "1"], ["p\n\nq", "2\n3"]]
    assert [(each.source, each.record) for each in bad] == [("f:5", "z"), ("f:10", "w")]


def test_a_row_that_an_open_quote_joins_to_the_next_is_rejected_with_all_its_text() -> None:
    rows, bad = read([b'a,b\n1,"x\n2,y"\n3,z\n'], header=True)
    assert (rows, bad) == ([["1", "x\n2,y"], ["3", "z"]], [])
    rows, bad = read([b'a,b\n1,0,"x\n2,y"\n3,z\n'], header=True)
    assert rows == [["3", "z"]]
    assert [(each.source, each.record) for each in bad] == [("f:2", '1,0,"x\n2,y"')]


def test_behind_a_quote_that_is_never_closed_nothing_is_taken_for_a_row() -> None:
    rows, bad = read([b'a,b\n1,x\n2,"y\n3,z\n\n4,w'], header=True)
    assert rows == [["1", "x"]]
    assert [(each.source, each.record) for each in bad] == [("f:3", '2,"y'), ("f:4", "3,z"), ("f:6", "4,w")]
    assert {each.reason for each in bad} == {"a quote that is opened in the row that begins in line 3 is never closed"}


def test_text_behind_a_closing_quote_is_not_joined_to_its_cell() -> None:
    rows, bad = read([b'a,b\n1,"x"y\n2,5" pipe\n3, "z"\n'], header=True)
    assert rows == [["2", '5" pipe'], ["3", ' "z"']]
    assert [each.record for each in bad] == ['1,"x"y']
    assert "cell 2 continues after its closing quote" in bad[0].reason


def test_a_row_that_is_too_long_is_rejected_in_pieces_and_its_neighbours_are_read() -> None:
    long = b'2,"' + "é\n".encode() * 700_000 + b"end" + b'"'
    data = b"a,b\n1,x\n" + long + b"\n3,y\n"
    chunks = [data[start : start + 100_000] for start in range(0, len(data), 100_000)]
    rows, bad = read(chunks, size=1000, longest=500_000, header=True)
    assert rows == [["1", "x"], ["3", "y"]]
    assert "\n".join(each.record for each in bad).encode() == long
    assert {each.reason for each in bad} == {"the row that begins in line 3 is longer than 500000 bytes"}
    assert [each.source for each in bad] == [f"f:{line}" for line in range(3, 3 + len(bad))]


def test_an_empty_cell_at_the_very_end_is_a_null_whatever_stands_before_it() -> None:
    assert read([b'"p",'])[0] == read([b'"p",\n'])[0] == [["p", None]]


def test_a_byte_order_mark_within_a_file_is_a_character() -> None:
    data = "1,x\n\ufeff2,y\n".encode()
    assert read([data])[0] == read([data[:4], data[4:]], size=1)[0] == [["1", "x"], ["\ufeff2", "y"]]


def test_a_long_cell_is_read_beside_a_bad_row_as_it_is_without_it() -> None:
    long = b"x" * 300_000
    assert read([b"1," + long + b"\n"])[0] == read([b"1," + long + b"\nbad\n"])[0] == [["1", long.decode()]]


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ("a,unknown", "names the column 'unknown'"),
        ("a,b,a", "the column 'a' twice"),
        ("a;b", "semicolons between its cells"),
        ("a\tb", "tabs between its cells"),
        ("1,x", r"the first line is no header: none of its cells \(1, x\) is the name of a column \(a, b\)"),
        ('"a"x,b', "the header of the file cannot be read"),
    ],
)
def test_a_wrong_header_is_rejected_with_all_rows_and_none_is_lost(header: str, words: str) -> None:
    rows, bad = read([f"\n{header}\nc,1\nd,2\n".encode()], header=True)
    assert rows == []
    assert [(each.source, each.record) for each in bad] == [("f:2", header), ("f:3", "c,1"), ("f:4", "d,2")]
    assert all(re.search(words, each.reason) for each in bad)


def test_names_of_a_header_may_have_space_around_them_and_other_case() -> None:
    assert read([b' B ,"A"\r\nx,1\r\n'], header=True) == ([["1", "x"]], [])


def test_a_header_in_another_encoding_is_called_so() -> None:
    rows, bad = read(["a,b\n1,x\n".encode("utf-16")], header=True)
    assert rows == []
    assert all("UTF-16" in each.reason for each in bad)
    rows, bad = read([b"a,b\n1,\xe9\n2,x\n"], header=True)
    assert rows == [["2", "x"]]
    assert [each.record for each in bad] == ["1,\\xe9"]


@pytest.mark.parametrize("data", [b"", b"\xef\xbb\xbf", b"\n\r\n\n", b"a,b", b"\xef\xbb\xbfa,b\r\n"])
def test_a_file_without_rows_has_none_and_nothing_to_reject(data: bytes) -> None:
    assert read([data] if data else [], header=True) == ([], [])


def test_the_cells_of_one_record_are_those_that_python_finds() -> None:
    for record in ['a,"b""c",', '"",""', '5",x', ' "a"', '"a\nb",c']:
        assert cells(record.encode()) == next(csv.reader(io.StringIO(record, newline="")))


# --- without a header


def files_of(folder: Path, **texts: str) -> SourceFormat:
    for name, text in texts.items():
        (folder / f"{name}.csv").write_text(text)
    return SourceFormat.parse(folder)


def test_cells_without_a_header_are_those_of_the_given_columns_in_their_order(tmp_path: Path) -> None:
    source = files_of(tmp_path, x="1,p\n2,q\n")
    schema = pa.schema([("n", pa.int64()), ("s", pa.string())])
    columns = source_schema(source, source.files(), "csv", None, WritePlan.of(), schema, header=False)
    (task,) = tasks_of(source, source.files(), "csv", 1)
    bad: list[BadRow] = []
    found = read_units(source.store, task, "csv", columns, bad.extend, {}, columns=cell_columns(columns, schema))
    assert [row for batch in found for row in batch.to_pylist()] == [{"n": 1, "s": "p"}, {"n": 2, "s": "q"}]
    assert bad == []


def test_cells_without_a_header_need_columns(tmp_path: Path) -> None:
    source = files_of(tmp_path, x="1,p\n2,q\n")
    with pytest.raises(OptionError, match="pass a schema, in the order of the cells"):
        source_schema(source, source.files(), "csv", None, WritePlan.of(), header=False)
    with pytest.raises(OptionError, match="to CSV only"):
        source_schema(source, source.files(), "json", None, WritePlan.of(), header=False)


@pytest.mark.parametrize("first", ["1,2.5", "1,x", "2019,2020", "x,2026-02-10", "x,2026-02-10T14:00:00Z", "1,,-3e4"])
def test_a_first_line_that_looks_like_a_row_does_not_become_the_columns_of_a_table(tmp_path: Path, first: str) -> None:
    source = files_of(tmp_path, x=f"{first}\n{first}\n")
    with pytest.raises(OptionError, match=r"x\.csv looks like a row, not like a header.*pass header=false"):
        source_schema(source, source.files(), "csv", None, WritePlan.of())
    trusted = source_schema(source, source.files(), "csv", None, WritePlan.of(), header=True)
    assert trusted.names == first.split(",")


def test_columns_are_guessed_from_rows_with_line_breaks_in_quotes(tmp_path: Path) -> None:
    source = files_of(tmp_path, x='n,"two\nlines",2019\n1,"a\nb",3\n2,c,4\n')
    found = source_schema(source, source.files(), "csv", None, WritePlan.of())
    assert found == pa.schema([("n", pa.int64()), ("two\nlines", pa.string()), ("2019", pa.int64())])
