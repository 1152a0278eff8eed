"""Conversions between types, and units of measurement."""

from __future__ import annotations

import json

from lazydelta.kql.binding.types import NUMBERS, Typed, as_kind
from lazydelta.kql.functions.declaration import Function, Given, built, from_text, rows
from lazydelta.kql.functions.macros import TICKS_BEFORE_1970

__all__ = ["CONVERSIONS"]


def _to_string(given: Given) -> Typed:
    return given.of("string", given.text(0))


def _to_whole(given: Given) -> Typed:
    value, kind = given.values[0], "int" if given.name == "toint" else "long"
    kind_sql = {"int": "INTEGER", "long": "BIGINT"}[kind]
    if value.kind in {"string", "dynamic"}:
        # A JSON number may have a fraction, which is truncated as usual.
        return given.of(kind, from_text(given.text(0), kind, loose=value.kind == "dynamic"))
    if value.kind in {"real", "decimal"}:
        return given.of(kind, f"TRY_CAST(trunc({value.sql}) AS {kind_sql})")
    if value.kind == "datetime":
        return given.of(kind, f"TRY_CAST(epoch_us({value.sql}) * 10 + {TICKS_BEFORE_1970} AS {kind_sql})")
    return given.of(kind, f"TRY_CAST({value.sql} AS {kind_sql})")


def _to_real(given: Given) -> Typed:
    value = given.values[0]
    if value.kind in {"string", "dynamic"}:
        return given.of("real", f"kql_real({given.text(0)})")
    if value.kind == "datetime":
        given.refuse(0, "a number, a text, a bool or a timespan")
    return given.of("real", f"CAST({value.sql} AS DOUBLE)")


def _to_bool(given: Given) -> Typed:
    value = given.values[0]
    if value.kind in {"string", "dynamic"}:
        return given.of("bool", f"kql_bool({given.text(0)})")
    if value.kind not in {"bool", *NUMBERS}:
        given.refuse(0, "a number, a text or a bool")
    return given.of("bool", value.sql if value.kind == "bool" else f"({value.sql} <> 0)")


def _to_timestamp(given: Given) -> Typed:
    value = given.values[0]
    if value.kind == "datetime":
        return given.of("datetime", value.sql)
    if value.kind in {"int", "long"}:
        return given.of("datetime", f"TRY(kql_from_ticks({as_kind(value, 'long')}))")
    if value.kind not in {"string", "dynamic"}:
        given.refuse(0, "a text, a datetime or a number of ticks")
    return given.of("datetime", f"kql_timestamp({given.text(0)})")


def _to_span(given: Given) -> Typed:
    value = given.values[0]
    if value.kind == "timespan":
        return given.of("timespan", value.sql)
    if value.kind in {"int", "long"}:
        return given.of("timespan", as_kind(value, "long"))
    return given.of("timespan", f"kql_span({given.string(0)})")


def _to_decimal(given: Given) -> Typed:
    value = given.values[0]
    if value.kind in {"string", "dynamic"}:
        return given.of("decimal", from_text(given.text(0), "decimal"))
    if value.kind not in NUMBERS:
        given.refuse(0, "a number or a text")
    return given.of("decimal", value.sql if value.kind == "decimal" else f"TRY_CAST({value.sql} AS DECIMAL(38,18))")


def _to_guid(given: Given) -> Typed:
    value = given.values[0]
    if value.kind == "guid":
        return given.of("guid", value.sql)
    return given.of("guid", f"kql_guid({given.string(0)})")


def _parse_json(given: Given) -> Typed:
    value = given.values[0]
    if value.kind == "dynamic":
        return given.of("dynamic", value.sql)
    return given.of("dynamic", f"kql_parse_json({given.text(0)})")


def _to_hex(given: Given) -> Typed:
    value = given.as_kind(0, "long")
    if given.values[0].kind == "int":
        value = f"(CASE WHEN {value} < 0 THEN {value} + 4294967296 ELSE {value} END)"
    digits = f"lower(to_hex({value}))"
    if len(given) > 1:
        digits = f"lpad({digits}, CAST(greatest({given.whole(1)}, length({digits})) AS INTEGER), '0')"
    return given.of("string", f"coalesce({digits}, '')")


def _canonical(value: object) -> str | None:
    if value is None:
        return None
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


# Factors to the first unit of each quantity. Names are those of Kusto, which has them from UnitsNet.
_PREFIXES = {
    "Nano": 1e-9, "Micro": 1e-6, "Milli": 1e-3, "Centi": 1e-2, "Deci": 0.1, "Deca": 10.0, "Hecto": 100.0,
    "Kilo": 1e3, "Mega": 1e6, "Giga": 1e9, "Tera": 1e12,
}  # fmt: skip


def _prefixed(unit: str, names: str, factor: float = 1.0) -> dict[str, float]:
    """Return a unit with prefixes: ``Kilometer`` and the like."""
    return {unit: factor} | {f"{name}{unit.lower()}": _PREFIXES[name] * factor for name in names.split()}


