"""Queries whose result Microsoft's documentation states, each with the page that does.

Pages are those under https://learn.microsoft.com/kusto/query/. Examples over the sample database of storms are left
out, because the database is not ours; a page without another example is represented by what its text promises.
"""

# ruff: noqa: E501 - a case is read best on one line

from __future__ import annotations

import datetime as dt
import math
from typing import Any, NamedTuple

__all__ = ["CASES", "Case"]


class Case(NamedTuple):
    """A page, a query, and its rows; ``names`` are those of the columns where the page shows them."""

    page: str
    query: str
    rows: list[tuple[Any, ...]]
    names: list[str] | None = None
    ordered: bool = False


def at(text: str) -> dt.datetime:
    """Return a timestamp in UTC."""
    return dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC)


def one(page: str, expression: str, value: Any) -> Case:
    """Return a case of one expression and its value."""
    return Case(page, f"print x = {expression}", [(value,)], ["x"])


X = "let X = datatable(Key:string, Value1:long) ['a',1, 'b',2, 'b',3, 'c',4];\n"
Y = "let Y = datatable(Key:string, Value2:long) ['b',10, 'c',20, 'c',30, 'd',40];\n"
JOINED = ["Key", "Value1", "Key1", "Value2"]
BEATLES = 'let T = datatable(name:string, day_of_birth:long) ["John", 9, "Paul", 18, "George", 25, "Ringo", 7];\nT\n| summarize '
SHAPES = (
    'let shapes = datatable (name: string, sideCount: int) ["triangle", 3, "square", 4, "rectangle", 4, "pentagon", 5,'
    ' "hexagon", 6, "heptagon", 7, "octagon", 8, "nonagon", 9, "decagon", 10];\nshapes\n| summarize '
)
PEOPLE = (
    'let FactTable=datatable(Row:string,Personal:string,Family:string) ["1", "Bill", "Gates", "2", "Bill", "Clinton",'
    ' "3", "Bill", "Clinton", "4", "Steve", "Ballmer", "5", "Tim", "Cook"];\n'
    'let DimTable=datatable(Personal:string,Family:string,Alias:string) ["Bill", "Gates", "billg", "Bill", "Clinton",'
    ' "billc", "Steve", "Ballmer", "steveb", "Tim", "Cook", "timc"];\n'
)
FRUIT = (
    'datatable(Fruit: string, Color: string, Version: int) ["Apple", "Red", 1, "Apple", "Green", int(null), "Banana",'
    ' "Yellow", int(null), "Banana", "Green", int(null), "Pear", "Brown", 1, "Pear", "Green", 2,]\n'
)
OFFSETS = "range offset from -1 to 1 step 1 | project x = "
NUMBERS = "datatable(x:real) [real(5), real(null), real(nan), real(-inf), real(0), real(+inf), real(-5)] | sort by x "
INF, NAN = math.inf, math.nan
LAST = dt.timedelta(microseconds=1)

SOURCES = [
    Case("print-operator", 'print 0 + 1 + 2 + 3 + 4 + 5, x = "Wow!"', [(15, "Wow!")], ["print_0", "x"]),
    Case("print-operator", 'print banner=strcat("Hello", ", ", "World!")', [("Hello, World!",)], ["banner"]),
    Case("range-operator", "range Steps from 1 to 8 step 3", [(1,), (4,), (7,)], ["Steps"], ordered=True),
    Case("let-statement", "let ['some number'] = 20;\nrange y from 0 to ['some number'] step 5",
         [(0,), (5,), (10,), (15,), (20,)], ["y"], ordered=True),
    Case("let-statement", "let MultiplyByN = (val:long, n:long) { val * n };\nrange x from 1 to 5 step 1\n"
         "| extend result = MultiplyByN(x, 5)", [(1, 5), (2, 10), (3, 15), (4, 20), (5, 25)], ["x", "result"]),
    Case("let-statement", 'let TrimOnes = (s:string) { trim("1", s) };\nrange x from 10 to 15 step 1\n'
         "| extend result = TrimOnes(tostring(x))",
         [(10, "0"), (11, ""), (12, "2"), (13, "3"), (14, "4"), (15, "5")], ["x", "result"]),
    Case("let-statement", "let foo1 = (_start:long, _end:long, _step:long) { range x from _start to _end step _step};\n"
         "let foo2 = (_step:long) { foo1(1, 100, _step)};\nfoo2(2) | count", [(50,)]),
    Case("datatable-operator",
         'datatable(Date:datetime, Event:string, MoreData:dynamic) [\n'
         '    datetime(1910-06-11), "Born", dynamic({"key1":"value1", "key2":"value2"}),\n'
         '    datetime(1930-01-01), "Enters Ecole Navale", dynamic({"key1":"value3", "key2":"value4"}),\n'
         '    datetime(1953-01-01), "Published first book", dynamic({"key1":"value5", "key2":"value6"}),\n'
         '    datetime(1997-06-25), "Died", dynamic({"key1":"value7", "key2":"value8"}),\n]\n'
         "| where strlen(Event) > 4\n| extend key2 = MoreData.key2 | project Date, Event, key2",
         [(at("1930-01-01"), "Enters Ecole Navale", '"value4"'),
          (at("1953-01-01"), "Published first book", '"value6"')], ["Date", "Event", "key2"]),
    Case("toscalar-function",
         "let Start = toscalar(print x=1);\nlet End = toscalar(range x from 1 to 9 step 1 | count);\n"
         "let Step = toscalar(2);\nrange z from Start to End step Step | extend start=Start, end=End, step=Step",
         [(1, 1, 9, 2), (3, 1, 9, 2), (5, 1, 9, 2), (7, 1, 9, 2), (9, 1, 9, 2)], ["z", "start", "end", "step"]),
    Case("toscalar-function",
         "let _dataset1 = datatable(x: long)[1, 2, 3, 4, 5];\n"
         "let _dataset2 = datatable(x: long, y: long) [1, 2, 3, 4, 5, 6];\n_dataset1\n| join (_dataset2) on x \n"
         "| project x, y", [(1, 2), (3, 4), (5, 6)], ["x", "y"]),
]  # fmt: skip

