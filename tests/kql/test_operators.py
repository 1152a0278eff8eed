"""Operators on arrays, texts, sequences, groups and graphs: results that the reference states, names of the analyser."""

# ruff: noqa: E501 - a case is read best on one line

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest

from lazydelta.errors import KqlError
from lazydelta.kql import query, query_all
from tests.kql.analyser import analysed

LISTS = "range x from 1 to 8 step 1 | summarize l = make_list(x) by odd = x % 2"
LETTERS = "datatable(a:string, b:long)['x', 1, 'x', 5, 'y', 2, 'y', 9]"
EVENT = "Event: NotifySliceRelease (resourceName=Scheduler, totalSlices=27, sliceNumber=23, releaseTime=02/17/2016 08:40:01)"
SUMS = "datatable(k:string, x:long)['a', 1, 'b', 10, 'a', 2, 'b', 20] | "
TRACE = f'datatable(t:string)["{EVENT}", "nothing"]'
USERS = (
    "datatable(UserId:string, Timestamp:datetime)['A', datetime(2017-08-01), 'D', datetime(2017-08-01),"
    " 'J', datetime(2017-08-01), 'B', datetime(2017-08-01), 'C', datetime(2017-08-02), 'T', datetime(2017-08-02),"
    " 'J', datetime(2017-08-02), 'B', datetime(2017-08-03), 'S', datetime(2017-08-03), 'S', datetime(2017-08-03),"
    " 'S', datetime(2017-08-04)]"
)
STAFF = (
    'let staff = datatable(name:string, age:long)["Alice", 32, "Bob", 31, "Eve", 27, "Ben", 23];'
    ' let reports = datatable(employee:string, manager:string)["Bob", "Alice", "Eve", "Bob", "Ben", "Bob"];'
    " reports | make-graph employee --> manager with staff on name | "
)
LINKS = "let L = datatable(a:string, b:string, p:long)['x', 'y', 1, 'y', 'z', 1, 'x', 'y', 2, 'y', 'z', 2]; "
EVENTS = (
    "datatable(Ts:timespan, Event:string)[0m, 'A', 1m, 'Start', 2m, 'B', 4m, 'Stop', 6m, 'C', 8m, 'Start', 12m, 'Stop']"
    " | sort by Ts asc | "
)

PLACES = "datatable(name:string, lon:real, lat:real)['in', 1, 1, 'near', 1, 3, 'far', 20, 20]"
AREAS = "(print area_name = 'A', area = dynamic({'type': 'Polygon', 'coordinates': [[[0, 0], [2, 0], [2, 2], [0, 2], [0, 0]]]}))"

STORMS = "datatable(s:string, e:string, d:string)['TX', 'Hail', 'NO', 'TX', 'Hail', 'NO', 'TX', 'Wind', 'YES', 'CA', 'Hail', 'NO', 'CA', 'Hail', 'NO', 'CA', 'Fire', 'YES', 'OK', 'Hail', 'NO', 'OK', 'Wind', 'YES']"
STEPS = "datatable(u:long, t:datetime, e:string)[1, datetime(2024-01-01), 'a', 1, datetime(2024-01-01 12:00), 'b', 1, datetime(2024-01-02), 'c', 2, datetime(2024-01-01), 'a', 2, datetime(2024-01-02), 'b', 2, datetime(2024-01-03), 'c', 2, datetime(2024-01-06), 'c']"
DAY, START = dt.timedelta(days=1), dt.datetime(2024, 1, 1, tzinfo=dt.UTC)

