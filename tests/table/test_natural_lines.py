"""Lines as users of deltalake, Polars, DuckDB and pandas type them: each has to run, and to say the same as the rows.

A line is evaluated with ``t`` (a table of 30 rows in three days), ``uri``, ``rows`` (its rows as dictionaries) and the
usual imports. Where it stands beside an expected value, both have to be equal; a line alone has to run.
"""

from __future__ import annotations

import asyncio
import copy
import datetime as dt
import decimal
import importlib.metadata
import itertools
import os
import pickle
import pydoc
import warnings
import zoneinfo
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet
import pytest

import lazydelta
from lazydelta import DeltaTable, write_arrow, write_deltalake
from lazydelta.errors import LazyDeltaError, OptionError, PredicateError, QueryError
from tests.table.further_lines import FURTHER, FURTHER_REFUSED

DAY = dt.datetime(2026, 2, 8, tzinfo=dt.UTC)
ROWS = [
    {"id": n, "ts": DAY + dt.timedelta(hours=2.4 * n), "device": f"{'abc'[n // 10]}{n % 10}", "value": n / 2}
    for n in range(30)
]

# Lines that have to run. Those in a tuple have to return what stands beside them.
LINES: list[str | tuple[str, str]] = [
    # What the table is.
    ("t.columns", "['id', 'ts', 'device', 'value', '_event_day']"),
    ("t.partition_columns", "['_event_day']"),
    ("t.dtypes['id']", "'int64'"),
    ("list(t.dtypes)", "t.columns"),
    ("t.uri", "t.table_uri"),
    ("t.version()", "2"),
    ("t.info().version", "2"),
    ("t.info().num_files", "3"),
    ("t.info().partition_columns", "t.partition_columns"),
    ("t.schema().to_arrow().names", "t.columns"),
    ("len(t.history())", "3"),
    ("len(t.history(limit=1))", "1"),
    ("t.metadata().partition_columns", "['_event_day']"),
    "t.protocol()",
    "repr(t)",
    "str(t)",
    "t._repr_html_()",
    "t.info()._repr_html_()",
    ("DeltaTable(uri) == t", "True"),
    ("DeltaTable(Path(uri)).version()", "2"),
    ("DeltaTable(uri, version=0).count()", "10"),
    ("DeltaTable.is_deltatable(uri)", "True"),
    ("t.__enter__() is t", "True"),
    "t.explain()",
    "t.explain('id > 3')",
    "repr(t.explain(where='id > 3'))",
    "t.explain()._repr_html_()",
    ("t.explain('id > 3', limit=1).plan['limit']", "1"),
    ("t.sidecar_status()", "None"),
    # Counting.
    ("t.count()", "30"),
    ("t.count_rows('id >= 20')", "10"),
    ("t.count(where='id >= 20')", "10"),
    ("t.count_rows(where='id >= 20')", "10"),
    ("t.rows().count()", "30"),
    ("t.files().count()", "3"),
    ("t.files('id >= 20').count()", "1"),
    ("lazydelta.scan(uri).count()", "30"),
    ("len(t.to_pandas())", "30"),
    ("t.to_polars().select(pl.len()).collect().item()", "30"),
    # Looking.
    ("t.head().num_rows", "10"),
    ("t.head(3).num_rows", "3"),
    ("t.head(3, ['id']).column_names", "['id']"),
    ("t.head(where='id = 7').to_pylist()[0]['id']", "7"),
    ("t.head(n=2, columns=['id']).num_rows", "2"),
    "t.show()",
    "t.show(3)",
    "t.show(3, ['id', 'device'], where='id > 3')",
    # Rows, in every form.
    ("sorted(r['id'] for r in t.to_list())", "list(range(30))"),
    ("sorted(r['id'] for r in t.rows().to_list())", "list(range(30))"),
    ("t.rows(['id']).columns", "['id']"),
    ("t.rows('id').columns", "['id']"),
    ("t.rows(['id'], 'id < 3').to_arrow().sort_by('id').to_pydict()", "{'id': [0, 1, 2]}"),
    ("t.rows(where='id < 3').count()", "3"),
    ("t.rows(where=[('id', '<', 3)]).count()", "3"),
    ("t.rows(where={'id': {'<': 3}}).count()", "3"),
    ("t.rows(where=pc.field('id') < 3).count()", "3"),
    ("t.rows(where=pl.col('id') < 3).count()", "3"),
    ("t.rows(where=(pl.col('id') < 3) & (pl.col('value') > 0)).count()", "2"),
    ("t.rows(where=pl.col('id').is_in([1, 2, 99])).count()", "2"),
    ("t.rows(where=~pl.col('id').is_in([1, 2, 99])).count()", "28"),
    ("t.rows(where=pl.col('device').str.starts_with('b')).count()", "10"),
    ("t.rows(where=pl.col('id').is_between(3, 5)).count()", "3"),
    ("t.rows(where=pl.col('ts').dt.date() == dt.date(2026, 2, 8)).count()", "10"),
    ("t.rows(where=pl.col('value').is_null() | (pl.col('id') == 4)).count()", "1"),
    ("t.rows(where=pl.col('ts') >= DAY + dt.timedelta(days=2)).count()", "10"),
    ("t.rows(limit=4).count()", "4"),
    ("t.rows(limit=4).to_pandas().shape", "(4, 5)"),
    ("t.rows(limit=4).to_polars().shape", "(4, 5)"),
    ("t.rows(limit=4).to_arrow().num_rows", "4"),
    ("t.rows(limit=4).read_all().num_rows", "4"),
    ("t.rows(['id'], 'id = 4').first()", "{'id': 4}"),
    ("t.rows(where='id = 99').first()", "None"),
    ("t.rows(where='id = 99').to_list()", "[]"),
    ("pa.table(t.rows(['id'])).num_rows", "30"),
    ("pl.DataFrame(t.rows(['id'])).height", "30"),
    ("pl.DataFrame(t.rows()).columns", "t.columns"),
    ("pa.RecordBatchReader.from_stream(t.rows()).read_all().num_rows", "30"),
    ("sum(batch.num_rows for batch in t.rows())", "30"),
    ("len(list(t.rows(limit=1)))", "1"),
    "repr(t.rows())",
    "t.rows()._repr_html_()",
    ("asyncio.run(async_rows(t.rows()))", "30"),
    ("t.rows(['id']).schema", "pa.schema([('id', pa.int64())])"),
    # Whole tables, with deltalake's names and with ours.
    ("t.to_pyarrow_table().num_rows", "30"),
    ("t.to_pyarrow_table(columns=['id']).column_names", "['id']"),
    ("t.to_pyarrow_table(filters=[('id', '<', 3)]).num_rows", "3"),
    ("t.to_pyarrow_table(where='id < 3').num_rows", "3"),
    ("t.to_pyarrow_table(where='id < 3', filters=[('id', '>', 0)]).num_rows", "2"),
    ("t.to_pyarrow_table(limit=3).num_rows", "3"),
    ("t.to_arrow(where='id < 3').num_rows", "3"),
    ("t.to_arrow(['id'], limit=2).column_names", "['id']"),
    ("t.to_list(['id'], where='id = 3')", "[{'id': 3}]"),
    ("t.to_list(limit=2).__len__()", "2"),
    ("t.to_pandas().shape", "(30, 5)"),
    ("t.to_pandas(columns=['id']).columns.tolist()", "['id']"),
    ("t.to_pandas(filters=[('id', '<', 3)]).shape[0]", "3"),
    ("t.to_pandas(where='id < 3').shape[0]", "3"),
    ("t.to_pandas(limit=3).shape[0]", "3"),
    ("t.to_pandas(where=pl.col('id') < 3, columns=['id'])['id'].sum()", "3"),
    ("t.to_polars().filter(pl.col('id') < 3).collect().height", "3"),
    ("t.to_polars(where='id < 3').collect().height", "3"),
    ("t.to_polars(['id'], limit=3).collect().shape", "(3, 1)"),
    ("t.to_polars().sort('id').head(2).collect()['id'].to_list()", "[0, 1]"),
    ("t.to_pyarrow_dataset().count_rows()", "30"),
    ("t.to_pyarrow_dataset(where='id < 3').count_rows()", "3"),
    ("t.to_pyarrow_dataset().to_table(filter=pads.field('id') < 3).num_rows", "3"),
    ("t.to_pyarrow_dataset().head(3).num_rows", "3"),
    ("t.to_pyarrow_reader().read_all().num_rows", "30"),
    ("t.to_pyarrow_reader(where='id < 3').read_all().num_rows", "3"),
    ("t.to_pyarrow_reader(filters='id < 3', limit=1).read_all().num_rows", "1"),
    ("t.scan().read_all().num_rows", "30"),
    ("t.scan(where='id < 3').read_all().num_rows", "3"),
    ("t.scan(predicate='id < 3').read_all().num_rows", "3"),
    ("t.scan(columns=['id'], limit=3).read_all().num_rows", "3"),
    ("pa.table(t).num_rows", "30"),
    ("pl.DataFrame(t).height", "30"),
    ("pl.from_arrow(pa.table(t)).height", "30"),
    # Reading in one call.
    ("lazydelta.read(uri).num_rows", "30"),
    ("lazydelta.read(uri, where='id < 3').num_rows", "3"),
    ("lazydelta.read(uri, ['id'], limit=3).to_pydict().keys() == {'id'}", "True"),
    ("lazydelta.read(t, 'id', where='id < 3').num_columns", "1"),
    ("lazydelta.read(uri, version=0).num_rows", "10"),
    ("lazydelta.scan(uri, where='id < 3').to_pandas().shape[0]", "3"),
    ("lazydelta.scan(uri, ['id']).to_polars()['id'].sum()", "435"),
    ("lazydelta.scan(uri, limit=1).first()['id'] in range(30)", "True"),
    ("lazydelta.scan(t, where=\"device LIKE 'c%'\").count()", "10"),
    ("lazydelta.scan.file.FILES_SCHEMA.names[0]", "'path'"),
    # Files.
    ("len(t.files().collect())", "3"),
    ("len(t.files().to_list())", "3"),
    ("len(list(t.files()))", "3"),
    ("t.files().first().size > 0", "True"),
    ("t.files(limit=1).first().path.endswith('.parquet')", "True"),
    ("t.files('id = 999').first()", "None"),
    ("t.files().to_arrow().num_rows", "3"),
    ("t.files().to_pandas().shape[0]", "3"),
    ("t.files().to_polars().height", "3"),
    ("pl.DataFrame(t.files()).height", "3"),
    ("pa.table(t.files()).column_names", "t.files().columns"),
    ("t.files(stats_columns=['id']).to_arrow().column('max.id').to_pylist().__len__()", "3"),
    ("max(t.files(stats_columns=['id']).to_pandas()['max.id'])", "29"),
    ("t.files(stats_columns=['id']).schema.names[-1]", "'null_count.id'"),
    ("t.files(where='id < 3').count()", "1"),
    ("t.files(where=pl.col('id') < 3).count()", "1"),
    ("t.files(last='1d', now='2026-02-11T00:00:00Z').count()", "1"),
    ("asyncio.run(async_rows(t.files(), of='files'))", "3"),
    "repr(t.files())",
    "t.files()._repr_html_()",
    "t.files('id > 3')._repr_html_()",
    ("len(t.file_uris())", "3"),
    ("len(t.file_uris(where='id < 3'))", "1"),
    ("len(t.file_uris(limit=2))", "2"),
    ("all(os.path.exists(each) for each in t.file_uris())", "True"),
    ("len(t.partitions())", "3"),
    ("t.partitions(where='id < 3')", "[{'_event_day': '20260208'}]"),
    ("t.get_add_actions(flatten=True).num_rows", "3"),
    ("[f.partition_values['_event_day'] for f in t.files('id < 3')]", "['20260208']"),
    # DuckDB.
    ("duckdb_of('select count(*) from files', files=t.files())", "3"),
    ("duckdb_of('select sum(id) from stream', stream=t.rows())", "435"),
    ("duckdb_of('select sum(id) from stream where id < 3', stream=t.rows())", "3"),
    ("duckdb_of('select count(*) from dataset where id < 3', dataset=t.to_pyarrow_dataset())", "3"),
    ("duckdb_of('select count(*) from result', result=t.sql('select * from self where id < 3'))", "3"),
    # SQL.
    ("t.sql('select count(*) as c from self').first()", "{'c': 30}"),
    ("t.sql('select count(*) as c from events').first()['c']", "30"),
    ("t.sql('select count(*) as c from events where id < $n', params={'n': 3}).first()['c']", "3"),
    ("t.sql('select count(*) as c from events where id < ?', params=[3]).first()['c']", "3"),
    ("t.sql('select * from events a join other b using (id)', other=pa.table({'id': [1, 2]})).count()", "2"),
    ("t.sql('select id from self order by ts desc limit 2').to_arrow()['id'].to_pylist()", "[29, 28]"),
    ("t.sql('from self').columns", "t.columns"),
    ("t.sql('from self').to_pandas().shape", "(30, 5)"),
    ("t.sql('from self').to_polars().shape", "(30, 5)"),
    ("pl.DataFrame(t.sql('select id from self')).height", "30"),
    ("pa.table(t.sql('select id from self')).num_rows", "30"),
    ("lazydelta.sql('select 1 as one').to_list()", "[{'one': 1}]"),
    ("lazydelta.sql('select count(*) as c from e', {'e': uri}).first()['c']", "30"),
    ("lazydelta.sql('select count(*) as c from e', tables={'e': t}).first()['c']", "30"),
    ("lazydelta.sql('select count(*) as c from E', {'e': uri}).first()['c']", "30"),
    ("lazydelta.sql(f\"select count(*) as c from delta('{uri}')\").first()['c']", "30"),
    ("lazydelta.sql('from f', {'f': pd.DataFrame({'a': [1]})}).to_list()", "[{'a': 1}]"),
    ("lazydelta.sql('from f', {'f': pl.DataFrame({'a': [1]})}).to_list()", "[{'a': 1}]"),
    ("lazydelta.sql('show tables', {'b': uri, 'a': uri}).to_list()", "[{'name': 'a'}, {'name': 'b'}]"),
    ("[r['column_name'] for r in lazydelta.sql('describe e', {'e': uri}).to_list()]", "t.columns"),
    ("lazydelta.sql('DESC e;', {'e': uri}).count()", "5"),
    ("lazydelta.sql('describe select id from e', {'e': uri}).count()", "1"),
    ("lazydelta.sql('summarize e', {'e': uri}).count()", "5"),
    ("lazydelta.sql('select max(ts) as m from e', {'e': uri}).first()['m']", "ROWS[-1]['ts']"),
    ("lazydelta.sql('select ? as a', params=[\"it's\"]).first()", "{'a': \"it's\"}"),
    ("lazydelta.sql('select ? as a', params=[None]).first()", "{'a': None}"),
    ("lazydelta.sql('select ? as a', params=[DAY]).first()['a']", "DAY"),
    ("lazydelta.sql('select ? as a', params=[dt.date(2026, 2, 8)]).first()['a']", "dt.date(2026, 2, 8)"),
    ("lazydelta.sql('select ? as a', params=[1.5]).first()['a']", "1.5"),
    ("lazydelta.sql('select ? as a', params=[b'x']).first()['a']", "b'x'"),
    ("lazydelta.sql('select list_sum(?) as a', params=[[1, 2]]).first()['a']", "3"),
    ("lazydelta.sql('select ? as a', params=[True]).first()['a']", "True"),
    ("asyncio.run(async_rows(lazydelta.sql('from e', {'e': uri})))", "30"),
    "repr(lazydelta.sql('select 1 as one'))",
    ("'<td>1</td>' in lazydelta.sql('select 1 as one')._repr_html_()", "True"),
    "lazydelta.sql('from e', {'e': uri}).explain()",
    # KQL.
    ("t.kql('count').first()", "{'Count': 30}"),
    ("t.kql('events | count').first()", "{'Count': 30}"),
    ("t.kql('self | where id < 3 | count').first()['Count']", "3"),
    ("t.kql('where id < 3').count()", "3"),
    ("t.kql('| take 2').count()", "2"),
    ("t.kql('summarize n = count() by _event_day | top 1 by n').first()['n']", "10"),
    ("t.kql('where id < 3').to_pandas().shape[0]", "3"),
    ("t.kql('where id < 3 | project id').to_polars()['id'].sum()", "3"),
    ("pl.DataFrame(t.kql('project id')).height", "30"),
    ("lazydelta.kql('T | count', {'T': uri}).first()['Count']", "30"),
    ("lazydelta.kql('T | count', tables={'T': t}).to_list()", "[{'Count': 30}]"),
    ("lazydelta.kql.query('T | count', {'T': uri}).first()['Count']", "30"),
    ("lazydelta.kql('print x = 1')._repr_html_().count('<td>')", "1"),
    ("asyncio.run(async_rows(t.kql('project id')))", "30"),
    "repr(t.kql('count'))",
    # SQL by habit, as a predicate and in a query.
    ("t.count_rows(\"device like 'b%'\")", "10"),
    ("t.count_rows('id between 3 and 5')", "3"),
    ("t.count_rows(\"ts::date = '2026-02-09'\")", "10"),
    ("t.count_rows(\"cast(ts as date) >= '2026-02-09'\")", "20"),
    ("t.count_rows(\"date_trunc('day', ts) = '2026-02-09'\")", "10"),
    ("t.count_rows('id in (1, 2, 99)')", "2"),
    ("t.count_rows('id is not null and value >= 14')", "2"),
    ("t.count_rows('not id < 3')", "27"),
    ("t.count_rows(\"ts >= '2026-02-10'\")", "10"),
    ("t.count_rows(\"ts < '2026-02-08T12:00:00Z'\")", "5"),
    ("t.count_rows('value * 2 = id')", "30"),
    ("t.count_rows(\"upper(device) = 'A1'\")", "1"),
    ("t.count_rows(\"_event_day = '20260209'\")", "10"),
    ("t.count_rows([('_event_day', 'in', ['20260209'])])", "10"),
    ("t.count_rows([[('id', '=', 1)], [('id', '=', 2)]])", "2"),
    ("t.count_rows({'device': 'a1'})", "1"),
    # Writing.
    ("written({'a': [1, 2]})", "[{'a': 1}, {'a': 2}]"),
    ("written([{'a': 1}, {'a': 2}])", "[{'a': 1}, {'a': 2}]"),
    ("written([{'a': 1}, {'b': 'x'}])", "[{'a': 1, 'b': None}, {'a': None, 'b': 'x'}]"),
    ("written(pa.table({'a': [1]}))", "[{'a': 1}]"),
    ("written(pa.table({'a': [1]}).to_batches()[0])", "[{'a': 1}]"),
    ("written(pa.table({'a': [1]}).to_batches())", "[{'a': 1}]"),
    ("written(pa.table({'a': [1]}).to_reader())", "[{'a': 1}]"),
    ("written(pd.DataFrame({'a': [1]}))", "[{'a': 1}]"),
    ("written(pl.DataFrame({'a': [1]}))", "[{'a': 1}]"),
    ("written({'a': pl.Series([1])})", "[{'a': 1}]"),
    ("written({'t': [DAY]})[0]['t']", "DAY"),
    ("written(duckdb.sql('select 1 as a'))", "[{'a': 1}]"),
    ("written(t.rows(['id'], 'id = 3'))", "[{'id': 3}]"),
    ("written(t.sql('select id from self where id = 3'))", "[{'id': 3}]"),
    ("written(t.kql('where id == 3 | project id'))", "[{'id': 3}]"),
    ("written(row for row in [{'a': 1}])", "[{'a': 1}]"),
    ("written({'a': [1]}, by=write_deltalake)", "[{'a': 1}]"),
    ("written([{'a': 1}], by=write_deltalake)", "[{'a': 1}]"),
    ("written(pl.DataFrame({'a': [1]}), by=write_deltalake)", "[{'a': 1}]"),
    ("written(pd.DataFrame({'a': [1]}), by=write_deltalake, mode='append')", "[{'a': 1}]"),
]