OPERATORS = [
    Case("between-operator", "range x from 1 to 100 step 1\n| where x between (50 .. 55)",
         [(each,) for each in range(50, 56)], ["x"]),
    Case("between-operator", "print x = datetime(2007-07-29) between (datetime(2007-07-27) .. 3d),"
         " y = datetime(2007-07-30 00:00:01) between (datetime(2007-07-27) .. 3d)", [(True, False)]),
    Case("not-between-operator", "range x from 1 to 10 step 1\n| where x !between (5 .. 9)",
         [(1,), (2,), (3,), (4,), (10,)], ["x"]),
    Case("where-operator", "range x from 1 to 10 step 1 | filter x > 8", [(9,), (10,)]),
    Case("project-operator", "print a = 1, b = 'x' | project b, c = a + 1", [("x", 2)], ["b", "c"]),
    Case("extend-operator", "print a = 1 | extend b = a * 2, a = 5", [(5, 2)], ["a", "b"]),
    Case("project-reorder-operator", "print a='a', b='b', c='c'\n|  project-reorder b", [("b", "a", "c")],
         ["b", "a", "c"]),
    Case("project-reorder-operator", "print b = 'b', a2='a2', a3='a3', a1='a1'\n|  project-reorder a* asc",
         [("a1", "a2", "a3", "b")], ["a1", "a2", "a3", "b"]),
    Case("project-reorder-operator", "print a20 = 1, a100 = 2 | project-reorder a* granny-asc", [(1, 2)],
         ["a20", "a100"]),
    Case("project-rename-operator", "print a='a', b='b', c='c'\n|  project-rename new_b=b, new_a=a", [("a", "b", "c")],
         ["new_a", "new_b", "c"]),
    Case("project-keep-operator", "datatable(A1:long, A2:long, B:long) [1, 2, 3]\n| project-keep A*", [(1, 2)],
         ["A1", "A2"]),
    Case("project-away-operator", "datatable(A1:long, A2:long, B:long) [1, 2, 3]\n| project-away A*", [(3,)], ["B"]),
    Case("take-operator", "range x from 1 to 100 step 1 | take 7 | count", [(7,)], ["Count"]),
    Case("limit-operator", "range x from 1 to 100 step 1 | limit 7 | count", [(7,)], ["Count"]),
    Case("sample-operator", "range x from 1 to 100 step 1 | sample 7 | count", [(7,)], ["Count"]),
    Case("count-operator", "range x from 1 to 100 step 1 | count", [(100,)], ["Count"]),
    Case("distinct-operator", "datatable(a:long, b:string)[1,'x', 1,'x', 1,'y'] | distinct a, b", [(1, "x"), (1, "y")]),
    Case("distinct-operator", "datatable(a:long, b:string)[1,'x', 1,'x', 1,'y'] | distinct *", [(1, "x"), (1, "y")]),
    Case("getschema-operator",
         "datatable(StartTime:datetime, EpisodeId:int, State:string, BeginLat:real, StormSummary:dynamic)[] | getschema",
         [("StartTime", 0, "System.DateTime", "datetime"), ("EpisodeId", 1, "System.Int32", "int"),
          ("State", 2, "System.String", "string"), ("BeginLat", 3, "System.Double", "real"),
          ("StormSummary", 4, "System.Object", "dynamic")],
         ["ColumnName", "ColumnOrdinal", "DataType", "ColumnType"], ordered=True),
    Case("sort-operator", NUMBERS + "asc nulls first", [(None,), (NAN,), (-INF,), (-5.0,), (0.0,), (5.0,), (INF,)],
         ordered=True),
    Case("sort-operator", NUMBERS + "desc nulls first", [(None,), (NAN,), (INF,), (5.0,), (0.0,), (-5.0,), (-INF,)],
         ordered=True),
    Case("sort-operator", NUMBERS + "asc nulls last", [(-INF,), (-5.0,), (0.0,), (5.0,), (INF,), (NAN,), (None,)],
         ordered=True),
    Case("sort-operator", NUMBERS, [(INF,), (5.0,), (0.0,), (-5.0,), (-INF,), (NAN,), (None,)], ordered=True),
    Case("sort-operator", NUMBERS + "asc", [(None,), (NAN,), (-INF,), (-5.0,), (0.0,), (5.0,), (INF,)], ordered=True),
    Case("order-operator", "datatable(x:long)[1, 3, long(null), 2] | order by x", [(3,), (2,), (1,), (None,)],
         ordered=True),
    Case("top-operator", "datatable(x:long)[1, 3, long(null), 2] | top 2 by x", [(3,), (2,)], ordered=True),
    Case("top-operator", "datatable(x:long)[1, 3, long(null), 2] | top 2 by x asc", [(None,), (1,)], ordered=True),
    Case("join-innerunique", X + Y + "X | join Y on Key", [("b", 2, "b", 10), ("c", 4, "c", 20), ("c", 4, "c", 30)],
         JOINED),
    Case("join-inner", X + Y + "X | join kind=inner Y on Key",
         [("b", 3, "b", 10), ("b", 2, "b", 10), ("c", 4, "c", 20), ("c", 4, "c", 30)], JOINED),
    Case("join-leftouter", X + Y + "X | join kind=leftouter Y on Key",
         [("a", 1, "", None), ("b", 2, "b", 10), ("b", 3, "b", 10), ("c", 4, "c", 20), ("c", 4, "c", 30)], JOINED),
    Case("join-rightouter", X + Y + "X | join kind=rightouter Y on Key",
         [("b", 2, "b", 10), ("b", 3, "b", 10), ("c", 4, "c", 20), ("c", 4, "c", 30), ("", None, "d", 40)], JOINED),
    Case("join-fullouter", X + Y + "X | join kind=fullouter Y on Key",
         [("a", 1, "", None), ("b", 2, "b", 10), ("b", 3, "b", 10), ("c", 4, "c", 20), ("c", 4, "c", 30),
          ("", None, "d", 40)], JOINED),
    Case("join-leftsemi", X + Y + "X | join kind=leftsemi Y on Key", [("b", 2), ("b", 3), ("c", 4)], ["Key", "Value1"]),
    Case("join-leftanti", X + Y + "X | join kind=leftanti Y on Key", [("a", 1)], ["Key", "Value1"]),
    Case("join-rightsemi", X + Y + "X | join kind=rightsemi Y on Key", [("b", 10), ("c", 20), ("c", 30)],
         ["Key", "Value2"]),
    Case("join-rightanti", X + Y + "X | join kind=rightanti Y on $left.Key == $right.Key", [("d", 40)],
         ["Key", "Value2"]),
    Case("lookup-operator", PEOPLE + "FactTable\n| lookup kind=leftouter DimTable on Personal, Family",
         [("1", "Bill", "Gates", "billg"), ("2", "Bill", "Clinton", "billc"), ("3", "Bill", "Clinton", "billc"),
          ("4", "Steve", "Ballmer", "steveb"), ("5", "Tim", "Cook", "timc")], ["Row", "Personal", "Family", "Alias"]),
    Case("union-operator", "let View_1 = view () { print x=1 };\nlet View_2 = view () { print x=toint(2) };\n"
         "union withsource=TableName View_1, View_2", [("View_1", 1, None), ("View_2", None, 2)],
         ["TableName", "x_long", "x_int"]),
    Case("union-operator", "let View_1 = view () { print x=1 };\nlet View_2 = view () { print x=toint(2) };\n"
         "let View_3 = view () { print x_long=3 };\nunion withsource=TableName View_1, View_2, View_3",
         [("View_1", 1, None, None), ("View_2", None, 2, None), ("View_3", None, None, 3)],
         ["TableName", "x_long1", "x_int", "x_long"]),
    Case("union-operator", "let Range1 = range Time from datetime(2024-01-01) to datetime(2024-01-05) step 1d;\n"
         "let Range2 = range Time from datetime(2024-01-06) to datetime(2024-01-10) step 1d;\n"
         "union Range1, Range2\n| order by Time asc | take 2", [(at("2024-01-01"),), (at("2024-01-02"),)], ["Time"]),
    Case("render-operator", "range x from 1 to 2 step 1 | render timechart with (title='x')", [(1,), (2,)]),
]  # fmt: skip

