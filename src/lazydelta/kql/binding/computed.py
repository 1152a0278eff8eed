"""Functions that Python computes: what each takes and gives, and the module and the extra that it needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from lazydelta.errors import require
from lazydelta.kql.binding.types import NUMBERS, Typed, as_kind, converted, to_text
from lazydelta.kql.functions.declaration import Argument, Function, Given

__all__ = ["COMPUTED", "COMPUTED_FUNCTIONS", "Computed", "computed_columns", "computed_sql", "measured"]

_MANY = 64
_EXTRAS = {"kql-series": ("numpy", "scipy"), "kql-geo": ("numpy", "h3", "s2sphere", "shapely", "geographiclib")}


@dataclass(frozen=True, slots=True)
class Computed:
    """A function that Python computes.

    ``takes`` are the kinds of its arguments and ``names`` their names. One that ends in ``?`` may be left out, and the
    last may be repeated if it ends in ``*``. ``any`` is a value of any kind, given as JSON, and ``json`` a dynamic
    value that the function parses itself. ``columns`` are the names and kinds of a result of several columns.
    ``naming`` says how a column is named that has no name: after the first argument (``first``), also with the
    function's name before it (``prefix``), or by a fixed name. ``by_column`` is set if the function gets whole columns
    of numbers, and ``strict`` if the result is null also where an optional argument is null.
    """

    takes: tuple[str, ...]
    gives: str
    module: str
    extra: str | None
    columns: tuple[tuple[str, str], ...] = ()
    naming: str | None = None
    by_column: bool = False
    function: str | None = None
    strict: bool = False
    about: str = ""
    names: tuple[str, ...] = ()

    @property
    def least(self) -> int:
        """The least number of arguments."""
        return sum(not kind.endswith("?") for kind in self.takes)

    @property
    def most(self) -> int:
        """The largest number of arguments."""
        return _MANY if self.takes[-1].endswith("*") else len(self.takes)

    def kinds(self, count: int) -> list[str]:
        """Return the kinds of so many arguments."""
        plain = [kind.rstrip("?*") for kind in self.takes]
        return (plain + [plain[-1]] * (count - len(plain)))[:count]


def _declared(
    module: str,
    extra: str | None,
    functions: Mapping[str, str],
    *,
    naming: str | None = None,
    by_column: bool = False,
    strict: bool = False,
) -> Iterable[tuple[str, Computed]]:
    """Yield functions from lines such as ``line:json at:real? -> real`` or ``y:dynamic -> slope:real fit:dynamic``.

    What follows ``#`` in a line documents the function.
    """
    for name, text in functions.items():
        line, _, about = text.partition(" # ")
        takes, _, gives = line.partition(" -> ")
        columns = tuple((part.split(":")[0], part.split(":")[1]) for part in gives.split() if ":" in part)
        kind = "tuple" if columns else gives
        named = [part.rpartition(":") for part in takes.split()]
        made = Computed(tuple(part for _, _, part in named), kind, module, extra, columns, naming, by_column)
        yield name, replace(made, strict=strict, about=about, names=tuple(part for part, _, _ in named))


COMPUTED: dict[str, Computed] = {}
"""All functions that Python computes, by name."""


def computed_sql(given: Given, *, name: str | None = None) -> str:
    """Return the call of a Python function in SQL. A library that is not installed is an error of its own."""
    name = name or given.name
    declared = COMPUTED[name]
    if declared.extra is not None:
        require(declared.extra, *_EXTRAS[declared.extra])
    kinds = declared.kinds(len(given))
    arguments = ", ".join(_argument(given, index, kind) for index, kind in enumerate(kinds))
    return f"py_{name}_{len(kinds)}({arguments})"


def _argument(given: Given, index: int, kind: str) -> str:
    value = given.values[index]
    if value.is_literal and value.value is None and value.kind != "string":
        types = {"bool": "BOOLEAN", "int": "BIGINT", "long": "BIGINT", "real": "DOUBLE"}
        return f"CAST(NULL AS {types.get(kind, 'VARCHAR')})"
    if kind == "measure":
        return measured(value) or given.refuse(index, "a number, a datetime or a timespan")
    if kind == "any":
        return f"CAST({converted(value, 'dynamic')} AS VARCHAR)"
    if kind in {"dynamic", "json"}:
        value.kind == "dynamic" or given.refuse(index, "a dynamic value")
        return f"CAST({value.sql} AS VARCHAR)"
    if kind == "string":
        return given.string(index)
    if kind == "bool":
        return f"kql_bool({to_text(value)})" if value.kind == "dynamic" else given.condition(index)
    if value.kind == "dynamic":
        return f"TRY_CAST({to_text(value)} AS {'DOUBLE' if kind == 'real' else 'BIGINT'})"
    if kind == "real" and value.kind == "timespan":
        return f"CAST({value.sql} AS DOUBLE)"
    value.kind in NUMBERS or given.refuse(index, "a number")
    return as_kind(value, kind)


def _built(given: Given) -> Typed:
    declared = COMPUTED[given.name]
    if declared.columns:
        hint = "use it on its own in extend, project or print"
        raise given.complain(f"{given.name}() returns several columns and cannot be part of an expression", hint)
    first = given.values[0].name
    prefix = "percentile_tdigest" if given.name == "percentiles_array_tdigest" else given.name
    names = {"first": first, "prefix": f"{prefix}_{first or ''}", None: None}
    name = names.get(declared.naming, declared.naming)
    if given.name == "percentile_tdigest" and len(given) > 2:  # noqa: PLR2004 - with a type
        return _typed_percentile(given, name)
    sql = computed_sql(given)
    if declared.gives == "dynamic":
        sql = f"CAST({sql} AS JSON)"
    return given.of(declared.gives, sql, name=name)


def _typed_percentile(given: Given, name: str | None) -> Typed:
    kind = given.values[2].value
    number = computed_sql(replace(given, values=given.values[:2]), name="sketch_percentile")
    converted_sql = {
        "real": number,
        "long": f"CAST({number} AS BIGINT)",
        "int": f"CAST({number} AS INTEGER)",
        "decimal": f"CAST({number} AS DECIMAL(38,18))",
        "datetime": f"make_timestamp(CAST({number} AS BIGINT))",
        "timespan": f"CAST({number} AS BIGINT)",
    }.get(kind)
    if converted_sql is None:
        raise given.complain(f"a percentile is not a {kind}", "use typeof(long), typeof(real) or typeof(datetime)")
    return given.of(kind, converted_sql, name=name)


def measured(value: Typed) -> str | None:
    """Return SQL for a number, a datetime or a timespan as a real, or None for any other value."""
    if value.kind == "datetime":
        return f"CAST(epoch_us({value.sql}) AS DOUBLE)"
    if value.kind == "timespan":
        return f"CAST({value.sql} AS DOUBLE)"
    return as_kind(value, "real") if value.kind in NUMBERS else None


def computed_columns(given: Given) -> list[Typed]:
    """Return the columns of a function that makes several. DuckDB computes their common call once."""
    sql, first = computed_sql(given), given.values[0].name or ""
    made = []
    for index, (suffix, kind) in enumerate(COMPUTED[given.name].columns):
        field = f"struct_extract({sql}, 'f{index}')"
        field = f"CAST({field} AS JSON)" if kind == "dynamic" else field
        made.append(replace(given.of(kind, field), name=f"{given.name}_{first}_{suffix}"))
    return made


# Statistics.

COMPUTED |= _declared(
    "statistics",
    "kql-series",
    {
        "beta_cdf": "x:real alpha:real beta:real -> real"
        " # Returns the cumulative probability of the beta distribution.",
        "beta_inv": "probability:real alpha:real beta:real -> real"
        " # Returns the inverse of the cumulative beta distribution.",
        "beta_pdf": "x:real alpha:real beta:real -> real # Returns the density of the beta distribution.",
        "welch_test": "mean1:real variance1:real count1:real mean2:real variance2:real count2:real -> real"
        " # Returns the p-value of Welch's test.",
    },
    by_column=True,
)
COMPUTED |= _declared(
    "statistics",
    "kql-series",
    {
        "erf": "number:real -> real # Returns the error function.",
        "erfc": "number:real -> real # Returns the complementary error function.",
        "gamma": "number:real -> real # Returns the gamma function.",
        "loggamma": "number:real -> real # Returns the logarithm of the gamma function.",
    },
    naming="first",
    by_column=True,
)

# Series.

_LINE = "rsquare:real slope:real variance:real rvariance:real interception:real line_fit:dynamic"
_SIDES = " ".join(
    f"{side}_{part}:real"
    for side in ("right", "left")
    for part in ("rsquare", "slope", "interception", "variance", "rvariance")
)
_TWO_LINES = f"rsquare:real split_idx:long variance:real rvariance:real line_fit:dynamic {_SIDES}"
_STATS = "min:real min_idx:long max:real max_idx:long avg:real stdev:real variance:real"
_PARTS = "baseline:dynamic seasonal:dynamic trend:dynamic residual:dynamic"
_PAIRS = ("add", "subtract", "multiply", "divide", "pow", "greater", "greater_equals", "less", "less_equals")
_EACH = ("exp", "sign", "abs", "sin", "asin", "cos", "acos", "tan", "atan", "log", "floor", "ceiling")

COMPUTED |= _declared(
    "series",
    "kql-series",
    {
        **{
            f"series_{name}": f"series1:any series2:any -> dynamic # Applies `{name}` to the elements of two series."
            for name in (*_PAIRS, "equals", "not_equals")
        },
        **{f"series_{name}": f"series:dynamic -> dynamic # Applies `{name}` to each element." for name in _EACH},
        "series_cosine_similarity": "series1:dynamic series2:dynamic series1_magnitude:real? series2_magnitude:real?"
        " -> real"
        " # Returns the cosine of two series.",
        "series_dot_product": "series1:any series2:any -> real # Returns the dot product of two series.",
        "series_magnitude": "series:dynamic -> real # Returns the magnitude of a series.",
        "series_pearson_correlation": "series1:dynamic series2:dynamic -> real"
        " # Returns the correlation of two series.",
        "series_product": "series:dynamic -> real # Multiplies the elements.",
        "series_stats": f"series:dynamic ignore_nonfinite:bool? -> {_STATS} # Returns statistics of a series.",
        "series_stats_dynamic": "series:dynamic ignore_nonfinite:bool? -> dynamic"
        " # Returns statistics of a series as a bag.",
        "series_sum": "series:dynamic -> real # Adds the elements.",
    },
)
COMPUTED |= _declared(
    "series",
    "kql-series",
    {
        "series_fill_backward": "series:dynamic missing_value_placeholder:any? -> dynamic"
        " # Fills missing elements with the next one.",
        "series_fill_const": "series:dynamic constant_value:any? missing_value_placeholder:any? -> dynamic"
        " # Fills missing elements with a constant.",
        "series_fill_forward": "series:dynamic missing_value_placeholder:any? -> dynamic"
        " # Fills missing elements with the last one.",
        "series_fill_linear": "series:dynamic missing_value_placeholder:any? fill_edges:bool? constant_value:any?"
        " -> dynamic"
        " # Fills missing elements by interpolation.",
        "series_fir": "series:dynamic filter:dynamic normalize:bool? center:bool? -> dynamic"
        " # Applies a finite impulse response filter.",
        "series_iir": "series:dynamic numerators:dynamic denominators:dynamic -> dynamic"
        " # Applies an infinite impulse response filter.",
    },
    naming="first",
)

COMPUTED |= _declared(
    "series_analysis",
    "kql-series",
    {
        "series_decompose": "series:dynamic period:long? trend:string? test_points:long? seasonality_threshold:real?"
        f" -> {_PARTS}"
        " # Splits a series into trend and seasons.",
        "series_decompose_anomalies": "series:dynamic threshold:real? period:long? trend:string? test_points:long?"
        " method:string? seasonality_threshold:real?"
        " -> ad_flag:dynamic ad_score:dynamic baseline:dynamic # Finds anomalies.",
        "series_decompose_forecast": "series:dynamic test_points:long period:long? trend:string?"
        f" seasonality_threshold:real? -> {_PARTS}"
        " # Predicts the last points.",
        "series_fft": "series:dynamic series_imaginary:dynamic? -> real:dynamic imag:dynamic"
        " # Returns the Fourier transform.",
        "series_fit_2lines": f"array:dynamic -> {_TWO_LINES} # Fits two lines.",
        "series_fit_2lines_dynamic": "series:dynamic -> dynamic # Fits two lines, as a bag.",
        "series_fit_line": f"series:dynamic -> {_LINE} # Fits a line.",
        "series_fit_line_dynamic": "series:dynamic -> dynamic # Fits a line, as a bag.",
        "series_fit_poly": "y_series:dynamic x_series:dynamic? degree:long?"
        " -> rsquare:real coefficients:dynamic variance:real rvariance:real poly_fit:dynamic # Fits a polynomial.",
        "series_ifft": "series:dynamic series_imaginary:dynamic? -> real:dynamic imag:dynamic"
        " # Returns the inverse Fourier transform.",
        "series_periods_detect": "series:dynamic min_period:real max_period:real num_periods:long"
        " -> periods:dynamic scores:dynamic"
        " # Finds periods.",
        "series_periods_validate": "series:dynamic period:real* -> periods:dynamic scores:dynamic # Scores periods.",
        "series_seasonal": "series:dynamic period:long? test_points:long? -> dynamic # Returns the seasonal component.",
    },
)
COMPUTED |= _declared(
    "series_analysis",
    "kql-series",
    {
        "series_outliers": "series:dynamic kind:string? ignore_val:real? min_percentile:real? max_percentile:real?"
        " test_points:long? -> dynamic # Scores outliers."
    },
    naming="first",
)

# Sketches. The names that begin with ``sketch_`` are parts of aggregates.

COMPUTED |= _declared(
    "sketches",
    None,
    {
        "dcount_hll": "hll:dynamic -> long # Estimates the number of different values of a sketch.",
        "percentile_tdigest": "tdigest:dynamic percentile1:real type:type? -> dynamic"
        " # Returns a percentile of a digest.",
        "percentiles_array_tdigest": "tdigest:dynamic percentile:any* -> dynamic"
        " # Returns several percentiles of a digest.",
    },
    naming="prefix",
)
COMPUTED |= _declared(
    "sketches",
    None,
    {
        "percentrank_tdigest": "digest:dynamic value:measure -> real"
        " # Returns the rank of a value in a digest, in per cent.",
        "rank_tdigest": "digest:dynamic value:measure -> real # Returns the rank of a value in a digest.",
        "sketch_hll": "dynamic long -> dynamic",
        "sketch_hll_merge": "dynamic -> dynamic",
        "sketch_percentile": "dynamic real -> real",
        "sketch_tdigest": "string long dynamic dynamic -> dynamic",
        "sketch_tdigest_merge": "dynamic -> dynamic",
        "sketch_tdigest_weighted": "string dynamic -> dynamic",
    },
)
COMPUTED |= _declared(
    "sketches",
    None,
    {"hll_merge": "hll1:dynamic hll:dynamic* -> dynamic # Joins sketches."},
    naming="hll_merged_result",
)
COMPUTED |= _declared(
    "sketches",
    None,
    {"tdigest_merge": "tdigest1:dynamic tdigest:dynamic* -> dynamic # Joins digests."},
    naming="tdigests_merge_result",
)
COMPUTED["merge_tdigest"] = replace(COMPUTED["tdigest_merge"], function="tdigest_merge")

# Geospatial.

COMPUTED |= _declared(
    "geo_cells",
    "kql-geo",
    {
        "geo_angle": "p1_longitude:real p1_latitude:real p2_longitude:real p2_latitude:real"
        " p3_longitude:real p3_latitude:real -> real"
        " # Returns the clockwise angle between two lines.",
        "geo_azimuth": "p1_longitude:real p1_latitude:real p2_longitude:real p2_latitude:real -> real"
        " # Returns the direction from one point to another.",
        "geo_distance_2points": "p1_longitude:real p1_latitude:real p2_longitude:real p2_latitude:real"
        " use_spheroid:bool? -> real"
        " # Returns the distance of two points.",
        "geo_point_in_circle": "p_longitude:real p_latitude:real pc_longitude:real pc_latitude:real c_radius:real"
        " -> bool"
        " # Returns whether a point is in a circle.",
    },
    by_column=True,
    strict=True,
)
COMPUTED |= _declared(
    "geo_cells",
    "kql-geo",
    {
        "geo_geohash_neighbors": "geohash:string -> dynamic # Returns the geohashes around one.",
        "geo_geohash_to_central_point": "geohash:string -> dynamic # Returns the middle of a geohash.",
        "geo_geohash_to_polygon": "geohash:string -> dynamic # Returns the rectangle of a geohash.",
        "geo_h3cell_children": "h3cell:string resolution:long? -> dynamic # Returns the H3 cells inside one.",
        "geo_h3cell_level": "h3cell:string -> int # Returns the resolution of an H3 cell.",
        "geo_h3cell_neighbors": "h3cell:string -> dynamic # Returns the H3 cells around one.",
        "geo_h3cell_parent": "h3cell:string resolution:long? -> string # Returns the H3 cell around one.",
        "geo_h3cell_rings": "h3cell:string distance:long -> dynamic # Returns the rings of H3 cells around one.",
        "geo_h3cell_to_central_point": "h3cell:string -> dynamic # Returns the middle of an H3 cell.",
        "geo_h3cell_to_polygon": "h3cell:string -> dynamic # Returns the corners of an H3 cell.",
        "geo_point_to_geohash": "longitude:real latitude:real accuracy:long? -> string"
        " # Returns the geohash of a point.",
        "geo_point_to_h3cell": "longitude:real latitude:real resolution:long? -> string"
        " # Returns the H3 cell of a point.",
        "geo_point_to_s2cell": "longitude:real latitude:real level:long? -> string # Returns the S2 cell of a point.",
        "geo_s2cell_neighbors": "s2cell:string -> dynamic # Returns the S2 cells around one.",
        "geo_s2cell_to_central_point": "s2cell:string -> dynamic # Returns the middle of an S2 cell.",
        "geo_s2cell_to_polygon": "s2cell:string -> dynamic # Returns the corners of an S2 cell.",
    },
    strict=True,
)
COMPUTED |= _declared(
    "geo_shapes",
    "kql-geo",
    {
        "geo_closest_point_on_line": "longitude:real latitude:real lineString:json -> dynamic"
        " # Returns the nearest point of a line.",
        "geo_closest_point_on_polygon": "longitude:real latitude:real polygon:json -> dynamic"
        " # Returns the nearest point of a polygon.",
        "geo_distance_point_to_line": "longitude:real latitude:real lineString:json -> real"
        " # Returns the distance of a point from a line.",
        "geo_distance_point_to_polygon": "longitude:real latitude:real polygon:json -> real"
        " # Returns the distance of a point from a polygon.",
        "geo_from_wkt": "wkt:string -> dynamic # Converts well-known text to GeoJSON.",
        "geo_intersection_2lines": "lineString1:json lineString2:json -> dynamic"
        " # Returns what two lines have in common.",
        "geo_intersection_2polygons": "polygon1:json polygon2:json -> dynamic"
        " # Returns what two polygons have in common.",
        "geo_intersection_line_with_polygon": "lineString:json polygon:json -> dynamic"
        " # Returns the part of a line in a polygon.",
        "geo_intersects_2lines": "lineString1:json lineString2:json -> bool # Returns whether two lines meet.",
        "geo_intersects_2polygons": "polygon1:json polygon2:json -> bool # Returns whether two polygons meet.",
        "geo_intersects_line_with_polygon": "lineString:json polygon:json -> bool"
        " # Returns whether a line and a polygon meet.",
        "geo_line_buffer": "lineString:json radius:real tolerance:real? -> dynamic"
        " # Returns what is within a distance of a line.",
        "geo_line_centroid": "lineString:json -> dynamic # Returns the centre of a line.",
        "geo_line_densify": "lineString:json tolerance:real? preserve_crossing:bool? -> dynamic"
        " # Returns a line with points added.",
        "geo_line_interpolate_point": "lineString:json fraction:real -> dynamic"
        " # Returns the point at a fraction of a line.",
        "geo_line_length": "lineString:json -> real # Returns the length of a line.",
        "geo_line_locate_point": "lineString:json longitude:real latitude:real use_spheroid:bool? -> real"
        " # Returns where a line is nearest to a point.",
        "geo_line_simplify": "lineString:json tolerance:real? -> dynamic # Returns a line with fewer points.",
        "geo_line_to_s2cells": "lineString:json level:long? radius:real? -> dynamic"
        " # Returns the S2 cells that cover a line.",
        "geo_point_buffer": "longitude:real latitude:real radius:real tolerance:real? -> dynamic"
        " # Returns what is within a distance of a point.",
        "geo_point_in_polygon": "longitude:real latitude:real polygon:json -> bool"
        " # Returns whether a point is in a polygon.",
        "geo_polygon_area": "polygon:json -> real # Returns the area of a polygon.",
        "geo_polygon_buffer": "polygon:json radius:real tolerance:real? -> dynamic"
        " # Returns what is within a distance of a polygon.",
        "geo_polygon_centroid": "polygon:json -> dynamic # Returns the centre of a polygon.",
        "geo_polygon_densify": "polygon:json tolerance:real? preserve_crossing:bool? -> dynamic"
        " # Returns a polygon with points added.",
        "geo_polygon_perimeter": "polygon:json -> real # Returns the length of the edges of a polygon.",
        "geo_polygon_simplify": "polygon:json tolerance:real? -> dynamic # Returns a polygon with fewer points.",
        "geo_polygon_to_h3cells": "polygon:json resolution:long? radius:real? -> dynamic"
        " # Returns the H3 cells of a polygon.",
        "geo_polygon_to_s2cells": "polygon:json level:long? radius:real? -> dynamic"
        " # Returns the S2 cells that cover a polygon.",
        "geo_simplify_polygons_array": "polygons:dynamic tolerance:real? -> dynamic"
        " # Returns polygons with fewer points.",
        "geo_union_lines_array": "lineStrings:dynamic -> dynamic # Returns the union of lines.",
        "geo_union_polygons_array": "polygons:dynamic -> dynamic # Returns the union of polygons.",
    },
    strict=True,
)


def _function(name: str, declared: Computed) -> Function:
    arguments = tuple(
        Argument(name, ("type",) if kind == "type?" else ("any",), kind.endswith("?"), kind.endswith("*"))
        for name, kind in zip(declared.names, declared.takes, strict=True)
    )
    return Function(name, arguments, declared.gives, declared.about, _built)


COMPUTED_FUNCTIONS = [_function(name, each) for name, each in COMPUTED.items() if not name.startswith("sketch_")]
"""The scalar functions that Python computes."""
