"""Rejected rows are counted, and more of them than there may be are an error that says what to do."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lazydelta.errors import OptionError, WriteError
from lazydelta.ingest.files import FileTally, SourceFormat, Tally, Unit
from lazydelta.ingest.lines import BadRow
from lazydelta.ingest.reading import read_units, required_columns
from lazydelta.write.plan import MaxRejected

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])


def tally_of(folder: Path, file_format: str, schema: pa.Schema = SCHEMA) -> Tally:
    source = SourceFormat.parse(folder)
    tally = Tally()
    bad: list[BadRow] = []
    for file in source.files():
        units = [Unit(file)] if file_format != "parquet" else [Unit(file, (0, 1)), Unit(file, (1, 2))]
        for unit in units:  # as if each were a task of its own
            one = Tally()
            required = required_columns(schema, None)
            rows = sum(
                batch.num_rows
                for batch in read_units(source.store, [unit], file_format, schema, bad.extend, required, tally=one)
            )
            assert one.rejected.rows == rows
            tally.add(one)
    assert tally.rejected.rejected == len(bad)
    return tally


@pytest.mark.parametrize(
    ("given", "count", "share"),
    [
        (None, None, None),
        (0, 0, None),
        ("25", 25, None),
        (1, 1, None),
        (1.0, None, 1.0),
        (0.01, None, 0.01),
        ("0.01", None, 0.01),
        (" 1% ", None, 0.01),
        ("100%", None, 1.0),
        ("0%", None, 0.0),
        (1e-5, None, 1e-5),
    ],
)
def test_a_whole_number_is_a_count_and_a_fraction_or_percentage_is_a_share(
    given: float | str | None, count: int | None, share: float | None
) -> None:
    assert MaxRejected.of(given) == MaxRejected(count, share)
    assert MaxRejected.of(MaxRejected.of(given)) == MaxRejected(count, share)


@pytest.mark.parametrize("given", [-1, "-1", 1.5, "101%", "few", "", "nan", "1 in 100", True])
def test_what_is_neither_is_refused(given: float | str) -> None:
    with pytest.raises(OptionError, match=r"max_rejected=.*is not valid \(pass a number of rows"):
        MaxRejected.of(given)


@pytest.mark.parametrize(
    ("limit", "rejected", "is_refused"),
    [
        (None, 99, False),
        (0, 1, True),
        (5, 5, False),
        (5, 6, True),
        ("1%", 1, False),
        ("1%", 2, True),
        (0.0, 1, True),
        ("99%", 99, False),
    ],
)
def test_more_than_the_number_or_the_share_is_refused(
    limit: float | str | None,
    rejected: int,
    is_refused: bool,  # noqa: FBT001 - a case
) -> None:
    tally = Tally({"f": FileTally(100 - rejected, rejected, ["f:7: it is odd"]), "g": FileTally()})
    if not is_refused:
        tally.refuse(MaxRejected.of(limit))
        return
    message = f"{rejected} of 100 rows of 2 files were rejected, and max_rejected is .*: f:7: it is odd"
    with pytest.raises(WriteError, match=f"{message}.*nothing was committed"):
        tally.refuse(MaxRejected.of(limit))


@pytest.mark.parametrize(
    "text", ["1,x\n2,y\n", "n;s\n1;x\n", "n,other\n1,x\n", 'n,s\n1,"x\n2,y\n', "n,s\nx,x\n", "m\n"]
)
def test_a_file_of_which_nothing_is_left_is_an_error_that_names_it(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.csv").write_text("n,s\n1,x\n2,y\n")
    (tmp_path / "b.csv").write_text(text)
    tally = tally_of(tmp_path, "csv")
    count = tally.rejected.rejected
    for limit in (None, 1000, "99%"):
        with pytest.raises(
            WriteError, match=rf"{count} of {count} rows of .*b\.csv were rejected.*b\.csv:\d: .*"
        ) as caught:
            tally.refuse(MaxRejected.of(limit))
        assert caught.value.path == str(tmp_path / "b.csv")
        assert "max_rejected=100%" in str(caught.value)
    tally.refuse(MaxRejected.of("100%"))


def test_a_file_with_a_header_only_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n,s\r\n")
    tally_of(tmp_path, "csv").refuse(MaxRejected.of(0))


def test_the_parts_of_a_file_are_counted_together(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": [None, 1], "s": ["x", "y"]}), tmp_path / "a.parquet", row_group_size=1)
    schema = pa.schema([pa.field("n", pa.int64(), nullable=False), ("s", pa.string())])
    tally = tally_of(tmp_path, "parquet", schema)
    assert [(each.rows, each.rejected) for each in tally.files.values()] == [(1, 1)]
    tally.refuse(MaxRejected.of("50%"))
    with pytest.raises(WriteError, match=r"1 of 2 rows of 1 files.*max_rejected is 49.5%"):
        tally.refuse(MaxRejected.of(0.495))