AGGREGATES = [
    Case("summarize-operator", "datatable(x:long)[]\n| summarize any_x=take_any(x), avg(x), max(x), min(x),"
         " percentile(x, 55), stdev(x), sum(x), sumif(x, x > 0), variance(x)",
         [(None, NAN, None, None, None, 0.0, 0, 0, 0.0)],
         ["any_x", "avg_x", "max_x", "min_x", "percentile_x_55", "stdev_x", "sum_x", "sumif_x", "variance_x"]),
    Case("summarize-operator", "datatable(x:long)[]\n| summarize  count(x), countif(x > 0) , dcount(x), dcountif(x, x > 0)",
         [(0, 0, 0, 0)], ["count_x", "countif_", "dcount_x", "dcountif_x"]),
    Case("summarize-operator", "datatable(x:long)[]\n| summarize  make_set(x), make_list(x)", [("[]", "[]")],
         ["set_x", "list_x"]),
    Case("summarize-operator", "range x from 1 to 4 step 1\n| extend y = iff(x == 1, real(null), real(5))\n"
         "| summarize sum(y), avg(y)", [(15.0, 5.0)], ["sum_y", "avg_y"]),
    Case("summarize-operator", "range x from 1 to 2 step 1\n| extend y = iff(x == 1, real(null), real(5))\n"
         "| summarize count(y)", [(2,)], ["count_y"]),
    Case("summarize-operator", "range x from 1 to 2 step 1\n| extend y = iff(x == 1, real(null), real(5))\n"
         "| summarize make_set(y), make_set(y)", [("[5.0]", "[5.0]")], ["set_y", "set_y1"]),
    Case("arg-max-aggregation-function", FRUIT + "| summarize arg_max(Version, *) by Fruit",
         [("Apple", 1, "Red"), ("Banana", None, "Yellow"), ("Pear", 2, "Green")], ["Fruit", "Version", "Color"]),
    Case("arg-min-aggregation-function", FRUIT + "| where isnotnull(Version) | summarize arg_min(Version, Color) by Fruit",
         [("Apple", 1, "Red"), ("Pear", 1, "Brown")], ["Fruit", "Version", "Color"]),
    Case("sumif-aggregation-function", BEATLES + "sumif(day_of_birth, strlen(name) > 4)", [(32,)],
         ["sumif_day_of_birth"]),
    Case("countif-aggregation-function", BEATLES + "countif(strlen(name) > 4)", [(2,)], ["countif_"]),
    Case("avgif-aggregation-function", BEATLES + "avgif(day_of_birth, strlen(name) > 4)", [(16.0,)]),
    Case("dcount-aggregation-function", SHAPES + "dcount(sideCount)", [(8,)], ["dcount_sideCount"]),
    Case("dcountif-aggregation-function", SHAPES + "dcountif(sideCount, sideCount < 6)", [(3,)]),
    Case("count-aggregation-function", SHAPES + "count() by sideCount | where count_ > 1", [(4, 2)],
         ["sideCount", "count_"]),
    Case("sum-aggregation-function", BEATLES + "sum(day_of_birth)", [(59,)], ["sum_day_of_birth"]),
    Case("avg-aggregation-function", BEATLES + "avg(day_of_birth)", [(14.75,)], ["avg_day_of_birth"]),
    Case("min-aggregation-function", BEATLES + "min(day_of_birth), min(name)", [(7, "George")]),
    Case("max-aggregation-function", BEATLES + "max(day_of_birth), max(name)", [(25, "Ringo")]),
    Case("make-list-aggregation-function", SHAPES + "mylist = make_list(name)",
         [('["triangle","square","rectangle","pentagon","hexagon","heptagon","octagon","nonagon","decagon"]',)]),
    Case("make-list-aggregation-function", SHAPES + "mylist = make_list(name) by isEvenSideCount = sideCount % 2 == 0",
         [(False, '["triangle","pentagon","heptagon","nonagon"]'),
          (True, '["square","rectangle","hexagon","octagon","decagon"]')], ["isEvenSideCount", "mylist"]),
    Case("make-set-aggregation-function", "datatable(Val: int) [1, 5, 7, 5] | summarize Val_set=make_set(Val) |"
         " project n = array_length(Val_set)", [(3,)]),
    Case("stdev-aggregation-function", "range x from 1 to 5 step 1\n| summarize make_list(x), round(stdev(x), 14)",
         [("[1,2,3,4,5]", 1.58113883008419)]),
    Case("variance-aggregation-function", "range x from 1 to 5 step 1\n| summarize make_list(x), variance(x)",
         [("[1,2,3,4,5]", 2.5)], ["list_x", "variance_x"]),
    Case("percentiles-aggregation-function", "range x from 1 to 10 step 1 | summarize percentile(x, 50),"
         " percentiles(x, 0, 95, 100)", [(5, 1, 10, 10)],
         ["percentile_x_50", "percentile_x_0", "percentile_x_95", "percentile_x_100"]),
    Case("percentiles-aggregation-function", "range x from 1 to 10 step 1 | summarize (low, high) = percentiles(x, 10, 90)",
         [(1, 9)], ["low", "high"]),
    Case("arg-max-aggregation-function", FRUIT + "| summarize (v, c) = arg_max(Version, Color), n = count() by Fruit"
         " | where Fruit != 'Banana'", [("Apple", 1, "Red", 2), ("Pear", 2, "Green", 2)], ["Fruit", "v", "c", "n"]),
    Case("arg-max-aggregation-function", "datatable(k:string, t:long, v:long)['a',1,10, 'a',2,20, 'b',3,30]\n"
         "| summarize arg_max(t, *) by k", [("a", 2, 20), ("b", 3, 30)], ["k", "t", "v"]),
    Case("arg-max-aggregation-function", "datatable(k:string, t:long, v:long)['a',1,10, 'a',2,20, 'b',3,30]\n"
         "| summarize latest = arg_max(t, v), arg_min(t + 1, v * 2) by k", [("a", 2, 20, 2, 20), ("b", 3, 30, 4, 60)],
         ["k", "latest", "v", "min_", "min__arg1"]),
    Case("make-set-aggregation-function", "datatable (Val: int, Arr1: dynamic) [1, dynamic(['A1', 'A2', 'A3']),"
         " 5, dynamic(['A2', 'C1']), 7, dynamic(['C2']), 5, dynamic(['C2', 'A1'])]\n"
         "| summarize Val_set=make_set(Val), Arr1_set=make_set(Arr1)"
         " | project a = array_length(Val_set), b = array_length(Arr1_set)", [(3, 5)], ["a", "b"]),
    Case("make-set-aggregation-function", "datatable (a: dynamic) [dynamic('x'), dynamic(null), dynamic(['x', null])]"
         " | summarize make_set(a)", [('["x"]',)], ["set_a"]),
    Case("make-list-aggregation-function", "datatable (a: dynamic) [dynamic({'b': 1}), dynamic(null), dynamic([2, 3])]"
         " | summarize make_list(a)", [('[{"b":1},2,3]',)], ["list_a"]),
    Case("make-list-aggregation-function", "datatable (a: real) [1.5, real(nan), real(-inf), real(null)]"
         " | summarize make_list(a)", [('[1.5,"NaN","-Infinity"]',)], ["list_a"]),
    Case("make-set-if-aggregation-function", BEATLES + "make_set_if(name, strlen(name) > 4) | project"
         " n = array_length(set_name)", [(2,)]),
    Case("make-list-if-aggregation-function", BEATLES + "make_list_if(name, strlen(name) > 4)", [('["George","Ringo"]',)],
         ["list_name"]),
    Case("make-list-if-aggregation-function", BEATLES + "make_list_if(name, strlen(name) > 3, 1)", [('["John"]',)]),
    Case("stdevif-aggregation-function", "range x from 1 to 100 step 1\n| summarize stdevif(x, x % 2 == 0)\n| project x = round(stdevif_x, 9)",
         [(29.154759474,)], ["x"]),
    Case("varianceif-aggregation-function", "range x from 1 to 100 step 1\n| summarize varianceif(x, x%2 == 0)",
         [(850.0,)], ["varianceif_x"]),
    Case("maxif-aggregation-function", "range x from 1 to 9 step 1 | summarize maxif(x, x < 5), minif(x, x > 3)",
         [(4, 4)], ["maxif_x", "minif_x"]),
    Case("count-distinct-aggregation-function", SHAPES + "count_distinct(sideCount), count_distinctif(sideCount,"
         " sideCount < 6)", [(8, 3)], ["count_distinct_sideCount", "count_distinctif_sideCount"]),
    Case("take-anyif-aggregation-function", BEATLES + "take_anyif(name, day_of_birth > 20)", [("George",)], ["name"]),
    Case("take-any-aggregation-function", "datatable(g:long, x:string)[1, '', 1, 'a', 2, ''] | summarize take_any(x) by g",
         [(1, "a"), (2, "")], ["g", "x"]),
]  # fmt: skip

