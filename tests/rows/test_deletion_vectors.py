from __future__ import annotations

import random
import struct
from typing import TYPE_CHECKING

import pytest

from lazydelta.errors import DataFileError
from lazydelta.protocol.actions import DeletionVector
from lazydelta.protocol.deletion_vectors import DeletedRows, read_deletion_vector
from lazydelta.storage import observe
from tests.rows.files import bitmap, frame, inline_vector, stored_vector, z85

if TYPE_CHECKING:
    from pathlib import Path

    from lazydelta.storage import Store

DATA_FILE = "part-0.parquet"


def positions(found: DeletedRows, total: int) -> list[int]:
    mask = found.keep_mask(0, total)
    return [] if mask is None else [index for index, keep in enumerate(mask.to_pylist()) if not keep]


def read(store: Store, vector: DeletionVector) -> DeletedRows:
    return read_deletion_vector(store, vector, data_file=DATA_FILE)


def changed(vector: DeletionVector, **facts: object) -> DeletionVector:
    known = {name: getattr(vector, name) for name in vector.__struct_fields__}
    return DeletionVector(**known | facts)


def test_an_inline_vector_is_read_from_the_log(store: Store) -> None:
    found = read(store, inline_vector([3, 4, 7, 11, 18, 29]))
    assert len(found) == 6
    assert positions(found, 40) == [3, 4, 7, 11, 18, 29]


def test_an_inline_vector_of_another_writer_is_read(store: Store) -> None:
    text = "^Bg9^0rr910000000000iXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L"
    vector = DeletionVector(storage_type="i", path_or_inline_dv=text, size_in_bytes=44, cardinality=6)
    assert positions(read(store, vector), 40) == [3, 4, 7, 11, 18, 29]


@pytest.mark.parametrize("prefix", ["", "ab"])
def test_a_vector_in_a_file_is_found_by_its_uuid_below_its_prefix(store: Store, tmp_path: Path, prefix: str) -> None:
    vector, _ = stored_vector(tmp_path, [0, 9], prefix=prefix)
    assert positions(read(store, vector), 10) == [0, 9]


def test_a_vector_at_an_absolute_path_is_read(store: Store, tmp_path: Path) -> None:
    elsewhere = tmp_path / "else where"
    elsewhere.mkdir()
    vector, _ = stored_vector(elsewhere, [5], absolute=True)
    assert positions(read(store, vector), 10) == [5]


@pytest.mark.parametrize("padding", [0, 100, 1 << 20], ids=["first", "near", "far"])
def test_a_vector_is_read_from_its_offset_and_no_more(store: Store, tmp_path: Path, padding: int) -> None:
    vector, _ = stored_vector(tmp_path, [1, 2], padding=padding)
    before = store.counters.bytes_read
    assert positions(read(store, vector), 4) == [1, 2]
    assert store.counters.bytes_read - before < 200 + vector.size_in_bytes


def test_a_missing_offset_means_the_first_vector_of_the_file(store: Store, tmp_path: Path) -> None:
    vector, _ = stored_vector(tmp_path, [1, 2])
    assert positions(read(store, changed(vector, offset=None)), 4) == [1, 2]


def test_a_mask_covers_exactly_the_range_asked_for(store: Store) -> None:
    gone = [0, 99, 100, 199, 200, 2**32 + 5]
    found = read(store, inline_vector(gone))
    mask = found.keep_mask(100, 100)
    assert mask is not None
    assert [index for index, keep in enumerate(mask.to_pylist()) if not keep] == [0, 99]
    assert found.kept(100, 100) == 98
    assert found.keep_mask(300, 1000) is None
    assert found.kept(2**32, 10) == 9
    assert found.end == 2**32 + 6


def test_masks_of_random_vectors_agree_with_the_positions(store: Store) -> None:
    random_source = random.Random(7)
    for density in (3, 500, 60_000):
        gone = sorted(random_source.sample(range(200_000), density))
        found = read(store, inline_vector(gone))
        assert positions(found, 200_000) == gone


def test_an_empty_vector_deletes_nothing(store: Store) -> None:
    nothing = DeletionVector(storage_type="i", path_or_inline_dv="", size_in_bytes=0, cardinality=0)
    for vector in (nothing, inline_vector([])):
        found = read(store, vector)
        assert (len(found), found.end, found.keep_mask(0, 10)) == (0, 0, None)


