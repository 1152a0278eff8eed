"""Functions made from Arrow's registry give what those of ``pyarrow.compute`` give."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lazydelta.runtime import compute

NUMBERS = pa.array([3, None, 1, 2])
TEXTS = pa.array(["b", None, "abc", ""])
FLAGS = pa.array([True, None, False, True])
STRUCTS = pa.array([{"a": 1}, None, {"a": 3}, {"a": None}])


@pytest.mark.parametrize(
    ("name", "args", "options"),
    [
        ("equal", (NUMBERS, pa.scalar(1)), {}),
        ("and_", (FLAGS, FLAGS), {}),
        ("or_kleene", (FLAGS, pa.scalar(None, pa.bool_())), {}),
        ("if_else", (FLAGS, NUMBERS, pa.scalar(0)), {}),
        ("is_null", (NUMBERS,), {"nan_is_null": True}),
        ("is_in", (NUMBERS,), {"value_set": pa.array([1, 3])}),
        ("starts_with", (TEXTS, "a"), {}),
        ("starts_with", (TEXTS,), {"pattern": "a"}),
        ("match_like", (TEXTS, "a%"), {}),
        ("struct_field", (STRUCTS, "a"), {}),
        ("struct_field", (STRUCTS, [0]), {}),
        ("sort_indices", (NUMBERS,), {"sort_keys": [("", "descending")]}),
        ("min_max", (NUMBERS,), {"skip_nulls": False}),
        ("all", (FLAGS,), {"skip_nulls": True}),
        ("coalesce", (NUMBERS, pa.scalar(7), pa.scalar(8)), {}),
        ("binary_join_element_wise", (TEXTS, TEXTS, pa.scalar("-")), {"null_handling": "skip"}),
        ("filter", (NUMBERS, FLAGS), {"null_selection_behavior": "emit_null"}),
        ("filter", (pa.record_batch({"n": NUMBERS}), FLAGS), {}),
        ("take", (NUMBERS, pa.array([2, 0])), {}),
        ("take", (pa.record_batch({"n": NUMBERS}), pa.array([2, 0])), {}),
        ("take", (pa.chunked_array([NUMBERS, NUMBERS]), pa.array([5, 0])), {}),
        ("cast", (NUMBERS, pa.string()), {}),
        ("cast", (pa.array([1.5]), pa.int64()), {"safe": False}),
        ("fill_null", (NUMBERS, pa.scalar(9)), {}),
        ("fill_null", (NUMBERS, 9), {}),
        ("fill_null", (NUMBERS, pa.scalar(9, pa.int8())), {}),
        ("index", (NUMBERS, pa.scalar(1)), {}),
        ("list_flatten", (pa.array([[1], None, [2, 3]]),), {}),
        ("search_sorted", (pa.array([1, 2, 3]), pa.scalar(2)), {"side": "right"}),
    ],
)
def test_a_function_gives_what_pyarrow_gives(name: str, args: tuple[Any, ...], options: dict[str, Any]) -> None:
    ours, theirs = getattr(compute, name)(*args, **options), getattr(pc, name)(*args, **options)
    assert type(ours) is type(theirs)
    assert ours.equals(theirs)


def test_a_function_of_an_expression_is_an_expression() -> None:
    column = pc.field("n")
    assert compute.is_null(column, nan_is_null=True).equals(pc.is_null(column, nan_is_null=True))
    assert compute.equal(column, pc.scalar(1)).equals(column == pc.scalar(1))


def test_a_wrong_cast_fails_as_with_pyarrow() -> None:
    with pytest.raises(pa.ArrowInvalid, match="truncated"):
        compute.cast(pa.array([1.5]), pa.int64())


@pytest.mark.parametrize(
    "call",
    [
        lambda: compute.equal(NUMBERS),
        lambda: compute.invert(FLAGS, "more"),
        lambda: compute.invert(FLAGS, skip_nulls=True),
        lambda: compute.starts_with(TEXTS, nonsense=1),
    ],
)
def test_arguments_that_the_function_does_not_take_are_an_error(call: Any) -> None:
    with pytest.raises(TypeError):
        call()


def test_a_name_that_pyarrow_does_not_have_is_no_attribute() -> None:
    with pytest.raises(AttributeError):
        compute.no_such_function  # noqa: B018 - the look-up is the test
    assert not hasattr(compute, "__path__")