CASES: list[tuple[str, list[tuple[Any, ...]]]] = [
    # Arrays. An empty one has no element; null is a value of its own.
    ("datatable(a:long, d:dynamic)[1, dynamic([]), 2, dynamic(null), 3, dynamic([5, null]), 4, dynamic(7)] | mv-expand d", [(2, None), (3, 5), (3, None), (4, 7)]),
    ("print a = dynamic([1, 2, 3]), b = dynamic(['x']) | mv-expand with_itemindex=i a to typeof(long), b to typeof(string) limit 2", [(1, "x", 0), (2, "", 1)]),
    ("print d = dynamic({'p': 1, 'q': [2]}) | mv-expand kind=array d", [(["p", 1],), (["q", [2]],)]),
    (f"{LISTS} | mv-apply e = l to typeof(long) on (top 2 by e | summarize s = sum(e)) | project odd, s", [(0, 14), (1, 12)]),
    (f"{LISTS} | mv-apply with_itemindex=i e = l to typeof(long) on (where i < 2 | project e) | project odd, e", [(0, 2), (0, 4), (1, 1), (1, 3)]),
    # Series: the end is left out, unless the range is written as range().
    ("datatable(t:long, v:real)[1, 1.0, 5, 2.0] | make-series s = sum(v) default=-1.0 on t from 0 to 6 step 2", [([1.0, -1.0, 2.0], [0, 2, 4])]),
    ("datatable(t:long, v:long)[0, 1, 6, 2] | make-series s = sum(v) on t in range(0, 6, 2)", [([1, 0, 0, 2], [0, 2, 4, 6])]),
    ("datatable(t:datetime)[datetime(2020-01-01 05:00), datetime(2020-01-03)] | make-series n = count() on t step 1d | project n", [([1, 0, 1],)]),
    ("datatable(t:long)[] | make-series n = count() on t from 0 to 4 step 2", []),
    ("datatable(t:long)[] | make-series kind=nonempty n = count() on t from 0 to 4 step 2", [([0, 0], [0, 2])]),
    # Texts.
    (f'{TRACE} | parse t with * "resourceName=" name ", totalSlices=" total:long * "releaseTime=" released:date ")" | project name, total, isnull(released)', [("Scheduler", 27, False), ("", None, True)]),
    (f'{TRACE} | parse-where t with * "sliceNumber=" number:int "," * | project number', [(23,)]),
    (f'{TRACE} | take 1 | parse kind=regex t with * "resourceName=" name "," * | project name', [("Scheduler, totalSlices=27, sliceNumber=23",)]),
    (f'{TRACE} | take 1 | parse kind=regex flags=Ui t with * "RESOURCENAME=" name "," * | project name', [("Scheduler",)]),
    ('print t = "a=x b=2" | parse kind=relaxed t with "a=" a:long " b=" b:long | project a, b', [(None, 2)]),
    ("print s = 'k: 1, n: \"a, b\"' | parse-kv s as (k:long, n:string) with (pair_delimiter=',', kv_delimiter=':', quote='\"') | project k, n", [(1, "a, b")]),
    # Sequences.
    ("range x from 1 to 4 step 1 | extend n = row_number(10, x == 3), p = prev(x), q = next(x, 2, -1), c = row_cumsum(x, x == 3)", [(1, 10, None, 3, 1), (2, 11, 1, 4, 3), (3, 10, 2, -1, 3), (4, 11, 3, -1, 7)]),
    ("datatable(v:long)[5, 5, 7, 9, 9] | serialize d = row_rank_dense(v), m = row_rank_min(v) | project d, m", [(1, 1), (1, 1), (2, 3), (3, 4), (3, 4)]),
    ("range x from 1 to 3 step 1 | scan declare (total:long=0) with (step s: true => total = x + s.total;)", [(1, 1), (2, 3), (3, 6)]),
    (EVENTS + 'scan with_match_id=id with (step a: Event == "Start"; step b: Event != "Start" and Event != "Stop"; step c: Event == "Stop";) | project Event, id', [("Start", 0), ("B", 0), ("Stop", 0), ("Start", 1), ("Stop", 0)]),
    (EVENTS + 'scan with (step a output=none: Event == "Start"; step b output=last: Event != "Start" and Ts - a.Ts < 5m;) | project Event', [("Stop",), ("Stop",)]),
    # Copies of a column are columns of their own.
    *((f"print x = 1 | extend y = x | {operator}", [row]) for operator, row in (("project-away x", (1,)), ("project-keep y", (1,)), ("project-reorder y", (1, 1)), ("project z = x, x | project-away z", (1,)), ("project-by-names 'y', 'x'", (1, 1)), ("summarize arg_max(x, *)", (1, 1)), ("summarize take_any(*) by x", (1, 1)), ("lookup (print x = 1, k = 2 | extend l = k) on x", (1, 1, 2, 2)), ("scan declare (c:long = 0) with (step s: true => c = x + y;)", (1, 1, 2)))),
    # Groups.
    (f"{LETTERS} | partition by a (top 1 by b)", [("x", 5), ("y", 9)]),
    (f"{LETTERS} | partition hint.strategy=native by a (summarize s = sum(b) by a | extend t = s + 1)", [("x", 6, 7), ("y", 11, 12)]),
    (f"{LETTERS} | top-nested 1 of a by sum(b), top-nested 1 of b by max(b)", [("y", 11, 9, 9)]),
    (f"{LETTERS} | top-nested 1 of a with others='o' by sum(b), top-nested 1 of b with others=-1 by s = max(b)", [("y", 11, 9, 9), ("y", 11, -1, 2), ("o", 6, -1, 5)]),
    (f"{LETTERS} | top-nested 1 of a with others='o' by sum(b), top-nested 1 of b by s = max(b)", [("y", 11, 9, 9), ("o", 6, None, None)]),
    (f"{LETTERS} | partition by a (as P | extend share = b * 100 / toscalar(P | summarize sum(b)))", [("x", 1, 16), ("x", 5, 83), ("y", 2, 18), ("y", 9, 81)]),
    (f"let T = {LETTERS}; T | extend c = 1 | project-by-names column_names_of(T), 'none*' | take 0", []),
    (f"{LETTERS} | top-hitters 1 of a by b", [("y", 11)]),
    (f"{LETTERS} | distinct a | sample-distinct 5 of a | count", [(2,)]),
    (f"{LETTERS} | assert-schema (a:string, b:long) | project-by-names dynamic(['b']) | take 1", [(1,)]),
    (f"{LETTERS} | consume", []),
    (f"{LETTERS} | count as n | extend m = n", [(4, 4)]),
    # A random value of toscalar() is the same wherever its function is called.
    ("let r = () { toscalar(rand()) }; print a = r(), b = r() | project a == b", [(True,)]),
    ("range x from 1 to 10 step 1 | project s = strcat('foo', 'Z', tostring(x)) | reduce by s with characters='Z'", [("foo*", 10, "fooZ1")]),
    ("range x from 1 to 9223372036854775806 step 1 | take 2", [(1,), (2,)]),
    # Several tables.
    ("let V = view () { datatable(a:string)['Green', 'no'] }; let W = view () { print b = 'dark green' }; search 'green'", [("V", "Green", ""), ("W", "", "dark green")]),
    ("let V = view () { datatable(a:string)['Green', 'no'] }; search kind=case_sensitive in (V*) 'green'", []),
    ("let V = view () { datatable(a:string, n:long)['x', 1] }; let W = view () { print c = 'y', n = 1 }; find in (V, W) where n == 1", [("V", 1, {"a": "x"}), ("W", 1, {"c": "y"})]),
    (f"{LETTERS} | where * has 'y' | project b", [(2,), (9,)]),
    ("let V = view () { print a = 'x', n = 1 }; let W = view () { print c = 'y', n = 2 }; let Z = view () { print z = 1 }; find a == 'x' or (c == 'y' and a != 'x') project a, c", [("V", "x", ""), ("W", "", "y")]),
    ("let V = view () { print a = 'Green' }; let W = view () { print c = 'dark green' }; search a:'green' or c:'green'", [("V", "Green", ""), ("W", "", "dark green")]),
    (f"{LETTERS} | search 'y' | project b", [(2,), (9,)]),
    (f"{LETTERS} | as T | where b > 5 | union (T | where b < 2) | project b", [(1,), (9,)]),
    ("let f = (T:(a:string), n:long) { T | extend m = strcat(a, n) }; datatable(a:string)['x'] | invoke f(5)", [("x", "x5")]),
    ("declare query_parameters(n:long = 5); set notruncation; print n", [(5,)]),
    ("declare pattern app = (id:string)[event:string] { ('X').['a'] = { print 1 }; ('Y').['b'] = { print 2 }; }; app('Y').['b']", [(2,)]),
    ("print a = dynamic([1, '5', 1.5, null, 'x', [1], true, 1e3]) | mv-expand a to typeof(long)", [(1,), (5,), (1,), (None,), (None,), (None,), (None,), (1000,)]),
    ("print a = dynamic([1, -2, null, [3]]) | mv-expand a to typeof(long) limit 3", [(1,), (-2,), (None,)]),
    ("print a = dynamic([1.5, null, -3, true]) | mv-expand a to typeof(real)", [(1.5,), (None,), (-3.0,), (None,)]),
    ("print a = dynamic([1.5, null, -3]) | mv-expand a to typeof(real)", [(1.5,), (None,), (-3.0,)]),
    ("print a = parse_json('[99999999999999999999, 1.5]'), b = parse_json('[99999999999999999999]') | mv-expand a to typeof(long), b to typeof(long)", [(None, None), (1, None)]),
    # Plugins.
    (f"{LETTERS} | evaluate pivot(a, sum(b))", [(6, 11)]),
    ("range x from 1 to 100 step 1 | summarize e = hll_if(x, x % 2 == 0), m = hll_if(x, x % 3 == 0), f = hll_if(x, x % 5 == 0) | evaluate dcount_intersect(e, m, f) | project s0, s1, s2", [(50, 16, 3)]),
    ("print a = 'x', b = 5 | evaluate narrow()", [(0, "a", "x"), (0, "b", "5")]),
    ("print d = dynamic({'b': 'x', 'a': 1}) | evaluate bag_unpack(d)", [(1, "x")]),
    (f"{USERS} | evaluate activity_counts_metrics(UserId, Timestamp, datetime(2017-08-01), datetime(2017-08-04), 1d) | project-away Timestamp", [(4, 4, 4, 4), (3, 3, 2, 6), (3, 2, 1, 7), (1, 1, 0, 7)]),
    (f"{USERS} | evaluate sliding_window_counts(UserId, Timestamp, datetime(2017 - 08 - 03), datetime(2017-08-04), 2d, 1d) | project-away Timestamp", [(6, 5), (4, 2)]),
    (f"{USERS} | evaluate activity_metrics(UserId, Timestamp, datetime(2017-08-01), datetime(2017-08-04), 1d) | where retention_rate > 0 | project retention_rate", [(0.25,), (0.5,)]),
    ("range x from 1 to 9 step 1 | evaluate rows_near(x == 5, 1)", [(4,), (5,), (6,)]),
    ("range x from 1 to 9 step 1 | sort by x desc | evaluate rows_near(x == 5, 1, 2)", [(3,), (4,), (5,), (6,)]),
    (f"{PLACES} | evaluate geo_polygon_lookup({AREAS}, lon, lat, area) | project name, area_name", [("in", "A")]),
    (f"{PLACES} | evaluate geo_polygon_lookup({AREAS}, lon, lat, area, radius=200000, return_unmatched=true) | project name, area_name", [("in", "A"), ("near", "A"), ("far", "")]),
    (f"{PLACES} | evaluate geo_line_lookup((print road = dynamic({{'type': 'LineString', 'coordinates': [[0, 3], [5, 3]]}})), lon, lat, road, 1000) | project name", [("near",)]),
    ("range x from 0 to 5 step 1 | extend v = x * 10 | evaluate rolling_percentile(v, 50, x, 2, 2)", [(0, 0), (2, 10), (4, 30)]),
    (f"{STORMS} | evaluate basket(0.5)", [(0, 5, 62.5, "", "Hail", ""), (1, 5, 62.5, "", "", "NO"), (2, 5, 62.5, "", "Hail", "NO")]),
    (f"{STORMS} | extend w = iff(s == 'OK', 10, 1) | evaluate basket(0.5, w, 1, '*')", [(0, 20, 76.9, "OK", "*", "*", None), (1, 14, 53.8, "*", "Hail", "*", None), (2, 14, 53.8, "*", "*", "NO", None)]),
    (f"{STORMS} | evaluate autocluster()", [(0, 5, 62.5, "", "Hail", "NO"), (1, 2, 25.0, "", "Wind", "YES"), (2, 1, 12.5, "CA", "Fire", "YES")]),
    (f"{STORMS} | evaluate diffpatterns(d, 'NO', 'YES', '~', 0.5)", [(0, 5, 0, 100.0, 0.0, 100.0, "", "Hail", ""), (1, 0, 2, 0.0, 66.67, 66.67, "", "Wind", "")]),
    (f"{STEPS} | evaluate sequence_detect(t, 2d, 3d, a = e == 'a', b = e == 'b', c = e == 'c', u) | project u, Duration", [(1, DAY), (2, 2 * DAY)]),
    (f"{STEPS} | evaluate funnel_sequence_completion(u, t, datetime(2024-01-01), datetime(2024-01-03), 7d, e, dynamic(['a', 'b', 'c']), dynamic([1d, 3d])) | project-away t", [("a", DAY, 2), ("a", 3 * DAY, 2), ("b", DAY, 2), ("b", 3 * DAY, 2), ("c", DAY, 1), ("c", 3 * DAY, 2)]),
    # Graphs.
    (STAFF + "graph-match (boss)<-[path*1..3]-(e) where boss.name == 'Alice' and e.age < 30 project e.name, managers = map(path, manager)", [("Ben", ["Alice", "Bob"]), ("Eve", ["Alice", "Bob"])]),
    (STAFF + "graph-match (m)<-[r*2..2]-(e) where all(inner_edges(r), manager != 'Eve') project e.name, p = map(inner_edges(r), employee)", [("Ben", ["Bob", "Ben"]), ("Eve", ["Bob", "Eve"])]),
    (STAFF + "graph-match (m)<-[r]-(e) where node_degree_in(m) == 2 project m.name, e.name", [("Bob", "Ben"), ("Bob", "Eve")]),
    (SUMS + "partition by k (make-series n = sum(x) on x from 1 to 21 step 10 | project n)", [([3, 0],), ([10, 20],)]),
    (SUMS + "partition by k (sample 1) | summarize dcount(k), count()", [(2, 2)]),
    (SUMS + "partition by k (top-nested 1 of x by max(x) | extend n = row_number())", [(2, 2, 1), (20, 20, 1)]),
    (SUMS + "where x > 99 | partition by k (sample 1 | extend y = x) | getschema | count", [(3,)]),
    (SUMS + "partition by k (sort by x asc | scan with_match_id=m declare (c:long=0) with (step s: true => c = x + s.c;)"
     " | extend n = next(c)) | project k, c, n, m", [("a", 1, 3, 0), ("a", 3, None, 0), ("b", 10, 30, 0), ("b", 30, None, 0)]),
    (SUMS + "summarize xs = make_list(x) by k | mv-apply x = xs to typeof(long) on (sort by x asc"
     " | scan declare (c:long=0) with (step s: true => c = x + s.c;) | top 1 by c) | project k, c", [("a", 3), ("b", 30)]),
    ("datatable(s:string, d:dynamic)[1h, 1, datetime(2020-01-01), true, 1.5, 'a']",
     [("01:00:00", 1), ("2020-01-01T00:00:00.0000000Z", True), ("1.5", "a")]),
    (STAFF + "graph-match (m)<-[r*1..3]-(e) where node_id(e) startswith 'B' project node_id(m), map(inner_nodes(r), node_id())",
     [("Alice", []), ("Alice", ["Bob"]), ("Bob", [])]),
    (STAFF + "graph-shortest-paths (e)-[p*1..5]->(m) where e.name == 'Eve' and m.name == 'Alice' project n = array_length(map(p, manager))", [(2,)]),
    (STAFF + "graph-match (m)<-[r*1..2]-(e) where m.name == 'Alice' project e.name, r.manager, labels(m)", [("Bob", ["Alice"], []), ("Ben", ["Alice", "Bob"], []), ("Eve", ["Alice", "Bob"], [])]),
    ("datatable(a:string, b:string)['Alice', 'Bob'] | make-graph a --> b with_node_id=id | graph-to-table nodes with_node_id=h", [(-3122868243544336885, "Alice"), (-7133945255344544237, "Bob")]),
    ("datatable(a:string, b:string)['Alice', 'Bob'] | make-graph a --> b with_node_id=id | graph-to-table edges with_source_id=s with_target_id=t", [(-3122868243544336885, -7133945255344544237, "Alice", "Bob")]),
    (STAFF + "graph-where-edges manager == 'Bob' | graph-match (e)-[r]->(m) project e.name", [("Ben",), ("Eve",)]),
    (STAFF + "graph-where-nodes age > 25 | graph-to-table edges", [("Bob", "Alice"), ("Eve", "Bob")]),
    # Rows of one key are one node; without tables nodes have no properties; a partition is a graph of its own.
    (LINKS + "let M = datatable(id:string, n:long)['x', 1, 'x', 2, '', 3]; let N = datatable(k:string, c:string)['x', 'red', 'w', 'blue']; L | make-graph a --> b with M on id, N on k | graph-to-table nodes", [("x", 1, "x", "red"), ("", 3, "", ""), ("w", None, "w", "blue"), ("y", None, "", ""), ("z", None, "", "")]),
    (LINKS + "L | make-graph a --> b | graph-match (m)-[e]->(n)-[f]->(o) project e.a, f.b", [("x", "z"), ("x", "z"), ("x", "z"), ("x", "z")]),
    (LINKS + "L | make-graph a --> b with_node_id=id partitioned-by p (graph-match (m)-->(n)-[f]->(o) project m.id, f.b, f.p | extend one = 1)", [("x", "z", 1, 1), ("x", "z", 2, 1)]),
    (LINKS + "let N = datatable(id:string, p:long, v:long)['x', 1, 5, 'x', 2, 6]; L | make-graph a --> b with N on id partitioned-by p (graph-match (m)-[e]->(n) where m.id == 'x' project m.v, n.id, m.p)", [(5, "y", 1), (6, "y", 2)]),
    (STAFF + "graph-match (m)<-[r*2..2]-(e) where e.name == 'Eve' project n = inner_nodes(r)", [([{"name": "Bob", "age": 31}],)]),
    ("datatable(a:string, b:string)['x', 'y', 'y', 'x', 'y', 'z'] | make-graph a --> b with_node_id=id | graph-mark-components kind=strong with_component_id=c | graph-to-table nodes", [("x", 0), ("y", 0), ("z", 1)]),
]  # fmt: skip

