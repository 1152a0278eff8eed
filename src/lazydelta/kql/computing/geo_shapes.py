"""Geospatial functions of lines and polygons."""

from __future__ import annotations

import functools
import heapq
import itertools
import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import h3
import numpy as np
import s2sphere
import shapely
from geographiclib.geodesic import Geodesic
from numpy.typing import NDArray
from shapely.geometry.polygon import orient

from lazydelta.kql.computing.arrow_functions import UnfitError
from lazydelta.kql.computing.sphere import (
    RADIUS,
    Plane,
    Shape,
    along,
    angles,
    coordinates,
    line_shape,
    nearest,
    point_json,
    polygon_shape,
    shape_json,
    unit,
)

__all__: list[str] = []

Vectors = NDArray[np.float64]
_LEAST_TOLERANCE = 0.1
_SAME = 1e-12
# Cells that only touch a shape belong to its covering, whatever the last digits of both are.
_TOUCHING = 1e-13
_TOLERANCE = 10.0
_MOST_CELLS = 65_536
# The height of a place over the plane's horizon below which it is not projected.
_HORIZON = 0.05


def _place(lng: float, lat: float) -> Vectors:
    if not (-180 <= lng <= 180 and -90 <= lat <= 90):  # noqa: PLR2004 - degrees
        raise UnfitError
    east, north = math.radians(lng), math.radians(lat)
    flat = math.cos(north)
    return np.array([flat * math.cos(east), flat * math.sin(east), math.sin(north)])


def _lengths(chain: Vectors) -> Vectors:
    return angles(chain[:-1], chain[1:])


# Lengths, areas and centres.


def geo_line_length(text: str) -> float:
    """Return the length of a line in metres."""
    return sum(float(_lengths(chain).sum()) for chain in line_shape(text).vectors) * RADIUS


def geo_line_centroid(text: str) -> dict[str, Any]:
    """Return the centre of a line."""
    total = np.zeros(3)
    for chain in line_shape(text).vectors:
        half = np.tan(_lengths(chain) / 2)
        total += (half[:, None] * (chain[:-1] + chain[1:])).sum(axis=0)
    return point_json(total)


def geo_polygon_perimeter(text: str) -> float:
    """Return the length of the rings of a polygon in metres."""
    found = _checked(polygon_shape(text))
    return sum(float(_lengths(ring).sum()) for ring in found.vectors) * RADIUS


def _checked(found: Shape) -> Shape:
    """Return polygons that have an area; those of several that overlap are one."""
    plane = Plane(found.vectors)
    geometry = plane.geometry(found)
    if len(found.parts) == 1:
        return found
    return polygon_shape(json.dumps(plane.json(geometry)))


def _area(ring: Vectors) -> float:
    """Return the area of a ring on the unit sphere: the smaller side of it."""
    first, starts, ends = ring[0], ring[1:-2], ring[2:-1]
    # The solid angles of the triangles that fan out from the first corner.
    volume = np.cross(starts, ends) @ first
    below = 1 + starts @ first + (starts * ends).sum(axis=1) + ends @ first
    return abs(float(2 * np.arctan2(volume, below).sum()))


def geo_polygon_area(text: str) -> float:
    """Return the area of a polygon in square metres."""
    found = _checked(polygon_shape(text))
    total = 0.0
    for rings in found.parts:
        shell, *holes = (_area(unit(ring[:, 0], ring[:, 1])) for ring in rings)
        total += shell - sum(holes)
    return total * RADIUS**2


def geo_polygon_centroid(text: str) -> dict[str, Any]:
    """Return the centre of the area of a polygon."""
    total = np.zeros(3)
    for rings in _checked(polygon_shape(text)).parts:
        for index, ring in enumerate(rings):
            chain = unit(ring[:, 0], ring[:, 1])
            normals = np.cross(chain[:-1], chain[1:])
            sizes = np.linalg.norm(normals, axis=1, keepdims=True)
            sums = (normals / np.where(sizes > 0, sizes, 1) * _lengths(chain)[:, None]).sum(axis=0)
            # Whichever way a ring turns, a shell points outwards and a hole inwards.
            outwards = 1 if sums @ chain.mean(axis=0) >= 0 else -1
            total += sums * outwards * (1 if index == 0 else -1)
    return point_json(total)