_FOOT, _MILE, _POUND, _GRAVITY, _GALLON = 0.3048, 1609.344, 0.45359237, 9.80665, 0.00378541178
_DEGREE = 0.017453292519943295
_PER = {"Second": 1.0, "Minute": 60.0, "Hour": 3600.0}
_SPEEDS = _prefixed("Meter", "Nano Micro Milli Centi Deci Kilo") | {
    "Foot": _FOOT, "Inch": 0.0254, "Yard": 0.9144, "UsSurveyFoot": 1200 / 3937,
}  # fmt: skip
_UNITS: dict[str, dict[str, float]] = {
    "angle": _prefixed("Degree", "Nano Micro Milli", _DEGREE)
    | _prefixed("Radian", "Nano Micro Milli Centi Deci")
    | {"Arcminute": _DEGREE / 60, "Arcsecond": _DEGREE / 3600, "Gradian": _DEGREE * 0.9, "NatoMil": _DEGREE * 9 / 160,
       "Revolution": _DEGREE * 360, "Tilt": 1.5707963267948966},
    "energy": _prefixed("Joule", "Milli Kilo Mega Giga Tera")
    | _prefixed("BritishThermalUnit", "Kilo Mega Giga", 1055.05585262)
    | _prefixed("Calorie", "Kilo", 4.184)
    | _prefixed("ElectronVolt", "Kilo Mega Giga Tera", 1.602176565e-19)
    | _prefixed("WattHour", "Kilo Mega Giga Tera", 3600.0)
    | _prefixed("WattDay", "Kilo Mega Giga Tera", 86400.0)
    | {"DecathermEc": 1.05505585262e9, "DecathermImperial": 1.05505585257348e9, "DecathermUs": 1.054804e9,
       "ThermEc": 1.05505585262e8, "ThermImperial": 1.05505585257348e8, "ThermUs": 1.054804e8, "Erg": 1e-7,
       "FootPound": 1.355817948, "HorsepowerHour": 2.6845195377e6},
    "force": _prefixed("Newton", "Micro Milli Deca Kilo Mega")
    | {"Dyn": 1e-5, "KilogramForce": _GRAVITY, "KiloPond": _GRAVITY, "KilopoundForce": 4448.2216152605095,
       "PoundForce": 4.4482216152605095, "OunceForce": 0.2780138509537812, "Poundal": 0.138254954376,
       "ShortTonForce": 8896.443230521, "TonneForce": _GRAVITY * 1000},
    "length": _prefixed("Meter", "Nano Micro Milli Centi Deci Hecto Kilo Mega")
    | _prefixed("LightYear", "Kilo Mega", 9.46073047258e15)
    | _prefixed("Parsec", "Kilo Mega", 3.08567758128e16)
    | {"Angstrom": 1e-10, "AstronomicalUnit": 1.4959787070e11, "Chain": 20.1168, "DtpPica": 0.0254 / 6,
       "DtpPoint": 0.0254 / 72, "Fathom": 1.8288, "Foot": _FOOT, "Hand": 0.1016, "Inch": 0.0254, "Microinch": 2.54e-8,
       "Mil": 2.54e-5, "Mile": _MILE, "NauticalMile": 1852.0, "PrinterPica": 0.0254 * 400 / 2409,
       "PrinterPoint": 0.0254 / 72.27, "Shackle": 27.432, "SolarRadius": 6.95510e8, "Twip": 0.0254 / 1440,
       "UsSurveyFoot": 1200 / 3937, "Yard": 0.9144},
    "mass": _prefixed("Gram", "Nano Micro Milli Centi Deci Deca Hecto Kilo", 1e-3)
    | _prefixed("Tonne", "Kilo Mega", 1000.0)
    | _prefixed("Pound", "Kilo Mega", _POUND)
    | {"EarthMass": 5.9722e24, "Grain": 6.479891e-5, "LongHundredweight": 50.80234544, "LongTon": 1016.0469088,
       "Ounce": 0.028349523125, "ShortHundredweight": 45.359237, "ShortTon": 907.18474, "Slug": 14.593902937206364,
       "SolarMass": 1.98947e30, "Stone": 6.35029318},
    "speed": {
        f"{unit}Per{time}": factor / seconds for unit, factor in _SPEEDS.items() for time, seconds in _PER.items()
    }
    | {"Knot": 1852 / 3600, "MilePerHour": _MILE / 3600, "MilePerMinute": _MILE / 60, "MilePerSecond": _MILE},
    "volume": {f"Cubic{unit.lower()}": factor**3 for unit, factor in _prefixed(
        "Meter", "Micro Milli Centi Deci Hecto Kilo").items()}
    | _prefixed("Liter", "Nano Micro Milli Centi Deci Deca Hecto Kilo Mega", 1e-3)
    | {"CubicMeter": 1.0, "AcreFoot": 1 / 0.000810714, "AuTablespoon": 2e-5, "BoardFoot": _FOOT**3 / 12,
       "CubicFoot": _FOOT**3, "CubicInch": 0.0254**3, "CubicMile": _MILE**3, "CubicYard": 0.9144**3,
       "HectocubicFoot": _FOOT**3 * 100, "HectocubicMeter": 100.0, "ImperialBeerBarrel": 0.16365924,
       "ImperialGallon": 0.00454609, "ImperialOunce": 2.8413062499962901241875439064617e-5,
       "ImperialPint": 0.00056826125, "ImperialQuart": 0.0011365225, "KilocubicFoot": _FOOT**3 * 1000,
       "KilocubicMeter": 1000.0, "KiloimperialGallon": 4.54609, "KilousGallon": 3.78541,
       "MegacubicFoot": _FOOT**3 * 1e6,
       "MegaimperialGallon": 4546.09, "MegausGallon": 3785.41, "MetricCup": 2.5e-4, "MetricTeaspoon": 5e-6,
       "OilBarrel": 0.158987294928, "UkTablespoon": 1.5e-5, "UsBeerBarrel": 0.1173477658,
       "UsCustomaryCup": 2.365882365e-4,
       "UsGallon": _GALLON, "UsLegalCup": 2.4e-4, "UsOunce": 2.957352956253760505068307980135e-5,
       "UsPint": 4.73176473e-4, "UsQuart": 9.46352946e-4, "UsTablespoon": 1.478676478125e-5,
       "UsTeaspoon": 4.92892159375e-6},
}  # fmt: skip
# Kelvin is factor * (value + offset).
_TEMPERATURES = {
    "Kelvin": (1.0, 0.0),
    "DegreeCelsius": (1.0, 273.15),
    "MillidegreeCelsius": (1e-3, 273150.0),
    "DegreeFahrenheit": (5 / 9, 459.67),
    "DegreeRankine": (5 / 9, 0.0),
    "DegreeDelisle": (-2 / 3, -559.725),
    "DegreeNewton": (100 / 33, 90.1395),
    "DegreeReaumur": (1.25, 218.52),
    "DegreeRoemer": (40 / 21, 135.90375),
    "SolarTemperature": (5778.0, 0.0),
}