# The analyser knows no data, so columns that depend on it are missing there; scan has a column that no page shows. Its
# views come in the order of their last definition, it knows no columns of nodes in graph-where-nodes, and map() has no
# type that functions could take.
UNKNOWN_TO_THE_ANALYSER: tuple[str, ...] = ("pivot(", "bag_unpack(d)", "| scan declare", "scan with (", "search ")
UNKNOWN_TO_THE_ANALYSER += (
    "-where-",
    "(map(",
    "inner_edges(",
    "inner_nodes(",
    "consume",
    "_intersect",
    "by-names",
    "_lookup(",
)


def rows_of(text: str) -> list[tuple[Any, ...]]:
    """Return the rows of a query, dynamic values as what they stand for."""
    with query(text) as result:
        kinds, table = result.kinds, result.read_all()
    columns = [
        [None if value is None else json.loads(value) for value in column.to_pylist()]
        if kind == "dynamic"
        else column.to_pylist()
        for kind, column in zip(kinds.values(), table.columns, strict=True)
    ]
    return list(zip(*columns, strict=True))


@pytest.mark.parametrize(("text", "expected"), CASES, ids=lambda value: value[-70:] if isinstance(value, str) else "")
def test_an_operator_gives_the_rows_that_it_should(text: str, expected: list[tuple[Any, ...]]) -> None:
    assert sorted(rows_of(text), key=repr) == sorted(expected, key=repr)


