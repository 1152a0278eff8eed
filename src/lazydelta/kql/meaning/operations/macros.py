"""SQL macros that every query's connection gets: parts of functions that need an argument more than once."""

from __future__ import annotations

__all__ = ["MACROS", "TICKS_BEFORE_1970"]

TICKS_BEFORE_1970 = 621_355_968_000_000_000
"""Ticks from 0001-01-01, where Kusto's bins are aligned, to 1970, where DuckDB counts from."""

_T = TICKS_BEFORE_1970
_CLOCK = r"^([+-])?(?:(\d{1,8})\.)?([01]?\d|2[0-3]):([0-5]?\d)(?::([0-5]?\d)(?:\.(\d{1,7}))?)?$"
_AMOUNT = r"^([+-]?\d+(?:\.\d+)?)(d|h|m|s|ms)?$"

MACROS = {
    # The remainder is never negative, and a bin is what is left without it.
    "kql_mod(a, b)": "((a % b) + abs(b)) % abs(b)",
    "kql_bin(a, b)": "CASE WHEN b > 0 THEN a - kql_mod(a, b) END",
    "kql_bin_real(a, b)": "CASE WHEN b > 0 THEN floor(a / b) * b END",
    "kql_ticks(t)": f"(epoch_us(t) * 10 + {_T})",
    # What lies outside the years that Kusto has is null.
    "kql_dated(t)": "CASE WHEN t >= TIMESTAMP '0001-01-01' AND t < TIMESTAMP '10000-01-01' THEN t END",
    "kql_from_ticks(n)": f"make_timestamp((n - {_T}) // 10)",
    "kql_bin_time(t, w)": "kql_from_ticks(kql_bin(kql_ticks(t), w))",
    "kql_days(t)": "(kql_ticks(t) // 864000000000)",
    # Whole periods since 0001-01-01, a Monday; weeks start on Sunday.
    "kql_weeks(t)": "((kql_days(t) + 1) // 7)",
    "kql_week_start(t)": "CAST(date_trunc('week', t + INTERVAL 1 DAY) - INTERVAL 1 DAY AS TIMESTAMP)",
    # A year or a month alone is its start, and blanks may stand before the zone.
    "kql_whole_moment(s)": (
        r"regexp_replace(regexp_replace(regexp_replace(trim(s), '^(\d{4})$', '\1-01'), '^(\d{4}-\d{1,2})$', '\1-01'),"
        r" '\s+(Z|[+-]\d{2}:?\d{2})$', '\1')"
    ),
    "kql_moment(s)": (
        "kql_dated(CAST(TRY_CAST(nullif(kql_whole_moment(s), '') AS TIMESTAMPTZ) AT TIME ZONE 'UTC' AS TIMESTAMP))"
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
    "kql_moment_text(t)": "coalesce(strftime(t, '%Y-%m-%dT%H:%M:%S.%f') || '0Z', '')",
    "kql_clock(n)": (
        "printf('%02d:%02d:%02d', (n // 36000000000) % 24, (n // 600000000) % 60, (n // 10000000) % 60)"
        " || CASE WHEN n % 10000000 = 0 THEN '' ELSE printf('.%07d', n % 10000000) END"
    ),
    "kql_span_text(n)": (
        "coalesce(CASE WHEN n < 0 THEN '-' ELSE '' END"
        " || CASE WHEN abs(n) >= 864000000000 THEN (abs(n) // 864000000000)::VARCHAR || '.' ELSE '' END"
        " || kql_clock(abs(n)), '')"
    ),
    "kql_json(d, path)": "CAST(nullif(CAST(json_extract(d, path) AS VARCHAR), 'null') AS JSON)",
    "kql_parse_json(s)": (
        "CASE WHEN s = '' THEN NULL WHEN json_valid(s) THEN kql_json(TRY_CAST(s AS JSON), '$') ELSE to_json(s) END"
    ),
    # JSON has no word for these; a text is what Kusto writes.
    "kql_real_json(x)": (
        "CASE WHEN isfinite(x) THEN to_json(x) WHEN isnan(x) THEN to_json('NaN')"
        " WHEN x > 0 THEN to_json('Infinity') WHEN x < 0 THEN to_json('-Infinity') END"
    ),
    "kql_elements(d)": (
        "list_filter(CASE WHEN json_type(d) = 'ARRAY' THEN json_extract(d, '$[*]') ELSE [d] END,"
        " lambda e: json_type(e) <> 'NULL')"
    ),
    "kql_long(s)": "CASE WHEN regexp_full_match(trim(s), '[+-]?[0-9]+') THEN TRY_CAST(trim(s) AS BIGINT) END",
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
"""Each macro's head and what it stands for."""