# Lines that cannot mean anything: each is an error of ours whose text says what to write.
REFUSED: list[tuple[str, type[LazyDeltaError], str]] = [
    ("t.rows('id > 3')", OptionError, "where='id > 3'"),
    ("t.rows(['id > 3'])", OptionError, "where='id > 3'"),
    ("t.head(3, 'id > 3')", OptionError, "where='id > 3'"),
    ("t.to_arrow(['device is null'])", OptionError, "where='device is null'"),
    ("lazydelta.read(uri, 'id = 3')", OptionError, "where='id = 3'"),
    ("t.rows(['idd'])", LazyDeltaError, "idd"),
    ("t.rows(where=pl.col('id') + 1 > 3)", PredicateError, "to_polars().filter"),
    ("t.rows(where=pl.col('nope') > 3)", LazyDeltaError, "nope"),
    ("t.rows(where=3)", PredicateError, "pass a SQL string"),
    ("t.sql('select * from nope')", QueryError, "known tables: events, self"),
    ("lazydelta.sql('select * from nope')", QueryError, "delta('URI')"),
    ("lazydelta.sql('drop table t')", QueryError, "it is not a SELECT (send one SELECT"),
    ("lazydelta.sql('select $a')", QueryError, "$a has no value"),
    ("lazydelta.sql('select 1', params=[1])", QueryError, "no parameter $1"),
    ("lazydelta.sql('select ?', params='abc')", OptionError, "['abc']"),
    ("lazydelta.sql('select ?', params=[object()])", OptionError, "cannot be a object"),
    ("lazydelta.sql('select 1; select 2')", QueryError, "2 statements"),
    ("t.kql('nope | count')", LazyDeltaError, "nope"),
    ("written({'a': 1})", OptionError, "[values"),
    ("written('a')", OptionError, "data frame"),
    ("written([1])", OptionError, "record batch"),
    ("[*closed.batches()]", LazyDeltaError, "files() again"),
    ("t.load_cdf(predicate='id > 3', where='id > 3')", OptionError, "only `where`"),
]