def test_names_and_types_are_those_of_the_analyser() -> None:
    texts = [text for text, _ in CASES if not any(word in text for word in UNKNOWN_TO_THE_ANALYSER)]
    different = {}
    for text, opinion in zip(texts, analysed(texts, {}), strict=True):
        with query(text) as result:
            ours = list(result.kinds.items())
        if opinion.errors or ours != opinion.columns:
            different[text] = (ours, opinion)
    assert different == {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("print a = 1 | extend b = 2 | fork (project a) n = (count)", [[{"a": 1}], [{"Count": 1}]]),
        (f"{LETTERS} | take 1 | facet by a, b with (count)", [[{"Count": 1}], [{"a": "x", "count_": 1}], [{"b": 1, "count_": 1}]]),
        ("let n = 2; print x = n | as T; T | count; T | extend y = x;", [[{"x": 2}], [{"Count": 1}], [{"x": 2, "y": 2}]]),
        (f"{STEPS} | evaluate funnel_sequence(u, t, datetime(2024-01-01), datetime(2025-01-01), 1d, 365d, e, dynamic(['b']))", [
            [{"t": START, "prev": "a", "next": "c", "dcount": 2, "samples": "[1,2]"}], [{"t": START, "prev": "a", "dcount": 2, "samples": "[1,2]"}], [{"t": START, "next": "c", "dcount": 2, "samples": "[1,2]"}],
        ]),
        ("datatable(a:string, b:string)['x', 'x'] | make-graph a --> b with_node_id=id | graph-to-table nodes as N, edges as E; E; N | count", [[{"a": "x", "b": "x"}], [{"Count": 1}]]),
    ],
)  # fmt: skip
def test_a_query_may_have_several_results(text: str, expected: list[list[dict[str, Any]]]) -> None:
    assert [result.read_all().to_pylist() for result in query_all(text)] == expected


