"""Tables below roots are found, for whom they are, and not for longer than they may be looked for."""

from __future__ import annotations

from pathlib import Path

import pytest

import lazydelta
from lazydelta.errors import OptionError, StreamClosedError
from lazydelta.server.flight import FlightServer, ServerLimits, drain
from lazydelta.server.tables import ANYONE, Identity, ServedTables, TableListing, TablePlace
from lazydelta.server.ticket import TicketSigner
from lazydelta.server.tokens import TokenFile, add_token
from lazydelta.storage import Request, observe
from lazydelta.warned import LazyDeltaWarning
from tests.scan.hand_log import HandLog, add, publish
from tests.server.serving import KEY, location
from tests.support.azurite import Azurite

NAMES = ("lake/crm/people", "lake/sales/2026/orders", "lake/sales/returns", "lake/sales east/orders")


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("roots")
    for name in (*NAMES, "secret", "lake/sales/returns/inner", "lake/%odd/t"):
        HandLog(place / name).commit(add("a.parquet"))
    (place / "lake/empty/deeper").mkdir(parents=True)
    (place / "lake/link").symlink_to(place / "secret")
    (place / "lake/file").write_text("no folder", encoding="utf-8")
    return place


def _tables(lake: Path) -> ServedTables:
    return ServedTables({"t": TablePlace(str(lake / NAMES[0]))}, {"lake": TablePlace(str(lake / "lake"))})


def _listed(lake: Path, who: Identity = ANYONE, prefix: str = "", most: int = 100) -> tuple[list[str], bool, list[str]]:
    """Return the names, whether there may be more, and the folders that were looked into."""
    requests: list[Request] = []
    listing = TableListing(_tables(lake), who, most=most)
    with observe(requests.append):
        names = listing.names(prefix)
    assert {each.verb for each in requests} <= {"LIST"}
    return names, listing.is_cut, [each.path for each in requests]


def test_every_table_below_a_root_is_named_and_can_be_opened_by_its_name(lake: Path) -> None:
    names, is_cut, _ = _listed(lake)
    assert names == ["t", *NAMES]
    assert not is_cut
    assert {_tables(lake).open(name, ANYONE).version() for name in names} == {0}


@pytest.mark.parametrize(
    ("prefix", "found", "folders"),
    [
        ("lake/crm/people", NAMES[:1], ["", "crm", "crm/people"]),
        ("lake/sales/2", NAMES[1:2], ["", "sales", "sales/2026", "sales/2026/orders"]),
        ("lake/sales", list(NAMES[1:]), None),
        ("t", ["t"], []),
        ("lake/../secret", [], [""]),
        ("nowhere", [], []),
    ],
    ids=["whole", "part", "folder", "table", "escape", "nothing"],
)  # fmt: skip
def test_a_prefix_spares_all_other_folders(
    lake: Path, prefix: str, found: list[str], folders: list[str] | None
) -> None:
    names, is_cut, looked = _listed(lake, prefix=prefix)
    assert names == list(found)
    assert not is_cut
    assert folders is None or looked == folders


@pytest.mark.parametrize(
    ("allowed", "found", "folders"),
    [
        (("lake/sales/*",), [NAMES[1], NAMES[2]], 6),
        (("lake/crm/people",), [NAMES[0]], 3),
        (("t",), ["t"], 0),
        (("lake/*",), list(NAMES), None),
        (("*",), ["t", *NAMES], None),
        ((), [], 0),
    ],
    ids=["folder", "one", "configured", "root", "all", "none"],
)
def test_a_client_sees_what_it_may_read_and_nothing_else_is_looked_into(
    lake: Path, allowed: tuple[str, ...], found: list[str], folders: int | None
) -> None:
    names, is_cut, looked = _listed(lake, Identity("me", allowed))
    assert names == found
    assert not is_cut
    assert folders is None or len(looked) <= folders
    assert [name for name in _listed(lake)[0] if Identity("me", allowed).may_read(name)] == names


@pytest.mark.parametrize("most", [1, 2, 4, 5, 6])
def test_tables_and_folders_are_bounded_and_the_cut_is_told(lake: Path, most: int) -> None:
    names, is_cut, looked = _listed(lake, most=most)
    assert names == ["t", *NAMES][:most]
    assert is_cut == (most < 5)
    assert len(looked) <= most * 10


def test_folders_without_tables_are_not_looked_into_for_ever(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"f{number:02}").mkdir()
    listing = TableListing(ServedTables({}, {"lake": TablePlace(str(tmp_path))}), ANYONE, most=2)
    requests: list[Request] = []
    with observe(requests.append):
        assert listing.names() == []
    assert (len(requests), listing.is_cut) == (20, True)


def test_a_client_that_leaves_ends_the_search(lake: Path) -> None:
    asked = iter([False, False, True])
    requests: list[Request] = []
    with observe(requests.append), pytest.raises(StreamClosedError):
        TableListing(_tables(lake), ANYONE, most=100, left=lambda: next(asked)).names()
    assert len(requests) == 2


def test_clients_list_them_over_the_wire_and_are_told_of_a_cut(lake: Path, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    token = add_token(tokens, "sales", ["lake/sales/*"])
    everything = add_token(tokens, "all")
    limits = ServerLimits(listed_tables=3)
    server = FlightServer(
        "grpc://127.0.0.1:0", _tables(lake), TicketSigner(KEY), limits=limits, tokens=TokenFile(tokens)
    )
    try:
        with lazydelta.connect(location(server), token=token) as connection:
            assert connection.tables() == [NAMES[1], NAMES[2]]
            assert connection.table(connection.tables()[0]).version() == 0
        with lazydelta.connect(location(server), token=everything) as connection:
            with pytest.warns(LazyDeltaWarning, match="there may be more"):
                assert connection.tables() == ["t", *NAMES[:2]]
            assert connection.tables("lake/sales/") == [NAMES[1], NAMES[2]]
            with pytest.raises(OptionError, match="criteria has 1000001 bytes, more than"):
                connection.tables("x" * 1_000_001)
    finally:
        drain(server, 0)


def test_tables_in_a_store_are_listed_alike(azurite: Azurite, tmp_path: Path) -> None:
    HandLog(tmp_path / "t").commit(add("a.parquet"))
    root, options = f"az://{azurite.container('roots')}/lake", azurite.storage_options()
    for name in ("a/t", "b"):
        publish(tmp_path / "t", f"{root}/{name}", options)
    tables = ServedTables({}, {"lake": TablePlace(root, options), "gone": TablePlace("az://gone/x", options)})
    requests: list[Request] = []
    with observe(requests.append):
        listing = TableListing(tables, ANYONE, most=10)
        assert listing.names("lake") == ["lake/a/t", "lake/b"]
    assert not listing.is_cut
    assert [each.path for each in requests] == ["", "a", "a/t", "b"]
    with_broken = TableListing(tables, ANYONE, most=10)
    assert with_broken.names() == ["lake/a/t", "lake/b"]
