"""Queries in KQL beside the SQL that a person wrote for them; the SQL is for DuckDB over the plain rows.

In the SQL, nulls are spelled out as Kusto's documentation has them: ``d`` is a text that is never null, conditions
that are null are false under AND and OR, and comparisons of reals leave NaN out.
"""

# ruff: noqa: E501 - a query is read best on one line

from __future__ import annotations

import random
from typing import NamedTuple

__all__ = ["PAIRS", "Pair", "random_pairs"]


class Pair(NamedTuple):
    """The same question twice; ``deviates`` says why Microsoft's analyser objects to the KQL."""

    kql: str
    sql: str
    ordered: bool = False
    deviates: str = ""


STRING_ORDER = "texts are compared in order"
D = "coalesce(device_id, '')"
H = "coalesce(_event_hour, '')"
TERM = "regexp_matches({0}, '(?i)(^|[^A-Za-z0-9]){1}($|[^A-Za-z0-9])')"

# A condition in KQL, the same in SQL; the third says that order of texts is ours.
CONDITIONS: list[tuple[str, str, str]] = [
    ("device_id == 'sensor-1'", f"{D} = 'sensor-1'", ""),
    ("device_id != 'sensor-1'", f"{D} <> 'sensor-1'", ""),
    ("device_id == ''", f"{D} = ''", ""),
    ("device_id != ''", f"{D} <> ''", ""),
    ("device_id =~ 'SENSOR-1'", f"lower({D}) = 'sensor-1'", ""),
    ("device_id !~ 'sensor-1'", f"lower({D}) <> 'sensor-1'", ""),
    ("device_id in ('sensor-1', '')", f"{D} IN ('sensor-1', '')", ""),
    ("device_id !in ('sensor-1', 'pump a')", f"{D} NOT IN ('sensor-1', 'pump a')", ""),
    ("device_id in~ ('SENSOR-1', 'PUMP A')", f"lower({D}) IN ('sensor-1', 'pump a')", ""),
    ("device_id !in~ ('SENSOR-1', '')", f"lower({D}) NOT IN ('sensor-1', '')", ""),
    ("device_id in (dynamic(['Pump-A', 'x']))", f"{D} IN ('Pump-A', 'x')", ""),
    ("device_id has 'sensor'", TERM.format(D, "sensor"), ""),
    ("device_id !has '42'", "NOT " + TERM.format(D, "42"), ""),
    ("device_id has_cs 'SENSOR'", f"regexp_matches({D}, '(^|[^A-Za-z0-9])SENSOR($|[^A-Za-z0-9])')", ""),
    ("device_id has 'sens'", TERM.format(D, "sens"), ""),
    ("device_id hasprefix 'SENS'", f"regexp_matches({D}, '(?i)(^|[^A-Za-z0-9])sens')", ""),
    ("device_id !hasprefix_cs 'Pu'", f"NOT regexp_matches({D}, '(^|[^A-Za-z0-9])Pu')", ""),
    ("device_id has_any ('pump', '42')", f"({TERM.format(D, 'pump')} OR {TERM.format(D, '42')})", ""),
    ("device_id has_all ('sensor', '42')", f"({TERM.format(D, 'sensor')} AND {TERM.format(D, '42')})", ""),
    ("device_id contains 'MP'", f"lower({D}) LIKE '%mp%'", ""),
    ("device_id !contains_cs 'mp'", f"{D} NOT LIKE '%mp%'", ""),
    ("device_id startswith 'PUMP'", f"lower({D}) LIKE 'pump%'", ""),
    ("device_id startswith_cs 'sensor'", f"{D} LIKE 'sensor%'", ""),
    ("device_id !startswith_cs 'sensor'", f"{D} NOT LIKE 'sensor%'", ""),
    ("device_id endswith '-A'", f"lower({D}) LIKE '%-a'", ""),
    ("device_id !endswith_cs '1'", f"{D} NOT LIKE '%1'", ""),
    ("device_id matches regex '^[sS].*[12]$'", f"regexp_matches({D}, '^[sS].*[12]$')", ""),
    ("isempty(device_id)", f"{D} = ''", ""),
    ("isnotempty(device_id)", f"{D} <> ''", ""),
    ("isnull(device_id)", "FALSE", ""),
    ("isnotnull(device_id)", "TRUE", ""),
    ("device_id == @'a''b\"c'", f"{D} = 'a''b\"c'", ""),
    ("strlen(device_id) > 6", f"length({D}) > 6", ""),
    ("tolower(device_id) == 'pump a'", f"lower({D}) = 'pump a'", ""),
    ("_event_hour >= '2026021003'", f"{H} >= '2026021003'", STRING_ORDER),
    ("_event_hour between ('2026021001' .. '2026021002')", f"{H} BETWEEN '2026021001' AND '2026021002'", STRING_ORDER),
    ("device_id < 'a'", f"{D} < 'a'", STRING_ORDER),
    ("_event_hour == '2026021004'", f"{H} = '2026021004'", ""),
    ("_event_hour in ('2026021000', '2026021005')", f"{H} IN ('2026021000', '2026021005')", ""),
    ("n == 0", "n IS NOT DISTINCT FROM 0", ""),
    ("n != 0", "n IS DISTINCT FROM 0", ""),
    ("not(n == 0)", "n IS DISTINCT FROM 0", ""),
    ("n > 5", "n > 5", ""),
    ("not(n > 5)", "n <= 5", ""),
    ("n <= -7", "n <= -7", ""),
    ("10 > n", "n < 10", ""),
    ("n in (0, 10, 20)", "coalesce(n IN (0, 10, 20), FALSE)", ""),
    ("n !in (0, 10, 20)", "NOT coalesce(n IN (0, 10, 20), FALSE)", ""),
    ("n between (-5 .. 5)", "n BETWEEN -5 AND 5", ""),
    ("n !between (-5 .. 5)", "NOT (n BETWEEN -5 AND 5)", ""),
    ("n > 1.5", "n > 1.5", ""),
    ("n == 1.5", "FALSE", ""),
    ("isnull(n)", "n IS NULL", ""),
    ("isnotnull(n)", "n IS NOT NULL", ""),
    ("n % 3 == 1", "coalesce(((n % 3) + 3) % 3 = 1, FALSE)", ""),
    ("n / 4 == 2", "coalesce(trunc(n / 4.0) = 2, FALSE)", ""),
    ("i == 3", "i IS NOT DISTINCT FROM 3", ""),
    ("i != 3", "i IS DISTINCT FROM 3", ""),
    ("i < n", "i < n", ""),
    ("value > 2", "value > 2 AND NOT isnan(value)", ""),
    ("not(value > 2)", "NOT (value > 2 AND NOT isnan(value))", ""),
    ("value < 2.5", "value < 2.5", ""),
    ("value <= 2.5", "value <= 2.5", ""),
    ("value == 2.5", "value IS NOT DISTINCT FROM 2.5::DOUBLE", ""),
    ("value != 2.5", "value IS DISTINCT FROM 2.5::DOUBLE", ""),
    ("value between (-2.5 .. 2.5)", "value BETWEEN -2.5 AND 2.5", ""),
    ("value in (0.0, 2.5)", "coalesce(value IN (0.0::DOUBLE, 2.5::DOUBLE), FALSE)", ""),
    ("isnull(value)", "value IS NULL", ""),
    ("small > 0.1", "small::DOUBLE > 0.1::DOUBLE AND NOT isnan(small)", ""),
    ("small == 0.5", "small IS NOT DISTINCT FROM 0.5::FLOAT", ""),
    ("value == small", "CASE WHEN value IS NULL AND small IS NULL THEN NULL ELSE value IS NOT DISTINCT FROM small::DOUBLE AND NOT isnan(value) END", ""),
    ("flag", "flag", ""),
    ("not(flag)", "NOT flag", ""),
    ("flag == true", "flag IS NOT DISTINCT FROM TRUE", ""),
    ("flag != true", "flag IS DISTINCT FROM TRUE", ""),
    ("timestamp > ago(2h)", "timestamp > TIMESTAMPTZ '2026-02-10 04:00:00+00'", ""),
    ("timestamp >= datetime(2026-02-10 03:10) and timestamp < now()",
     "coalesce(timestamp >= TIMESTAMPTZ '2026-02-10 03:10:00+00' AND timestamp < TIMESTAMPTZ '2026-02-10 06:00:00+00', FALSE)", ""),
    ("timestamp between (datetime(2026-02-10 01:00) .. 1h)",
     "timestamp BETWEEN TIMESTAMPTZ '2026-02-10 01:00:00+00' AND TIMESTAMPTZ '2026-02-10 02:00:00+00'", ""),
    ("bin(timestamp, 1h) == datetime(2026-02-10 05:00)",
     "coalesce(date_trunc('hour', timestamp AT TIME ZONE 'UTC') = TIMESTAMP '2026-02-10 05:00:00', FALSE)", ""),
    ("bin(timestamp, 30m) >= datetime(2026-02-10 03:20)",
     "time_bucket(INTERVAL 30 MINUTE, timestamp AT TIME ZONE 'UTC') >= TIMESTAMP '2026-02-10 03:20:00'", ""),
    ("bin(timestamp, 30m) < datetime(2026-02-10 03:20)",
     "time_bucket(INTERVAL 30 MINUTE, timestamp AT TIME ZONE 'UTC') < TIMESTAMP '2026-02-10 03:20:00'", ""),
    ("startofday(day) <= datetime(2026-02-06 12:00)", "day <= DATE '2026-02-06'", ""),
    ("bin(n, 10) > 0", "floor(n / 10.0) * 10 > 0", ""),
    ("bin(n, 10) == -10", "coalesce(floor(n / 10.0) * 10 = -10, FALSE)", ""),
    ("not(bin(i, 2) <= 2)", "NOT (floor(i / 2.0) * 2 <= 2)", ""),
    ("isnull(timestamp)", "timestamp IS NULL", ""),
    ("now() - timestamp < 90m", "TIMESTAMPTZ '2026-02-10 06:00:00+00' - timestamp < INTERVAL 90 MINUTE", ""),
    ("day >= datetime(2026-02-08)", "day >= DATE '2026-02-08'", ""),
    ("day == datetime(2026-02-08 12:00)", "FALSE", ""),
    ("day != datetime(2026-02-08)", "day IS DISTINCT FROM DATE '2026-02-08'", ""),
    ("amount > decimal(1)", "amount > 1", ""),
    ("amount == decimal(1.25)", "amount IS NOT DISTINCT FROM 1.25", ""),
    ("info.kind == 'A'", "coalesce(info.kind, '') = 'A'", ""),
    ("info.kind != 'A'", "coalesce(info.kind, '') <> 'A'", ""),
    ("tolong(info.level) > 2", "info.level > 2", ""),
    ("isnull(info.level)", "info.level IS NULL", ""),
]  # fmt: skip

