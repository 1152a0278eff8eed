"""IP addresses and hashes."""

from __future__ import annotations

import ipaddress
import re
import struct
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from lazydelta.errors import require
from lazydelta.kql.binding.types import Typed
from lazydelta.kql.functions.declaration import Function, Given, PythonFunction, built, rows, template

__all__ = ["ADDRESSES"]

_V4, _V6 = 32, 128
_MAPPED = 0xFFFF << 32
_FOUR = re.compile(r"(?<![A-Za-z0-9.])\d{1,3}(?:\.\d{1,3}){3}(?![A-Za-z0-9]|\.\d)", re.ASCII)
_BITS = 2**64


# IPv4: an address is a number and the length of its prefix.


def _four(text: Any) -> tuple[int, int] | None:
    address, slash, suffix = str(text).strip().partition("/")
    parts = address.split(".")
    if len(parts) != 4 or not all(re.fullmatch(r"\d{1,3}", each) and int(each) < 256 for each in parts):  # noqa: PLR2004
        return None
    length = _V4
    if slash:
        if not re.fullmatch(r"\d{1,2}", suffix) or int(suffix) > _V4:
            return None
        length = int(suffix)
    number = int.from_bytes(bytes(map(int, parts)), "big")
    return number & _mask(length, _V4), length


def _mask(length: int, bits: int) -> int:
    return ((1 << length) - 1) << (bits - length)


def _six(text: Any) -> tuple[int, int] | None:
    """Return an IPv6 address, or an IPv4 one mapped to IPv6, with the length of its prefix."""
    # `::192.168.1.1` is the IPv4 address as well.
    four = _four(str(text).strip().removeprefix("::"))
    if four is not None:
        return _MAPPED | four[0], four[1] + _V6 - _V4
    address, slash, suffix = str(text).strip().partition("/")
    try:
        number = int(ipaddress.IPv6Address(address))
    except ValueError:
        return None
    length = _V6
    if slash:
        if not re.fullmatch(r"\d{1,3}", suffix) or int(suffix) > _V6:
            return None
        length = int(suffix)
    return number & _mask(length, _V6), length


Reader = Callable[[Any], tuple[int, int] | None]


def _compared(read: Reader, bits: int, first: Any, second: Any, prefix: int | None) -> int | None:
    one, other = read(first), read(second)
    if one is None or other is None or (prefix is not None and not 0 <= prefix <= bits):
        return None
    mask = _mask(min(one[1], other[1], bits if prefix is None else prefix), bits)
    left, right = one[0] & mask, other[0] & mask
    return (left > right) - (left < right)


def _compare4(first: str, second: str, prefix: int | None) -> int | None:
    return _compared(_four, _V4, first, second, prefix)


def _compare6(first: str, second: str, prefix: int | None) -> int | None:
    return _compared(_six, _V6, first, second, prefix)


def _match4(first: str, second: str, prefix: int | None) -> bool | None:
    found = _compare4(first, second, prefix)
    return None if found is None else found == 0


def _match6(first: str, second: str, prefix: int | None) -> bool | None:
    found = _compare6(first, second, prefix)
    return None if found is None else found == 0


def _within(read: Reader, bits: int, address: Any, network: Any) -> bool | None:
    one, other = read(address), read(network)
    if one is None or other is None:
        return None
    return one[0] & _mask(other[1], bits) == other[0]


def _in_range4(address: str, network: str) -> bool | None:
    return _within(_four, _V4, address, network)


def _in_range6(address: str, network: str) -> bool | None:
    return _within(_six, _V6, address, network)


def _flat(values: Iterable[Any]) -> list[Any]:
    return [each for value in values for each in (value if isinstance(value, list) else [value])]


def _in_any(read: Reader, bits: int, address: Any, networks: Iterable[Any]) -> bool | None:
    if read(address) is None:
        return None
    return any(_within(read, bits, address, each) for each in _flat(networks))


def _in_any_range4(address: Any, *networks: Any) -> bool | None:
    return _in_any(_four, _V4, address, networks)


def _in_any_range6(address: Any, *networks: Any) -> bool | None:
    return _in_any(_six, _V6, address, networks)


