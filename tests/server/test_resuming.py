"""No file twice and none missing, whenever the connection breaks and whatever happens to the table meanwhile.

What is expected comes from a plain replay of the log, and for rows from what was written.
"""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.flight as fl
import pytest

from lazydelta import sidecar, write_arrow
from lazydelta.client import Connection
from lazydelta.client.wire import error_from
from lazydelta.errors import OptionError, PositionLostError, VersionNotFoundError
from lazydelta.server.ticket import TicketSigner
from lazydelta.sidecar.handle import TableHandle
from lazydelta.sidecar.reading.discovery import shared_cache
from lazydelta.write.checkpoint.writer import write_checkpoint
from tests.oracle.random_log import RandomLog, random_log
from tests.oracle.replay import canonical_path, dv_id
from tests.rows.made_table import make_rich_table
from tests.scan.hand_log import HandLog, add
from tests.server.serving import connected, location, plan, serving

LOGS = 10
SLOW_LOGS = 60


class CutConnection(Connection):
    """A connection to a real server that breaks after so many batches, once for each number; ``between`` is called."""

    def __init__(self, where: str, cuts: list[int], between: Callable[[], None]) -> None:
        super().__init__(where, pause=lambda _: None)
        self._cuts = cuts
        self._between = between

    def begin(self, ticket: bytes) -> Any:
        """Begin a stream whose end comes too early."""
        reader = super().begin(ticket)
        return _Cut(reader, self._cuts.pop(0), self._between) if self._cuts else reader


class _Cut:
    def __init__(self, reader: Any, after: int, between: Callable[[], None]) -> None:
        self._reader = reader
        self._left = after
        self._between = between

    def read_chunk(self) -> Any:
        if not self._left:
            self._reader.cancel()
            self._between()
            raise fl.FlightUnavailableError("the connection was cut")
        self._left -= 1
        return self._reader.read_chunk()

    def cancel(self) -> None:
        self._reader.cancel()


def keys(batches: Iterator[pa.RecordBatch]) -> Counter[Any]:
    """Return the keys of files as the replay has them."""
    return Counter(
        (canonical_path(row["path"]), dv_id({"deletionVector": row["deletion_vector"]}))
        for batch in batches
        for row in batch.select(["path", "deletion_vector"]).to_pylist()
    )


def disturb(log: Path, rng: random.Random) -> None:
    """Do one of the things that change the order of files and not which they are."""
    what = rng.choice(["build", "drop", "checkpoint", "forget", "nothing"])
    shared_cache.clear()
    try:
        if what == "build":
            sidecar.build(str(log))
        elif what == "drop":
            for file in (log / "_delta_log" / "_sidecars").glob("v*"):  # others belong to V2 checkpoints
                file.unlink()
        elif what == "checkpoint":
            handle = TableHandle.open(str(log))
            write_checkpoint(handle.store, handle.newest().version)
    except (OptionError, VersionNotFoundError):
        pass  # there is no checkpoint to build it from, or it is there


def _logs(seeds: range, root: Path) -> Iterator[tuple[RandomLog, random.Random]]:
    for seed in seeds:
        yield random_log(seed, root / str(seed)), random.Random(seed)
        shutil.rmtree(root / str(seed))


def _check_tickets(seeds: range, root: Path) -> None:
    resumed = lost = 0
    for log, rng in _logs(seeds, root):
        version = rng.choice(log.readable)
        want = Counter(dict.fromkeys(log.expected(version).files, 1))
        size, strategy = rng.choice([1, 2, 3]), rng.choice(["auto", "reverse", "forward"])
        with serving({"t": log.path}) as server:
            client = fl.connect(location(server))
            info = plan(client, table="t", version=version, batch_size=size, strategy=strategy)
            whole = list(client.do_get(info.endpoints[0].ticket))
            assert keys(each.data for each in whole) == want
        for cut in sorted(rng.sample(range(len(whole)), min(4, len(whole)))):
            disturb(log.path, rng)
            # Another server with the same key, which remembers nothing.
            with serving({"t": log.path}) as server:
                ticket = fl.Ticket(whole[cut].app_metadata.to_pybytes())
                try:
                    rest = fl.connect(location(server)).do_get(ticket).read_all()
                except fl.FlightServerError as error:
                    if not isinstance(error_from(error.extra_info), PositionLostError):
                        raise
                    lost += 1
                    continue
                resumed += 1
                had = keys(each.data for each in whole[: cut + 1])
                assert had + keys(iter(rest.to_batches())) == want, (log.seed, version, cut, log.notes)
    assert resumed > len(seeds)
    assert lost < resumed


