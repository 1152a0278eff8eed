"""Geometry on a sphere: points as unit vectors, edges as parts of great circles, and GeoJSON in and out of that.

A gnomonic projection turns great circles into straight lines, so Shapely's operations on the plane are exact for what
lies in one hemisphere. Results are as if computed on the sphere, with its radius of 6,371,010 m.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec
import numpy as np
import shapely
from numpy.typing import NDArray

from lazydelta.kql.computing.arrow_functions import UnfitError

__all__ = ["RADIUS", "Plane", "Shape", "angles", "coordinates", "line_shape", "polygon_shape", "shape", "unit"]

RADIUS = 6_371_010.0
"""The radius of the Earth in metres, as a sphere."""

Vectors = NDArray[np.float64]
_FURTHEST = math.cos(math.radians(85))
_POINTS_OF_A_RING = 4


def are_valid(longitudes: Any, latitudes: Any) -> NDArray[np.bool_]:
    """Return which of these are coordinates of a place."""
    longitude, latitude = np.asarray(longitudes, float), np.asarray(latitudes, float)
    return np.asarray((np.abs(longitude) <= 180) & (np.abs(latitude) <= 90))  # noqa: PLR2004 - degrees


def unit(longitudes: Any, latitudes: Any) -> Vectors:
    """Return places as unit vectors."""
    east, north = np.radians(np.asarray(longitudes, float)), np.radians(np.asarray(latitudes, float))
    return np.stack([np.cos(north) * np.cos(east), np.cos(north) * np.sin(east), np.sin(north)], axis=-1)


def coordinates(vectors: Vectors) -> Vectors:
    """Return vectors of any length as longitudes and latitudes."""
    flat = np.hypot(vectors[..., 0], vectors[..., 1])
    east, north = np.arctan2(vectors[..., 1], vectors[..., 0]), np.arctan2(vectors[..., 2], flat)
    return np.asarray(np.degrees(np.stack([east, north], axis=-1)))


def angles(one: Vectors, other: Vectors) -> Vectors:
    """Return the angles between vectors, exact for small ones too."""
    return np.asarray(np.arctan2(np.linalg.norm(np.cross(one, other), axis=-1), (one * other).sum(axis=-1)))


def bearings(one: Vectors, other: Vectors) -> Vectors:
    """Return the direction from one place to another, clockwise from north, in radians from 0 to 2 pi."""
    east = np.stack([-one[..., 1], one[..., 0], np.zeros_like(one[..., 0])], axis=-1)
    length = np.linalg.norm(east, axis=-1, keepdims=True)
    pole = np.broadcast_to(np.array([0.0, 1.0, 0.0]), east.shape)
    east = np.where(length > 0, east / np.where(length > 0, length, 1), pole)
    north = np.cross(one, east)
    return np.asarray(np.arctan2((other * east).sum(axis=-1), (other * north).sum(axis=-1)) % (2 * math.pi))


# GeoJSON.


class Shape(NamedTuple):
    """Lines, or the rings of polygons: longitudes and latitudes as arrays of two columns."""

    kind: str
    parts: tuple[tuple[Vectors, ...], ...]

    @property
    def chains(self) -> list[Vectors]:
        """All lines or rings."""
        return [chain for part in self.parts for chain in part]

    @property
    def vectors(self) -> list[Vectors]:
        """All lines or rings as unit vectors."""
        return [unit(chain[:, 0], chain[:, 1]) for chain in self.chains]


@functools.lru_cache(maxsize=1024)
def shape(text: str) -> Shape:
    """Return a LineString, a Polygon or several of either. What is none of them has no result."""
    value = msgspec.json.decode(text)
    kind = value.get("type") if isinstance(value, dict) else None
    given = value.get("coordinates") if isinstance(value, dict) else None
    if kind == "LineString":
        return Shape(kind, ((_line(given),),))
    if kind == "MultiLineString" and isinstance(given, list) and given:
        return Shape(kind, tuple((_line(each),) for each in given))
    if kind == "Polygon":
        return Shape(kind, (_rings(given),))
    if kind == "MultiPolygon" and isinstance(given, list) and given:
        return Shape(kind, tuple(_rings(each) for each in given))
    raise UnfitError


def line_shape(text: str) -> Shape:
    """Return one or several lines."""
    found = shape(text)
    if not found.kind.endswith("LineString"):
        raise UnfitError
    return found


def polygon_shape(text: str) -> Shape:
    """Return one or several polygons."""
    found = shape(text)
    if not found.kind.endswith("Polygon"):
        raise UnfitError
    return found


def _chain(given: Any) -> Vectors:
    try:
        places = np.array([[float(each[0]), float(each[1])] for each in given])
    except (TypeError, ValueError, IndexError, KeyError) as error:
        raise UnfitError from error
    if not len(places) or not are_valid(places[:, 0], places[:, 1]).all():
        raise UnfitError
    return places


def _line(given: Any) -> Vectors:
    places = _chain(given)
    if len(np.unique(places, axis=0)) < 2:  # noqa: PLR2004 - the ends of a line
        raise UnfitError
    return places


def _rings(given: Any) -> tuple[Vectors, ...]:
    if not isinstance(given, list) or not given:
        raise UnfitError
    rings = tuple(_chain(each) for each in given)
    for ring in rings:
        closed = len(ring) >= _POINTS_OF_A_RING and (ring[0] == ring[-1]).all()
        # The corners differ from each other.
        if not closed or len(np.unique(ring, axis=0)) < len(ring) - 1:
            raise UnfitError
    return rings


def point_json(vector: Vectors) -> dict[str, Any]:
    """Return one vector as a GeoJSON point."""
    return {"type": "Point", "coordinates": coordinates(vector).tolist()}


def shape_json(kind: str, parts: list[Any]) -> dict[str, Any]:
    """Return a GeoJSON object of one part, or of many."""
    return (
        {"type": kind, "coordinates": parts[0]} if len(parts) == 1 else {"type": f"Multi{kind}", "coordinates": parts}
    )


# Distances.


def along(one: Vectors, other: Vectors, fraction: float) -> Vectors:
    """Return the place at a fraction of the way from one place to another."""
    angle = float(angles(one, other))
    if not angle:
        return one
    return np.asarray((math.sin((1 - fraction) * angle) * one + math.sin(fraction * angle) * other) / math.sin(angle))


def nearest(place: Vectors, chain: Vectors) -> tuple[float, int, Vectors]:
    """Return the angle from a place to a chain of edges, the edge that is nearest, and the place on it."""
    starts, ends = chain[:-1], chain[1:]
    normals = np.cross(starts, ends)
    lengths = np.linalg.norm(normals, axis=1, keepdims=True)
    normals = normals / np.where(lengths > 0, lengths, 1)
    on_circle = place - (normals @ place)[:, None] * normals
    sizes = np.linalg.norm(on_circle, axis=1, keepdims=True)
    on_circle = on_circle / np.where(sizes > 0, sizes, 1)
    # The foot of the perpendicular lies on the edge if it is past the start and before the end.
    within = ((np.cross(normals, starts) * on_circle).sum(1) > 0) & ((np.cross(ends, normals) * on_circle).sum(1) > 0)
    within &= (lengths[:, 0] > 0) & (sizes[:, 0] > 0)
    nearer_start = (starts @ place) >= (ends @ place)
    feet = np.where(within[:, None], on_circle, np.where(nearer_start[:, None], starts, ends))
    distances = angles(feet, np.broadcast_to(place, feet.shape))
    best = int(np.argmin(distances))
    return float(distances[best]), best, feet[best]


# The plane.


class Plane:
    """A gnomonic projection around the middle of some shapes. Shapes that span more than that have no result."""

    def __init__(self, chains: Iterable[Vectors]) -> None:
        vectors = np.concatenate([each.reshape(-1, 3) for each in chains])
        middle = vectors.mean(axis=0)
        size = float(np.linalg.norm(middle))
        if not size:
            raise UnfitError
        self.up = middle / size
        if float((vectors @ self.up).min()) < _FURTHEST:
            raise UnfitError
        axis = np.eye(3)[int(np.argmin(np.abs(self.up)))]
        east = np.cross(axis, self.up)
        self._east = east / np.linalg.norm(east)
        self._north = np.cross(self.up, self._east)

    def flat(self, vectors: Vectors) -> Vectors:
        """Return unit vectors as places on the plane."""
        height = vectors @ self.up
        return np.stack([vectors @ self._east / height, vectors @ self._north / height], axis=-1)

    def round(self, places: Any) -> Vectors:
        """Return places on the plane as unit vectors."""
        flat = np.asarray(places, float).reshape(-1, 2)
        vectors = flat[:, :1] * self._east + flat[:, 1:] * self._north + self.up
        return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))

    def geometry(self, given: Shape) -> Any:
        """Return a shape as Shapely's geometry. Rings that cross themselves have no result."""
        if given.kind.endswith("LineString"):
            return shapely.MultiLineString([self.flat(unit(chain[:, 0], chain[:, 1])) for chain in given.chains])
        polygons = []
        for rings in given.parts:
            shell, *holes = (self.flat(unit(ring[:, 0], ring[:, 1])) for ring in rings)
            polygon = shapely.Polygon(shell, holes)
            # Rings may touch each other, but an edge must not cross another.
            if shapely.is_valid_reason(polygon).startswith("Self-intersection"):
                raise UnfitError
            polygons.append(shapely.make_valid(polygon))
        # Polygons that overlap are one area.
        made = polygons[0] if len(polygons) == 1 else shapely.union_all(polygons)
        if made.is_empty or not made.area:
            raise UnfitError
        return made

    def json(self, geometry: Any) -> dict[str, Any] | None:
        """Return Shapely's geometry as GeoJSON, or None if it is empty."""
        if geometry.is_empty:
            return None
        polygons = [each for each in _pieces(geometry) if each.geom_type == "Polygon"]
        lines = [each for each in _pieces(geometry) if each.geom_type in {"LineString", "LinearRing"}]
        points = [each for each in _pieces(geometry) if each.geom_type == "Point"]
        found = []
        if points:
            found.append(shape_json("Point", [self._listed(each.coords)[0] for each in points]))
        if lines:
            found.append(shape_json("LineString", [self._listed(each.coords) for each in lines]))
        if polygons:
            found.append(shape_json("Polygon", [self._polygon(each) for each in polygons]))
        return found[0] if len(found) == 1 else {"type": "GeometryCollection", "geometries": found}

    def _polygon(self, polygon: Any) -> list[Any]:
        turned = shapely.geometry.polygon.orient(polygon)
        return [self._listed(ring.coords) for ring in (turned.exterior, *turned.interiors)]

    def _listed(self, places: Any) -> list[Any]:
        listed: list[Any] = coordinates(self.round(list(places))).tolist()
        return listed


def _pieces(geometry: Any) -> list[Any]:
    parts = getattr(geometry, "geoms", None)
    return [geometry] if parts is None else [piece for part in parts for piece in _pieces(part)]