def _convert(given: Given) -> Typed:
    quantity = given.name.removeprefix("convert_")
    source, target = given.constant(1, "string"), given.constant(2, "string")
    value = given.as_kind(0, "real")
    if quantity == "temperature":
        if source not in _TEMPERATURES or target not in _TEMPERATURES:
            return given.of("real", "CAST(NULL AS DOUBLE)")
        (factor, offset), (to_factor, to_offset) = _TEMPERATURES[source], _TEMPERATURES[target]
        sql = f"({value} + {_real(offset)}) * {_real(factor)} / {_real(to_factor)} - {_real(to_offset)}"
        return given.of("real", value if source == target else f"({sql})")
    units = _UNITS[quantity]
    if source not in units or target not in units:
        return given.of("real", "CAST(NULL AS DOUBLE)")
    return given.of("real", f"({value} * {_real(units[source] / units[target])})")


def _real(number: float) -> str:
    return f"CAST('{number!r}' AS DOUBLE)"


def _converter(quantity: str) -> Function:
    about = f"Converts {quantity} from one unit to another; null if a unit is not known."
    return built(f"convert_{quantity}(value: real, from: string, to: string) -> real", about, _convert)


def _to(name: str, kind: str, build: object, about: str | None = None) -> Function:
    return built(f"{name}(value: any) -> {kind}", about or f"Converts to `{kind}`.", build, named=True)  # type: ignore[arg-type]


CONVERSIONS: list[Function] = [
    *map(_converter, ("angle", "energy", "force", "length", "mass", "speed", "temperature", "volume")),
    rows("dynamic_to_json(value: dynamic) -> string", "Writes a dynamic value as JSON with sorted keys.", _canonical),
    _to("parse_json", "dynamic", _parse_json, "Reads JSON; what is not JSON becomes a string."),
    _to("parsejson", "dynamic", _parse_json, "Another name of `parse_json`."),
    _to("tobool", "bool", _to_bool),
    _to("toboolean", "bool", _to_bool),
    _to("todatetime", "datetime", _to_timestamp),
    _to("todecimal", "decimal", _to_decimal),
    _to("todouble", "real", _to_real),
    _to("todynamic", "dynamic", _parse_json, "Another name of `parse_json`."),
    _to("toguid", "guid", _to_guid),
    built(
        "tohex(value: whole, digits?: whole) -> string", "Writes a number in hexadecimal digits.", _to_hex, named=True
    ),
    _to("toint", "int", _to_whole),
    _to("tolong", "long", _to_whole),
    _to("toobject", "dynamic", _parse_json, "Another name of `parse_json`."),
    _to("toreal", "real", _to_real),
    _to("tostring", "string", _to_string),
    _to("totimespan", "timespan", _to_span),
]
"""The functions."""