# Distances and places on a line.


def geo_distance_point_to_line(lng: float, lat: float, text: str) -> float:
    """Return the shortest distance from a point to a line in metres."""
    place = _place(lng, lat)
    return min(nearest(place, chain)[0] for chain in _line_edges(text)) * RADIUS


def geo_distance_point_to_polygon(lng: float, lat: float, text: str) -> float:
    """Return the shortest distance from a point to a polygon in metres, which is 0 inside."""
    place = _place(lng, lat)
    if _contains(text, place):
        return 0.0
    return min(nearest(place, ring)[0] for ring in _polygon_edges(text)) * RADIUS


@functools.lru_cache(maxsize=256)
def _line_edges(text: str) -> list[Vectors]:
    """Return lines as unit vectors, once for many points."""
    return line_shape(text).vectors


@functools.lru_cache(maxsize=256)
def _polygon_edges(text: str) -> list[Vectors]:
    return polygon_shape(text).vectors


@functools.lru_cache(maxsize=256)
def _area_of(text: str) -> tuple[Plane, Any]:
    """Return a polygon on its plane, ready for many points."""
    found = polygon_shape(text)
    plane = Plane(found.vectors)
    geometry = plane.geometry(found)
    shapely.prepare(geometry)
    return plane, geometry


def _contains(text: str, place: Vectors) -> bool:
    plane, geometry = _area_of(text)
    if float(place @ plane.up) <= _HORIZON:
        return False  # too far away to be inside
    x, y = plane.flat(place).tolist()
    return bool(shapely.intersects_xy(geometry, x, y))


def geo_point_in_polygon(lng: float, lat: float, text: str) -> bool:
    """Return whether a point is inside a polygon."""
    return _contains(text, _place(lng, lat))


def geo_closest_point_on_line(lng: float, lat: float, text: str) -> dict[str, Any]:
    """Return the point of a line that is nearest to a point."""
    place = _place(lng, lat)
    found = (nearest(place, chain) for chain in _line_edges(text))
    return point_json(min(found, key=lambda each: each[0])[2])


def geo_closest_point_on_polygon(lng: float, lat: float, text: str) -> dict[str, Any]:
    """Return the point of a polygon that is nearest to a point, which is the point itself inside."""
    place = _place(lng, lat)
    if _contains(text, place):
        return {"type": "Point", "coordinates": [lng, lat]}
    return point_json(min((nearest(place, ring) for ring in _polygon_edges(text)), key=lambda each: each[0])[2])


def _one_line(text: str) -> Vectors:
    found = line_shape(text)
    if len(found.parts) > 1:
        raise UnfitError
    return found.vectors[0]


def geo_line_interpolate_point(text: str, fraction: float) -> dict[str, Any]:
    """Return the point at a fraction of the length of a line."""
    chain = _one_line(text)
    if not 0 <= fraction <= 1:
        raise UnfitError
    lengths = _lengths(chain)
    left = fraction * float(lengths.sum())
    for index, length in enumerate(lengths.tolist()):
        if left <= length and length:
            return point_json(along(chain[index], chain[index + 1], left / length))
        left -= length
    return point_json(chain[-1])


def geo_line_locate_point(text: str, lng: float, lat: float, spheroid: Any = None) -> float:
    """Return the fraction of a line at which it is nearest to a point; ``spheroid`` measures on WGS 84."""
    chain, place = _one_line(text), _place(lng, lat)
    _, index, foot = nearest(place, chain)
    if spheroid:
        return _on_spheroid([*chain[: index + 1], foot]) / _on_spheroid(list(chain))
    lengths = _lengths(chain)
    before = float(lengths[:index].sum()) + float(angles(chain[index], foot))
    return min(before / float(lengths.sum()), 1.0)


def _on_spheroid(chain: list[Vectors]) -> float:
    places = coordinates(np.array(chain)).tolist()
    pairs = itertools.pairwise(places)
    return sum(
        float(Geodesic.WGS84.Inverse(one[1], one[0], other[1], other[0], Geodesic.DISTANCE)["s12"])
        for one, other in pairs
    )