def duckdb_local(d: Any) -> Any:
    return duckdb.sql("select count(*) from d").fetchall()[0][0]  # type: ignore[union-attr]


def local_sql(d: Any) -> Any:
    return lazydelta.sql("select count(*) as n from d").first()


def with_files(table: DeltaTable) -> int:
    with table.files() as files:
        return len(list(files))


def with_rows(table: DeltaTable) -> int:
    with table.rows() as rows:
        return sum(batch.num_rows for batch in rows)


async def async_with(stream: Any) -> int:
    async with stream as entered:
        return len([each async for each in entered])


async def async_rows(stream: Any, of: str = "rows") -> int:
    return sum([1 if of == "files" else batch.num_rows async for batch in stream])


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Make the table and the names that lines use."""
    folder = tmp_path_factory.mktemp("lines")
    uri = str(folder / "events")
    for start in (0, 10, 20):
        write_arrow(uri, ROWS[start : start + 10], timestamp_column="ts", boundary="day")
    counter = iter(range(1000))

    def new() -> Path:
        return folder / f"written{next(counter)}"

    def written(data: Any, by: Any = write_arrow, **options: Any) -> list[dict[str, Any]]:
        place = new()
        by(place, data, **options)
        return DeltaTable(place).to_list()

    def twice(first: Any, second: Any, **options: Any) -> list[dict[str, Any]]:
        place = new()
        write_deltalake(place, first)
        write_deltalake(place, second, **options)
        return DeltaTable(place).to_list()

    def made() -> DeltaTable:
        place = new()
        write_arrow(place, {"a": [1, 2], "b": ["x", "y"]})
        write_arrow(place, {"a": [3, 4], "b": ["x", "y"]})
        return DeltaTable(place)

    def after(change: Any) -> DeltaTable:
        table = made()
        change(table)
        return table

    def duckdb_of(query: str, **tables: Any) -> Any:
        with duckdb.connect() as con:
            for name, table in tables.items():
                con.register(name, table)
            found = con.sql(query).fetchall()
        return found[0][0]

    table = DeltaTable(uri)
    closed = table.files()
    closed.close()
    imported = {"pa": pa, "pc": pc, "pl": pl, "pd": pd, "dt": dt, "os": os, "pads": pads, "duckdb": duckdb}
    ours = {"lazydelta": lazydelta, "DeltaTable": DeltaTable, "write_deltalake": write_deltalake, "asyncio": asyncio}
    modules = {"copy": copy, "decimal": decimal, "importlib": importlib, "itertools": itertools, "np": np}
    modules |= {"pickle": pickle, "pydoc": pydoc, "zoneinfo": zoneinfo, "ld": lazydelta}
    made_here = [new, twice, made, after, duckdb_local, local_sql, with_files, with_rows, async_with]
    given = {"t": table, "uri": uri, "DAY": DAY, "ROWS": ROWS, "Path": Path, "closed": closed}
    given |= {"home_uri": f"~/{os.path.relpath(uri, Path.home())}", **{each.__name__: each for each in made_here}}
    return {
        **imported,
        **modules,
        **ours,
        **given,
        "written": written,
        "duckdb_of": duckdb_of,
        "async_rows": async_rows,
    }


def test_natural_lines_run(names: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    failed = []
    for line in [*LINES, *FURTHER]:
        text, expected = (line, None) if isinstance(line, str) else line
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what is deprecated in deltalake is so here
                found = eval(text, dict(names))  # noqa: S307 - the lines above
                if expected is not None and found != eval(expected, dict(names)):  # noqa: S307
                    failed.append(f"{text}\n    {found!r} != {expected}")
        except Exception as error:  # noqa: BLE001 - every line is tried
            failed.append(f"{text}\n    {type(error).__name__}: {error}")
    capsys.readouterr()
    assert not failed, "\n".join(failed)
    assert len(LINES) + len(REFUSED) + len(FURTHER) + len(FURTHER_REFUSED) >= 640


@pytest.mark.parametrize(("line", "kind", "said"), REFUSED, ids=[line for line, _, _ in REFUSED])
def test_what_means_nothing_says_what_to_write(
    names: dict[str, Any], line: str, kind: type[LazyDeltaError], said: str
) -> None:
    with pytest.raises(kind) as raised:
        eval(line, dict(names))  # noqa: S307 - the lines above
    assert said in str(raised.value)


@pytest.mark.parametrize(("line", "said"), FURTHER_REFUSED, ids=[line for line, _ in FURTHER_REFUSED])
def test_names_of_other_libraries_are_answered_with_ours(names: dict[str, Any], line: str, said: str) -> None:
    with pytest.raises((LazyDeltaError, AttributeError, TypeError)) as raised:
        eval(line, dict(names))  # noqa: S307 - lines of this folder
    assert said in str(raised.value)


def test_a_stream_that_other_libraries_ask_twice_is_read_once(names: dict[str, Any]) -> None:
    files = names["t"].files()
    assert files.__arrow_c_schema__() is not None
    assert files.__arrow_c_stream__() is not None  # exported, dropped, and not begun
    assert pa.table(files).num_rows == 3
