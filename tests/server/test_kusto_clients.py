"""Microsoft's Kusto clients for Node and Java: rows, types, a command and an error, with and without a token."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lazydelta.server.tokens import add_token
from scripts.install_jdbc import java
from scripts.install_kusto_clients import NODE, jars
from scripts.npm_cache import node_bin
from tests.server.http_server import SCRIPT, http_serving, write_every_type
from tests.support import unavailable

pytestmark = pytest.mark.slow
QUERY = "T | where x > 3 | project x, s, l, nothing = real(null) | sort by x asc"
ROWS = [[4, SCRIPT, [3], None], [5, 'é\u2028\\"', [4], None]]
NODE_PROGRAM = """
import {Client, KustoConnectionStringBuilder as Builder} from %s;
const [address, token] = process.argv.slice(2);
const client = new Client(token ? Builder.withAccessToken(address, token) : new Builder(address));
const table = (await client.execute("lazydelta", %s)).primaryResults[0];
const rows = [...table.rows()].map(row => table.columns.map(column => row.getValueAt(column.ordinal)));
const tables = (await client.execute("lazydelta", ".show tables")).primaryResults[0].toJSON().data;
const failed = await client.execute("lazydelta", "T | whee").catch(error => error.response.data.error.code);
console.log(JSON.stringify({types: table.columns.map(column => column.type), rows, tables, failed}));
"""


@pytest.fixture(scope="module", params=[False, True], ids=["open", "token"])
def server(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str | None]]:
    folder = tmp_path_factory.mktemp("clients")
    place = write_every_type(folder / "T")
    token = add_token(folder / "tokens", "one", ["T"]) if request.param else None
    with http_serving({"T": place}, folder / "tokens" if request.param else None) as (_, address):
        yield address, token


def test_a_first_query_from_node(server: tuple[str, str | None], tmp_path: Path) -> None:
    entry = NODE.entry_point(NODE.location())
    if not entry.exists():
        unavailable("the Kusto client for Node is not there; `make kusto-clients` fetches it")
    (tmp_path / "first.mjs").write_text(NODE_PROGRAM % (json.dumps(entry.as_uri()), json.dumps(QUERY)), "utf-8")
    address, token = server
    command = [str(node_bin() / "node"), str(tmp_path / "first.mjs"), address, token or ""]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["types"] == ["long", "string", "dynamic", "real"]
    assert told["rows"] == ROWS
    assert [each["TableName"] for each in told["tables"]] == ["T"]
    assert told["failed"] == "BadRequest_SyntaxError"


@pytest.fixture(scope="module")
def jvm() -> Iterator[Any]:
    program = java()
    if program is None or not jars().exists():
        unavailable("no Java, or no Kusto client for it; `make kusto-clients` fetches it")
    import pyspark  # noqa: PLC0415 - for the gateway that it brings
    from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway  # noqa: PLC0415

    (jar,) = (Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar")
    quiet = subprocess.DEVNULL
    port, token = launch_gateway(
        jarpath=str(jar), classpath=str(jars() / "*"), javaopts=["-Xmx256m"], java_path=program, die_on_exit=True,
        enable_auth=True, redirect_stdout=quiet, redirect_stderr=quiet,
    )  # fmt: skip
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token, auto_convert=True))
    yield gateway.jvm
    gateway.shutdown()


def test_a_first_query_from_java(server: tuple[str, str | None], jvm: Any) -> None:
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - only where there is Java

    address, token = server
    kusto = jvm.com.microsoft.azure.kusto.data
    builder = kusto.auth.ConnectionStringBuilder
    made = builder(address) if token is None else builder.createWithAadAccessTokenAuthentication(address, token)
    client = kusto.ClientFactory.createClient(made)
    table = client.executeQuery("lazydelta", QUERY).getPrimaryResults()
    assert [column.getColumnType() for column in table.getColumns()] == ["long", "string", "dynamic", "real"]
    rows = []
    while table.next():
        rows.append([table.getLong("x"), table.getString("s"), json.loads(table.getString("l")), table.getObject(3)])
    assert rows == ROWS
    tables = client.executeMgmt("lazydelta", ".show tables").getPrimaryResults()
    assert [next(iter(row)) for row in tables.getData()] == ["T"]
    with pytest.raises(Py4JJavaError, match="line:position=1:5"):
        client.executeQuery("lazydelta", "T | whee")