# Intersections and unions.


def _plane_of(*shapes: Shape) -> Plane:
    return Plane([chain for each in shapes for chain in each.vectors])


def _intersects(one: Shape, other: Shape) -> bool:
    plane = _plane_of(one, other)
    return bool(plane.geometry(one).intersects(plane.geometry(other)))


def geo_intersects_2lines(one: str, other: str) -> bool:
    """Return whether two lines meet."""
    return _intersects(line_shape(one), line_shape(other))


def geo_intersects_2polygons(one: str, other: str) -> bool:
    """Return whether two polygons meet."""
    return _intersects(polygon_shape(one), polygon_shape(other))


def geo_intersects_line_with_polygon(line: str, polygon: str) -> bool:
    """Return whether a line and a polygon meet."""
    return _intersects(line_shape(line), polygon_shape(polygon))


def _intersection(one: Shape, other: Shape) -> dict[str, Any] | None:
    plane = _plane_of(one, other)
    geometries = [plane.geometry(each) for each in (one, other)]
    made = geometries[0].intersection(geometries[1])
    if made.is_empty:
        return {"type": "GeometryCollection", "geometries": []}
    if made.geom_type == "Polygon" and all(each.geom_type.endswith("Polygon") for each in geometries):
        made = _from_edges(made, geometries)
    return plane.json(shapely.line_merge(made) if made.geom_type == "MultiLineString" else made)


def geo_intersection_2lines(one: str, other: str) -> dict[str, Any] | None:
    """Return what two lines have in common."""
    return _intersection(line_shape(one), line_shape(other))


def geo_intersection_2polygons(one: str, other: str) -> dict[str, Any] | None:
    """Return the area that two polygons have in common."""
    return _intersection(polygon_shape(one), polygon_shape(other))


def geo_intersection_line_with_polygon(line: str, polygon: str) -> dict[str, Any] | None:
    """Return the part of a line inside a polygon."""
    return _intersection(line_shape(line), polygon_shape(polygon))


def _each(values: Any, parse: Callable[[str], Shape]) -> list[Shape]:
    if not isinstance(values, list) or not values:
        raise UnfitError
    return [parse(json.dumps(each)) for each in values]


def geo_union_lines_array(values: Any) -> dict[str, Any] | None:
    """Return the union of lines."""
    shapes = _each(values, line_shape)
    plane = _plane_of(*shapes)
    made = shapely.union_all([plane.geometry(each) for each in shapes])
    return plane.json(shapely.line_merge(made) if made.geom_type == "MultiLineString" else made)


def geo_union_polygons_array(values: Any) -> dict[str, Any] | None:
    """Return the union of polygons."""
    shapes = _each(values, polygon_shape)
    plane = _plane_of(*shapes)
    # Neighbours whose corners differ in the last digit are to be one area without slivers between them.
    geometries = [plane.geometry(each) for each in shapes]
    made = shapely.union_all(geometries, grid_size=1e-14)
    return plane.json(_from_edges(made, _merging_order(geometries)))


def _merging_order(geometries: list[Any]) -> list[Any]:
    """Return polygons in the order in which Kusto merges them: always the two with the fewest corners."""
    waiting = [(shapely.get_num_coordinates(each), at, [each]) for at, each in enumerate(geometries)]
    heapq.heapify(waiting)
    while len(waiting) > 1:
        one, other = heapq.heappop(waiting), heapq.heappop(waiting)
        heapq.heappush(waiting, (one[0] + other[0], len(geometries) + one[1], [*one[2], *other[2]]))
    return waiting[0][2]