def _private(text: str) -> bool | None:
    found = _four(text)
    if found is None:
        return None
    return any(_within(_four, _V4, text, each) for each in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"))


def _suffix(text: str) -> int | None:
    found = _four(text)
    return None if found is None else found[1]


def _parse4(text: str) -> int | None:
    found = _four(text)
    return None if found is None else found[0]


def _parse4_mask(text: str, prefix: int | None) -> int | None:
    found = _four(text)
    if found is None or prefix is None or not 0 <= prefix <= _V4:
        return None
    return found[0] & _mask(prefix, _V4)


def _six_text(number: int) -> str:
    return ipaddress.IPv6Address(number).exploded


def _parse6(text: str) -> str | None:
    found = _six(text)
    return None if found is None else _six_text(found[0])


def _parse6_mask(text: str, prefix: int | None) -> str | None:
    found = _six(text)
    if found is None or prefix is None or not 0 <= prefix <= _V6:
        return None
    return _six_text(found[0] & _mask(prefix, _V6))


def _formatted(value: Any, prefix: int | None) -> tuple[str, int] | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        found: tuple[int, int] | None = (int(value), _V4) if 0 <= value < 2**_V4 else None
    else:
        found = _four(value)
    if found is None or (prefix is not None and not 0 <= prefix <= _V4):
        return None
    length = min(found[1], _V4 if prefix is None else prefix)
    return str(ipaddress.IPv4Address(found[0] & _mask(length, _V4))), length


def _format4(value: Any, prefix: int | None) -> str | None:
    found = _formatted(value, prefix)
    return None if found is None else found[0]


def _format4_mask(value: Any, prefix: int | None) -> str | None:
    found = _formatted(value, prefix)
    return None if found is None else f"{found[0]}/{found[1]}"


def _range_to_cidrs(first: str, last: str) -> Any:
    one, other = _four(first), _four(last)
    if one is None or other is None or one[0] > other[0]:
        return None
    found = ipaddress.summarize_address_range(ipaddress.IPv4Address(one[0]), ipaddress.IPv4Address(other[0]))
    return [str(each) for each in found]


def _addresses_in(text: str) -> list[str]:
    return [each for each in _FOUR.findall(text) if _four(each) is not None]


def _has4(text: str, address: str) -> bool:
    return _four(address) is not None and "/" not in address and address in _addresses_in(text)


def _has_any4(text: Any, *addresses: Any) -> bool:
    return any(_has4(str(text), str(each)) for each in _flat(addresses))


def _has4_prefix(text: str, prefix: str) -> bool:
    parts = prefix.rstrip(".").split(".")
    whole = len(parts) == 4 and not prefix.endswith(".")  # noqa: PLR2004 - all parts of an address
    if not all(re.fullmatch(r"\d{1,3}", each) and int(each) < 256 for each in parts):  # noqa: PLR2004
        return False
    if not whole and not prefix.endswith("."):
        return False
    return any(each == prefix if whole else each.startswith(prefix) for each in _addresses_in(text))


def _has_any4_prefix(text: Any, *prefixes: Any) -> bool:
    return any(_has4_prefix(str(text), str(each)) for each in _flat(prefixes))


# Hashes


def _signed(number: int) -> int:
    return number - _BITS if number >= _BITS // 2 else number


def _bytes(value: Any, kind: str) -> bytes:
    if kind == "string":
        return str(value).encode()
    if kind == "real":
        return struct.pack("<d", value)
    if kind in {"int", "bool"}:
        return struct.pack("<i", int(value))
    return struct.pack("<q", value)


def _xxhash(digest: Callable[[bytes], int], value: Any, modulus: int | None, kind: str) -> int | None:
    if value is None:
        return None
    found = digest(_bytes(value, kind))
    if modulus is None:
        return _signed(found)
    return found % modulus if modulus > 0 else None


def _hash(given: Given) -> Typed:
    value = given.values[0]
    kind = value.kind if value.kind in {"int", "long", "real", "bool", "timespan", "datetime"} else "string"
    sql = f"kql_ticks({value.sql})" if kind == "datetime" else given.text(0) if kind == "string" else value.sql
    modulus = given.whole(1) if len(given) > 1 else "CAST(NULL AS BIGINT)"

    require("kql", "xxhash")
    from xxhash import xxh64_intdigest  # noqa: PLC0415 - few queries need it

    def compute(values: Any, moduli: Any) -> Any:
        pairs = zip(values.to_pylist(), moduli.to_pylist(), strict=True)
        return pa.array([_xxhash(xxh64_intdigest, each, modulo, kind) for each, modulo in pairs], pa.int64())

    given.define(PythonFunction(f"kql_py_hash_{kind}", "BIGINT", compute))
    return given.of("long", f"kql_py_hash_{kind}({sql}, {modulus})")


def _combined(*hashes: int | None) -> int | None:
    found = 0
    for each in hashes:
        if each is None:
            return None
        found ^= ((each % _BITS) + 0x9E3779B97F4A7C15 + (found << 6) + (found >> 2)) % _BITS
    return _signed(found % _BITS)


def _hash_many(given: Given) -> Typed:
    hashes = [
        _hash(Given("hash", (each,), given.complain, given.now, (), given.known, given.define)) for each in given.values
    ]
    combined = _COMBINE.build(
        Given("hash_combine", tuple(hashes), given.complain, given.now, (), given.known, given.define)
    )
    return given.of("long", combined.sql)


_COMBINE = rows("hash_combine(hash: long...) -> long", "Combines hashes; not as a cluster does.", _combined)

ADDRESSES: list[Function] = [
    rows("format_ipv4(address: json, prefix?: long) -> string", "Writes an IPv4 address after a mask.", _format4),
    rows("format_ipv4_mask(address: json, prefix?: long) -> string", "Writes an IPv4 network with its prefix.",
         _format4_mask),
    rows("has_any_ipv4(text: json, address: json...) -> bool", "Tests whether a text has one of the IPv4 addresses.",
         _has_any4),
    rows("has_any_ipv4_prefix(text: json, prefix: json...) -> bool",
         "Tests whether a text has an IPv4 address that starts with one of the prefixes.", _has_any4_prefix),
    rows("has_ipv4(text: string, address: string) -> bool", "Tests whether a text has an IPv4 address.", _has4),
    rows("has_ipv4_prefix(text: string, prefix: string) -> bool",
         "Tests whether a text has an IPv4 address that starts with a prefix.", _has4_prefix),
    rows("ipv4_compare(a: string, b: string, prefix?: long) -> long", "Compares IPv4 addresses.", _compare4),
    rows("ipv4_is_in_any_range(address: json, network: json...) -> bool", "Tests for one of several IPv4 networks.",
         _in_any_range4),
    rows("ipv4_is_in_range(address: string, network: string) -> bool", "Tests for an IPv4 network.", _in_range4),
    rows("ipv4_is_match(a: string, b: string, prefix?: long) -> bool", "Tests whether IPv4 addresses match.", _match4),
    rows("ipv4_is_private(address: string) -> bool", "Tests for the private IPv4 networks.", _private),
    rows("ipv4_netmask_suffix(address: string) -> long", "Returns the length of an IPv4 prefix.", _suffix),
    rows("ipv4_range_to_cidr_list(first: string, last: string) -> dynamic", "Returns the networks of an IPv4 range.",
         _range_to_cidrs),
    rows("ipv6_compare(a: string, b: string, prefix?: long) -> long", "Compares IPv6 or IPv4 addresses.", _compare6),
    rows("ipv6_is_in_any_range(address: json, network: json...) -> bool", "Tests for one of several IPv6 networks.",
         _in_any_range6),
    rows("ipv6_is_in_range(address: string, network: string) -> bool", "Tests for an IPv6 network.", _in_range6),
    rows("ipv6_is_match(a: string, b: string, prefix?: long) -> bool", "Tests whether IPv6 or IPv4 addresses match.",
         _match6),
    rows("parse_ipv4(address: string) -> long", "Converts an IPv4 address to a number.", _parse4),
    rows("parse_ipv4_mask(address: string, prefix: long) -> long", "Converts a network to a number.", _parse4_mask),
    rows("parse_ipv6(address: string) -> string", "Writes an IPv6 or IPv4 address in full.", _parse6),
    rows("parse_ipv6_mask(address: string, prefix: long) -> string", "Writes an IPv6 or IPv4 network in full.",
         _parse6_mask),
    built("hash(value: any, modulus?: whole) -> long", "Returns the xxHash64 of a value.", _hash),
    _COMBINE,
    built("hash_many(value: any...) -> long", "Combines the hashes of values.", _hash_many),
    template("hash_md5(value: text) -> string", "Returns the MD5 hash.", "md5({value})"),
    template("hash_sha1(value: text) -> string", "Returns the SHA-1 hash.", "sha1({value})"),
    template("hash_sha256(value: text) -> string", "Returns the SHA-256 hash.", "sha256({value})"),
    built("hash_xxhash64(value: any, modulus?: whole) -> long", "Another name of `hash`.", _hash),
]  # fmt: skip
"""The functions."""
