"""Microsoft's analyser finds no error in what we accept, and gives results the names and types that we do."""

from __future__ import annotations

import pytest

from lazydelta import DeltaTable
from lazydelta.errors import KqlError
from lazydelta.kql.execution.query import run
from tests.kql.analyser import Opinion, analysed
from tests.kql.documented import CASES
from tests.kql.malformed import MALFORMED
from tests.kql.pairs import PAIRS
from tests.kql.tables import NOW, SCHEMAS

pytestmark = pytest.mark.xdist_group("analyser")  # it is asked once

BY_HOUR = (
    "external_table('Telemetry') | where _event_hour between ('2026021000' .. '2026021003')"
    " | summarize avg(value) by bin(timestamp, 1h), device_id"
)
DESIGN = [
    "external_table('Telemetry') | where _event_hour >= '2026021002' | where device_id == 'sensor-42' | take 100",
    "external_table('Telemetry') | take 100",
    BY_HOUR,
]
TEXTS = [*(case.query for case in CASES), *(pair.kql for pair in PAIRS), *DESIGN]
# Listed in docs/kql.md: the order of texts, which the analyser leaves to strcmp(), and types of decimals.
ORDER_OF_TEXTS = "is not defined for the operand types string"
# Queries of the documentation that the analyser of the same house does not like: count() of a column is an error to
# it, and it puts the columns of that union into another order than the page shows.
COUNT_OF_A_COLUMN = "A value of type bool expected."
ORDER_OF_COLUMNS = "x_long=3"


@pytest.fixture(scope="module")
def opinions() -> dict[str, Opinion]:
    """Return the analyser's opinion of every query that the tests of this folder run."""
    return dict(zip(TEXTS, analysed(TEXTS, SCHEMAS), strict=True))


def test_the_analyser_finds_no_error_in_any_accepted_query(opinions: dict[str, Opinion]) -> None:
    deviating = {pair.kql for pair in PAIRS if pair.deviates} | {DESIGN[0], DESIGN[2]}
    documented = {case.query for case in CASES}
    found = {}
    for text, opinion in opinions.items():
        messages = {error["message"] for error in opinion.errors}
        if text in documented:
            messages -= {COUNT_OF_A_COLUMN}
        if text in deviating:
            messages = {each for each in messages if ORDER_OF_TEXTS not in each}
        if messages:
            found[text] = messages
    assert found == {}


def test_every_listed_deviation_is_one(opinions: dict[str, Opinion]) -> None:
    assert [pair.kql for pair in PAIRS if pair.deviates and not opinions[pair.kql].errors] == []


def test_results_have_the_names_and_types_that_the_analyser_expects(
    opinions: dict[str, Opinion], tables: dict[str, DeltaTable]
) -> None:
    different = {}
    # Of the queries made by rule a third has every shape.
    asked = [*(case.query for case in CASES), *DESIGN, *(pair.kql for pair in PAIRS[::3])]
    for text in asked:
        opinion = opinions[text]
        with run(text, tables, now=NOW) as result:
            ours = list(result.kinds.items())
        if ours != opinion.columns and ORDER_OF_COLUMNS not in text:
            different[text] = (ours, opinion.columns)
    assert different == {}


def test_the_analyser_too_rejects_what_is_malformed() -> None:
    """But for what is outside our subset only, so the list holds no query that Kusto would run."""
    texts = [each.text for each in MALFORMED if not each.only_ours]
    accepted = [text for text, opinion in zip(texts, analysed(texts, SCHEMAS), strict=True) if not opinion.errors]
    assert accepted == []


def test_the_analyser_is_asked_about_the_same_tables(tables: dict[str, DeltaTable]) -> None:
    for name, schema in SCHEMAS.items():
        with run(f"{name} | getschema", tables) as result:
            rows = result.read_all().to_pylist()
        assert schema == "(" + ", ".join(f"{row['ColumnName']}:{row['ColumnType']}" for row in rows) + ")"


def test_an_error_of_the_analyser_would_be_seen() -> None:
    (opinion,) = analysed(["Telemetry | where nothing == 1"], SCHEMAS)
    assert opinion.errors
    with pytest.raises(KqlError):
        run("Telemetry | where nothing == 1", {})
