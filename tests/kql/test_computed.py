"""Functions that Python computes over Arrow: how they are registered, null rules, and several columns."""

from __future__ import annotations

import json
import math
import random
import statistics
import threading
from typing import Any

import pytest

from lazydelta.errors import MissingExtraError
from lazydelta.kql import query
from lazydelta.kql.binding import computed
from lazydelta.kql.execution.query import run
from lazydelta.kql.execution.tables import LimitedDatabases
from tests.kql.analyser import analysed


def one(text: str) -> dict[str, Any]:
    with query(text) as result:
        (row,) = result.read_all().to_pylist()
        return {
            name: json.loads(value) if result.kinds[name] == "dynamic" and value is not None else value
            for name, value in row.items()
        }


def test_a_function_is_registered_in_a_locked_database() -> None:
    databases = LimitedDatabases(memory=1 << 28, reading_memory=1 << 24, threads=1)
    for _ in range(2):
        with run("print x = gamma(5.0)", {}, databases=databases) as result:
            assert result.read_all().to_pylist() == [{"x": 24.0}]


def test_queries_register_a_function_at_the_same_time() -> None:
    start = threading.Barrier(4)
    found: list[Any] = []

    def ask() -> None:
        start.wait()
        found.append(one("print x = series_stats_dynamic(dynamic([1, 2, 3]))['avg'], y = welch_test(1, 1, 9, 1, 1, 9)"))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [{"x": 2.0, "y": 1.0}] * 4


def test_a_missing_library_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(computed._EXTRAS, "kql-series", ("no_such_library",))
    with pytest.raises(MissingExtraError, match=r"pip install 'lazydelta\[kql-series\]'"):
        query("print gamma(5.0)")


def test_a_null_argument_has_a_null_result() -> None:
    text = """datatable(x: real, s: dynamic) [1.0, dynamic([1]), real(null), dynamic(null), 2.0, dynamic({"a": 1})]
    | project a = erf(x), b = series_exp(s), c = series_sum(s)"""
    with query(text) as result:
        rows = result.read_all().to_pylist()
    assert rows[0] == {"a": pytest.approx(math.erf(1)), "b": f"[{math.e!r}]", "c": 1.0}
    assert rows[1] == {"a": None, "b": None, "c": None}
    assert rows[2] == {"a": pytest.approx(math.erf(2)), "b": None, "c": None}


def test_many_rows_come_in_batches() -> None:
    text = "range i from 1 to 5000 step 1 | extend g = erf(i * 1.0) | summarize n = count(), least = min(g)"
    assert one(text) == {"n": 5000, "least": pytest.approx(math.erf(1))}


def test_arithmetic_pads_with_nulls_and_repeats_numbers() -> None:
    assert one(
        "print a = series_add(dynamic([1, 2, null]), dynamic([1])), b = series_multiply(dynamic([1, 2.5, 'x']), 2),"
        " c = series_divide(dynamic([1, 0, -1]), 0), d = series_greater(2, dynamic([1, 2, 3])),"
        " e = series_pow(dynamic([2, 3]), dynamic([3, 2]))"
    ) == {
        "a": [2, None, None],
        "b": [2.0, 5.0, None],
        "c": ["Infinity", "NaN", "-Infinity"],
        "d": [True, False, False],
        "e": [8.0, 9.0],
    }


def test_missing_elements_are_filled() -> None:
    assert one(
        "print a = dynamic([null, 1, null, 4, null]), b = dynamic([null, null])"
        " | project c = series_fill_const(a, 7), d = series_fill_linear(a),"
        " e = series_fill_linear(a, double(null), false),"
        " f = series_fill_linear(dynamic([1.0, null, 2.0])), g = series_fill_linear(b), h = series_fill_forward(a),"
        " i = series_fill_backward(a), j = series_fill_const(dynamic([0, 1, 0]), 5, 0),"
        " k = series_fill_linear(b, double(null), true, 3.5)"
    ) == {
        "c": [7, 1, 7, 4, 7],
        "d": [1, 1, 2, 4, 4],
        "e": [None, 1, 2, 4, None],
        "f": [1.0, 1.5, 2.0],
        "g": [0, 0],
        "h": [None, 1, 1, 4, 4],
        "i": [1, 1, 4, 4, None],
        "j": [5, 1, 5],
        "k": [3.5, 3.5],
    }


