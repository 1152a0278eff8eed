"""File keys: spellings of one path are one key, and nothing else is."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lazydelta import DeltaTable
from lazydelta.log.file_batch import deletion_vector_array
from lazydelta.log.keys import RemoveSet, canonical_path, first_occurrence, hash_keys
from lazydelta.protocol.actions import DeletionVector
from tests.log.support import Log, add, paths, protocol, remove

if TYPE_CHECKING:
    from pathlib import Path

    from lazydelta.log.keys import Hashes

SPELLINGS = [
    "/x/y z",
    "file:/x/y z",
    "file:///x/y z",
    "file://localhost/x/y%20z",
    "FILE:/x/y%20z",
    "/x/y%20z",
    "//x/y z",
]
Key = tuple[str, tuple[str, str, int | None] | None]


def keys(hashes: Hashes) -> list[tuple[int, int]]:
    """Return hashes as pairs of Python numbers."""
    return [(int(first), int(second)) for first, second in hashes.T]


def hashed(*names: str, type_: pa.DataType | None = None) -> list[tuple[int, int]]:
    """Return the hashes of paths without deletion vectors."""
    return keys(hash_keys(pa.array(names, type_ or pa.string())))


# --- paths


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_the_spellings_of_an_absolute_local_path_are_one(spelling: str) -> None:
    assert canonical_path(spelling) == b"/x/y z"
    assert hashed(spelling) == hashed("/x/y z")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a%20b", "a b"),
        ("%61", "a"),
        ("a%2Fb", "a%2fb"),
        ("day=2026%2D01/x", "day=2026-01/x"),
        ("%C3%A4", "ä"),
        ("s3://bucket/a%20b", "s3://bucket/a b"),
    ],
)
def test_percent_encodings_of_the_same_bytes_are_one_path(one: str, other: str) -> None:
    assert hashed(one) == hashed(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a", "A"),
        ("a", "/a"),
        ("a", "a/"),
        ("a%2520b", "a%20b"),
        ("a+b", "a b"),
        ("x/a", "y/a"),
        ("s3://a/x", "s3://b/x"),
        ("s3://a/x", "gs://a/x"),
        ("", "\0"),
        ("abcdefgh", "abcdefgh\0"),
        ("files/x", "file:/s/x"),
        ("ä", "a\u0308"),
    ],
)
def test_different_paths_have_different_keys(one: str, other: str) -> None:
    first, second = hashed(one, other)
    assert first != second


@settings(deadline=None)
@given(st.lists(st.text(alphabet="ab%2Fé/: ", max_size=20), min_size=1, max_size=30))
def test_two_paths_have_one_key_exactly_if_their_canonical_bytes_agree(names: list[str]) -> None:
    found = hashed(*names)
    assert len(set(found)) == len({canonical_path(name) for name in names})
    assert found == [hashed(name)[0] for name in names]


@settings(deadline=None)
@given(st.text(max_size=40))
def test_encoding_a_path_does_not_change_its_key(name: str) -> None:
    plain = name.replace("%", "").encode("utf-8", "ignore").decode()
    if not plain.lower().startswith(("file:", "/")):
        assert hashed(quote(plain)) == hashed(plain)


@pytest.mark.parametrize("type_", [pa.string(), pa.large_string(), pa.binary()], ids=str)
def test_the_width_of_the_column_does_not_matter(type_: pa.DataType) -> None:
    names = ["a", "", "longer than eight bytes", "ü"]
    array = pa.array([name.encode() for name in names], pa.binary()).cast(type_)
    assert keys(hash_keys(array)) == hashed(*names)


def test_a_slice_of_a_column_has_the_keys_of_its_rows() -> None:
    names = ["one", "two%20", "three/three/three", "", "file:/five"]
    array = pa.array(names)
    for start in range(5):
        for end in range(start, 5):
            assert keys(hash_keys(array.slice(start, end - start))) == hashed(*names)[start:end]


def test_no_paths_have_no_keys() -> None:
    assert hash_keys(pa.array([], pa.string())).shape == (2, 0)


def test_many_similar_paths_do_not_collide_in_either_half() -> None:
    names = [f"part-{index:05}-c000.snappy.parquet" for index in range(50_000)]
    hashes = hash_keys(pa.array(names))
    assert len(np.unique(hashes[0])) == len(np.unique(hashes[1])) == len(names)


# --- deletion vectors


def vector(storage: str, path: str, offset: int | None) -> DeletionVector:
    """Return a deletion vector."""
    return DeletionVector(storage_type=storage, path_or_inline_dv=path, offset=offset, size_in_bytes=1, cardinality=1)


def hash_of(path: str, deletion: tuple[str, str, int | None] | None) -> tuple[int, int]:
    """Return the hash of one key, as part of a batch that has deletion vectors or none."""
    column = None if deletion is None else deletion_vector_array([vector(*deletion)])
    return keys(hash_keys(pa.array([path]), column))[0]


@pytest.mark.parametrize("firsts", [1, 3, 1_000])
def test_keys_that_share_their_first_half_are_told_apart(firsts: int) -> None:
    random = np.random.default_rng(firsts)
    drawn = random.integers(0, [[firsts], [50]], (2, 400)).astype(np.uint64)
    there, asked = drawn[:, :200], drawn[:, 100:]
    known = RemoveSet()
    for start in range(0, 200, 20):
        known.add_hashes(there[:, start : start + 20])
    assert known.contains(asked).tolist() == [key in set(keys(there)) for key in keys(asked)]
    listed = keys(drawn)
    assert first_occurrence(drawn).tolist() == [listed.index(key) == place for place, key in enumerate(listed)]


def test_the_deletion_vector_is_part_of_the_key() -> None:
    found = {
        hash_of("a", None),
        hash_of("a", ("u", "x", None)),
        hash_of("a", ("u", "x", 1)),
        hash_of("a", ("u", "x", 11)),
        hash_of("a", ("i", "x", 1)),
        hash_of("a", ("u", "y", 1)),
        hash_of("b", ("u", "x", 1)),
        hash_of("aux", None),
    }
    assert len(found) == 8


def test_an_offset_of_zero_is_not_a_missing_offset() -> None:
    assert hash_of("a", ("u", "x", 0)) != hash_of("a", ("u", "x", None))


def test_size_and_cardinality_of_a_vector_are_not_part_of_the_key() -> None:
    one = DeletionVector(storage_type="u", path_or_inline_dv="x", offset=1, size_in_bytes=1, cardinality=1)
    other = DeletionVector(storage_type="u", path_or_inline_dv="x", offset=1, size_in_bytes=9, cardinality=9)
    first, second = keys(hash_keys(pa.array(["a", "a"]), deletion_vector_array([one, other])))
    assert first == second


def test_a_file_without_a_vector_has_the_same_key_in_any_batch() -> None:
    mixed = keys(hash_keys(pa.array(["a", "b"]), deletion_vector_array([None, vector("u", "x", 1)])))
    assert mixed[0] == hashed("a")[0]
    assert mixed[1] == hash_of("b", ("u", "x", 1))


def test_a_path_cannot_pass_for_another_path_with_a_vector() -> None:
    """A log that encodes a NUL in a path must not hide or revive another file."""
    assert hash_of("a%00ux@1", None) != hash_of("a", ("u", "x", 1))


# --- in a log


@pytest.mark.parametrize("spelling", ["a%20b", "%61%20b"])
def test_a_remove_in_another_spelling_removes_the_file(spelling: str, tmp_path: Path) -> None:
    log = Log(tmp_path).commits(0, 1)
    log.commit(2, add("a b"))
    log.checkpoint(2)
    log.commit(3, remove(spelling))
    assert paths(DeltaTable(tmp_path).files()) == ["f0", "f1"]


def test_a_file_added_again_in_another_spelling_is_there_once_as_logged_last(tmp_path: Path) -> None:
    log = Log(tmp_path).commits(0, 1)
    log.commit(2, add("a b", size=1))
    log.checkpoint(2)
    log.commit(3, add("a%20b", size=2))
    found = [(file.path, file.size) for file in DeltaTable(tmp_path).files() if file.path[0] == "a"]
    assert found == [("a%20b", 2)]


def test_a_new_deletion_vector_makes_the_old_entry_removable_alone(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.commit(0)
    vectors = [
        {"storageType": "u", "pathOrInlineDv": f"v{n}", "offset": 1, "sizeInBytes": 4, "cardinality": n} for n in (1, 2)
    ]
    first, second, gone = add("f0"), add("f0"), remove("f0")
    first["add"]["deletionVector"] = gone["remove"]["deletionVector"] = vectors[0]
    second["add"]["deletionVector"] = vectors[1]
    log.commit(1, protocol("deletionVectors"), remove("f0"), first)
    log.checkpoint(1)
    log.commit(2, gone, second)
    (file,) = DeltaTable(tmp_path).files()
    assert file.deletion_vector is not None
    assert (file.path, file.deletion_vector["cardinality"]) == ("f0", 2)