SHAPES: list[tuple[str, str]] = [
    ("Telemetry | where {0} | count", "SELECT count(*) FROM t WHERE {1}"),
    ("Telemetry | where {0} | project device_id, n, value",
     f"SELECT {D}, n, value FROM t WHERE {{1}}"),
    ("Telemetry | where {0} | summarize count(), sum(n), max(value), dcount(device_id) by _event_hour",
     f"SELECT _event_hour, count(*), coalesce(sum(n), 0), max(value), count(DISTINCT {D}) FROM t WHERE {{1}} GROUP BY 1"),
    ("Telemetry | extend c = ({0}) | summarize countif(c) by i",
     "SELECT i, count(*) FILTER (WHERE {1}) FROM t GROUP BY 1"),
    ("Telemetry | where {0} | distinct device_id, flag",
     f"SELECT DISTINCT {D}, flag FROM t WHERE {{1}}"),
]  # fmt: skip


def _generated() -> list[Pair]:
    pairs = []
    for index, (kql, sql, deviates) in enumerate(CONDITIONS):
        head, body = SHAPES[index % len(SHAPES)]
        pairs.append(Pair(head.format(kql), body.format(None, f"({sql})"), deviates=deviates))
    return [*pairs, *random_pairs(15, 60)]


def random_pairs(seed: int, count: int) -> list[Pair]:
    """Return conditions joined and negated at random, three levels deep."""
    choose = random.Random(seed)

    def condition(depth: int) -> tuple[str, str, str]:
        if depth == 0 or choose.random() < 0.3:
            return choose.choice(CONDITIONS)
        parts = [condition(depth - 1) for _ in range(2)]
        word = choose.choice(["and", "or"])
        kql = f" {word} ".join(f"({each[0]})" for each in parts)
        sql = "coalesce(" + f" {word} ".join(f"({each[1]})" for each in parts) + ", FALSE)"
        if choose.random() < 0.3:
            kql, sql = f"not({kql})", f"NOT ({sql})"
        return kql, sql, parts[0][2] or parts[1][2]

    pairs = []
    for _ in range(count):
        kql, sql, deviates = condition(3)
        if choose.random() < 0.2:
            kql, sql = f"not({kql})", f"NOT ({sql})"
        head, body = choose.choice(SHAPES)
        pairs.append(Pair(head.format(kql), body.format(None, f"({sql})"), deviates=deviates))
    return pairs