def test_filters() -> None:
    assert one(
        "print a = series_fir(dynamic([1, 2, 3, 4]), dynamic([1, 1])),"
        " b = series_fir(dynamic([3, 6, 9]), dynamic([1, 1, 1]), true, true),"
        " c = series_fir(dynamic([1, 3, 6]), dynamic([1, -1])),"
        " d = series_iir(dynamic([1, 2, 3]), dynamic([1]), dynamic([1, -1])),"
        " e = series_fir(dynamic([1, 3]), dynamic([1, -1]), true)"
    ) == {
        "a": [0.5, 1.5, 2.5, 3.5],
        "b": [3.0, 6.0, 5.0],
        "c": [1.0, 2.0, 3.0],
        "d": [1.0, 3.0, 6.0],
        "e": None,
    }


def test_statistics_of_a_series_against_python() -> None:
    numbers = [round(random.Random(7).uniform(-5, 5), 3) for _ in range(50)]
    row = one(f"print x = dynamic({json.dumps(numbers)}) | project series_stats(x)")
    assert row == {
        "series_stats_x_min": min(numbers),
        "series_stats_x_min_idx": numbers.index(min(numbers)),
        "series_stats_x_max": max(numbers),
        "series_stats_x_max_idx": numbers.index(max(numbers)),
        "series_stats_x_avg": pytest.approx(statistics.fmean(numbers)),
        "series_stats_x_stdev": pytest.approx(statistics.stdev(numbers)),
        "series_stats_x_variance": pytest.approx(statistics.variance(numbers)),
    }
    assert one("print series_stats_dynamic(dynamic([1, null, 3]))") == {"print_0": None}
    assert one("print series_stats_dynamic(dynamic([1, null, 3]), true)['sum']") == {"print_0": 4.0}


def test_several_columns_are_named_as_the_analyser_names_them() -> None:
    queries = [
        "T | project series_stats(x)",
        "T | extend (a, b) = series_stats(x)",
        "T | extend q = series_stats(x) | project-away x",
        "T | project y = 1, series_stats(series_abs(x)), gamma(r), beta_cdf(r, r, r)",
        "print series_stats(dynamic([1, 2]))",
    ]
    tables = "datatable(x: dynamic, r: real) [dynamic([1, 2]), 0.5]"
    for text, opinion in zip(queries, analysed(queries, {"T": "(x: dynamic, r: real)"}), strict=True):
        assert opinion.errors == []
        with query(f"let T = {tables}; {text}") as result:
            assert list(result.kinds.items()) == opinion.columns


def test_several_columns_are_no_part_of_an_expression() -> None:
    with pytest.raises(Exception, match="returns several columns"):
        query("print x = 1 + series_stats(dynamic([1]))")


def test_lines_and_polynomials() -> None:
    row = one(
        "print y = dynamic([2, 4, 6, 8, 20, 19, 18])"
        " | project series_fit_2lines(y), series_fit_line(dynamic([1, null, 5]))"
    )
    assert row["series_fit_2lines_y_split_idx"] == 4
    assert row["series_fit_2lines_y_rsquare"] == pytest.approx(1)
    assert row["series_fit_2lines_y_line_fit"] == pytest.approx([2, 4, 6, 8, 20, 19, 18])
    assert (row["series_fit_2lines_y_left_slope"], row["series_fit_2lines_y_right_slope"]) == pytest.approx((2, -1))
    assert row["series_fit_line__line_fit"] == pytest.approx([1, 3, 5])
    assert row["series_fit_line__interception"] == pytest.approx(-1)
    row = one("print series_fit_poly(dynamic([6, 11, 18, 27]), dynamic([1, 2, 3, 4]), 2)")
    assert row["series_fit_poly__coefficients"] == pytest.approx([1, 2, 3])
    assert row["series_fit_poly__poly_fit"] == pytest.approx([6, 11, 18, 27])


