"""SQL macros of the connection of every query: parts of functions that use an argument more than once."""

from __future__ import annotations

from lazydelta.kql.language.literals import RFC_TIMESTAMP

__all__ = ["MACROS", "TICKS_BEFORE_1970", "VOLATILE"]

VOLATILE = ("random()", "gen_random_uuid()")
"""SQL functions whose value differs from row to row."""

TICKS_BEFORE_1970 = 621_355_968_000_000_000
"""Ticks from 0001-01-01, where Kusto's bins are aligned, to 1970, DuckDB's epoch."""

_UPPER = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_T = TICKS_BEFORE_1970
_CLOCK = r"^([+-])?(?:(\d{1,8})\.)?([01]?\d|2[0-3]):([0-5]?\d)(?::([0-5]?\d)(?:\.(\d{1,7}))?)?$"
_AMOUNT = r"^([+-]?\d+(?:\.\d+)?)(d|h|m|s|ms)?$"

MACROS = {
    # The remainder is never negative, and a bin is the value minus the remainder.
    "kql_mod(a, b)": "CASE WHEN a % b < 0 THEN a % b + abs(b) ELSE a % b END",
    "kql_real_mod(a, b)": "((a % b) + abs(b)) % abs(b)",
    "kql_bin(a, b)": "CASE WHEN b > 0 THEN a - kql_mod(a, b) END",
    "kql_bin_real(a, b)": "CASE WHEN b > 0 THEN floor(a / b) * b END",
    "kql_ticks(t)": f"(epoch_us(t) * 10 + {_T})",
    # A datetime outside Kusto's range of years is null.
    "kql_dated(t)": "CASE WHEN t >= TIMESTAMP '0001-01-01' AND t < TIMESTAMP '10000-01-01' THEN t END",
    "kql_from_ticks(n)": f"make_timestamp((n - {_T}) // 10)",
    "kql_bin_time(t, w)": "kql_from_ticks(kql_bin(kql_ticks(t), w))",
    "kql_days(t)": "(kql_ticks(t) // 864000000000)",
    # Number of whole periods since 0001-01-01, a Monday. Weeks start on Sunday.
    "kql_weeks(t)": "((kql_days(t) + 1) // 7)",
    "kql_week_start(t)": "CAST(date_trunc('week', t + INTERVAL 1 DAY) - INTERVAL 1 DAY AS TIMESTAMP)",
    # A lone year or month means its start, spaces may precede the zone, and a year at the end follows month and day.
    "kql_whole_timestamp(s)": (
        r"regexp_replace(regexp_replace(regexp_replace(regexp_replace(trim(s), '^(\d{4})$', '\1-01'),"
        r" '^(\d{4}-\d{1,2})$', '\1-01'), '\s+(Z|[+-]\d{2}:?\d{2})$', '\1'),"
        r" '^(\d{1,2})[-/](\d{1,2})[-/](\d{4})', '\3-\1-\2')"
    ),
    "kql_rfc_timestamp(s)": (
        f"try_strptime(regexp_extract(s, '{RFC_TIMESTAMP}', 1) || ' ' || regexp_extract(s, '{RFC_TIMESTAMP}', 2) || ' '"
        f" || regexp_extract(s, '{RFC_TIMESTAMP}', 3) || ' ' || regexp_extract(s, '{RFC_TIMESTAMP}', 4),"
        " ['%d %b %y %H:%M:%S', '%d %b %y %H:%M', '%d %b %Y %H:%M:%S', '%d %b %Y %H:%M'])"
    ),
    "kql_timestamp(s)": (
        "kql_dated(coalesce(CAST(TRY_CAST(nullif(kql_whole_timestamp(s), '') AS TIMESTAMPTZ) AT TIME ZONE 'UTC'"
        " AS TIMESTAMP), kql_rfc_timestamp(trim(s))))"
    ),
    "kql_part(s, n)": f"coalesce(TRY_CAST(regexp_extract(s, '{_CLOCK}', n) AS BIGINT), 0)",
    "kql_clock_span(s)": (
        "(((kql_part(s, 2) * 24 + kql_part(s, 3)) * 60 + kql_part(s, 4)) * 60 + kql_part(s, 5)) * 10000000"
        f" + CAST(rpad(regexp_extract(s, '{_CLOCK}', 6), 7, '0') AS BIGINT)"
    ),
    "kql_unit_ticks(u)": (
        "CASE u WHEN 'h' THEN 36000000000 WHEN 'm' THEN 600000000 WHEN 's' THEN 10000000 WHEN 'ms' THEN 10000"
        " ELSE 864000000000 END"
    ),
    "kql_span(s)": (
        f"CASE WHEN regexp_full_match(trim(s), '{_CLOCK}') THEN"
        " CASE WHEN trim(s)[1] = '-' THEN -1 ELSE 1 END * kql_clock_span(trim(s))"
        f" WHEN regexp_full_match(trim(s), '{_AMOUNT}') THEN"
        f" TRY_CAST(round(TRY_CAST(regexp_extract(trim(s), '{_AMOUNT}', 1) AS DOUBLE)"
        f" * kql_unit_ticks(regexp_extract(trim(s), '{_AMOUNT}', 2))) AS BIGINT) END"
    ),
    "kql_timestamp_text(t)": "coalesce(strftime(t, '%Y-%m-%dT%H:%M:%S.%f') || '0Z', '')",
    "kql_clock(n)": (
        "printf('%02d:%02d:%02d', (n // 36000000000) % 24, (n // 600000000) % 60, (n // 10000000) % 60)"
        " || CASE WHEN n % 10000000 = 0 THEN '' ELSE printf('.%07d', n % 10000000) END"
    ),
    "kql_span_text(n)": (
        "coalesce(CASE WHEN n < 0 THEN '-' ELSE '' END"
        " || CASE WHEN abs(n) >= 864000000000 THEN (abs(n) // 864000000000)::VARCHAR || '.' ELSE '' END"
        " || kql_clock(abs(n)), '')"
    ),
    # The register that a hash belongs to, times 64, plus the place of the first 1 in what is left of the hash.
    "kql_hll(h, p)": (
        "CAST(h >> (64 - p) AS BIGINT) * 64 + CASE WHEN h % (1::UBIGINT << (64 - p)) = 0 THEN 65 - p"
        " ELSE 64 - p - CAST(floor(log2(h % (1::UBIGINT << (64 - p)))) AS BIGINT) END"
    ),
    "kql_json(d, path)": "CAST(nullif(CAST(json_extract(d, path) AS VARCHAR), 'null') AS JSON)",
    "kql_key(n)": "CASE WHEN n < 0 THEN '$[#' || n || ']' ELSE '$[' || n || ']' END",
    "kql_pointer(s)": "'/' || replace(replace(s, '~', '~0'), '/', '~1')",
    "kql_parse_json(s)": (
        "CASE WHEN s = '' THEN NULL WHEN json_valid(s) THEN kql_json(TRY_CAST(s AS JSON), '$') ELSE to_json(s) END"
    ),
    # JSON has no such numbers; Kusto writes them as strings.
    "kql_real_json(x)": (
        "CASE WHEN isfinite(x) THEN to_json(x) WHEN isnan(x) THEN to_json('NaN')"
        " WHEN x > 0 THEN to_json('Infinity') WHEN x < 0 THEN to_json('-Infinity') END"
    ),
    "kql_array(d)": "CASE WHEN json_type(d) = 'ARRAY' THEN json_extract(d, '$[*]') ELSE [d] END",
    "kql_real_text(x)": (
        "CASE WHEN isfinite(x) THEN upper(CAST(x AS VARCHAR)) WHEN isnan(x) THEN 'NaN' WHEN x > 0 THEN 'Infinity'"
        " WHEN x < 0 THEN '-Infinity' ELSE '' END"
    ),
    "kql_elements(d)": (
        "list_filter(CASE WHEN json_type(d) = 'ARRAY' THEN json_extract(d, '$[*]') ELSE [d] END,"
        " lambda e: json_type(e) <> 'NULL')"
    ),
    # Kusto ignores the case of ASCII letters only. `lower` folds more but is fast, and leaves few strings to
    # `translate`.
    "kql_fold(s)": (
        f"CASE WHEN strlen(s) = length(s) THEN lower(s) ELSE translate(s, '{_UPPER}', '{_UPPER.lower()}') END"
    ),
    "kql_same(a, b)": "(lower(a) = lower(b) AND kql_fold(a) = kql_fold(b))",
    "kql_contains(a, b)": "(contains(lower(a), lower(b)) AND contains(kql_fold(a), kql_fold(b)))",
    "kql_startswith(a, b)": "(starts_with(lower(a), lower(b)) AND starts_with(kql_fold(a), kql_fold(b)))",
    "kql_endswith(a, b)": "(suffix(lower(a), lower(b)) AND suffix(kql_fold(a), kql_fold(b)))",
    "kql_long(s)": "CASE WHEN regexp_full_match(trim(s), '[+-]?[0-9]+') THEN TRY_CAST(trim(s) AS BIGINT) END",
    "kql_guid(s)": (
        "CASE WHEN regexp_full_match(s, '[{(]?([0-9a-fA-F]-?){32}[)}]?')"
        " THEN TRY_CAST(regexp_replace(s, '[^0-9a-fA-F]', '', 'g') AS UUID) END"
    ),
    "kql_log(x, base)": "CASE WHEN x > 0 THEN ln(x) / base WHEN x = 0 THEN CAST('-inf' AS DOUBLE) END",
    "kql_type(d)": (
        "CASE json_type(d) WHEN 'ARRAY' THEN 'array' WHEN 'OBJECT' THEN 'dictionary' WHEN 'VARCHAR' THEN 'string'"
        " WHEN 'BOOLEAN' THEN 'bool' WHEN 'DOUBLE' THEN 'double' WHEN 'BIGINT' THEN 'long' WHEN 'UBIGINT' THEN 'long'"
        " ELSE 'null' END"
    ),
    "kql_real(s)": "TRY_CAST(nullif(trim(s), '') AS DOUBLE)",
    "kql_from_base64(s)": "coalesce(TRY(decode(from_base64(s))), '')",
    "kql_padded(s, n)": "CASE WHEN s = '' OR length(s) >= n THEN s ELSE rpad(s, CAST(n AS INTEGER), s[-1]) END",
    # Overlapping occurrences count.
    "kql_count(s, m)": (
        "CASE WHEN m <> '' THEN"
        " len(list_filter(range(1, length(s) - length(m) + 2), lambda i: substr(s, i, length(m)) = m)) END"
    ),
    "kql_bool(s)": (
        "CASE WHEN lower(trim(s)) IN ('true', '1') THEN TRUE WHEN lower(trim(s)) IN ('false', '0') THEN FALSE END"
    ),
    "kql_from(s, n)": "CASE WHEN n < 0 THEN greatest(length(s) + n, 0) ELSE n END",
    "kql_next(s, m, start, n)": "nullif(instr(substr(s, start + 1, n), m), 0) + start - 1",
    "kql_found(parts, m, start, n)": (
        "CASE WHEN m = '' THEN start"
        " WHEN len(parts) > n THEN length(array_to_string(list_slice(parts, 1, n), m)) + start ELSE -1 END"
    ),
}
"""SQL macros: signature and body."""