STRINGS = [
    one("datatypes-string-operators", expression, value=True)
    for expression in (
        '"aBc" == "aBc"', '"abc" != "ABC"', '"abc" =~ "ABC"', '"aBc" !~ "xyz"', '"North America" has "america"',
        '"North America" !has "amer"', '"North America" has_cs "America"', '"North America" !has_cs "amer"',
        '"North America" hasprefix "ame"', '"North America" !hasprefix "mer"', '"North America" hasprefix_cs "Ame"',
        '"North America" !hasprefix_cs "CA"', '"North America" hassuffix "ica"', '"North America" !hassuffix "americ"',
        '"North America" hassuffix_cs "ica"', '"North America" !hassuffix_cs "icA"', '"FabriKam" contains "BRik"',
        '"Fabrikam" !contains "xyz"', '"FabriKam" contains_cs "Kam"', '"Fabrikam" !contains_cs "Kam"',
        '"Fabrikam" startswith "fab"', '"Fabrikam" !startswith "kam"', '"Fabrikam" startswith_cs "Fab"',
        '"Fabrikam" !startswith_cs "fab"', '"Fabrikam" endswith "Kam"', '"Fabrikam" !endswith "brik"',
        '"Fabrikam" endswith_cs "kam"', '"Fabrikam" !endswith_cs "Kam"', '"Fabrikam" matches regex "b.*k"',
        '"abc" in ("123", "345", "abc")', '"bca" !in ("123", "345", "abc")', '"abc" in~ ("123", "345", "ABC")',
        '"bca" !in~ ("123", "345", "ABC")', '"North America" has_any("south", "north")',
        '"North and South America" has_all("south", "north")',
    )
] + [
    one("substring-function", 'substring("123456", 1)', "23456"),
    one("substring-function", 'substring("123456", 2, 2)', "34"),
    one("substring-function", 'substring("ABCD", 0, 2)', "AB"),
    one("substring-function", 'substring("123456", -2, 2)', "56"),
    *(one("indexof-function", f"indexof({arguments})", value) for arguments, value in (
        ('"abcdefg","cde"', 2), ('"abcdefg","cde",1,4', 2), ('"abcdefg","cde",1,2', -1), ('"abcdefg","cde",3,4', -1),
        ('"abcdefg","cde",-5', 2), ("1234567,5,1,4", 4), ('"abcdefg","cde",2,-1', 2),
        ('"abcdefgabcdefg", "cde", 1, 10, 2', 9), ('"abcdefgabcdefg", "cde", 1, -1, 3', -1))),
    one("split-function", 'split("aa_bb", "_")', '["aa","bb"]'),
    one("split-function", 'split("aaa_bbb_ccc", "_", 1)', '["bbb"]'),
    one("split-function", 'split("", "_")', '[""]'),
    one("split-function", 'split("a__b", "_")', '["a","","b"]'),
    one("split-function", 'split("aabbcc", "bb")', '["aa","cc"]'),
    Case("extract-function", 'let Dates = datatable(DateString: string) ["15-12-2024", "21-07-2023", "10-03-2022"];\n'
         'Dates\n| extend Month = extract(@"-(\\d{2})-", 1, DateString, typeof(int))\n| project DateString, Month',
         [("15-12-2024", 12), ("21-07-2023", 7), ("10-03-2022", 3)]),
    one("extract-function", 'extract("User: ([^,]+)", 1, "User: JohnDoe, Email: johndoe@example.com, Age: 29")', "JohnDoe"),
    one("trim-function", 'trim("--", @"--https://bing.com--")', "https://bing.com"),
    one("trim-function", 'trim(@"[^\\w]+", strcat("-  ","Te st",1,@"// $"))', "Te st1"),
    one("trim-function", 'trim(@"\\s+", @"    Hello, world!    ")', "Hello, world!"),
    one("trim-start-function", 'trim_start("1", "1121")', "21"),
    one("trim-end-function", 'trim_end("1", "1121")', "112"),
    one("strcat-function", 'strcat("hello", " ", "world")', "hello world"),
    one("strlen-function", 'strlen("hello")', 5),
    one("strlen-function", 'strlen("⒦⒰⒮⒯⒪")', 5),
    one("tolower-function", 'tolower("Hello") == "hello"', value=True),
    one("toupper-function", 'toupper("hello") == "HELLO"', value=True),
    *(one("strcmp-function", f"strcmp({arguments})", value) for arguments, value in (
        ('"ABC", "ABC"', 0), ('"abc", "ABC"', 1), ('"ABC", "abc"', -1), ('"abcde", "abc"', 1))),
    one("replace-string-function", "replace_string('Number is 1', 'is', 'was')", "Number was 1"),
    one("scalar-data-types/string", 'strlen("Hello"\', \'@"world!")', 13),
    one("scalar-data-types/string", 'strlen("Hello"\n  // Comment\n  \', \'@"world!")', 13),
    one("scalar-data-types/string", "@'C:\\Folder\\filename.txt'", "C:\\Folder\\filename.txt"),
    one("scalar-data-types/string", "h'hello'", "hello"),
    one("scalar-data-types/string", "h@'world'", "world"),
    one("scalar-data-types/string", "```line\n  two```", "line\n  two"),
    one("scalar-data-types/string", "~~~line\n  `two`~~~", "line\n  `two`"),
    Case("entity-names", "print 5h_moving = 2d / 1h, 2nd = 1e1 | extend 3rd = 5h_moving + 2nd", [(48.0, 10.0, 58.0)],
         ["5h_moving", "2nd", "3rd"]),
]  # fmt: skip

