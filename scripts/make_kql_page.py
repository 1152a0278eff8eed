"""Write the reference part of docs/kql.md: every function, operator, plugin and statement, and which are supported.

Functions come from their table. Operators, plugins and statements are tried: each has a query here, and one that is
refused has its error message as the reason. Run it after a change of either; a test fails while it is out of date.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pyarrow as pa

from lazydelta.errors import LazyDeltaError
from lazydelta.kql import query_all
from lazydelta.kql.binding.windows import WINDOW_FUNCTIONS
from lazydelta.kql.functions.aggregates import AGGREGATES
from lazydelta.kql.functions.declaration import Function
from lazydelta.kql.functions.table import GROUPS, REFUSED, REFUSED_PLUGINS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "kql.md"
BEGIN, END = "<!-- made by scripts/make_kql_page.py -->\n", "<!-- end of what is made -->\n"

T = (
    "let T = datatable(x: long, s: string, d: dynamic, t: datetime)"
    " [1, 'a=1', dynamic({'k': [1]}), datetime(2020-01-01)];"
)
GRAPH = "datatable(a: string, b: string) ['x', 'y'] | make-graph a --> b with_node_id = id"
OPERATORS: dict[str, str | None] = {
    "as": "T | as U",
    "consume": "T | consume",
    "count": "T | count",
    "datatable": "datatable(x: long) [1]",
    "distinct": "T | distinct x",
    "evaluate": "T | evaluate narrow()",
    "extend": "T | extend y = x",
    "externaldata": "externaldata(x: long) ['https://example.com/x.csv']",
    "facet": "T | facet by x",
    "filter": "T | filter x > 0",
    "find": "find in (T) where x > 0",
    "fork": "T | fork (count) (take 1)",
    "getschema": "T | getschema",
    "graph-mark-components": f"{GRAPH} | graph-mark-components | graph-to-table nodes",
    "graph-match": f"{GRAPH} | graph-match (p)-[e]->(q) project p.id",
    "graph-shortest-paths": f"{GRAPH} | graph-shortest-paths (p)-[e*1..2]->(q) project p.id",
    "graph-to-table": f"{GRAPH} | graph-to-table nodes",
    "invoke": "let f = (U: (x: long)) { U | count }; T | invoke f()",
    "join": "T | join kind=inner T on x",
    "limit": "T | limit 1",
    "lookup": "T | lookup T on x",
    "macro-expand": "macro-expand entity_group [cluster('c').database('d')] as X (X.T | count)",
    "make-graph": f"{GRAPH} | graph-to-table nodes",
    "make-series": "T | make-series n = count() on t from datetime(2020-01-01) to datetime(2020-01-03) step 1d",
    "mv-apply": "T | mv-apply k = d.k on (summarize sum(tolong(k)))",
    "mv-expand": "T | mv-expand k = d.k",
    "order": "T | order by x",
    "parse": "T | parse s with 'a=' n: long",
    "parse-kv": "T | parse-kv s as (a: long) with (pair_delimiter=',', kv_delimiter='=')",
    "parse-where": "T | parse-where s with 'a=' n: long",
    "partition": "T | partition by s (take 1)",
    "print": "print x = 1",
    "project": "T | project x",
    "project-away": "T | project-away s",
    "project-by-names": "T | project-by-names 'x'",
    "project-keep": "T | project-keep x",
    "project-rename": "T | project-rename y = x",
    "project-reorder": "T | project-reorder s",
    "range": "range i from 1 to 3 step 1",
    "reduce": "T | reduce by s",
    "render": "T | render table",
    "sample": "T | sample 1",
    "sample-distinct": "T | sample-distinct 1 of x",
    "scan": "T | sort by t asc | scan declare (n: long = 0) with (step one: true => n = one.n + 1;)",
    "search": "T | search 'a'",
    "serialize": "T | serialize",
    "sort": "T | sort by x",
    "summarize": "T | summarize count() by s",
    "take": "T | take 1",
    "top": "T | top 1 by x",
    "top-hitters": "T | top-hitters 1 of s",
    "top-nested": "T | top-nested 1 of s by count()",
    "union": "T | union T",
    "where": "T | where x > 0",
}
PLUGINS = {
    "active_users_count": "active_users_count(x, t, datetime(2020-01-01), datetime(2020-01-03), 1d, 1d, 1, 1d)",
    "activity_counts_metrics": "activity_counts_metrics(x, t, datetime(2020-01-01), datetime(2020-01-03), 1d)",
    "activity_engagement": "activity_engagement(x, t, 1d, 7d)",
    "activity_metrics": "activity_metrics(x, t, datetime(2020-01-01), datetime(2020-01-03), 1d)",
    "autocluster": "autocluster()",
    "bag_unpack": "bag_unpack(d)",
    "basket": "basket()",
    "dcount_intersect": None,
    "diffpatterns": "diffpatterns(s, 'a=1', 'b=1')",
    "funnel_sequence": "funnel_sequence(x, t, datetime(2020-01-01), datetime(2020-01-03), 1d, 1d, s, dynamic(['a=1']))",
    "funnel_sequence_completion": "funnel_sequence_completion(x, t, datetime(2020-01-01), datetime(2020-01-03), 1d, s,"
    " dynamic(['a=1']), dynamic([1d]))",
    "geo_line_lookup": "geo_line_lookup(T, x, x, d, 1)",
    "geo_polygon_lookup": "geo_polygon_lookup(T, x, x, d)",
    "ipv4_lookup": None,
    "ipv6_lookup": None,
    "narrow": "narrow()",
    "new_activity_metrics": "new_activity_metrics(x, t, datetime(2020-01-01), datetime(2020-01-03), 1d)",
    "pivot": None,
    "preview": "preview(1)",
    "rolling_percentile": "rolling_percentile(x, 50, t, 1d, 2)",
    "rows_near": "rows_near(x == 1, 1)",
    "schema_merge": None,
    "sequence_detect": "sequence_detect(t, 1h, 1h, a = s has 'a', b = s has 'b', x)",
    "session_count": "session_count(x, x, 1, 10, 1, 2)",
    "sliding_window_counts": "sliding_window_counts(x, t, datetime(2020-01-01), datetime(2020-01-03), 1d, 1d)",
}
PATHS = f"{GRAPH} | graph-match (p)-[e*1..2]->(q)"
GRAPH_FUNCTIONS = {
    "all": f"{PATHS} where all(e, a != '') project p.id",
    "any": f"{PATHS} where any(e, a != '') project p.id",
    "inner_edges": f"{PATHS} project map(inner_edges(e), a)",
    "inner_nodes": f"{PATHS} project map(inner_nodes(e), id)",
    "labels": f"{PATHS} project labels(p)",
    "map": f"{PATHS} project map(e, a)",
    "node_degree_in": f"{PATHS} project node_degree_in(p)",
    "node_degree_out": f"{PATHS} project node_degree_out(p)",
    "node_id": f"{PATHS} project node_id(p)",
}
TABLE_FUNCTIONS = {
    "column_names_of": "T | project-by-names column_names_of(T)",
    "database": "database('d').E | count",
    "external_table": "external_table('E') | count",
    "materialize": "materialize(T | take 1) | count",
    "table": "table('E') | count",
    "toscalar": "print toscalar(T | count)",
}
TRIED = {
    "dcount_intersect": "T | summarize h = hll(x) | evaluate dcount_intersect(h, h)",
    "ipv4_lookup": "print ip = '1.1.1.1' | evaluate ipv4_lookup((print n = '1.1.1.0/24'), ip, n)",
    "ipv6_lookup": "print ip = '::1' | evaluate ipv6_lookup((print n = '::/64'), ip, n)",
    "schema_merge": "T | getschema | evaluate schema_merge(false)",
    "pivot": "T | project x, s | evaluate pivot(s)",
}
STATEMENTS: dict[str, str | None] = {
    "alias": "alias database d = cluster('c').database('d'); T | count",
    "declare pattern": "declare pattern p = (a: string)[b: string] { ('x').['y'] = { print 1 }; }; p('x').['y']",
    "declare query_parameters": "declare query_parameters(p: long = 1); print p",
    "let": "let a = 1; print a",
    "restrict": "restrict access to (T); T | count",
    "set": "set notruncation; T | count",
}


def page() -> str:
    """Return the page with its reference part made anew."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + "\n" + reference() + END + after


