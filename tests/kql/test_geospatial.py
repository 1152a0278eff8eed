"""Geospatial functions, against GeographicLib on a sphere and the libraries of the cells."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import h3
import pytest
import s2sphere
from geographiclib.geodesic import Geodesic

from lazydelta.kql import query

SPHERE = Geodesic(6_371_010, 0)
# A triangle, a square with a hole and the line along its diagonal.
TRIANGLE = [[10.0, 50.0], [10.5, 50.0], [10.2, 50.4], [10.0, 50.0]]
SQUARE = [[0, 0], [1, 0], [1, 1], [0, 1], [0, 0]]
HOLE = [[0.4, 0.4], [0.4, 0.6], [0.6, 0.6], [0.6, 0.4], [0.4, 0.4]]


def shape(kind: str, coordinates: Any) -> str:
    return f"dynamic({json.dumps({'type': kind, 'coordinates': coordinates})})"


def values(*expressions: str) -> list[Any]:
    with query("print " + ", ".join(f"x{index} = {each}" for index, each in enumerate(expressions))) as result:
        (row,) = result.read_all().to_pylist()
        return [
            json.loads(value) if result.kinds[name] == "dynamic" and value is not None else value
            for name, value in row.items()
        ]


def test_distances_and_directions_against_geographiclib() -> None:
    drawn = random.Random(5)
    rows = [
        [drawn.uniform(-180, 180), drawn.uniform(-85, 85), drawn.uniform(-180, 180), drawn.uniform(-85, 85)]
        for _ in range(50)
    ]
    cells = ", ".join(f"real({each!r})" for row in rows for each in row)
    text = (
        f"datatable(a: real, b: real, c: real, d: real) [{cells}]"
        " | project geo_distance_2points(a, b, c, d), geo_azimuth(a, b, c, d), geo_distance_2points(a, b, c, d, true)"
    )
    with query(text) as result:
        found = [list(row.values()) for row in result.read_all().to_pylist()]
    for (lng1, lat1, lng2, lat2), (distance, azimuth, spheroid) in zip(rows, found, strict=True):
        path = SPHERE.Inverse(lat1, lng1, lat2, lng2)
        assert distance == pytest.approx(path["s12"])
        assert azimuth == pytest.approx(math.radians(path["azi1"]) % (2 * math.pi))
        assert spheroid == pytest.approx(Geodesic.WGS84.Inverse(lat1, lng1, lat2, lng2)["s12"])


def test_lengths_areas_and_centres() -> None:
    polygon = SPHERE.Polygon()
    for lng, lat in TRIANGLE[:-1]:
        polygon.AddPoint(lat, lng)
    _, perimeter, area = polygon.Compute()
    triangle = shape("Polygon", [TRIANGLE])
    found = values(
        f"geo_polygon_area({triangle})",
        f"geo_polygon_perimeter({triangle})",
        f"geo_line_length({shape('LineString', TRIANGLE)})",
        f"geo_polygon_area({shape('Polygon', [SQUARE, HOLE])})",
        f"geo_polygon_area({shape('Polygon', [SQUARE])}) - geo_polygon_area({shape('Polygon', [HOLE])})",
        f"geo_polygon_area({shape('MultiPolygon', [[SQUARE], [SQUARE]])})",
        f"geo_polygon_area({shape('Polygon', [SQUARE])})",
    )
    assert found[:3] == pytest.approx([area, perimeter, perimeter])
    assert found[3] == pytest.approx(found[4])
    assert found[5] == pytest.approx(found[6])
    point = values(f"geo_polygon_centroid({shape('Polygon', [SQUARE])})")[0]
    assert point == {"type": "Point", "coordinates": pytest.approx([0.5, 0.5], abs=1e-4)}


def test_points_of_lines() -> None:
    line = shape("LineString", [[0, 0], [10, 0], [10, 10]])
    found = values(
        f"geo_line_interpolate_point({line}, 0.75)",
        f"geo_line_locate_point({line}, 5, 3)",
        f"geo_closest_point_on_line(5, 3, {line})",
        f"geo_distance_point_to_line(5, 3, {line})",
        f"geo_line_interpolate_point({line}, 2)",
        f"geo_line_centroid({shape('LineString', [[0, 0], [4, 0]])})",
    )
    assert found[0]["coordinates"] == pytest.approx([10, 5])
    assert found[1] == pytest.approx(0.25)
    assert found[2]["coordinates"] == pytest.approx([5, 0])
    assert found[3] == pytest.approx(SPHERE.Inverse(3, 5, 0, 5)["s12"])
    assert found[4] is None
    assert found[5]["coordinates"] == pytest.approx([2, 0])


def test_polygons_contain_meet_and_join() -> None:
    square, hole = shape("Polygon", [SQUARE]), shape("Polygon", [SQUARE, HOLE])
    moved = shape("Polygon", [[[lng + 0.5, lat] for lng, lat in SQUARE]])
    found = values(
        f"geo_point_in_polygon(0.5, 0.5, {square})",
        f"geo_point_in_polygon(0.5, 0.5, {hole})",
        f"geo_point_in_polygon(-170, 0.5, {square})",
        f"geo_distance_point_to_polygon(0.5, 0.5, {square})",
        f"geo_intersects_2polygons({square}, {moved})",
        f"geo_polygon_area(geo_intersection_2polygons({square}, {moved})) / geo_polygon_area({square})",
        f"geo_polygon_area(geo_union_polygons_array(pack_array({square}, {moved}))) / geo_polygon_area({square})",
        f"geo_intersection_line_with_polygon({shape('LineString', [[-1, 0.5], [0.5, 0.5]])}, {square})",
        f"geo_intersection_2polygons({square}, {shape('Polygon', [TRIANGLE])})",
        f"geo_point_in_circle(0, 0, 0, 1, {SPHERE.Inverse(0, 0, 1, 0)['s12'] + 1})",
        "geo_polygon_area(geo_point_buffer(7, 50, 1000)) / (pi() * 1e6)",
        f"geo_polygon_area(geo_polygon_buffer({square}, 1000)) > geo_polygon_area({square})",
    )
    assert found[:5] == [True, False, False, 0.0, True]
    assert found[5:7] == pytest.approx([0.5, 1.5], rel=1e-3)
    assert found[7]["type"] == "LineString"
    assert found[7]["coordinates"][0] == pytest.approx([0, 0.5], abs=1e-3)
    assert found[8] == {"type": "GeometryCollection", "geometries": []}
    assert found[9] is True
    assert found[10] == pytest.approx(1, rel=1e-2)
    assert found[11] is True


def test_rings_begin_after_the_edge_that_the_reference_puts_last() -> None:
    two = [[[0, 0], [4, 0], [4, 4], [0, 4], [0, 0]]], [[[3, 1], [6, 1], [6, 3], [3, 1]]]
    one, other = (shape("Polygon", each) for each in two)
    union, common = values(
        f"geo_union_polygons_array(pack_array({one}, {other}))", f"geo_intersection_2polygons({one}, {other})"
    )
    # Merged, the polygon with fewer corners comes first; an intersection keeps the order.
    assert union["coordinates"][0][0] == pytest.approx([0, 0], abs=1e-9)
    assert common["coordinates"][0][0] == pytest.approx([3, 1])
    nearly = shape("Polygon", [[[0, 0], [1e-3, 1e-5], [2e-3, 0], [1e-3, 2e-3], [0, 0]]])
    assert len(values(f"geo_polygon_simplify({nearly}, 10)")[0]["coordinates"][0]) == 4


def test_cells_against_their_libraries() -> None:
    drawn = random.Random(9)
    for _ in range(5):
        lng, lat = drawn.uniform(-180, 180), drawn.uniform(-85, 85)
        cell = h3.latlng_to_cell(lat, lng, 7)
        token = s2sphere.CellId.from_lat_lng(s2sphere.LatLng.from_degrees(lat, lng)).parent(12).to_token()
        place = f"real({lng!r}), real({lat!r})"
        found = values(
            f"geo_point_to_h3cell({place}, 7)",
            f"geo_point_to_s2cell({place}, 12)",
            f"geo_h3cell_parent('{cell}')",
            f"geo_h3cell_children('{cell}')",
            f"geo_point_in_polygon({place}, geo_h3cell_to_polygon('{cell}'))",
            f"geo_point_in_polygon({place}, geo_s2cell_to_polygon('{token}'))",
            f"geo_polygon_to_s2cells(geo_s2cell_to_polygon('{token}'), 12)",
            f"geo_point_in_polygon({place}, geo_geohash_to_polygon(geo_point_to_geohash({place}, 6)))",
        )
        assert found[:3] == [cell, token, h3.cell_to_parent(cell)]
        assert set(found[3]) == set(h3.cell_to_children(cell))
        assert found[4:6] == [True, True]
        assert token in found[6]
        assert found[7] is True


def test_geohashes() -> None:
    found = values(
        "geo_point_to_geohash(-5.6, 42.6, 5)",
        "geo_geohash_to_central_point('ezs42')",
        "geo_geohash_neighbors('ezs42')",
        "geo_geohash_to_polygon('a')",
    )
    assert found[0] == "ezs42"
    assert found[1]["coordinates"] == pytest.approx([-5.603, 42.605], abs=1e-3)
    assert sorted(found[2]) == ["ezefp", "ezefr", "ezefx", "ezs40", "ezs41", "ezs43", "ezs48", "ezs49"]
    assert found[3] is None


def test_shapes_become_simpler_and_denser() -> None:
    found = values(
        f"geo_line_simplify({shape('LineString', [[0, 0], [0.5, 0.00001], [1, 0]])}, 10)",
        f"geo_line_densify({shape('LineString', [[0, 60], [20, 60]])}, 1000)",
        "geo_from_wkt('LINESTRING (1 2, 3 4)')",
    )
    assert found[0]["coordinates"] == [[0, 0], [1, 0]]
    assert len(found[1]["coordinates"]) > 4
    assert {lat for _, lat in found[1]["coordinates"]} == {60}
    assert found[2] == {"type": "LineString", "coordinates": [[1, 2], [3, 4]]}


@pytest.mark.parametrize(
    "expression",
    [
        "geo_distance_2points(181, 0, 0, 0)",
        "geo_azimuth(1, 1, 1, 1)",
        "geo_polygon_area(dynamic({'type': 'Polygon', 'coordinates': [[[0, 0], [1, 1], [0, 0]]]}))",
        "geo_polygon_area(dynamic({'type': 'Polygon', 'coordinates': [[[0, 0], [1, 1], [1, 0], [0, 1], [0, 0]]]}))",
        "geo_line_length(dynamic({'type': 'Point', 'coordinates': [0, 0]}))",
        "geo_s2cell_to_polygon('xyz')",
        "geo_h3cell_children('862a1072fffffff', 99)",
        "geo_line_length(dynamic(null))",
        "geo_from_wkt('POINT (200 0)')",
    ],
)
def test_what_is_no_place_is_null(expression: str) -> None:
    assert values(expression) == [None]