def _check_client(seeds: range, root: Path) -> None:
    begun_again = 0
    for log, rng in _logs(seeds, root):
        version = rng.choice(log.readable)
        want = log.expected(version).files
        cuts = [rng.randrange(3) for _ in range(rng.randrange(1, 6))]
        with serving({"t": log.path}) as server:
            connection = CutConnection(location(server), cuts, lambda: disturb(log.path, rng))  # noqa: B023 - at once
            with connection:
                table = connection.table("t", version)
                limit = rng.choice([None, None, 2])
                files = table.files(
                    batch_size=rng.choice([1, 2]), strategy=rng.choice(["auto", "forward"]), limit=limit
                )
                got = keys(files.batches())
                begun_again += files.resumed
        assert max(got.values(), default=1) == 1, (log.seed, version)
        assert set(got) <= set(want)
        assert len(got) == len(want) if limit is None else len(got) == min(limit, len(want))
    assert begun_again > 10


def test_the_rest_of_a_ticket_is_what_is_missing_or_its_place_is_lost(tmp_path: Path) -> None:
    _check_tickets(range(20_000, 20_000 + LOGS), tmp_path)


def test_a_client_that_is_cut_off_again_and_again_has_every_file_once(tmp_path: Path) -> None:
    _check_client(range(21_000, 21_000 + LOGS), tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_tickets_and_clients_over_many_random_logs(tmp_path: Path) -> None:
    _check_tickets(range(22_000, 22_000 + SLOW_LOGS), tmp_path)
    _check_client(range(23_000, 23_000 + SLOW_LOGS), tmp_path)


@pytest.mark.parametrize("seed", range(4))
def test_rows_come_once_wherever_the_stream_breaks(tmp_path: Path, seed: int) -> None:
    """Cut after every batch, with another order of files in between, and a server that forgot its key."""
    rng = random.Random(seed)
    made = make_rich_table(tmp_path / "t", seed=seed, files=6, rows=30)
    where, limit = rng.choice([(None, None), ("n >= 0", None), (None, 25)])
    want = Counter(row["id"] for row in made.rows if where is None or (row["n"] is not None and row["n"] >= 0))
    cuts = [rng.randrange(1, 4) for _ in range(30)]
    with serving({"t": tmp_path / "t"}) as server:
        connection = CutConnection(location(server), cuts, lambda: disturb(tmp_path / "t", rng))
        with connection:
            command = connection.table("t").rows(["id"], where, limit=limit)
            got = Counter(id_ for batch in command for id_ in batch.column("id").to_pylist())
            resumed = command.resumed
    assert resumed > 3
    assert max(got.values()) == 1
    assert set(got) <= set(want)
    assert got.total() == (want.total() if limit is None else min(limit, want.total()))


def _checkpointed(folder: Path) -> list[str]:
    """Make a log whose checkpoint has its files in another order than a sidecar would, and return them."""
    log = HandLog(folder, {"hour": "string"}, partitions=["hour"])
    paths = [f"{number}.parquet" for number in random.Random(5).sample(range(40), 40)]
    log.commit(*(add(path, partition={"hour": path}) for path in paths))
    write_checkpoint(TableHandle.open(str(folder)).store, 0)
    return paths


def _first_and_rest(folder: Path, between: Callable[[], None]) -> tuple[list[str], list[str]]:
    """Take one batch of files, then those of the ticket behind it from a server that remembers nothing."""
    with serving({"t": folder}) as server:
        client = fl.connect(location(server))
        ticket = plan(client, table="t", batch_size=10, strategy="forward").endpoints[0].ticket
        chunk = client.do_get(ticket).read_chunk()
    between()
    shared_cache.clear()
    with serving({"t": folder}) as server:
        rest = fl.connect(location(server)).do_get(fl.Ticket(chunk.app_metadata.to_pybytes())).read_all()
    return chunk.data.column("path").to_pylist(), rest.column("path").to_pylist()


def test_a_sidecar_that_was_built_meanwhile_does_not_disturb_a_ticket(tmp_path: Path) -> None:
    paths = _checkpointed(tmp_path / "t")
    first, rest = _first_and_rest(tmp_path / "t", lambda: assert_built(tmp_path / "t"))
    assert first + rest == paths
    assert 0 < len(first) < len(paths)


def test_the_place_in_a_sidecar_that_is_gone_is_lost_and_the_client_begins_again(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    paths = _checkpointed(folder)
    assert_built(folder)
    with pytest.raises(fl.FlightServerError, match="the order of files has changed") as caught:
        _first_and_rest(folder, lambda: shutil.rmtree(folder / "_delta_log" / "_sidecars"))
    assert isinstance(error_from(caught.value.extra_info), PositionLostError)
    assert_built(folder)
    with serving({"t": folder}) as server:
        cut = CutConnection(location(server), [1], lambda: shutil.rmtree(folder / "_delta_log" / "_sidecars"))
        with cut as connection:
            files = connection.table("t").files(batch_size=10, strategy="forward")
            found = [file.path for file in files]
    assert found != paths
    assert sorted(found) == sorted(paths)
    assert files.resumed == 2


def test_parts_stay_disjoint_though_a_sidecar_is_built_between_two_of_them(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    paths = _checkpointed(folder)
    found: list[str] = []
    for number in range(3):
        with serving({"t": folder}) as server:
            client = fl.connect(location(server))
            if number == 0:
                tickets = [each.ticket for each in plan(client, table="t", endpoints=3).endpoints]
            part = client.do_get(tickets[number]).read_all().column("path").to_pylist()
        assert 0 < len(part) < len(paths)
        found += part
        if number == 0:
            assert_built(folder)
            shared_cache.clear()
    assert sorted(found) == sorted(paths)


def assert_built(folder: Path) -> None:
    """Build the sidecar of a table."""
    assert sidecar.build(str(folder)).action == "built"


@pytest.mark.parametrize("of", ["files", "rows"])
def test_a_ticket_of_another_server_makes_the_client_begin_again_and_leave_out_what_it_has(
    tmp_path: Path, of: str
) -> None:
    make_rich_table(tmp_path / "t", seed=9, files=8, rows=30)
    place = {"t": tmp_path / "t"}
    with serving(place, key=b"first key of all" * 2) as first, serving(place, key=b"another key than" * 2) as second:

        def take_over() -> None:
            # As if another server had come to listen at the address.
            connection.location, connection._client = location(second), None

        connection = CutConnection(location(first), [3], take_over)
        table = connection.table("t")
        stream: Any = table.files(batch_size=1) if of == "files" else table.rows(["id"])
        got = list(stream.batches() if of == "files" else stream)
    column = "path" if of == "files" else "id"
    values = [value for batch in got for value in batch.column(column).to_pylist()]
    fresh = make_rich_table(tmp_path / "again", seed=9, files=8, rows=30)
    want = fresh.files if of == "files" else [row["id"] for row in fresh.rows]
    assert sorted(values) == sorted(want)
    assert stream.resumed == 2  # the ticket was handed in at the other server, which refused it


def test_commits_after_the_ticket_are_not_in_its_stream(tmp_path: Path) -> None:
    log = HandLog(tmp_path / "t")
    log.commit(add("a.parquet"))
    with serving({"t": tmp_path / "t"}) as server, connected(server) as connection:
        files = connection.table("t").files()
        log.commit(add("b.parquet"))
        assert [file.path for file in files] == ["a.parquet"]
        assert sorted(file.path for file in connection.table("t").files()) == ["a.parquet", "b.parquet"]


def test_now_means_the_same_timestamp_after_a_break(tmp_path: Path) -> None:
    """A ticket carries the timestamp, so that what it prunes cannot move between two halves of a stream."""
    HandLog(tmp_path / "t", {"at": "timestamp"}).commit(add("a.parquet"))
    with serving({"t": tmp_path / "t"}) as server:
        info = plan(fl.connect(location(server)), table="t", where="at >= now() - interval 1 hour")
        ticket = json.loads(info.endpoints[0].ticket.ticket)["ticket"]
        assert ticket["command"]["at"] == json.loads(info.app_metadata)["at"] > 0
        assert ticket["command"]["version"] == 0


@pytest.mark.parametrize("of", ["files", "rows", "fragments"])
def test_a_stream_never_goes_on_in_another_table(of: str, tmp_path: Path) -> None:
    """The server is restarted with another key, and by then another table is in the place of the one that was read."""
    for name, rows in (("old", 6), ("new", 9)):
        for version in range(3):
            write_arrow(tmp_path / name, pa.table({"n": pa.array(range(version * rows, (version + 1) * rows))}))

    def restart() -> None:
        shutil.rmtree(tmp_path / "t")
        shutil.copytree(tmp_path / "new", tmp_path / "t")
        connection.location = location(second)
        connection._client = None

    shutil.copytree(tmp_path / "old", tmp_path / "t")
    with (
        serving({"t": tmp_path / "t"}) as first,
        serving({"t": tmp_path / "t"}, key=b"another key" * 3) as second,
        CutConnection(location(first), [1], restart) as connection,
    ):
        table = connection.table("t")
        if of == "files":
            batches = table.files(batch_size=1).batches()
        else:
            batches = iter(table.rows() if of == "rows" else table.fragments(1)[0])
        with pytest.raises(PositionLostError, match="replaced by another one"):
            list(batches)
        # What was pinned is not there any more, whatever is asked of it; opened again, it is the new one.
        for ask in (table.count, table.history, table.partitions, table.estimate, table.files, table.rows):
            with pytest.raises(PositionLostError, match="replaced by another one"):
                ask()
        assert connection.table("t").count() == 27


def test_a_ticket_of_another_version_is_no_continuation(tmp_path: Path) -> None:
    """Whatever a server answers: the client compares the table and the version before it goes on."""
    for version in range(3):
        write_arrow(tmp_path / "t", pa.table({"n": [version]}))

    class OfAnotherVersion(CutConnection):
        def plan(self, command: Any) -> Any:
            return super().plan(msgspec.structs.replace(command, version=1) if self._moved else command)

        _moved = False

    def move() -> None:
        connection._moved = True
        server._signer = TicketSigner(b"another key" * 3)

    with serving({"t": tmp_path / "t"}) as server, OfAnotherVersion(location(server), [1], move) as connection:
        table = connection.table("t")
        with pytest.raises(PositionLostError, match="version 1"):
            list(table.files(batch_size=1).batches())
