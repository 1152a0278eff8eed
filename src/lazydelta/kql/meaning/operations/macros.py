"""SQL macros that every query's connection gets: parts of functions that need an argument more than once."""

from __future__ import annotations

__all__ = ["MACROS", "TICKS_BEFORE_1970"]

TICKS_BEFORE_1970 = 621_355_968_000_000_000
"""Ticks from 0001-01-01, where Kusto's bins are aligned, to 1970, where DuckDB counts from."""

_T = TICKS_BEFORE_1970

MACROS = {
    # The remainder is never negative, and a bin is what is left without it.
    "kql_mod(a, b)": "((a % b) + abs(b)) % abs(b)",
    "kql_bin(a, b)": "CASE WHEN b > 0 THEN a - kql_mod(a, b) END",
    "kql_bin_real(a, b)": "CASE WHEN b > 0 THEN floor(a / b) * b END",
    "kql_ticks(t)": f"(epoch_us(t) * 10 + {_T})",
    "kql_from_ticks(n)": f"make_timestamp((n - {_T}) // 10)",
    "kql_bin_time(t, w)": "kql_from_ticks(kql_bin(kql_ticks(t), w))",
    "kql_days(t)": "(kql_ticks(t) // 864000000000)",
    # Whole periods since 0001-01-01, a Monday; weeks start on Sunday.
    "kql_weeks(t)": "((kql_days(t) + 1) // 7)",
    "kql_week_start(t)": "CAST(date_trunc('week', t + INTERVAL 1 DAY) - INTERVAL 1 DAY AS TIMESTAMP)",
    "kql_moment(s)": "CAST(TRY_CAST(nullif(trim(s), '') AS TIMESTAMPTZ) AT TIME ZONE 'UTC' AS TIMESTAMP)",
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
    "kql_long(s)": "CASE WHEN regexp_full_match(trim(s), '[+-]?[0-9]+') THEN TRY_CAST(trim(s) AS BIGINT) END",
    "kql_bool(s)": (
        "CASE WHEN lower(trim(s)) IN ('true', '1') THEN TRUE WHEN lower(trim(s)) IN ('false', '0') THEN FALSE END"
    ),
    "kql_from(s, n)": "CASE WHEN n < 0 THEN greatest(length(s) + n, 0) ELSE n END",
    "kql_next(s, m, start, n)": "nullif(instr(substr(s, start + 1, n), m), 0) + start - 1",
    "kql_found(parts, m, start, n)": (
        "CASE WHEN len(parts) > n THEN length(array_to_string(list_slice(parts, 1, n), m)) + start ELSE -1 END"
    ),
}
"""Each macro's head and what it stands for."""