def reference() -> str:
    """Return the tables."""
    parts = ["### Operators\n", _tried(OPERATORS)]
    plugins = {name: f"T | evaluate {call}" if call else TRIED.get(name) for name, call in PLUGINS.items()}
    parts += ["### Plugins\n", _tried(plugins, REFUSED_PLUGINS), "### Statements\n", _tried(STATEMENTS)]
    for title, functions in GROUPS.items():
        parts += [f"### {title}\n", _functions(functions)]
    windows = "".join(f"| `{name}` | ✓ |\n" for name in sorted(WINDOW_FUNCTIONS))
    parts += ["### Neighbouring rows\n", f"| | |\n| --- | --- |\n{windows}"]
    parts += ["### Aggregates\n", _functions(AGGREGATES)]
    parts += ["### Patterns of graphs\n", _tried(dict(GRAPH_FUNCTIONS)), "### Tables\n", _tried(dict(TABLE_FUNCTIONS))]
    refused = "".join(f"| `{name}` | {why} |\n" for name, why in sorted(REFUSED.items()))
    parts += ["### Functions that are not supported\n", f"| | why |\n| --- | --- |\n{refused}"]
    return "\n".join(parts) + "\n"


def _functions(functions: list[Function]) -> str:
    rows = (
        f"| `{each.signature}` | {each.result} | {each.about}{' Prunes files.' * each.prunes} |\n"
        for each in sorted(functions, key=lambda each: each.name)
    )
    return f"| | result | |\n| --- | --- | --- |\n{''.join(rows)}"


def _tried(queries: dict[str, str | None], refused: dict[str, str] | None = None) -> str:
    rows = {name: _outcome(text) for name, text in queries.items() if text is not None}
    rows |= {name: f"no: {why}" for name, why in (refused or {}).items()}
    lines = (f"| `{name}` | {outcome} |\n" for name, outcome in sorted(rows.items()))
    return f"| | |\n| --- | --- |\n{''.join(lines)}"


def _outcome(text: str) -> str:
    try:
        for result in query_all(f"{T} {text}", {"E": pa.table({"x": [1]})}):
            result.read_all()
    except LazyDeltaError as error:
        message = re.sub(r"^KQL, line \d+, column \d+: ", "", str(error).splitlines()[0])
        return f"no: {message}"
    return "✓"


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        sys.exit(PAGE.read_text(encoding="utf-8") != page())
    PAGE.write_text(page(), encoding="utf-8")
