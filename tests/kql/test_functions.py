"""Every function: its documented results, its line in the documentation, and suggestions for names that are not known.

The results are those that the pages under https://learn.microsoft.com/kusto/query/ state for the functions.
"""

# ruff: noqa: E501 - a case is read best on one line

from __future__ import annotations

import datetime as dt
import json
import math
import re
from decimal import Decimal
from typing import Any

import pytest

from lazydelta.errors import KqlError
from lazydelta.kql import query
from lazydelta.kql.binding.computed import COMPUTED
from lazydelta.kql.functions.aggregates import AGGREGATE_NAMES, SKETCHES
from lazydelta.kql.functions.table import FUNCTIONS, similar
from scripts.make_kql_page import PAGE, page
from tests.kql.analyser import documented_names

NAN, INF = math.nan, math.inf


def at(text: str) -> dt.datetime:
    """Return a datetime in UTC."""
    return dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC)


def span(**parts: float) -> dt.timedelta:
    """Return a timespan."""
    return dt.timedelta(**parts)


ARR = "dynamic([1, 2, 3, 4, 5])"
NUMBERS: list[tuple[str, Any]] = [
    ("abs(-5)", 5), ("abs(-1h)", span(hours=1)), ("acos(2)", None), ("acos(-1.0)", math.pi), ("asin(1)", math.pi / 2),
    ("atan(0.5)", math.atan(0.5)), ("atan2(1, 1)", math.pi / 4), ("atan2(-1, 0)", -math.pi / 2),
    ("ceiling(-1.1)", -1.0), ("ceiling(0.9)", 1.0), ("cos(1)", math.cos(1)), ("cot(1)", 1 / math.tan(1)),
    ("degrees(pi() / 4)", 45.0), ("exp(2)", math.exp(2)), ("exp10(3)", 1000.0), ("exp2(3)", 8.0),
    ("log(5)", math.log(5)), ("log(-1)", None), ("log10(5)", math.log10(5)), ("log2(5)", math.log2(5)),
    ("pow(2, 3)", 8.0), ("radians(90)", math.pi / 2), ("round(2.98765, 3)", 2.988), ("round(2.15, 1)", 2.2),
    ("sign(-42)", -1.0), ("sign(0)", 0.0), ("sign(11.2)", 1.0), ("sin(1)", math.sin(1)), ("sqrt(256)", 16.0),
    ("sqrt(-1)", None), ("tan(1)", math.tan(1)), ("rand() < 1", True), ("rand(10) < 10", True),
    ("binary_and(5, 3)", 1), ("binary_not(100)", -101), ("binary_or(5, 3)", 7), ("binary_shift_left(1, 2)", 4),
    ("binary_shift_left(1, 63)", -(2**63)), ("binary_shift_left(1, -1)", None), ("binary_shift_right(8, 2)", 2),
    ("binary_xor(1, 2)", 3), ("bitset_count_ones(42)", 3), ("around(5, 4, 1)", True), ("around(1h, 4h, 1h)", False),
    ("assert(1 == 1, 'no')", True), ("case(1 > 2, 'a', 2 > 1, 'b', 'c')", "b"), ("iff(1 > 2, 'a', 'b')", "b"),
    ("iif(true, 1, 2.5)", 1.0), ("coalesce(long(null), 42, 5)", 42), ("coalesce('', 'a')", "a"), ("max_of(10, 1, -3, 17)", 17),
    ("max_of(int(null), 5)", 5), ("min_of(10, 1, -3, 17)", -3), ("min_of(datetime(2020-01-01), datetime(2019-01-01))", at("2019-01-01")),
    ("column_ifexists('nope', 5)", 5), ("columnifexists('nope', 'x')", "x"), ("isempty('')", True), ("isnotempty('')", False),
    ("notempty('a')", True), ("isnull(long(null))", True), ("isnotnull(1)", True), ("notnull(int(null))", False),
    ("isnan(0.0 / 0.0)", True), ("isnan(1.0)", False), ("isinf(1.0 / 0.0)", True), ("isfinite(-1.0 / 0.0)", False),
    ("isfinite(1.0)", True), ("not(false)", True), ("new_guid() == new_guid()", False),
    ("gettype('John')", "string"), ("gettype(20.4)", "real"), ("gettype(dynamic({'a': 1}))", "dictionary"),
    ("gettype(guid(65f0c9d3-8f1b-4a2b-8b0c-c6f1b8ac2bff))", "guid"), ("gettype(dynamic([1]))", "array"), ("gettype(now())", "datetime"),
    ("gettype(dynamic(null))", "null"), ("gettype(1)", "long"), ("gettype(true)", "bool"), ("gettype(dynamic('a'))", "string"),
]  # fmt: skip
CONVERSIONS: list[tuple[str, Any]] = [
    ("tobool('true')", True), ("tobool('false')", False), ("tobool(1)", True), ("toboolean(123)", True), ("tobool('x')", None),
    ("todatetime('2015-12-31 23:59:59.9')", at("2015-12-31 23:59:59.9")), ("todecimal('123.45678') == decimal(123.45678)", True),
    ("todouble('123.4')", 123.4), ("toreal('x')", None), ("toint('123')", 123), ("toint(2.3)", 2), ("tolong('123')", 123), ("tolong('a')", None),
    ("tostring(123)", "123"), ("tostring(real(nan))", "NaN"), ("tostring(-1.0 / 0.0)", "-Infinity"), ("tostring(1.5)", "1.5"), ("todatetime('12/31/2015 23:59')", at("2015-12-31 23:59")), ("tostring(1d)", "1.00:00:00"), ("tostring(dynamic({'a':1}))", '{"a":1}'), ("totimespan('0.00:01:00')", span(minutes=1)),
    ("totimespan('x')", None), ("toguid('70fc66f7-8279-44fc-9092-d364d70fce44')", "70fc66f7-8279-44fc-9092-d364d70fce44"), ("toguid('x')", None),
    ("tohex(256)", "100"), ("tohex(-256)", "ffffffffffffff00"), ("tohex(toint(-256), 8)", "ffffff00"), ("tohex(256, 8)", "00000100"), ("tohex(256, 2)", "100"),
    ("parse_json('{\"a\": [1, 2]}').a[1]", 2), ("todynamic('[1]')", [1]), ("parsejson('1')", 1), ("toobject('\"a\"')", "a"),
    ("dynamic_to_json(dynamic({'b': 1, 'a': [2]}))", '{"a":[2],"b":1}'),
    ("convert_angle(1.2, 'Degree', 'Arcminute')", 72.0), ("convert_energy(1.2, 'Joule', 'BritishThermalUnit')", 0.00113738054437598),
    ("convert_force(1.2, 'Newton', 'Decanewton')", 0.12), ("convert_length(1.2, 'Meter', 'Foot')", 3.93700787401575),
    ("convert_mass(1.2, 'Kilogram', 'Pound')", 2.64554714621853), ("convert_speed(1.2, 'MeterPerSecond', 'CentimeterPerHour')", 432000.0),
    ("convert_temperature(1.2, 'Kelvin', 'DegreeCelsius')", -271.95), ("convert_temperature(212, 'DegreeFahrenheit', 'DegreeCelsius')", 100.0),
    ("convert_volume(1.2, 'CubicMeter', 'AcreFoot')", 0.0009728568), ("convert_length(1, 'Meter', 'Potato')", None),
]  # fmt: skip
TIMES: list[tuple[str, Any]] = [
    ("bin(4.5, 1)", 4.0), ("bin(7, 5)", 5), ("bin(datetime(1970-05-11 13:45:07), 1d)", at("1970-05-11")), ("floor(16d, 7d)", span(days=14)),
    ("bin_at(6.5, 2.5, 7)", 4.5), ("bin_at(1h, 1d, 12h)", span(hours=-12)), ("bin_at(9, 5, 2)", 7),
    ("bin_at(datetime(2017-05-15 10:20:00.0), 1d, datetime(1970-01-01 12:00:00.0))", at("2017-05-14 12:00")),
    ("bin_at(datetime(2017-05-17 10:20:00.0), 7d, datetime(2017-06-04 00:00:00.0))", at("2017-05-14")),
    ("datetime_add('year', 1, datetime(2017-01-01))", at("2018-01-01")), ("datetime_add('week', -5, datetime(2017-01-01))", at("2016-11-27")),
    ("datetime_diff('year', datetime(2017-01-01), datetime(2000-12-31))", 17), ("datetime_diff('nanosecond', datetime(2017-10-30 23:59:57.1000000), datetime(2017-10-30 23:59:57.1000010))", -1000),
    ("datetime_diff('nanosecond', datetime(2017-10-30 23:00:00), datetime(2017-10-30 23:00:00.0000007))", -700), ("tolong(datetime(2017-10-30 00:00:00.0000007) - datetime(2017-10-30))", 7),
    ("datetime_part('quarter', datetime(2017-10-30 01:02:03.7654321))", 4), ("datetime_part('nanosecond', datetime(2017-10-30 01:02:03.7654321))", 765432100), ("datetime_part('week_of_year', datetime(2017-10-30))", 44),
    ("datetime_local_to_utc(datetime(2020-02-02 20:02:20), 'US/Pacific')", at("2020-02-03 04:02:20")),
    ("datetime_local_to_utc(datetime(2020-02-02 20:02:20), strcat('Europe', '/Paris'))", at("2020-02-02 19:02:20")),
    ("datetime_utc_to_local(datetime(2021-07-01 12:00), 'Asia/Kolkata')", at("2021-07-01 17:30")), ("datetime_utc_to_local(datetime(2021-07-01), 'x')", None),
    ("set_has_element(datetime_list_timezones(), 'Europe/Paris')", True),
    ("dayofmonth(datetime(2015-12-14))", 14), ("dayofweek(datetime(1947-11-30 10:00:05))", span()), ("dayofweek(datetime(1970-05-11))", span(days=1)),
    ("dayofyear(datetime(2015-12-14))", 348), ("getmonth(datetime(2015-10-12))", 10), ("getyear(datetime(2015-10-12))", 2015), ("hourofday(datetime(2015-12-14 18:54))", 18),
    ("monthofyear(datetime('2015-12-14'))", 12), ("week_of_year(datetime(2020-12-31))", 53), ("week_of_year(datetime(1970-01-01))", 1),
    ("endofday(datetime(2017-01-01 10:10:17), -1)", at("2016-12-31 23:59:59.999999")), ("endofweek(datetime(2017-01-01 10:10:17))", at("2017-01-07 23:59:59.999999")),
    ("endofmonth(datetime(2017-01-01), 1)", at("2017-02-28 23:59:59.999999")), ("endofyear(datetime(2017-01-01))", at("2017-12-31 23:59:59.999999")),
    ("startofday(datetime(2017-01-01 10:10:17), -1)", at("2016-12-31")), ("startofweek(datetime(2017-01-01 10:10:17), 1)", at("2017-01-08")),
    ("startofmonth(datetime(2017-01-01), -1)", at("2016-12-01")), ("startofyear(datetime(2017-03-01), -1)", at("2016-01-01")),
    ("format_datetime(datetime(2017-01-29 09:00:05), 'yy-MM-dd [HH:mm:ss]')", "17-01-29 [09:00:05]"), ("format_datetime(datetime(2017-01-29 09:00:05), 'yyyy-M-dd [H:mm:ss]')", "2017-1-29 [9:00:05]"),
    ("format_timespan(time(29.09:00:05.12345), 'dd.hh:mm:ss:FF')", "29.09:00:05:12"), ("format_timespan(time(29.09:00:05.12345), 'ddd.h:mm:ss [fffffff]')", "029.9:00:05 [1234500]"),
    ("make_datetime(2017, 10, 01, 12, 10)", at("2017-10-01 12:10")), ("make_datetime(2017, 10, 01, 12, 11, 0.1234567)", at("2017-10-01 12:11:00.123457")), ("make_datetime(2017, 13, 1)", None),
    ("make_timespan(1, 12, 30, 55.123)", span(days=1, hours=12, minutes=30, seconds=55.123)), ("make_timespan(1, 12)", span(hours=1, minutes=12)), ("make_timespan(1, 12, 30)", span(hours=1, minutes=12, seconds=30)),
    ("now() - ago(1h)", span(hours=1)), ("now(-2d) < now()", True),
    ("unixtime_seconds_todatetime(1546300800)", at("2019-01-01")), ("unixtime_milliseconds_todatetime(1546300800000)", at("2019-01-01")),
    ("unixtime_microseconds_todatetime(1546300800000000)", at("2019-01-01")), ("unixtime_nanoseconds_todatetime(1546300800000000000)", at("2019-01-01")),
]  # fmt: skip
STRINGS: list[tuple[str, Any]] = [
    ("base64_encode_tostring('Kusto')", "S3VzdG8="), ("base64_encodestring('Kusto')", "S3VzdG8="), ("base64_decode_tostring('S3VzdG8=')", "Kusto"), ("base64_decodestring('?')", ""),
    ("countof('The cat sat on the mat', 'at')", 3), ("countof('aaaa', 'aa')", 3), ("countof('ababa', 'aba')", 2), ("countof('ababa', 'aba', 'regex')", 1), ("countof('abcabc', 'a.c', 'regex')", 2),
    ("countof(@'The cat sat on the mat', @'\\b.at\\b', 'regex')", 3), ("estimate_data_size('1234567890', 1, true, int(1))", 23),
    ("extract('x=([0-9.]+)', 1, 'hello x=45.6|wo')", "45.6"), ("extract('x=([0-9.]+)', 1, 'hello x=45.6|wo', typeof(real))", 45.6), ("extract('a', 0, 'b', typeof(long))", None),
    (r"extract_all(@'(\w)(\w+)(\w)', dynamic([1, 3]), '82b8-dfa7')", [["8", "8"], ["d", "7"]]), (r"extract_all(@'([\da-f]{2})', '82b8')", ["82", "b8"]), ("extract_all('(x)', 'abc')", None),
    (r"extract_all(@'(?P<first>\w)(?P<middle>\w+)(?P<last>\w)', dynamic(['first', 2, 'last']), '82b8')", [["8", "2b", "8"]]),
    ("format_bytes(564)", "564 Bytes"), ("format_bytes(10332, 1)", "10.1 KB"), ("format_bytes(20010332)", "19 MB"), ("format_bytes(20010332, 2)", "19.08 MB"), ("format_bytes(20010332, 0, 'KB')", "19541 KB"),
    ("indexof('abcdefg', 'cde')", 2), ("indexof('abcdefg', 'cde', 1, 4)", 2), ("indexof('abcdefg', 'cde', 1, 2)", -1), ("indexof('abcdefg', 'cde', 3, 4)", -1), ("indexof('abcdefgabcdefg', 'cde', -10, 10)", 9),
    ("indexof(1234567, 5, 1, 4)", 4), ("indexof('abcdefg', 'cde', 2, -1)", 2), ("indexof('abcdefgabcdefg', 'cde', 1, 10, 2)", 9), ("indexof('abcdefgabcdefg', 'cde', 1, -1, 3)", -1),
    ("indexof_regex('abcabc', @'a.c')", 0), ("indexof_regex('abcabcdefg', @'a.c', 0, 9, 2)", 3), ("indexof_regex('abcabc', @'a.c', 1, -1, 2)", -1), ("indexof_regex('ababaa', @'a.a', 0, -1, 2)", -1), ("indexof_regex('abcabc', @'a|ab', -1)", None),
    ("isascii('abc')", True), ("isascii('ä')", False), ("isutf8('ä')", True), ("regex_quote('(so$me.Te^xt)')", r"\(so\$me\.Te\^xt\)"),
    (r"replace_regex('Number is 1', @'is (\d+)', @'was: \1')", "Number was: 1"), (r"replace(@'is (\d+)', @'was: \1', 'Number is 2')", "Number was: 2"), ("replace_string('Number is 1', 'is', 'was')", "Number was 1"),
    ("reverse('ABC')", "CBA"), ("reverse(123.45)", "54.321"), ("reverse(3h)", "00:00:30"), ("split('aa_bb', '_')", ["aa", "bb"]), ("split('aaa_bbb_ccc', '_', 1)", ["bbb"]), ("split('', '_')", [""]), ("split('a__b', '_')", ["a", "", "b"]),
    ("strcat('hello', ' ', 1)", "hello 1"), ("strcat_array(dynamic([1, 2, 3]), '->')", "1->2->3"), ("strcat_delim('-', 1, '2', 'A', 1s)", "1-2-A-00:00:01"), ("strcmp('ABC', 'abc')", -1), ("strcmp('abcde', 'abc')", 1),
    ("string_size('⒦⒰⒮⒯⒪')", 15), ("strlen('⒦⒰⒮⒯⒪')", 5), ("strrep('ABC', 2)", "ABCABC"), ("strrep(123, 3, '.')", "123.123.123"), ("strrep(3s, 2, ' ')", "00:00:03 00:00:03"), ("strrep('a', 0)", ""),
    ("substring('123456', 1)", "23456"), ("substring('123456', 2, 2)", "34"), ("substring('ABCD', 0, 2)", "AB"), ("substring('123456', -2, 2)", "56"), ("tolower('Hello')", "hello"), ("toupper('hello')", "HELLO"),
    ("translate('krasp', 'otsku', 'spark')", "kusto"), ("translate('abc', '', 'ab')", ""), ("translate('abc', 'x', 'abc')", "xxx"),
    ("trim('--', '--https://bing.com--')", "https://bing.com"), ("trim_end('.com', 'bing.com')", "bing"), (r"trim_start(@'[^\w]+', '-  Te st1// $')", "Te st1// $"),
]  # fmt: skip
FORMATS: list[tuple[str, Any]] = [
    ("base64_decode_toarray('S3VzdG8=')", [75, 117, 115, 116, 111]), ("base64_decode_toguid('8jMxriJurkmwahbmqbIS6w==')", "ae3133f2-6e22-49ae-b06a-16e6a9b212eb"), ("base64_decode_toguid('abcd')", None),
    ("base64_encode_fromarray(dynamic([75, 117, 115, 116, 111]))", "S3VzdG8="), ("base64_encode_fromguid(toguid('ae3133f2-6e22-49ae-b06a-16e6a9b212eb'))", "8jMxriJurkmwahbmqbIS6w=="),
    ("gzip_compress_to_base64_string('1234567890qwertyuiop')", "H4sIAAAAAAAA/wEUAOv/MTIzNDU2Nzg5MHF3ZXJ0eXVpb3A6m7f2FAAAAA=="), ("gzip_decompress_from_base64_string('H4sIAAAAAAAA/wEUAOv/MTIzNDU2Nzg5MHF3ZXJ0eXVpb3A6m7f2FAAAAA==')", "1234567890qwertyuiop"),
    ("gzip_decompress_from_base64_string('x0x0x0')", ""), ("zlib_compress_to_base64_string('1234567890qwertyuiop')", "eAEBFADr/zEyMzQ1Njc4OTBxd2VydHl1aW9wOAkGdw=="), ("zlib_decompress_from_base64_string('eJwLSS0uUSguKcrMS1cwNDIGACxqBQ4=')", "Test string 123"),
    ("zlib_decompress_from_base64_string(zlib_compress_to_base64_string(strrep('abc', 100))) == strrep('abc', 100)", True),
    ("has_any_index('this is an example', dynamic(['this', 'example']))", 0), ("has_any_index('this is an example', dynamic(['not', 'example']))", 1), ("has_any_index('Example number 2', dynamic([1, 2, 3]))", 1), ("has_any_index('a', dynamic([]))", -1),
    ("make_string(75, 117, 115)", "Kus"), ("to_utf8('Kus')", [75, 117, 115]), ("unicode_codepoints_from_string('⒦⒰')", [9382, 9392]), ("unicode_codepoints_to_string(dynamic([75, 117, 115]), 116, 111)", "Kusto"),
    (r"""parse_command_line(@'echo "hello world!"', 'windows')""", ["echo", "hello world!"]), (r"""parse_command_line(@'a\\b "c\"d" ""', 'windows')""", ["a\\\\b", 'c"d', ""]),
    ('parse_csv(\'aa,"b,b,b",cc,"Escaping quotes: ""Title""","line1\\nline2"\')', ["aa", "b,b,b", "cc", 'Escaping quotes: "Title"', "line1\nline2"]), ("parse_csv('record1,a,b,c\\nrecord2,x,y,z')", ["record1", "a", "b", "c"]),
    (r"parse_path(@'C:\temp\file.txt')", {"Scheme": "", "RootPath": "C:", "DirectoryPath": "C:\\temp", "DirectoryName": "temp", "Filename": "file.txt", "Extension": "txt", "AlternateDataStreamName": ""}),
    ("parse_path('file://C:/temp/file.txt:some.exe').AlternateDataStreamName", "some.exe"), ("parse_url('scheme://username:password@host:1234/this/is/a/path?k1=v1&k2=v2#fragment')", {"Scheme": "scheme", "Host": "host", "Port": "1234", "Path": "/this/is/a/path", "Username": "username", "Password": "password", "Query Parameters": {"k1": "v1", "k2": "v2"}, "Fragment": "fragment"}),
    ("parse_urlquery('k1=v1&k2=v2&k3=v3')", {"Query Parameters": {"k1": "v1", "k2": "v2", "k3": "v3"}}), ("parse_version('1.2.3.4')", Decimal(1000000020000000300000004)), ("parse_version('0.0.7')", Decimal(700000000)), ("parse_version('1.2.3.4.5')", None),
    ("parse_xml('<?xml version=\"1.0\" encoding=\"UTF-8\"?><duration><value>118.0</value><a x=\"1\"/><a>t</a></duration>')", {"?xml": {"@version": "1.0", "@encoding": "UTF-8"}, "duration": {"value": 118.0, "a": [{"@x": 1}, "t"]}}), ("parse_xml('<a')", None),
    ("parse_user_agent('Mozilla/5.0 (Windows; U; en-US) AppleWebKit/531.9 (KHTML, like Gecko) AdobeAIR/2.5.1', 'browser')", {"Browser": {"Family": "AdobeAIR", "MajorVersion": "2", "MinorVersion": "5", "Patch": "1"}}),
    ("punycode_from_string('académie-française')", "acadmie-franaise-npb1a"), ("punycode_to_string('acadmie-franaise-npb1a')", "académie-française"), ("punycode_domain_from_string('艺术.com')", "xn--cqv902d.com"), ("punycode_domain_to_string('xn--cqv902d.com')", "艺术.com"),
    ("replace_strings('A magic trick can turn a cat into a dog', dynamic(['cat', 'dog', 'magic']), dynamic(['dog', 'pigeon', 'mystical']))", "A mystical trick can turn a dog into a pigeon"), ("replace_strings('abcd', dynamic(['bc', 'ab', 'd', '']), dynamic(['-', '+', 4, 'x']))", "a-d"), ("bag_zip(dynamic(['a', 1]), dynamic(2))", {"a": None}),
    ("url_decode('https%3a%2f%2fwww.bing.com%2fa+b')", "https://www.bing.com/a b"), ("url_encode('https://www.bing.com/hello word')", "https%3a%2f%2fwww.bing.com%2fhello+word"), ("url_encode_component('https://www.bing.com/hello word')", "https%3a%2f%2fwww.bing.com%2fhello%20word"),
]  # fmt: skip
DYNAMICS: list[tuple[str, Any]] = [
    ("array_concat(dynamic([1]), dynamic([2, 3]))", [1, 2, 3]), ("array_iff(dynamic([true, false, true]), dynamic([1, 2, 3]), dynamic([4, 5, 6]))", [1, 5, 3]), ("array_iif(dynamic([1, -1, 0]), 'yes', 'no')", ["yes", "yes", "no"]),
    ("array_iff(dynamic([true, false, true]), dynamic([1, 2]), dynamic([3, 4]))", [1, 4, None]), ("array_iff(dynamic(['some string value', datetime('01-01-2022'), null]), dynamic([1, 2, 3]), dynamic([4, 5, 6]))", [None, None, None]), ("array_concat(dynamic(null), dynamic([1]))", [1]), ("array_index_of(dynamic(['this', 'is', 'an', 'example', 'an', 'example']), 'an', 1, -1, 2)", 4), ("array_index_of(dynamic(['a', 'b']), 'b', -1)", 1),
    (f"array_length({ARR})", 5), ("array_length(dynamic('a'))", None), (f"array_reverse({ARR})", [5, 4, 3, 2, 1]), (f"array_rotate_left({ARR}, 2)", [3, 4, 5, 1, 2]), (f"array_rotate_right({ARR}, -2)", [3, 4, 5, 1, 2]),
    (f"array_shift_left({ARR}, 2)", [3, 4, 5, None, None]), (f"array_shift_left({ARR}, -2, -1)", [-1, -1, 1, 2, 3]), (f"array_shift_right({ARR}, 2)", [None, None, 1, 2, 3]), (f"array_shift_right({ARR}, 2, -1)", [-1, -1, 1, 2, 3]),
    ("array_slice(dynamic([1, 2, 3]), 1, 2)", [2, 3]), (f"array_slice({ARR}, 2, -1)", [3, 4, 5]), (f"array_slice({ARR}, -3, -2)", [3, 4]), ("array_sort_asc(dynamic([null, 'blue', 'yellow', 'green', null]))", ["blue", "green", "yellow", None, None]),
    ("array_sort_desc(dynamic([1, 3, 4, 5, 2]))", [5, 4, 3, 2, 1]), ("array_sort_asc(dynamic([2, null, 1]), false)", [None, 1, 2]), (f"array_split({ARR}, 2)", [[1, 2], [3, 4, 5]]), (f"array_split({ARR}, dynamic([1, 3]))", [[1], [2, 3], [4, 5]]), (f"array_sum({ARR})", 15.0),
    ("bag_has_key(dynamic({'key1': {'prop1': 'abc'}}), '$.key1.prop1')", True), ("bag_has_key(dynamic({'key1': 1}), 'key2')", False), ("bag_keys(dynamic({'a': 'b', 'c': {'d': 123}}))", ["a", "c"]), ("bag_merge(dynamic({'A1': 12, 'B1': 2}), dynamic({'A2': 81, 'A1': 1}))", {"A1": 12, "B1": 2, "A2": 81}),
    ("bag_pack('Level', 'Information', 'ProcessID', 1234)", {"Level": "Information", "ProcessID": 1234}), ("pack('a', 1)", {"a": 1}), ("pack_dictionary('a', now() > now())", {"a": False}), ("bag_remove_keys(dynamic({'key1': 123, 'key2': 'abc'}), dynamic(['key1']))", {"key2": "abc"}),
    ("bag_remove_keys(dynamic({'key1': 123, 'key2': {'prop1': 1, 'prop2': 2}}), dynamic(['$.key2.prop1', 'key1']))", {"key2": {"prop2": 2}}), ("bag_set_key(dynamic({'key1': 1}), 'key3', 'abc')", {"key1": 1, "key3": "abc"}), ("bag_set_key(dynamic({'key1': {'prop1': 1}}), '$.key1.prop2', 5)", {"key1": {"prop1": 1, "prop2": 5}}),
    ("bag_zip(dynamic(['a', 'b', 'c']), dynamic([1, '2', 3.4]))", {"a": 1, "b": "2", "c": 3.4}), ("extract_json('$.hosts[1].AvailableMB', '{\"hosts\": [{\"AvailableMB\": 1}, {\"AvailableMB\": 300}]}', typeof(int))", 300), ("extractjson('$.a', '{\"a\": \"x\"}')", "x"),
    ("jaccard_index(dynamic([1, 2, 3]), dynamic([1, 2, 3, 4]))", 0.75), ("pack_array(1, 'a', 2s, real(nan))", [1, "a", "00:00:02", "NaN"]), ("range(1, 8, 3)", [1, 4, 7]), ("range(1, 3)", [1, 2, 3]), ("range(1.5, 3.0, 0.5)", [1.5, 2.0, 2.5, 3.0]),
    ("range(datetime(2020-01-01), datetime(2020-01-02), 1d)", ["2020-01-01T00:00:00.0000000Z", "2020-01-02T00:00:00.0000000Z"]), ("range(1h, 3h, 1h)", ["01:00:00", "02:00:00", "03:00:00"]), ("repeat(1, 3)", [1, 1, 1]), ("repeat('x', -1)", None),
    ("set_difference(dynamic([1, 2, 2, 3]), dynamic([2]), dynamic([9]))", [1, 3]), ("set_equals(dynamic([1, 2]), dynamic([2, 1, 1]))", True), ("array_strcat(dynamic([1]), ',')", "1"), ("set_has_element(dynamic(['this', 'is']), 'is')", True), ("set_intersect(dynamic([1, 2, 3]), dynamic([3, 1]))", [1, 3]), ("set_union(dynamic([1, 2]), dynamic([2, 3]))", [1, 2, 3]),
    ("treepath(parse_json('{\"a\": \"b\", \"c\": 123}'))", ["['a']", "['c']"]), ("treepath(parse_json('{\"listProperty\": [100, \"abcde\", {\"x\": \"y\"}]}'))", ["['listProperty']", "['listProperty'][0]", "['listProperty'][0]['x']"]), ("zip(dynamic([1, 3, 5]), dynamic([2, 4]))", [[1, 2], [3, 4], [5, None]]),
]  # fmt: skip
ADDRESSES: list[tuple[str, Any]] = [
    ("format_ipv4('192.168.1.1', 24)", "192.168.1.0"), ("format_ipv4(3232236031, 24)", "192.168.1.0"), ("format_ipv4_mask('192.168.1.1', 24)", "192.168.1.0/24"), ("format_ipv4_mask('192.168.1.1/24', -1)", ""),
    ("has_any_ipv4('05:04:54 127.0.0.1 GET /favicon.ico 404', '127.0.0.1', '127.0.0.2')", True), ("has_any_ipv4('05:04:54 127.0.0.1', dynamic(['127.0.0.256', '192.168.1.1']))", False), ("has_any_ipv4_prefix('05:04:54 127.0.0.1 GET', '127.0.', '192.168.')", True), ("has_any_ipv4_prefix('127.0.0.1', '127.0')", False),
    ("has_ipv4('05:04:54 127.0.0.1 GET /favicon.ico 404', '127.0.0.1')", True), ("has_ipv4('05:04:54127.0.0.1 GET', '127.0.0.1')", False), ("has_ipv4('127.0.0.256', '127.0.0.256')", False), ("has_ipv4_prefix('05:04:54 127.0.0.1 GET', '127.0.')", True), ("has_ipv4_prefix('05:04:54 127.0.0.1 GET', '127.0.0.1')", True),
    ("ipv4_compare('127.0.0.1', '127.0.0.1')", 0), ("ipv4_compare('192.168.1.1', '192.168.1.255')", -1), ("ipv4_compare('192.168.1.1/24', '192.168.1.255/24')", 0), ("ipv4_compare('192.168.1.1', '192.168.1.255', 24)", 0), ("ipv4_compare('x', '1.1.1.1')", None),
    ("ipv4_is_in_any_range('192.168.1.6', '192.168.1.1/24', '10.0.0.1/8')", True), ("ipv4_is_in_any_range('127.0.0.1', dynamic(['127.0.0.2', '192.168.1.1']))", False), ("ipv4_is_in_range('192.168.1.6', '192.168.1.1/24')", True), ("ipv4_is_in_range('127.0.0.1', 'x')", None),
    ("ipv4_is_match('192.168.1.1/24', '192.168.1.255/24')", True), ("ipv4_is_match('127.0.0.1', '127.0.0.2')", False), ("ipv4_is_private('10.1.2.3')", True), ("ipv4_is_private('192.168.1.1/24')", True), ("ipv4_is_private('208.1.2.3')", False), ("ipv4_netmask_suffix('192.168.1.1/24')", 24), ("ipv4_netmask_suffix('10.1.2.3')", 32),
    ("ipv4_range_to_cidr_list('1.1.128.0', '1.1.140.255')", ["1.1.128.0/21", "1.1.136.0/22", "1.1.140.0/24"]), ("ipv6_compare('::ffff:7f00:1', '127.0.0.1')", 0), ("ipv6_compare('fe80::85d:e82c:9446:7994', 'fe80::85d:e82c:9446:7995')", -1), ("ipv6_compare('fe80::85d:e82c:9446:7994', 'fe80::85d:e82c:9446:7995', 127)", 0),
    ("ipv6_is_in_any_range('a5e:f127:8a9d:146d:e102:b5d3:c755:abcd', 'a5e:f127:8a9d:146d:e102:b5d3:c755:0000/112')", True), ("ipv6_is_in_range('a5e:f127:8a9d:146d:e102:b5d3:c755:abcd', '0:0:0:0:0:ffff:c0a8:ac/60')", False), ("ipv6_is_match('192.168.1.1', '::ffff:c0a8:0101')", True),
    ("parse_ipv4('192.168.1.1/24')", 3232235776), ("parse_ipv4('127.0.0')", None), ("parse_ipv4_mask('192.1.168.2', 31)", 3221334018), ("parse_ipv4_mask('127.0.0.1', 24)", 2130706432), ("parse_ipv6('127.0.0.1')", "0000:0000:0000:0000:0000:ffff:7f00:0001"), ("parse_ipv6(':fe80::85d:e82c:9446:7994')", ""), ("parse_ipv6_mask('192.168.255.255', 120)", "0000:0000:0000:0000:0000:ffff:c0a8:ff00"), ("parse_ipv6_mask('::192.168.255.255/24', 128)", "0000:0000:0000:0000:0000:ffff:c0a8:ff00"), ("tostring(1e20)", "1E+20"), ("1./2", 0.5), ("weekofyear(datetime(2000-01-01))", 52), ("strcat(1e-7, '')", "1E-07"), ("tostring(series_seasonal(dynamic([1, 3, 5, 2, 4, 6, 1, 3, 5, 2, 4, 6]))[0])", "0.0"),
    ("hash('World')", 1846988464401551951), ("hash('World', 100)", 51), ("hash(datetime(2015-01-01))", 1380966698541616202), ("hash_xxhash64('World')", 1846988464401551951), ("hash(1) == hash(1.0)", False), ("hash_combine(hash('a'), hash('b')) == hash_many('a', 'b')", True), ("hash_many('a', 'b') == hash_many('b', 'a')", False),
    ("hash_md5('World')", "f5a7924e621e84c9280a9a27e1bcb7f6"), ("hash_md5(datetime(2020-01-01))", "786c530672d1f8db31fee25ea8a9390b"), ("hash_sha1('World')", "70c07ec18ef89c5309bbb0937f3a6342411e1fdd"), ("hash_sha256('World')", "78ae647dc5544d227130a0682a51e30bc7777fbb6d8a8f17007463a3ecd1d524"),
]  # fmt: skip
CASES = [*NUMBERS, *CONVERSIONS, *TIMES, *STRINGS, *FORMATS, *DYNAMICS, *ADDRESSES]