def test_every_flipped_bit_of_a_stored_vector_is_an_error(store: Store, tmp_path: Path) -> None:
    """The checksum covers the bitmap, and every other byte is checked by value."""
    vector, place = stored_vector(tmp_path, [*range(50, 60), 70, 9000])
    whole = place.read_bytes()
    for bit in range(len(whole) * 8):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        place.write_bytes(damaged)
        with pytest.raises(DataFileError, match="deletion vector") as caught:
            read(store, vector)
        assert caught.value.path is not None
        assert caught.value.path.endswith(place.name)


def test_flipped_bits_of_an_inline_vector_give_an_error_or_as_many_rows_as_the_log_says(store: Store) -> None:
    """Nothing but the structure and the cardinality protects an inline vector."""
    random_source = random.Random(11)
    raw = bitmap([*range(100), *random_source.sample(range(1000, 70_000), 300)])
    refused = 0
    for _ in range(500):
        damaged = bytearray(raw)
        damaged[random_source.randrange(len(raw))] ^= 1 << random_source.randrange(8)
        vector = DeletionVector(
            storage_type="i", path_or_inline_dv=z85(bytes(damaged)), size_in_bytes=len(raw), cardinality=400
        )
        try:
            found = read(store, vector)
        except DataFileError as error:
            refused += 1
            assert error.path == DATA_FILE  # noqa: PT017 - both outcomes are right, each has its own check
        else:
            assert len(found) == 400
    assert refused


@pytest.mark.parametrize("length", [0, 1, 4, 5, 20])
def test_a_vector_file_that_is_cut_off_is_an_error(store: Store, tmp_path: Path, length: int) -> None:
    vector, place = stored_vector(tmp_path, [1, 2, 3])
    place.write_bytes(place.read_bytes()[:length])
    with pytest.raises(DataFileError, match="deletion vector"):
        read(store, vector)


def test_an_offset_past_the_end_of_the_file_is_an_error(store: Store, tmp_path: Path) -> None:
    vector, _ = stored_vector(tmp_path, [1, 2, 3])
    with pytest.raises(DataFileError, match="deletion vector"):
        read(store, changed(vector, offset=1 << 22))


def test_a_missing_vector_file_is_an_error_that_names_it(store: Store, tmp_path: Path) -> None:
    vector, place = stored_vector(tmp_path, [1])
    place.unlink()
    with pytest.raises(DataFileError, match=f"{place.name}.*does not exist"):
        read(store, vector)


def test_a_cardinality_that_the_bitmap_does_not_have_is_an_error(store: Store, tmp_path: Path) -> None:
    vector, _ = stored_vector(tmp_path, [1, 2, 3])
    with pytest.raises(DataFileError, match="lists 3 rows, but the log says 2"):
        read(store, changed(vector, cardinality=2))


def test_a_format_with_another_magic_number_is_refused(store: Store, tmp_path: Path) -> None:
    vector, place = stored_vector(tmp_path, [1])
    raw = struct.pack("<I", 1681511376) + bitmap([1])[4:]
    place.write_bytes(b"\x01" + frame(raw))
    with pytest.raises(DataFileError, match="1681511376"):
        read(store, vector)


@pytest.mark.parametrize(
    "facts",
    [
        {"storage_type": "x"},
        {"path_or_inline_dv": "short"},
        {"path_or_inline_dv": "~" * 20},
        {"path_or_inline_dv": "é" * 20},
        {"path_or_inline_dv": "../" + "0" * 20},
        {"path_or_inline_dv": "/etc/" + "0" * 20},
        {"size_in_bytes": -1},
        {"size_in_bytes": 2**40},
        {"cardinality": -1},
        {"offset": -5},
        {"storage_type": "i"},
        {"storage_type": "i", "path_or_inline_dv": "abc"},
    ],
    ids=str,
)
def test_a_descriptor_that_makes_no_sense_is_refused_without_a_request(
    store: Store, tmp_path: Path, facts: dict[str, object]
) -> None:
    vector, _ = stored_vector(tmp_path, [1])
    requests: list[object] = []
    with observe(requests.append), pytest.raises(DataFileError, match=DATA_FILE):
        read(store, changed(vector, **facts))
    assert requests == []