HOUR = "date_trunc('hour', timestamp AT TIME ZONE 'UTC') AT TIME ZONE 'UTC'"
WRITTEN = [
    Pair("Telemetry | summarize avg(value) by bin(timestamp, 1h), device_id",
         f"SELECT {HOUR}, {D}, coalesce(avg(value), 'nan'::DOUBLE) FROM t GROUP BY 1, 2"),
    Pair("Telemetry | summarize count() by bin(n, 10)", "SELECT floor(n / 10.0)::BIGINT * 10, count(*) FROM t GROUP BY 1"),
    Pair("Telemetry | where isnotnull(timestamp) | summarize earliest = min(timestamp), latest = max(timestamp)",
         "SELECT min(timestamp), max(timestamp) FROM t"),
    Pair("Telemetry | where isnotnull(n) | sort by n asc, timestamp asc, device_id asc, value asc | project n, timestamp",
         "SELECT n, timestamp FROM t WHERE n IS NOT NULL ORDER BY n, timestamp NULLS FIRST", ordered=True),
    Pair("Telemetry | sort by n | project n", "SELECT n FROM t ORDER BY n DESC NULLS LAST", ordered=True),
    Pair("Telemetry | sort by n asc | project n", "SELECT n FROM t ORDER BY n ASC NULLS FIRST", ordered=True),
    Pair("Telemetry | sort by device_id asc | project device_id", f"SELECT {D} FROM t ORDER BY 1", ordered=True),
    Pair("Telemetry | top 5 by n | project n", "SELECT n FROM t ORDER BY n DESC NULLS LAST LIMIT 5", ordered=True),
    Pair("Telemetry | take 7 | count", "SELECT 7"),
    Pair("Telemetry | take 0", "SELECT * FROM t WHERE FALSE"),
    Pair("Telemetry | count", "SELECT count(*) FROM t"),
    Pair("Devices | project-away capacity", f"SELECT {D}, coalesce(site, ''), Rank FROM u"),
    Pair("Devices | project-keep *i*", f"SELECT {D}, coalesce(site, ''), capacity FROM u"),
    Pair("Devices | project-reorder Rank, c*", f"SELECT Rank, capacity, {D}, coalesce(site, '') FROM u"),
    Pair("Devices | extend size = iff(capacity > 30, 'big', 'small') | summarize count() by size",
         "SELECT CASE WHEN capacity > 30 THEN 'big' ELSE 'small' END, count(*) FROM u GROUP BY 1"),
    Pair("Devices | extend c = case(capacity < 20, 'a', capacity < 45, 'b', 'c') | project c, site",
         "SELECT CASE WHEN capacity < 20 THEN 'a' WHEN capacity < 45 THEN 'b' ELSE 'c' END, coalesce(site, '') FROM u"),
    Pair("Devices | project coalesce(site, device_id, '?'), coalesce(capacity, 0)",
         f"SELECT coalesce(nullif(site, ''), nullif({D}, ''), '?'), coalesce(capacity, 0) FROM u"),
    Pair("Telemetry | join kind=inner Devices on device_id | summarize count() by site",
         "SELECT coalesce(site, ''), count(*) FROM (SELECT *, coalesce(device_id, '') AS k FROM t) AS t JOIN"
         " (SELECT *, coalesce(device_id, '') AS k FROM u) AS u USING (k) GROUP BY 1"),
    Pair("Devices | join kind=leftouter (Telemetry | where n > 5) on device_id | project site, n",
         "SELECT coalesce(site, ''), n FROM (SELECT *, coalesce(device_id, '') AS k FROM u) AS u LEFT JOIN"
         " (SELECT *, coalesce(device_id, '') AS k FROM t WHERE n > 5) AS t USING (k)"),
    Pair("Devices | join kind=leftanti Telemetry on device_id | project device_id",
         f"SELECT {D} FROM u WHERE {D} NOT IN (SELECT {D} FROM t)"),
    Pair("Telemetry | join kind=leftsemi Devices on device_id | count",
         f"SELECT count(*) FROM t WHERE {D} IN (SELECT {D} FROM u)"),
    Pair("Telemetry | join kind=rightanti Devices on device_id | project device_id, site",
         f"SELECT {D}, coalesce(site, '') FROM u WHERE {D} NOT IN (SELECT {D} FROM t)"),
    Pair("Devices | join kind=fullouter (Telemetry | where n > 15 | project device_id, n) on device_id"
         " | project device_id, device_id1, n, capacity",
         "SELECT coalesce(u.k, ''), coalesce(t.k, ''), n, capacity FROM (SELECT *, coalesce(device_id, '') AS k FROM u)"
         " AS u FULL JOIN (SELECT *, coalesce(device_id, '') AS k FROM t WHERE n > 15) AS t ON u.k = t.k"),
    Pair("Telemetry | project device_id | join Devices on device_id | count",
         f"SELECT count(*) FROM u WHERE {D} IN (SELECT {D} FROM t)"),
    Pair("Telemetry | lookup Devices on device_id | summarize count(), sum(capacity)",
         "SELECT count(*), coalesce(sum(capacity), 0) FROM (SELECT *, coalesce(device_id, '') AS k FROM t) AS t LEFT JOIN"
         " (SELECT *, coalesce(device_id, '') AS k FROM u) AS u USING (k)"),
    Pair("Telemetry | join kind=inner Devices on $left.n == $right.capacity | project n, site, i",
         "SELECT n, coalesce(site, ''), i FROM t JOIN u ON n = capacity"),
    Pair("Telemetry | join kind=inner Devices on $left.i == $right.capacity | count",
         "SELECT count(*) FROM t JOIN u ON i = capacity"),
    Pair("union Devices, (Telemetry | where n > 15 | project device_id, n) | project device_id, n, site, capacity",
         f"SELECT {D}, NULL, coalesce(site, ''), capacity FROM u UNION ALL"
         f" SELECT {D}, n, '', NULL FROM t WHERE n > 15"),
    Pair("Devices | union Devices | count", "SELECT 2 * count(*) FROM u"),
    Pair("union kind=inner Devices, Telemetry | getschema | project ColumnName", "SELECT 'device_id'"),
    Pair("let limit_ = 5; Telemetry | where n > limit_ | count", "SELECT count(*) FROM t WHERE n > 5"),
    Pair("let f = (x:long) { x * 2 }; Telemetry | where f(n) > 20 | count", "SELECT count(*) FROM t WHERE n * 2 > 20"),
    Pair("let g = (m:long) { Telemetry | where n > m }; g(5) | count", "SELECT count(*) FROM t WHERE n > 5"),
    Pair("let h = (T:(n:long)) { T | where n > 5 | count }; h(Telemetry)", "SELECT count(*) FROM t WHERE n > 5"),
    Pair("let top_ = toscalar(Telemetry | summarize max(n)); Telemetry | where n == top_ | count",
         "SELECT count(*) FROM t WHERE n = (SELECT max(n) FROM t)"),
    Pair("Telemetry | where device_id in ((Devices | where capacity > 30 | project device_id)) | count",
         f"SELECT count(*) FROM t WHERE {D} IN (SELECT {D} FROM u WHERE capacity > 30)"),
    Pair("Telemetry | where device_id !in ((Devices | project device_id)) | count",
         f"SELECT count(*) FROM t WHERE {D} NOT IN (SELECT {D} FROM u)"),
    Pair("Telemetry | summarize percentile(n, 50), percentiles(n, 25, 90)",
         "SELECT quantile_disc(n, 0.5), quantile_disc(n, 0.25), quantile_disc(n, 0.9) FROM t"),
    Pair("Telemetry | where n > 0 | summarize round(stdev(n), 6), round(variance(n), 6)",
         "SELECT round(stddev_samp(n), 6), round(var_samp(n), 6) FROM t WHERE n > 0"),
    Pair("Telemetry | summarize sumif(n, flag), avgif(n, flag), countif(flag), dcountif(device_id, flag)",
         f"SELECT sum(n) FILTER (WHERE flag), avg(n) FILTER (WHERE flag), count(*) FILTER (WHERE flag),"
         f" count(DISTINCT {D}) FILTER (WHERE flag) FROM t"),
    Pair("Telemetry | summarize x = sum(n) * 1.0 / count(), y = max(n) - min(n) by flag",
         "SELECT flag, coalesce(sum(n), 0) * 1.0::DOUBLE / count(*), max(n) - min(n) FROM t GROUP BY 1"),
    Pair("Telemetry | summarize arg_max(timestamp, n) by _event_hour",
         "SELECT _event_hour, max(timestamp), arg_max({'n': n}, timestamp).n FROM t GROUP BY 1"),
    Pair("Telemetry | summarize n = make_set(i) by flag | project flag, array_length(n)",
         "SELECT flag, count(DISTINCT i) FROM t GROUP BY 1"),
    Pair("Telemetry | summarize l = make_list(n) | project array_length(l)", "SELECT count(n) FROM t"),
    Pair("Telemetry | summarize min(flag), max(flag) by i", "SELECT i, min(flag), max(flag) FROM t GROUP BY 1"),
    Pair("Telemetry | summarize by flag, _event_hour", "SELECT DISTINCT flag, _event_hour FROM t"),
    Pair("Telemetry | extend h = hourofday(timestamp), w = dayofweek(timestamp) / 1d | summarize count() by h, w",
         "SELECT hour(timestamp AT TIME ZONE 'UTC')::INTEGER, dayofweek(timestamp AT TIME ZONE 'UTC')::DOUBLE, count(*)"
         " FROM t GROUP BY 1, 2"),
    Pair("Telemetry | project startofday(timestamp), endofmonth(timestamp), startofweek(timestamp)",
         "SELECT CASE WHEN timestamp IS NULL THEN NULL ELSE TIMESTAMPTZ '2026-02-10 00:00:00+00' END,"
         " CASE WHEN timestamp IS NULL THEN NULL ELSE TIMESTAMPTZ '2026-02-28 23:59:59.999999+00' END,"
         " CASE WHEN timestamp IS NULL THEN NULL ELSE TIMESTAMPTZ '2026-02-08 00:00:00+00' END FROM t"),
    Pair("Telemetry | project format_datetime(timestamp, 'yyyy-MM-dd HH:mm:ss.fff')",
         "SELECT coalesce(strftime(timestamp AT TIME ZONE 'UTC', '%Y-%m-%d %H:%M:%S.%g'), '') FROM t"),
    Pair("Telemetry | project strcat(device_id, '|', n, '|', flag)",
         f"SELECT {D} || '|' || coalesce(n::VARCHAR, '') || '|' || coalesce(flag::VARCHAR, '') FROM t"),
    Pair("Telemetry | project substring(device_id, 2, 3), toupper(device_id), indexof(device_id, 'o')",
         f"SELECT substr({D}, 3, 3), upper({D}), strpos({D}, 'o') - 1 FROM t"),
    Pair("Telemetry | project replace_string(device_id, 'sensor', 'S'), extract('([0-9]+)', 1, device_id)",
         f"SELECT replace({D}, 'sensor', 'S'), regexp_extract({D}, '([0-9]+)', 1) FROM t"),
    Pair("Telemetry | project n + i, n - i, n * i, -n, abs(n)", "SELECT n + i, n - i, n * i, -n, abs(n) FROM t"),
    Pair("Telemetry | project bin(n, 7), bin(value, 0.5)",
         "SELECT floor(n / 7.0)::BIGINT * 7, floor(value / 0.5) * 0.5 FROM t"),
    Pair("Telemetry | project info.level, tolong(info.level) + 1",
         "SELECT info.level::VARCHAR, info.level + 1 FROM t"),
    Pair("print x = 1 | extend y = x + 1 | where y == 2", "SELECT 1, 2"),
    Pair("range x from 10 to 1 step -3", "SELECT unnest([10, 7, 4, 1])"),
    Pair("Telemetry | where n > 5 | where n < 100 | project n | where n != 10 | take 1000",
         "SELECT n FROM t WHERE n > 5 AND n < 100 AND n <> 10"),
    Pair("Telemetry | extend n = n + 1 | where n == 1 | project n", "SELECT 1 FROM t WHERE n = 0"),
    Pair("Telemetry | project n = i, i = n | where n > 3 | project n, i", "SELECT i, n FROM t WHERE i > 3"),
    Pair("Telemetry | project x = n, X = i | where x == 0 and X != 0 | project x, X",
         "SELECT n, i FROM t WHERE n = 0 AND i IS DISTINCT FROM 0"),
    Pair("Telemetry | summarize m = max(n) by _event_hour | where _event_hour in ('2026021001', '2026021002') and m > 0",
         "SELECT _event_hour, max(n) FROM t WHERE _event_hour IN ('2026021001', '2026021002') GROUP BY 1 HAVING max(n) > 0"),
    Pair("Telemetry | where not((not(startofday(timestamp) <= datetime(2026-02-10 02:30))) or (n in (0, -7)))"
         " | where timestamp != datetime(2026-02-10 02:30) | count",
         "SELECT count(*) FROM t WHERE NOT coalesce(n IN (0, -7), FALSE)"),
    Pair("Telemetry | take 1000 | where n == 0 | count", "SELECT count(*) FROM t WHERE n = 0"),
    Pair("Telemetry | where timestamp between (startofday(now()) .. endofday(now()))"
         " | summarize errors = countif(n < 0), total = count() by bin(timestamp, 1h)"
         " | extend rate = round(100.0 * errors / total, 2) | project timestamp, rate | order by timestamp asc",
         "SELECT date_trunc('hour', timestamp) AS h, round(100.0 * count(*) FILTER (n < 0) / count(*), 2) FROM t"
         " WHERE timestamp IS NOT NULL GROUP BY h ORDER BY h", ordered=True),
    Pair("Telemetry | extend status = iff(n > 10, 'high', iff(n > 0, 'mid', iff(isnull(n), 'none', 'low')))"
         " | summarize count() by status | order by count_ desc, status asc",
         "SELECT CASE WHEN n > 10 THEN 'high' WHEN n > 0 THEN 'mid' WHEN n IS NULL THEN 'none' ELSE 'low' END AS s,"
         " count(*) AS c FROM t GROUP BY s ORDER BY c DESC, s", ordered=True),
    Pair("let base = Telemetry | where flag; let other = Telemetry | where flag == false;"
         " base | where isnotnull(i) | summarize a = count() by i"
         " | join kind=fullouter (other | where isnotnull(i) | summarize b = count() by i) on i"
         " | project i = coalesce(i, i1), diff = coalesce(a, 0) - coalesce(b, 0)",
         "SELECT i, count(*) FILTER (flag) - count(*) FILTER (NOT flag) FROM t WHERE i IS NOT NULL AND flag IS NOT NULL"
         " GROUP BY i"),
    Pair("Telemetry | where isnotempty(device_id) | summarize LastSeen = max(timestamp), FirstSeen = min(timestamp) by"
         " device_id | extend Hours = (LastSeen - FirstSeen) / 1h | project device_id, Hours",
         "SELECT device_id, (epoch_us(max(timestamp)) - epoch_us(min(timestamp))) / 3600e6 FROM t WHERE device_id <> ''"
         " GROUP BY 1"),
    Pair("Telemetry | extend parts = split(device_id, '-') | summarize count() by a = tostring(parts[0]), b = toint(parts[1])",
         f"SELECT split_part({D}, '-', 1), TRY_CAST(nullif(split_part({D}, '-', 2), '') AS INTEGER), count(*) FROM t"
         " GROUP BY 1, 2"),
    Pair("let Top = Telemetry | summarize c = count() by device_id | top 1 by c;"
         " Telemetry | where device_id in ((Top | project device_id)) | summarize count() by device_id",
         f"SELECT {D}, count(*) FROM t GROUP BY 1 ORDER BY 2 DESC LIMIT 1"),
    Pair("Telemetry | where n in (toscalar(Telemetry | summarize max(n)), toscalar(Telemetry | summarize min(n))) | count",
         "SELECT count(*) FROM t WHERE n IN ((SELECT max(n) FROM t), (SELECT min(n) FROM t))"),
    Pair("Telemetry | summarize (latest, level) = arg_max(timestamp, info.level) by device_id",
         f"SELECT {D}, max(timestamp), nullif(arg_max(coalesce(info.level, -1), timestamp), -1)::VARCHAR FROM t GROUP BY 1"),
    Pair("Telemetry | where isnotnull(timestamp) | summarize arg_max(timestamp, *) by i | project i, timestamp, device_id, n",
         f"SELECT DISTINCT ON (i) i, timestamp, {D}, n FROM t WHERE timestamp IS NOT NULL ORDER BY i, timestamp DESC"),
    Pair("Telemetry | summarize maxif(n, flag), minif(n, flag), sumif(n, flag), count_distinctif(n, flag) by i",
         "SELECT i, max(n) FILTER (flag), min(n) FILTER (flag), coalesce(sum(n) FILTER (flag), 0),"
         " count(DISTINCT n) FILTER (flag) FROM t GROUP BY i"),
    Pair("Telemetry | where strcmp(_event_hour, '2026021003') >= 0 and 0 > strcmp(device_id, 'p') | count",
         f"SELECT count(*) FROM t WHERE _event_hour >= '2026021003' AND {D} < 'p'"),
    Pair("Telemetry | where device_id has strcat('-', 1) or device_id has tolower('PUMP') | count",
         f"SELECT count(*) FROM t WHERE regexp_matches({D}, '-1($|[^A-Za-z0-9])') OR {TERM.format(D, 'pump')}"),
    Pair("Telemetry | where flag == 1 | count", "SELECT count(*) FROM t WHERE flag"),
    Pair("Telemetry | where flag != 0 | count", "SELECT count(*) FROM t WHERE flag IS DISTINCT FROM FALSE"),
    Pair("union withsource=T Tele*, (Devices | where capacity > 15) | summarize count() by T",
         "SELECT 'Telemetry', count(*) FROM t UNION ALL SELECT 'union_arg1', count(*) FROM u WHERE capacity > 15"),
    Pair("union isfuzzy=true Devices, Nothing | count", "SELECT count(*) FROM u"),
    Pair("Telemetry | where now() - timestamp < 2h and datetime_diff('minute', now(), timestamp) > 10 | count",
         "SELECT count(*) FROM t WHERE timestamp > TIMESTAMPTZ '2026-02-10 04:00:00+00'"
         " AND datediff('minute', timestamp, TIMESTAMPTZ '2026-02-10 06:00:00+00') > 10"),
    Pair("let classify = (x:long) { case(x > 10, 'big', x > 0, 'small', 'none') };"
         " Telemetry | summarize count() by c = classify(n)",
         "SELECT CASE WHEN n > 10 THEN 'big' WHEN n > 0 THEN 'small' ELSE 'none' END AS c, count(*) FROM t GROUP BY c"),
]  # fmt: skip

PAIRS = [*_generated(), *WRITTEN]