def _from_edges(made: Any, sources: list[Any]) -> Any:
    """Return a polygon whose ring ends with the last of its edges that stem from the sources, as Kusto returns it."""
    if made.geom_type != "Polygon" or made.interiors or made.is_empty:
        return made
    corners = list(made.exterior.coords)[:-1]
    corners = corners if made.exterior.is_ccw else corners[::-1]
    sides = [shapely.LineString(pair) for pair in itertools.pairwise([*corners, corners[0]])]
    for source in reversed(sources):
        rings = [ring for piece in _polygons(source) for ring in (orient(piece).exterior, *orient(piece).interiors)]
        for ring in reversed(rings):
            for start, end in reversed(list(itertools.pairwise(ring.coords))):
                near = shapely.LineString((start, end)).buffer(_SAME)
                found = [at for at, side in enumerate(sides) if side.within(near)]
                if found:
                    # Of the pieces of one edge, the one at its end is the last.
                    last = min(found, key=lambda at: shapely.Point(sides[at].coords[1]).distance(shapely.Point(end)))
                    return shapely.Polygon([*corners[last + 1 :], *corners[: last + 1]])
    return made


# Simpler and denser shapes.


def _tolerance(tolerance: float | None, least: float = _LEAST_TOLERANCE) -> float:
    chosen = _TOLERANCE if tolerance is None else tolerance
    if not math.isfinite(chosen) or chosen < least:
        raise UnfitError
    return chosen


def _simplified(found: Shape, tolerance: float | None) -> dict[str, Any]:
    limit = _tolerance(tolerance) / RADIUS
    kind = "LineString" if found.kind.endswith("LineString") else "Polygon"
    parts = []
    for part in found.parts:
        chains = [chain for chain in (_thinned(each, limit, kind) for each in part) if chain is not None]
        if chains:
            parts.append(chains[0] if kind == "LineString" else chains)
    if not parts:
        raise UnfitError
    return shape_json(kind, parts)


def _thinned(chain: Vectors, limit: float, kind: str) -> list[Any] | None:
    """Return a chain with as few of its corners as stay within the limit, or None if it shrinks to a point."""
    vectors = unit(chain[:, 0], chain[:, 1])
    if float(angles(vectors, np.broadcast_to(vectors[0], vectors.shape)).max()) <= limit:
        return None
    plane = Plane([vectors])
    flat = [tuple(each) for each in plane.flat(vectors).tolist()]
    made = shapely.LineString(flat).simplify(limit, preserve_topology=False)
    if kind == "Polygon" and not made.is_simple:
        made = shapely.LineString(flat).simplify(limit, preserve_topology=True)
    # The corners that are kept keep their coordinates to the last digit.
    places = dict(zip(flat, chain.tolist(), strict=True))
    kept = [places[tuple(each)] for each in made.coords]
    return kept if kind == "LineString" or len(kept) >= 4 else None  # noqa: PLR2004 - a closed triangle


def geo_line_simplify(text: str, tolerance: float | None = None) -> dict[str, Any]:
    """Return a line without corners that are within so many metres of it."""
    return _simplified(line_shape(text), tolerance)


def geo_polygon_simplify(text: str, tolerance: float | None = None) -> dict[str, Any]:
    """Return a polygon without corners that are within so many metres of its edges."""
    return _simplified(_checked(polygon_shape(text)), tolerance)


def geo_simplify_polygons_array(values: Any, tolerance: float | None = None) -> dict[str, Any]:
    """Return polygons, simplified together so that common edges stay common."""
    limit = _tolerance(tolerance) / RADIUS
    shapes = _each(values, polygon_shape)
    plane = _plane_of(*shapes)
    pieces = [piece for each in shapes for piece in _polygons(plane.geometry(each))]
    made = shapely.coverage_simplify(pieces, limit)
    parts = [plane.json(each) for each in made if not each.is_empty]
    if not parts:
        raise UnfitError
    return shape_json("Polygon", [each["coordinates"] for each in parts if each is not None])


def _polygons(geometry: Any) -> list[Any]:
    return list(getattr(geometry, "geoms", [geometry]))


def _densified(found: Shape, tolerance: float | None) -> dict[str, Any]:
    limit = _tolerance(tolerance) / RADIUS
    kind = "LineString" if found.kind.endswith("LineString") else "Polygon"
    parts: list[Any] = []
    for part in found.parts:
        chains = [_with_more(chain, limit) for chain in part]
        parts.append(chains[0] if kind == "LineString" else chains)
    return shape_json(kind, parts)


