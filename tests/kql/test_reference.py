"""The examples of Microsoft's reference give the results that it prints; where they do not, the reason is stated."""

from __future__ import annotations

import pytest

from tests.kql.reference import EXAMPLES, examples, outcome

CHANCE = "rows are chosen at random"
MARKUP = "the page's markup changed the value"
EDITED = "the page's result is of another query: an edited text, or the sample's variance"
DIFFERENT: dict[tuple[str, int], str] = {
    (
        "base64-decode-toguid-function",
        1,
    ): "the third group has its bytes in another order than base64_encode_fromguid()",
    ("datetime-utc-to-local-function", 1): "it converts now()",
    ("hash-combine-function", 1): "how hashes are combined is not documented",
    ("hash-many-function", 1): "how hashes are combined is not documented",
    ("new-guid-function", 1): "the guid is random",
    ("parse-url-function", 1): "what the page prints is no JSON",
    ("unicode-codepoints-to-string-function", 5): "the page prints no row",
    ("url-encode-component-function", 1): EDITED,
    ("url-encode-function", 1): EDITED,
    ("variancepif-aggregation-function", 1): EDITED,
    ("join-fullouter", 1): "the page leaves the first cells of a row out, so its other values have no column",
    ("join-innerunique", 3): "which row of a key is kept is not defined, and the page shows the last one",
    ("named-expressions", 1): CHANCE,
    ("named-expressions", 2): CHANCE,
    ("node-degree-out", 2): "the page prints other names and fewer columns than the query asks for",
    ("activity-metrics-plugin", 1): CHANCE,
    ("activity-metrics-plugin", 2): CHANCE,
    ("named-expressions", 3): CHANCE,
    ("new-activity-metrics-plugin", 3): CHANCE,
    ("new-activity-metrics-plugin", 4): CHANCE,
    ("new-activity-metrics-plugin", 5): CHANCE,
    ("reduce-operator", 1): CHANCE,
    ("geo-polygon-to-h3cells-function", 2): "the page prints no coordinates",
    ("series-iir-function", 1): "the page prints the first rows only",
    ("series-periods-detect-function", 1): "the page rounds to two digits",
    ("series-periods-validate-function", 1): "the page rounds to two digits",
    ("using-hll-tdigest", 1): "the size of a sketch is that of the implementation",
    ("sample-operator", 1): CHANCE,
    ("sample-operator", 2): CHANCE,
    ("series-acos-function", 1): "the page prints another argument than it computes with",
    ("series-magnitude-function", 1): "the page prints a column that the query does not make",
    ("series-tan-function", 1): "the page prints another argument than it computes with",
    ("toguid-function", 1): "the page prints a remark in place of the null",
    ("trim-start-function", 1): MARKUP,
}
"""Examples by page and number on it that run and differ, and why the page is not followed."""

AGREEING = 277
"""How many agree at least; the rest is refused by name, or listed above."""


def test_the_examples_of_the_reference_agree() -> None:
    if not EXAMPLES.exists():
        pytest.skip("the examples of Microsoft's reference are not beside the repository")
    found = {(each.page, each.number): outcome(each) for each in examples()}
    different = {name: each.detail for name, each in found.items() if each.word == "differs" and name not in DIFFERENT}
    assert different == {}
    assert sum(each.word == "agrees" for each in found.values()) >= AGREEING
