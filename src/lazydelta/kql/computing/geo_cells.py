"""Geospatial functions of points and of cells: geohashes, S2 cells and H3 cells."""

from __future__ import annotations

import math
from typing import Any

import h3
import numpy as np
import s2sphere
from geographiclib.geodesic import Geodesic
from numpy.typing import NDArray

from lazydelta.kql.computing import sphere
from lazydelta.kql.computing.arrow_functions import UnfitError

__all__: list[str] = []

Reals = NDArray[np.float64]
_NEAR = 1e-15


# Points: whole columns at a time.


def _masked(values: Any, valid: Any) -> Any:
    return np.ma.masked_array(values, ~np.asarray(valid))


def geo_distance_2points(lng1: Reals, lat1: Reals, lng2: Reals, lat2: Reals, spheroid: Any = None) -> Any:
    """Return the distance in metres on the sphere, or on the spheroid of WGS 84."""
    valid = sphere.are_valid(lng1, lat1) & sphere.are_valid(lng2, lat2)
    made = sphere.angles(sphere.unit(lng1, lat1), sphere.unit(lng2, lat2)) * sphere.RADIUS
    for index in [] if spheroid is None else np.flatnonzero(valid & (spheroid == True)).tolist():  # noqa: E712 - elements
        path = Geodesic.WGS84.Inverse(lat1[index], lng1[index], lat2[index], lng2[index], Geodesic.DISTANCE)
        made[index] = path["s12"]
    return _masked(made, valid)


def geo_azimuth(lng1: Reals, lat1: Reals, lng2: Reals, lat2: Reals) -> Any:
    """Return the direction from the first point to the second, clockwise from north, in radians."""
    one, other = sphere.unit(lng1, lat1), sphere.unit(lng2, lat2)
    valid = sphere.are_valid(lng1, lat1) & sphere.are_valid(lng2, lat2) & _are_apart(one, other)
    return _masked(sphere.bearings(one, other), valid)


def geo_angle(lng1: Reals, lat1: Reals, lng2: Reals, lat2: Reals, lng3: Reals, lat3: Reals) -> Any:
    """Return the clockwise angle at the second point from the first to the third, in radians."""
    one, middle, other = sphere.unit(lng1, lat1), sphere.unit(lng2, lat2), sphere.unit(lng3, lat3)
    valid = sphere.are_valid(lng1, lat1) & sphere.are_valid(lng2, lat2) & sphere.are_valid(lng3, lat3)
    valid &= _are_apart(one, middle) & _are_apart(middle, other)
    return _masked((sphere.bearings(middle, other) - sphere.bearings(middle, one)) % (2 * math.pi), valid)


def _are_apart(one: Any, other: Any) -> NDArray[np.bool_]:
    """Return which pairs of points have one line between them: not the same, and not opposite each other."""
    return np.asarray(np.linalg.norm(np.cross(one, other), axis=-1) > _NEAR)


def geo_point_in_circle(lng: Reals, lat: Reals, center_lng: Reals, center_lat: Reals, radius: Reals) -> Any:
    """Return whether a point is within so many metres of another."""
    distances = geo_distance_2points(lng, lat, center_lng, center_lat)
    return _masked(distances.data <= radius, ~distances.mask & (radius >= 0) & np.isfinite(radius))


# Geohashes.

_DIGITS = "0123456789bcdefghjkmnpqrstuvwxyz"
_FIVES = {f"{index:05b}": digit for index, digit in enumerate(_DIGITS)}
_LONGEST_HASH = 18


def _place(lng: float, lat: float) -> None:
    if not (-180 <= lng <= 180 and -90 <= lat <= 90):  # noqa: PLR2004 - degrees
        raise UnfitError


def _halves(length: int) -> tuple[int, int]:
    """Return the number of times that a hash halves the longitudes, and the latitudes."""
    return (5 * length + 1) // 2, 5 * length // 2


