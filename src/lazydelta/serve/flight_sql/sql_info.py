"""What the server says about itself and its SQL, by the numbers of the specification."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from lazydelta.serve.flight_sql.sql_guard import MOST_TEXT

__all__ = ["SQL_INFO_SCHEMA", "sql_info"]

_INT_LISTS = pa.map_(pa.int32(), pa.list_(pa.int32()))
_MEMBERS = [
    pa.field("string_value", pa.string()),
    pa.field("bool_value", pa.bool_()),
    pa.field("bigint_value", pa.int64()),
    pa.field("int32_bitmask", pa.int32()),
    pa.field("string_list", pa.list_(pa.string())),
    pa.field("int32_to_int32_list_map", _INT_LISTS),
]
SQL_INFO_SCHEMA = pa.schema(
    [
        pa.field("info_name", pa.uint32(), nullable=False),
        pa.field("value", pa.dense_union(_MEMBERS), nullable=False),
    ]
)

_STRING, _BOOL, _BIGINT, _INT32, _LIST, _MAP = range(6)
_CASE_INSENSITIVE = 1
_NULLS_AT_END = 3
_NONE = 0
_FULL_OUTER_JOINS = 4
_EVERY_SUBQUERY = 15
_BOTH_UNIONS = 3
_UNRELATED_GROUP_BY = 3
_KEYWORDS = ["ANTI", "ASOF", "DESCRIBE", "EXCLUDE", "PIVOT", "POSITIONAL", "QUALIFY", "SEMI", "SUMMARIZE", "UNPIVOT"]
_NUMERIC = ["ABS", "CEIL", "EXP", "FLOOR", "LN", "LOG", "MOD", "PI", "POWER", "ROUND", "SIGN", "SQRT"]
_TEXT = ["CONCAT", "LEFT", "LENGTH", "LOWER", "LTRIM", "REPLACE", "RIGHT", "RTRIM", "SUBSTRING", "TRIM", "UPPER"]
_TIME = ["CURRENT_DATE", "DATE_DIFF", "DATE_PART", "DATE_TRUNC", "EXTRACT", "NOW", "STRFTIME", "TIME_BUCKET"]


def _facts() -> dict[int, tuple[int, Any]]:
    from importlib.metadata import version  # noqa: PLC0415 - one answer a connection

    return {
        0: (_STRING, "lazydelta"),
        1: (_STRING, version("lazydelta")),
        2: (_STRING, pa.__version__),
        3: (_BOOL, True),  # read only
        4: (_BOOL, True),  # SQL
        5: (_BOOL, False),  # Substrait
        8: (_INT32, _NONE),  # transactions
        9: (_BOOL, True),  # cancelling
        10: (_BOOL, False),  # bulk ingestion
        500: (_BOOL, False),  # DDL of catalogs, schemas, tables
        501: (_BOOL, False),
        502: (_BOOL, False),
        503: (_BIGINT, _CASE_INSENSITIVE),
        504: (_STRING, '"'),
        505: (_BIGINT, _CASE_INSENSITIVE),
        506: (_BOOL, True),  # every table can be read
        507: (_BIGINT, _NULLS_AT_END),
        508: (_LIST, _KEYWORDS),
        509: (_LIST, _NUMERIC),
        510: (_LIST, _TEXT),
        511: (_LIST, []),
        512: (_LIST, _TIME),
        513: (_STRING, "\\"),
        514: (_STRING, ""),
        515: (_BOOL, True),  # column aliases
        516: (_BOOL, True),  # NULL || 'a' is null
        517: (_MAP, {}),
        518: (_BOOL, True),  # aliases of tables, which may differ from their names
        519: (_BOOL, False),
        520: (_BOOL, True),  # expressions in ORDER BY, also of columns that are not shown
        521: (_BOOL, True),
        522: (_INT32, _UNRELATED_GROUP_BY),
        523: (_BOOL, True),  # LIKE … ESCAPE
        524: (_BOOL, True),
        525: (_INT32, 7),  # core and extended grammar
        526: (_INT32, 1),  # entry level of ANSI 92
        527: (_BOOL, False),
        528: (_INT32, _FULL_OUTER_JOINS),
        529: (_STRING, "schema"),
        530: (_STRING, "procedure"),
        531: (_STRING, "catalog"),
        532: (_BOOL, True),  # the catalog comes first in a name
        533: (_INT32, _NONE),
        534: (_INT32, _NONE),
        535: (_INT32, _NONE),
        536: (_BOOL, False),
        537: (_BOOL, False),
        538: (_INT32, _EVERY_SUBQUERY),
        539: (_BOOL, True),
        540: (_INT32, _BOTH_UNIONS),
        **dict.fromkeys((541, 542, 543, 544, 545, 546, 547, 548, 549, 550, 551, 552, 553, 554, 555, 556), (_BIGINT, 0)),
        557: (_BOOL, False),
        558: (_BIGINT, MOST_TEXT),  # the longest statement
        **dict.fromkeys((559, 560, 561), (_BIGINT, 0)),
        562: (_BIGINT, _NONE),
        563: (_BOOL, False),  # transactions, in none of their forms
        564: (_INT32, _NONE),
        565: (_BOOL, False),
        566: (_BOOL, False),
        567: (_INT32, 1),  # results are read forward
        568: (_INT32, _NONE),
        569: (_INT32, _NONE),
        570: (_INT32, _NONE),
        571: (_INT32, _NONE),
        572: (_BOOL, False),
        573: (_BOOL, False),
        574: (_BOOL, False),
        575: (_BOOL, False),
        576: (_BOOL, False),
    }


def sql_info(asked: list[int]) -> pa.Table:
    """Return what is known of the numbers asked for, of all if none is."""
    facts = _facts()
    chosen = [number for number in (asked or facts) if number in facts]
    members: list[list[Any]] = [[] for _ in _MEMBERS]
    codes, offsets = [], []
    for number in chosen:
        code, value = facts[number]
        codes.append(code)
        offsets.append(len(members[code]))
        members[code].append(list(value.items()) if code == _MAP else value)
    value = pa.UnionArray.from_dense(
        pa.array(codes, pa.int8()),
        pa.array(offsets, pa.int32()),
        [pa.array(values, field.type) for values, field in zip(members, _MEMBERS, strict=True)],
        [field.name for field in _MEMBERS],
    )
    return pa.Table.from_arrays(
        [pa.array(chosen, pa.uint32()), value.cast(SQL_INFO_SCHEMA[1].type)], schema=SQL_INFO_SCHEMA
    )