def _with_more(chain: Vectors, limit: float) -> list[Any]:
    places = chain.tolist()
    dense = [places[0]]
    for one, other in itertools.pairwise(places):
        # The shorter way round, as the planar edge goes.
        count = 1
        while count < 1 << 16 and _bend(one, other, count) > limit:
            count *= 2
        steps = [[one[axis] + (other[axis] - one[axis]) * step / count for axis in (0, 1)] for step in range(1, count)]
        dense += [*steps, other]
    return dense


def _bend(one: list[float], other: list[float], count: int) -> float:
    """Return how far the planar edge, cut into so many pieces, is from the great circles between their ends."""
    fractions = np.arange(count + 1) / count
    flat = np.array(one) + fractions[:, None] * (np.array(other) - np.array(one))
    ends = unit(flat[:, 0], flat[:, 1])
    # About a third of the way is where the curve is furthest from its chord on either side of the middle.
    largest = 0.0
    for fraction in (0.31215691082248312, 0.5, 1 - 0.31215691082248312):
        middle = flat[:-1] + fraction * (flat[1:] - flat[:-1])
        normals = np.cross(ends[:-1], ends[1:])
        sizes = np.linalg.norm(normals, axis=1)
        away = np.abs((unit(middle[:, 0], middle[:, 1]) * normals).sum(axis=1)) / np.where(sizes > 0, sizes, 1)
        largest = max(largest, float(np.arcsin(np.clip(away, 0, 1)).max()))
    return largest


def geo_line_densify(text: str, tolerance: float | None = None, preserve: Any = None) -> dict[str, Any]:
    """Return a line whose planar edges have points added until great circles follow them."""
    del preserve  # the points are always on the planar edge
    return _densified(line_shape(text), tolerance)


def geo_polygon_densify(text: str, tolerance: float | None = None, preserve: Any = None) -> dict[str, Any]:
    """Return a polygon whose planar edges have points added until great circles follow them."""
    del preserve
    return _densified(_checked(polygon_shape(text)), tolerance)


# Buffers.


def _buffer(vectors: list[Vectors], make: Callable[[Plane], Any], radius: float, tolerance: float | None) -> Any:
    """Return what is within so many metres of a shape, on the plane that touches the Earth at its middle."""
    if not math.isfinite(radius) or not radius or abs(radius) > 1e6:  # noqa: PLR2004 - a tenth of the way to the pole
        raise UnfitError
    limit = _tolerance(tolerance, 0.001) if tolerance is not None else max(abs(radius) / 1000, _LEAST_TOLERANCE)
    # A quarter of a circle in so many chords is nowhere further from it than the tolerance.
    chords = math.ceil(math.pi / 4 / math.acos(max(1 - min(limit / abs(radius), 1), 0.7)))
    plane = Plane(vectors)
    made = make(plane).buffer(math.tan(abs(radius) / RADIUS) * math.copysign(1, radius), quad_segs=max(chords, 2))
    found = plane.json(made)
    if found is None:
        raise UnfitError
    return found


def geo_point_buffer(lng: float, lat: float, radius: float, tolerance: float | None = None) -> dict[str, Any]:
    """Return a polygon around the places within so many metres of a point."""
    place = _place(lng, lat)
    if radius <= 0:
        raise UnfitError
    found: dict[str, Any] = _buffer([place], lambda plane: shapely.Point(plane.flat(place)), radius, tolerance)
    return found


def geo_line_buffer(text: str, radius: float, tolerance: float | None = None) -> dict[str, Any]:
    """Return a polygon around the places within so many metres of a line."""
    found = line_shape(text)
    if radius <= 0:
        raise UnfitError
    made: dict[str, Any] = _buffer(found.vectors, lambda plane: plane.geometry(found), radius, tolerance)
    return made


def geo_polygon_buffer(text: str, radius: float, tolerance: float | None = None) -> dict[str, Any]:
    """Return a polygon that is larger by so many metres, or smaller if the radius is negative."""
    found = polygon_shape(text)
    made: dict[str, Any] = _buffer(found.vectors, lambda plane: plane.geometry(found), radius, tolerance)
    return made


# Cells that cover a shape.