def values(text: str) -> list[Any]:
    """Return the only row of a query, with dynamic values decoded."""
    with query(text) as result:
        (row,) = result.read_all().to_pylist()
        return [
            json.loads(value) if kind == "dynamic" and value is not None else value
            for kind, value in zip(result.kinds.values(), row.values(), strict=True)
        ]


def same(found: Any, expected: Any) -> bool:
    """Return whether values are equal, reals within rounding."""
    if isinstance(expected, float) and isinstance(found, float | int):
        return math.isclose(found, expected, rel_tol=1e-6) or (math.isnan(found) and math.isnan(expected))
    return bool(found == expected) and isinstance(found, bool) == isinstance(expected, bool)


@pytest.mark.parametrize(
    "cases", [CASES[start : start + 60] for start in range(0, len(CASES), 60)], ids=lambda cases: cases[0][0][:30]
)
def test_functions_give_the_documented_values(cases: list[tuple[str, Any]]) -> None:
    text = ", ".join(f"x{index} = {expression}" for index, (expression, _) in enumerate(cases))
    found = values(f"print {text}")
    wrong = [(*case, value) for case, value in zip(cases, found, strict=True) if not same(value, case[1])]
    assert wrong == []


def test_functions_compute_rows_as_they_compute_constants() -> None:
    """DuckDB folds constants; over rows each function meets nulls and many values at once."""
    rows = "range i from 0 to 2999 step 1 | extend s = iff(i % 3 == 0, '', strcat('a/b?', i)), d = iff(i % 3 == 1, dynamic(null), pack_array(i, 1))"
    found = values(
        f"{rows} | extend u = parse_url(s).Host, r = array_reverse(d)[0], h = hash(s), z = array_concat(d, d) | summarize dcount(tostring(u)), countif(tolong(r) == 1), dcount(h), countif(array_length(z) == 4)"
    )
    assert found == [2, 2000, 2001, 2000]