TIMESTAMPS = [
    Case("format-datetime-function", f"let dt = datetime(2017-01-29 09:00:05);\nprint v=format_datetime(dt, '{pattern}')",
         [(text,)], ["v"])
    for pattern, text in (
        ("yy-MM-dd [HH:mm:ss]", "17-01-29 [09:00:05]"), ("yyyy-M-dd [H:mm:ss]", "2017-1-29 [9:00:05]"),
        ("yy-MM-dd [hh:mm:ss tt]", "17-01-29 [09:00:05 AM]"))
] + [
    one("format-datetime-function", "format_datetime(datetime(2009-06-15T13:45:30.6175420), 'd dd f ff fff ffff H h m s y tt')",
        "15 15 6 61 617 6175 13 1 45 30 9 PM"),
    *(one("datetime-diff-function", f"datetime_diff('{period}',datetime({later}),datetime({earlier}))", value)
      for period, later, earlier, value in (
        ("year", "2017-01-01", "2000-12-31", 17), ("quarter", "2017-07-01", "2017-03-30", 2),
        ("month", "2017-01-01", "2015-12-30", 13), ("week", "2017-10-29 00:00", "2017-09-30 23:59", 5),
        ("day", "2017-10-29 00:00", "2017-09-30 23:59", 29), ("hour", "2017-10-31 01:00", "2017-10-30 23:59", 2),
        ("minute", "2017-10-30 23:05:01", "2017-10-30 23:00:59", 5),
        ("second", "2017-10-30 23:00:10.100", "2017-10-30 23:00:00.900", 10),
        ("millisecond", "2017-10-30 23:00:00.200100", "2017-10-30 23:00:00.100900", 100),
        ("microsecond", "2017-10-30 23:00:00.1009001", "2017-10-30 23:00:00.1008009", 100))),
    *(one("datetime-part-function", f'datetime_part("{part}", datetime(2017-10-30 01:02:03.7654321))', value)
      for part, value in (("year", 2017), ("quarter", 4), ("month", 10), ("week_of_year", 44), ("day", 30),
                          ("dayOfYear", 303), ("hour", 1), ("minute", 2), ("second", 3), ("millisecond", 765),
                          ("microsecond", 765432))),
    *(one("datetime-add-function", f"datetime_add('{period}',{amount},make_datetime(2017,1,1))", at(timestamp))
      for period, amount, timestamp in (
        ("year", 1, "2018-01-01"), ("quarter", 1, "2017-04-01"), ("month", 1, "2017-02-01"), ("week", 1, "2017-01-08"),
        ("day", 1, "2017-01-02"), ("hour", 1, "2017-01-01T01:00"), ("minute", 1, "2017-01-01T00:01"),
        ("second", 1, "2017-01-01T00:00:01"), ("year", -5, "2012-01-01"), ("quarter", 12, "2020-01-01"),
        ("month", -15, "2015-10-01"), ("week", 100, "2018-12-02"))),
    *(Case(f"{function}-function", f"{OFFSETS}{function}(datetime(2017-01-01 10:10:17), offset)",
           [(at(each) - less,) for each in timestamps], ["x"], ordered=True)
      for function, less, timestamps in (
        ("startofday", dt.timedelta(), ("2016-12-31", "2017-01-01", "2017-01-02")),
        ("startofweek", dt.timedelta(), ("2016-12-25", "2017-01-01", "2017-01-08")),
        ("startofmonth", dt.timedelta(), ("2016-12-01", "2017-01-01", "2017-02-01")),
        ("startofyear", dt.timedelta(), ("2016-01-01", "2017-01-01", "2018-01-01")),
        # The documentation's last tick of the period is .9999999; ours is the last microsecond.
        ("endofday", LAST, ("2017-01-01", "2017-01-02", "2017-01-03")),
        ("endofweek", LAST, ("2017-01-01", "2017-01-08", "2017-01-15")),
        ("endofmonth", LAST, ("2017-01-01", "2017-02-01", "2017-03-01")),
        ("endofyear", LAST, ("2017-01-01", "2018-01-01", "2019-01-01")))),
    one("day-of-week-function", "dayofweek(datetime(2015-12-14))", dt.timedelta(days=1)),
    one("hour-of-day-function", "hourofday(datetime(2015-12-14 18:54))", 18),
    one("unixtime-seconds-todatetime-function", "unixtime_seconds_todatetime(1546300800)", at("2019-01-01")),
    one("unixtime-milliseconds-todatetime-function", "unixtime_milliseconds_todatetime(1546300800000)", at("2019-01-01")),
    one("unixtime-microseconds-todatetime-function", "unixtime_microseconds_todatetime(1546300800000000)", at("2019-01-01")),
    one("unixtime-nanoseconds-todatetime-function", "unixtime_nanoseconds_todatetime(1546300800000000000)", at("2019-01-01")),
    one("bin-function", "bin(4.5, 1)", 4.0),
    one("bin-function", "bin(time(16d), 7d)", dt.timedelta(days=14)),
    one("bin-function", "bin(datetime(1970-05-11 13:45:07), 1d)", at("1970-05-11")),
    one("bin-function", "floor(datetime(1970-05-11 13:45:07), 1d)", at("1970-05-11")),
    one("scalar-data-types/timespan", "1d / 1s", 86400.0),
    one("scalar-data-types/timespan", "time(1d) / time(1s)", 86400.0),
    one("scalar-data-types/timespan", "24 * 60 * time(00:01:00) / time(1s)", 86400.0),
    one("scalar-data-types/timespan", "time(15 seconds)", dt.timedelta(seconds=15)),
    one("scalar-data-types/timespan", "time(2)", dt.timedelta(days=2)),
    one("scalar-data-types/timespan", "time(0.12:34:56.7)", dt.timedelta(hours=12, minutes=34, seconds=56.7)),
    one("scalar-data-types/datetime", "datetime(2015-12-31 23:59:59.9)", at("2015-12-31T23:59:59.9")),
    one("todatetime-function", 'todatetime("2015-12-31 23:59:59.9")', at("2015-12-31T23:59:59.9")),
    one("todatetime-function", 'todatetime("2015-12-31 10:00:00 +02:00")', at("2015-12-31T08:00")),
    one("todatetime-function", 'todatetime("2015-12")', at("2015-12-01")),
    one("todatetime-function", 'todatetime("2015")', at("2015-01-01")),
    one("todatetime-function", 'todatetime("no timestamp")', None),
    one("make-datetime-function", "make_datetime(2017, 13, 1)", None),
    one("scalar-data-types/datetime", "datetime(9999-12-31) + 1d", None),
    one("scalar-data-types/datetime", "datetime_add('year', -3000, datetime(2017-01-01))", None),
    one("scalar-data-types/dynamic", "dynamic({'t': datetime(2009-06-15), 's': [1h, 1.5d]})",
        '{"t":"2009-06-15T00:00:00.0000000Z","s":["01:00:00","1.12:00:00"]}'),
    one("now-function", "now() - ago(1h) == 1h", value=True),
    one("ago-function", "ago(0s) == now() and now(-1d) == ago(1d)", value=True),
]  # fmt: skip