def geo_polygon_to_h3cells(text: str, resolution: int | None = None, radius: float | None = None) -> list[str]:
    """Return the H3 cells whose middle is inside a polygon, which may be widened by a buffer first."""
    wanted = 6 if resolution is None else resolution
    if not 0 <= wanted <= 15:  # noqa: PLR2004 - the resolutions of H3
        raise UnfitError
    found = _checked(polygon_shape(text if radius is None else json.dumps(geo_polygon_buffer(text, radius))))
    size = geo_polygon_area(
        json.dumps(shape_json("Polygon", [[ring.tolist() for ring in part] for part in found.parts]))
    )
    if size / h3.average_hexagon_area(wanted, "m^2") > _MOST_CELLS:
        raise UnfitError
    cells: dict[str, None] = {}
    for rings in found.parts:
        shell, *holes = ([(lat, lng) for lng, lat in ring[:-1].tolist()] for ring in rings)
        cells |= dict.fromkeys(h3.polygon_to_cells(h3.LatLngPoly(shell, *holes), wanted))
    return list(cells)


def _covering(found: Shape, level: int) -> list[str]:
    """Return the S2 cells of a level that meet a shape."""
    if not 0 <= level <= 30:  # noqa: PLR2004 - the levels of S2
        raise UnfitError
    plane = _plane_of(found)
    geometry = plane.geometry(found)
    reach = max(float(angles(chain, np.broadcast_to(plane.up, chain.shape)).max()) for chain in found.vectors)
    met = [cell for cell in map(_face, range(6)) if _meets(plane, geometry, reach, cell)]
    for _ in range(level):
        met = [child for cell in met for child in cell.children() if _meets(plane, geometry, reach, child)]
        if len(met) > _MOST_CELLS:
            raise UnfitError
    return [cell.to_token() for cell in met]


def _face(face: int) -> s2sphere.CellId:
    return s2sphere.CellId.from_face_pos_level(face, 0, 0)


def _meets(plane: Plane, geometry: Any, reach: float, cell: s2sphere.CellId) -> bool:
    whole = s2sphere.Cell(cell)
    corners = np.array([_xyz(whole.get_vertex(index)) for index in range(4)])
    center = _xyz(whole.get_center())
    size = float(angles(corners, np.broadcast_to(center, corners.shape)).max())
    if float(angles(center, plane.up)) > reach + size:
        return False
    if float((corners @ plane.up).min()) <= _HORIZON:
        return True  # so large that some of its parts may meet it
    return bool(shapely.dwithin(shapely.Polygon(plane.flat(corners)), geometry, _TOUCHING))


def _xyz(point: Any) -> Vectors:
    made = np.array([point[0], point[1], point[2]])
    return np.asarray(made / np.linalg.norm(made))


def geo_polygon_to_s2cells(text: str, level: int | None = None, radius: float | None = None) -> list[str]:
    """Return the S2 cells of a level that cover a polygon, which may be widened by a buffer first."""
    found = text if radius is None else json.dumps(geo_polygon_buffer(text, radius))
    return _covering(_checked(polygon_shape(found)), 11 if level is None else level)


def geo_line_to_s2cells(text: str, level: int | None = None, radius: float | None = None) -> list[str]:
    """Return the S2 cells of a level that cover a line, which may be widened by a buffer first."""
    found = line_shape(text) if radius is None else polygon_shape(json.dumps(geo_line_buffer(text, radius)))
    return _covering(found, 11 if level is None else level)


# Text.


def geo_from_wkt(text: str) -> dict[str, Any]:
    """Return a geometry in well-known text as GeoJSON."""
    try:
        made: dict[str, Any] = json.loads(shapely.to_geojson(shapely.from_wkt(text)))
    except (shapely.errors.GEOSException, ValueError, TypeError) as error:
        raise UnfitError from error
    for lng, lat in _places(made):
        _place(lng, lat)
    return made


def _places(geometry: dict[str, Any]) -> Iterator[tuple[float, float]]:
    waiting = [geometry.get("coordinates", []), *(each["coordinates"] for each in geometry.get("geometries", []))]
    while waiting:
        each = waiting.pop()
        if each and isinstance(each[0], list):
            waiting += each
        elif each:
            yield each[0], each[1]