def _hashed(column: int, row: int, length: int) -> str:
    """Return the hash of a cell of the grid: the bits of its column and its row in turn, five to a character."""
    columns, rows = _halves(length)
    bits = [""] * (5 * length)
    bits[::2], bits[1::2] = f"{column:0{columns}b}", f"{row:0{rows}b}"
    text = "".join(bits)
    return "".join(_FIVES[text[at : at + 5]] for at in range(0, 5 * length, 5))


def _cell(text: str) -> tuple[int, int, int]:
    """Return column, row and length of a hash."""
    length = len(text)
    if not 1 <= length <= _LONGEST_HASH or any(each not in _DIGITS for each in text.lower()):
        raise UnfitError
    column = row = 0
    for index in range(5 * length):
        bit = _DIGITS.index(text.lower()[index // 5]) >> (4 - index % 5) & 1
        column, row = (column << 1 | bit, row) if index % 2 == 0 else (column, row << 1 | bit)
    return column, row, length


def _box(text: str) -> tuple[float, float, float, float]:
    """Return west, south, east and north of a hash."""
    column, row, length = _cell(text)
    columns, rows = _halves(length)
    width, height = 360 / 2**columns, 180 / 2**rows
    return column * width - 180, row * height - 90, (column + 1) * width - 180, (row + 1) * height - 90


def geo_point_to_geohash(lng: float, lat: float, length: int = 5) -> str:
    """Return the geohash of a point, which has 1 to 18 characters."""
    _place(lng, lat)
    if not 1 <= length <= _LONGEST_HASH:
        raise UnfitError
    columns, rows = _halves(length)
    column = min(int((lng + 180) / 360 * 2**columns), 2**columns - 1)
    row = min(int((lat + 90) / 180 * 2**rows), 2**rows - 1)
    return _hashed(column, row, length)


def geo_geohash_to_central_point(text: str) -> dict[str, Any]:
    """Return the middle of a geohash."""
    west, south, east, north = _box(text)
    return {"type": "Point", "coordinates": [(west + east) / 2, (south + north) / 2]}


def geo_geohash_to_polygon(text: str) -> dict[str, Any]:
    """Return the rectangle of a geohash."""
    west, south, east, north = _box(text)
    ring = [[west, south], [east, south], [east, north], [west, north], [west, south]]
    return {"type": "Polygon", "coordinates": [ring]}


def geo_geohash_neighbors(text: str) -> list[str]:
    """Return the geohashes around one, in the order of directions that Kusto's reference shows."""
    column, row, length = _cell(text)
    columns, rows = _halves(length)
    around = ((-1, -1), (-1, 1), (1, -1), (0, 1), (-1, 0), (1, 1), (1, 0), (0, -1))
    return [
        _hashed((column + east) % 2**columns, row + north, length)
        for east, north in around
        if 0 <= row + north < 2**rows
    ]


# S2 cells.

_DEEPEST_S2 = 30
# From the order in which the library finds neighbours. A cell at a corner of the cube has fewer.
_S2_SIDES = (7, 0, 1, 2, 3, 5, 4, 6)


def _s2_cell(token: str) -> s2sphere.CellId:
    digits = token.lower().rstrip("0") or "x"
    if len(digits) > 16 or any(each not in "0123456789abcdef" for each in digits):  # noqa: PLR2004 - of 64 bits
        raise UnfitError
    found = s2sphere.CellId.from_token(digits)
    if not found.is_valid():
        raise UnfitError
    return found


def geo_point_to_s2cell(lng: float, lat: float, level: int = 11) -> str:
    """Return the token of the S2 cell of a level that holds a point."""
    _place(lng, lat)
    if not 0 <= level <= _DEEPEST_S2:
        raise UnfitError
    leaf = s2sphere.CellId.from_lat_lng(s2sphere.LatLng.from_degrees(lat, lng))
    return str(leaf.parent(level).to_token())


def geo_s2cell_to_central_point(token: str) -> dict[str, Any]:
    """Return the middle of an S2 cell."""
    return {"type": "Point", "coordinates": _degrees(_s2_cell(token).to_lat_lng())}


def geo_s2cell_to_polygon(token: str) -> dict[str, Any]:
    """Return the corners of an S2 cell."""
    cell = s2sphere.Cell(_s2_cell(token))
    ring = [_degrees(s2sphere.LatLng.from_point(cell.get_vertex(index))) for index in (0, 1, 2, 3, 0)]
    return {"type": "Polygon", "coordinates": [ring]}


def geo_s2cell_neighbors(token: str) -> list[str]:
    """Return the S2 cells of the same level around one, in the order of directions that Kusto's reference shows."""
    cell = _s2_cell(token)
    each_side = (each.to_token() for each in cell.get_all_neighbors(cell.level()))
    found = list(dict.fromkeys(each for each in each_side if each != cell.to_token()))
    return [found[place] for place in _S2_SIDES] if len(found) == len(_S2_SIDES) else found


def _degrees(place: s2sphere.LatLng) -> list[float]:
    return [place.lng().degrees, place.lat().degrees]


# H3 cells.

_DEEPEST_H3 = 15


def _h3_cell(cell: str) -> str:
    if not h3.is_valid_cell(cell):
        raise UnfitError
    return cell


def geo_point_to_h3cell(lng: float, lat: float, resolution: int = 6) -> str:
    """Return the H3 cell of a resolution that holds a point."""
    _place(lng, lat)
    if not 0 <= resolution <= _DEEPEST_H3:
        raise UnfitError
    return str(h3.latlng_to_cell(lat, lng, resolution))


def geo_h3cell_to_central_point(cell: str) -> dict[str, Any]:
    """Return the middle of an H3 cell."""
    lat, lng = h3.cell_to_latlng(_h3_cell(cell))
    return {"type": "Point", "coordinates": [lng, lat]}


def geo_h3cell_to_polygon(cell: str) -> dict[str, Any]:
    """Return the corners of an H3 cell."""
    ring = [[lng, lat] for lat, lng in h3.cell_to_boundary(_h3_cell(cell))]
    return {"type": "Polygon", "coordinates": [[*ring, ring[0]]]}


def geo_h3cell_neighbors(cell: str) -> list[str]:
    """Return the H3 cells around one."""
    return [each for each in h3.grid_disk(_h3_cell(cell), 1) if each != cell.lower()]


def geo_h3cell_rings(cell: str, distance: int) -> list[list[str]]:
    """Return the cell, the ring of cells around it, the ring around that, and so on."""
    if not 0 <= distance <= 142:  # noqa: PLR2004 - the documented range
        raise UnfitError
    _h3_cell(cell)
    rings: list[list[str]] = [[] for _ in range(distance + 1)]
    for each in h3.grid_disk(cell, distance):
        rings[h3.grid_distance(cell, each)].append(each)
    return rings


def geo_h3cell_children(cell: str, resolution: int | None = None) -> list[str]:
    """Return the cells of a finer resolution, by default the next, inside one."""
    own = h3.get_resolution(_h3_cell(cell))
    wanted = own + 1 if resolution is None else resolution
    # More than 7^5 cells would be no value of a row.
    if not own < wanted <= min(_DEEPEST_H3, own + 5):
        raise UnfitError
    return list(h3.cell_to_children(cell, wanted))


def geo_h3cell_parent(cell: str, resolution: int | None = None) -> str:
    """Return the cell of a coarser resolution, by default the next, around one."""
    own = h3.get_resolution(_h3_cell(cell))
    wanted = own - 1 if resolution is None else resolution
    if not 0 <= wanted < own:
        raise UnfitError
    return str(h3.cell_to_parent(cell, wanted))


def geo_h3cell_level(cell: str) -> int:
    """Return the resolution of an H3 cell."""
    return int(h3.get_resolution(_h3_cell(cell)))