VALUES = [
    Case("scalar-data-types/null-values",
         "datatable(val:int)[5, int(null)]\n| extend IsBiggerThan3 = val > 3\n"
         "| extend IsBiggerThan3OrNull = val > 3 or isnull(val)\n| extend IsEqualToNull = val == int(null)\n"
         "| extend IsNotEqualToNull = val != int(null)",
         [(5, True, True, False, True), (None, None, True, None, None)]),
    Case("scalar-data-types/null-values", 'datatable(ival:int, sval:string)[5, "a", int(null), "b"]\n| where ival != 5',
         [(None, "b")]),
    one("logical-operators", "iff(bool(null) and true, true, false)", value=False),
    one("logical-operators", "bool(null) and true", value=False),
    one("logical-operators", "bool(null) or true", value=True),
    Case("numerical-operators", "print plusPlus = 14 % 12, minusPlus = -14 % 12, plusMinus = 14 % -12,"
         " minusMinus = -14 % -12", [(2, 10, 2, 10)]),
    one("numerical-operators", "1.0 / 2", 0.5),
    one("numerical-operators", "1 / 2.0", 0.5),
    one("numerical-operators", "1 / 2", 0),
    one("numerical-operators", "real(1) / 2", 0.5),
    one("numerical-operators", "10m / 1s", 600.0),
    one("numerical-operators", "1s * 5", dt.timedelta(seconds=5)),
    one("scalar-data-types/real", "1.0 / 0.0", INF),
    one("scalar-data-types/real", "-1.0 / 0.0", -INF),
    one("scalar-data-types/real", "0.0 / 0.0", NAN),
    one("abs-function", "abs(-5)", 5),
    Case("ceiling-function", "print c1 = ceiling(-1.1), c2 = ceiling(0), c3 = ceiling(0.9)", [(-1.0, 0, 1.0)]),
    one("round-function", "round(2.98765, 3)", 2.988),
    one("round-function", "round(2.15, 1)", 2.2),
    one("round-function", "round(2.15)", 2.0),
    one("round-function", "round(-50.55, -2)", -100.0),
    one("round-function", "round(21.5, -1)", 20.0),
    Case("case-function", 'range Size from 1 to 15 step 2\n| extend bucket = case(Size <= 3, "Small", Size <= 10, "Medium",'
         ' "Large")', [(1, "Small"), (3, "Small"), (5, "Medium"), (7, "Medium"), (9, "Medium"), (11, "Large"),
                       (13, "Large"), (15, "Large")]),
    one("iff-function", 'iff(1 == 1, "yes", "no")', "yes"),
    one("iff-function", 'iif(1 == 2, "yes", "no")', "no"),
    one("coalesce-function", 'coalesce(tolong("not a number"), tolong("42"), 33)', 42),
    one("coalesce-function", 'coalesce("", "b")', "b"),
    one("tolong-function", 'tolong("123") == 123', value=True),
    one("toint-function", 'toint("123") == 123', value=True),
    one("toint-function", "toint(2.3)", 2),
    one("todouble-function", 'todouble("123.4") == 123.4', value=True),
    one("tobool-function", 'tobool("true") == true and tobool("false") == false and tobool(1) == true and tobool(123)',
        value=True),
    one("tostring-function", "tostring(123)", "123"),
    one("tostring-function", "tostring(long(null))", ""),
    one("scalar-data-types/guid", "guid(74be27de-1e4e-49d9-b579-fe0b331d3642)", "74be27de-1e4e-49d9-b579-fe0b331d3642"),
    one("scalar-data-types/guid", "guid(null)", None),
    Case("scalar-data-types/guid", "datatable(g:guid)[guid(null), guid(74BE27DE-1E4E-49D9-B579-FE0B331D3642)]"
         " | where g != guid(70fc66f7-8279-44fc-9092-d364d70fce44) | extend n = isnull(g), s = strcat(g, '!')",
         [(None, True, "!"), ("74be27de-1e4e-49d9-b579-fe0b331d3642", False, "74be27de-1e4e-49d9-b579-fe0b331d3642!")],
         ["g", "n", "s"]),
    one("toguid-function", 'toguid("70fc66f7-8279-44fc-9092-d364d70fce44")', "70fc66f7-8279-44fc-9092-d364d70fce44"),
    one("toguid-function", 'toguid("no guid")', None),
    one("totimespan-function", "totimespan('0.00:01:00') == time(1min)", value=True),
    one("totimespan-function", "totimespan('1.02:03:04.5')", dt.timedelta(days=1, hours=2, minutes=3, seconds=4.5)),
    one("totimespan-function", "totimespan('-1.5h')", dt.timedelta(hours=-1.5)),
    one("totimespan-function", "totimespan('25:00')", None),
    one("todecimal-function", 'todecimal("123.45678") == decimal(123.45678)', value=True),
    one("scalar-data-types/bool", "true == 1 and false < 1", value=True),
    one("isnull-function", 'isnull("")', value=False),
    one("isnull-function", 'isnull(parse_json(""))', value=True),
    one("isnull-function", 'isnull(parse_json("[]"))', value=False),
    one("isnotnull-function", 'isnotnull(parse_json("{}"))', value=True),
    one("isempty-function", 'isempty("")', value=True),
    one("isempty-function", 'isempty("x")', value=False),
    one("isempty-function", 'isempty(parse_json("[]"))', value=False),
    one("isnotempty-function", 'isnotempty("")', value=False),
    one("not-function", "not(false) == true", value=True),
    one("array-length-function", 'array_length(dynamic([1, 2, 3, "four"]))', 4),
    one("array-length-function", 'array_length(parse_json("{}"))', None),
    Case("parse-json-function", "datatable(m:string) ['{\"duration\":{\"value\":118.0,\"count\":5.0,\"min\":100.0}}']\n"
         "| extend d = parse_json(m)\n| project v = todouble(d.duration.value), n = todouble(d.duration.min)",
         [(118.0, 100.0)]),
    Case("parse-json-function", 'let d=\'{"a":123, "b":"{\\\\"c\\\\":456}"}\';\n'
         "print d_b_c=parse_json(tostring(parse_json(d).b)).c", [("456",)]),
    one("parse-json-function", 'tostring(parse_json("no json"))', "no json"),
    one("scalar-data-types/dynamic", "tolong(dynamic([10, 20, 30])[1])", 20),
    one("scalar-data-types/dynamic", "tolong(dynamic([10, 20, 30])[-1])", 30),
    one("scalar-data-types/dynamic", "tostring(dynamic({'a b': 'x'})['a b'])", "x"),
]  # fmt: skip

CASES = [*SOURCES, *OPERATORS, *AGGREGATES, *STRINGS, *TIMESTAMPS, *VALUES]