def test_a_transform_and_its_inverse() -> None:
    numbers = [random.Random(3).uniform(-1, 1) for _ in range(15)]
    text = f"print x = dynamic({json.dumps(numbers)}) | extend (re, im) = series_fft(x) | project series_ifft(re, im)"
    row = one(text)
    assert row["series_ifft_re_real"] == pytest.approx(numbers)
    assert row["series_ifft_re_imag"] == pytest.approx([0] * 15, abs=1e-12)
    real = [sum(value * math.cos(2 * math.pi * k * at / 15) for at, value in enumerate(numbers)) for k in range(15)]
    assert one(f"print series_fft(dynamic({json.dumps(numbers)}))")["series_fft__real"] == pytest.approx(real)


def test_seasons_are_found_and_anomalies_flagged() -> None:
    week = [1, 2, 3, 9, 3, 2, 1]
    numbers: list[float | None] = [*(week * 6)]
    numbers[17] = 50
    numbers[30] = None
    row = one(
        f"print x = dynamic({json.dumps(numbers)}) | project s = series_seasonal(x),"
        " series_decompose_anomalies(x), series_periods_validate(x, 7, 5)"
    )
    assert row["series_periods_validate_x_periods"] == [7.0, 5.0]
    assert row["series_periods_validate_x_scores"][1] == 0
    assert row["s"] == week * 6
    assert [at for at, flag in enumerate(row["series_decompose_anomalies_x_ad_flag"]) if flag] == [17]
    forecast = one(f"print series_decompose_forecast(dynamic({json.dumps(week * 5 + [0] * 7)}), 7, 7, 'avg')")
    assert forecast["series_decompose_forecast__baseline"] == pytest.approx(week * 6)


def test_outliers_are_scored_by_the_distance_of_percentiles() -> None:
    row = one(
        "print x = dynamic([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 31, null]) | project a = series_outliers(x, 'tukey'),"
        " b = series_outliers(x, 'ctukey', 31), c = series_outliers(x, 'other')"
    )
    # The quartiles of the twelve are 3.75 and 9.25.
    assert row["a"][11] == pytest.approx((31 - 9.25) / 5.5)
    assert row["a"][0] == pytest.approx((1 - 3.75) / 5.5)
    assert row["a"][4:8] == [0, 0, 0, 0]
    assert row["a"][12] == row["b"][11] == 0
    assert row["c"] is None


@pytest.mark.slow
def test_every_function_is_typed_and_named_as_by_the_analyser() -> None:
    """With as few and with as many arguments as it takes."""
    values = {"dynamic": "d", "json": "d", "any": "d", "real": "r", "measure": "r", "long": "int(2)", "string": "s"}
    values |= {"bool": "true", "type?": "typeof(long)", "string?": "'avg'", "real?": "1.0", "any?": "1"}
    calls = [
        f"{name}({', '.join(values.get(kind) or values[kind.rstrip('?*')] for kind in declared.takes[:count])})"
        for name, declared in computed.COMPUTED.items()
        for count in sorted({declared.least, len(declared.takes)})
        if not name.startswith("sketch_")
    ]
    queries = [f"T | project {call}" for call in calls]
    schema = "d: dynamic, r: real, s: string"
    wrong = []
    for text, opinion in zip(queries, analysed(queries, {"T": f"({schema})"}), strict=True):
        with query(f"let T = datatable({schema}) [dynamic(null), real(null), '']; {text}") as result:
            if opinion.errors or list(result.kinds.items()) != opinion.columns:
                wrong.append((text, opinion, result.kinds))
    assert wrong == [], "\n".join(map(str, wrong))