def test_every_function_is_documented_and_tested() -> None:
    used = " ".join(expression for expression, _ in CASES)
    # The functions of test_computed.py, test_sketches.py and test_geo.py are declared apart.
    documented = [each for each in FUNCTIONS.values() if each.name not in COMPUTED]
    other = {"bag_pack_columns", "bin_auto", "pack_all"}
    assert [each.name for each in documented if f"{each.name}(" not in used and each.name not in other] == []
    assert all(each.about.endswith((".", ")")) for each in (*documented, *AGGREGATE_NAMES.values()))


def test_the_page_lists_what_there_is() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m scripts.make_kql_page"


def test_every_name_of_the_reference_has_a_line() -> None:
    lines = PAGE.read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `([\w-]+)", lines, re.MULTILINE))
    known = documented_names()
    assert {*known["functions"], *known["plugins"]} - listed == set()


def test_bags_of_columns() -> None:
    rows = "datatable(a: long, b: string, c: real) [1, '', real(null)]"
    assert values(f"{rows} | project pack_all(), pack_all(true), bag_pack_columns(a, b)") == [
        {"a": 1, "b": "", "c": None},
        {"a": 1},
        {"a": 1, "b": ""},
    ]


def test_random_values_are_fixed_by_materialize_and_prune_nothing() -> None:
    text = "let a = materialize({}); union a, a | summarize dcount(x)"
    for rows in ("print x = rand()", "range i from 1 to 1 step 1 | project x = new_guid()"):
        assert values(text.format(rows)) == [1]
    # A random number differs from row to row.
    (found,) = values("range i from 1 to 1000 step 1 | where rand() < 0.5 | count")
    assert 0 < found < 1000


def test_bins_have_the_size_that_set_gives() -> None:
    text = "set query_bin_auto_size = 1h; {} print bin_auto(datetime(2020-01-01 10:45)), bin_auto(90m)"
    assert values(text.format("")) == [at("2020-01-01 10:00"), span(hours=1)]
    start = "set query_bin_auto_at = datetime(2020-01-01 00:30);"
    found = values(f"set query_bin_auto_size = 1h; {start} print bin_auto(datetime(2020-01-01 10:15))")
    assert found == [at("2020-01-01 09:30")]
    with pytest.raises(KqlError, match="query_bin_auto_size"):
        query("print bin_auto(1)")


@pytest.mark.parametrize(
    ("name", "expected"),
    [("minof", "min_of"), ("tolowercase", "tolower"), ("strcatt", "strcat"), ("Extract", "extract"), ("qwertz", None)],
)
def test_a_wrong_name_suggests_the_right_one(name: str, expected: str | None) -> None:
    assert similar(name) == expected
    with pytest.raises(KqlError, match=f"did you mean {expected}" if expected else "is not supported"):
        query(f"print {name}(1)")


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("abs('a')", "argument 1 of abs() is a string"),
        ("strcat()", "takes 1 to"),
        ("extract('(', 1, 'a')", "regular expression"),
        ("extract_all('a', 'a')", "no capture group"),
        ("assert(1 == 2, 'one is not two')", "one is not two"),
        ("convert_length(1, 2, 3)", "should be string"),
        ("countof('a', 'a', 'x')", "has no kind"),
        ("format_timespan(1h, 'q')", "does not support 'q'"),
        ("bag_pack('a')", "pairs"),
    ],
)
def test_a_wrong_call_is_an_error_that_says_why(expression: str, message: str) -> None:
    with pytest.raises(KqlError) as found:
        query(f"print {expression}")
    assert message in str(found.value)


SALES = "datatable(g: string, n: long, r: real, w: long, b: bool, d: dynamic, t: datetime) ['a', 1, 1.0, 8, true, dynamic({'x': 1}), datetime(2020-01-01), 'a', 2, 3.0, 6, false, dynamic({'y': [1, 'u']}), datetime(2020-01-03), 'b', long(null), 5.0, 3, true, dynamic({'x': 'v'}), datetime(2020-01-02)]"
AGGREGATED: list[tuple[str, Any]] = [
    ("any(g)", "a"), ("anyif(g, n == 2)", "a"), ("avg(n)", 1.5), ("avg(t)", at("2020-01-02")), ("avgif(r, b)", 3.0), ("binary_all_and(w)", 0), ("binary_all_or(w)", 15), ("binary_all_xor(w)", 13),
    ("buildschema(d)", {"x": ["long", "string"], "y": {"`indexer`": ["long", "string"]}}), ("count()", 3), ("count_distinct(g)", 2), ("count_distinctif(g, b)", 2), ("countif(b)", 2), ("covariance(r, w)", -5.0), ("covarianceif(r, w, b)", -10.0), ("covariancep(r, w)", -10 / 3), ("covariancepif(r, w, b)", -5.0),
    ("dcount(g)", 2), ("dcountif(g, n > 0)", 1), ("make_list(pack_array(n, n))", [1, 1, 2, 2]), ("make_bag(d)", {"x": 1, "y": [1, "u"]}), ("make_bag_if(d, b)", {"x": 1}), ("make_bag(d, 1)", {"x": 1}), ("make_dictionary(d)", {"x": 1, "y": [1, "u"]}), ("make_list(n)", [1, 2]), ("make_list_if(n, b)", [1]), ("make_list_with_nulls(n)", [1, 2, None]),
    ("make_list(t, 1)", ["2020-01-01T00:00:00.0000000Z"]), ("array_sort_asc(make_set(g))", ["a", "b"]), ("make_set_if(g, n == 1)", ["a"]), ("makelist(n)", [1, 2]), ("array_length(makeset(g))", 2), ("max(n)", 2), ("maxif(r, n == 1)", 1.0), ("min(t)", at("2020-01-01")), ("minif(r, n == 2)", 3.0),
    ("percentile(r, 50)", 3.0), ("percentiles_array(r, 0, 50)", [1.0, 3.0]), ("percentiles_array(t, dynamic([50]))", ["2020-01-02T00:00:00.0000000Z"]), ("percentilew(r, w, 50)", 3.0), ("percentilew(t, w, 60)", at("2020-01-02")), ("percentilesw_array(w, w, 50, dynamic([99]))", [6, 8]),
    ("stdev(r)", 2.0), ("stdevif(r, b)", math.sqrt(8)), ("stdevp(r)", math.sqrt(8 / 3)), ("sum(w)", 17), ("sumif(w, b)", 11), ("take_any(g)", "a"), ("take_anyif(g, n == 2)", "a"), ("variance(r)", 4.0), ("varianceif(r, b)", 8.0), ("variancep(r)", 8 / 3), ("variancepif(r, b)", 4.0),
]  # fmt: skip


def test_aggregates_give_the_documented_values() -> None:
    text = ", ".join(f"x{index} = {expression}" for index, (expression, _) in enumerate(AGGREGATED))
    found = values(f"{SALES} | summarize {text}")
    assert [(*case, value) for case, value in zip(AGGREGATED, found, strict=True) if not same(value, case[1])] == []


def test_aggregates_with_several_columns() -> None:
    with query(f"{SALES} | summarize arg_max(t, g, n), argmin(t, w), percentilesw(r, w, 50, 99), any(n, r)") as result:
        (row,) = result.read_all().to_pylist()
    assert row == {
        "t": at("2020-01-03"), "g": "a", "n": 2, "min_t": at("2020-01-01"), "min_t_w": 8,
        "percentile_r_50": 3.0, "percentile_r_99": 5.0, "any_n": 1, "any_r": 1.0,
    }  # fmt: skip
    assert values(f"{SALES} | summarize arg_min(r)") == [1.0]


def test_every_aggregate_is_tested() -> None:
    used = (
        " ".join(expression for expression, _ in AGGREGATED)
        + " arg_max( arg_min( argmax( argmin( percentiles( percentilesw("
    )
    assert [name for name in AGGREGATE_NAMES if f"{name}(" not in used and name not in SKETCHES] == []