@pytest.mark.parametrize(
    ("text", "column", "word"),
    [
        ("print 1 | evaluate nothing()", 20, "nothing"),
        ("cluster('c').database('d').T", 1, "clusters"),
        ("print a = 1 | mv-expand a", 25, "dynamic"),
        ("print a = 1 | fork (take 1) (count)", 1, "2 results"),
        ("print a = 1 | fork (take 1) (count) | take 1", 15, "end of a query"),
        ("print a = 1 | summarize by a | extend row_number()", 39, "order"),
        ("print a = 'x', b = 'y' | make-graph a --> b with_node_id=id", 1, "graph"),
        (
            "print a = 'x', b = 'y' | make-graph a --> b with_node_id=id | graph-match (m)-->(n), (o)-->(p) project m.id",
            63,
            "in common",
        ),
        (
            "print a = 'x', b = 'y' | make-graph a --> b with_node_id=id partitioned-by c (graph-to-table nodes)",
            26,
            "'c'",
        ),
        ("print a = 1 | scan declare (b:long) with (step s: true => c = 1;)", 63, "declared"),
    ],
)
def test_what_is_wrong_with_an_operator_is_shown_at_its_place(text: str, column: int, word: str) -> None:
    with pytest.raises(KqlError, match=word) as failure:
        rows_of(text)
    assert failure.value.column == column
