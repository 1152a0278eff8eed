"""Texts read from where they lie in a Parquet file are those that PyArrow decodes, whatever the pages are like."""

from __future__ import annotations

import io
import random
import tracemalloc
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lazydelta.log.checkpoint.long_strings import LongStrings, UnlikeError, text_column

if TYPE_CHECKING:
    from collections.abc import Callable

LETTERS = 'abcäß漢字🙂 {}":,0123456789'


def written(adds: list[Any], **layout: Any) -> bytes:
    """Write actions of which some are none, and some have no statistics."""
    kind = pa.struct([pa.field("path", pa.string()), pa.field("stats", pa.string())])
    file = io.BytesIO()
    pq.write_table(pa.table({"add": pa.array(adds, kind)}), file, **layout)
    return file.getvalue()


def random_adds(rng: random.Random, count: int) -> list[Any]:
    """Return actions with texts that repeat, or do not."""
    words = [
        "".join(rng.choices(LETTERS, k=rng.choice([0, 1, 30, 3_000]))) for _ in range(rng.choice([1, 3, 40, count]))
    ]
    share = rng.choice([0.0, 0.1, 0.9, 1.0])

    def stats() -> str | None:
        return None if rng.random() < share / 2 else rng.choice(words)

    return [None if rng.random() < share else {"path": "p", "stats": stats()} for _ in range(count)]


def read_at(data: bytes) -> Callable[[int, int], bytes]:
    """Return what reads these bytes by place."""
    return lambda start, length: data[start : start + length]


@pytest.mark.parametrize("seed", range(40))
def test_texts_are_those_that_pyarrow_decodes(seed: int) -> None:
    rng = random.Random(seed)
    adds = random_adds(rng, rng.choice([1, 7, 200, 900]))
    data = written(
        adds,
        compression=["none", "none", "snappy", "zstd", "gzip", "brotli", "lz4"][seed % 7],
        use_dictionary=rng.random() < 0.6,
        dictionary_pagesize_limit=rng.choice([100, 10_000, 1 << 20]),
        data_page_size=rng.choice([100, 5_000, 1 << 20]),
        write_batch_size=rng.choice([1, 64, 1024]),
        row_group_size=rng.choice([50, 10_000]),
        write_page_checksum=rng.random() < 0.5,
    )
    parquet = pq.ParquetFile(io.BytesIO(data))
    column = text_column(parquet.metadata, "add.stats")
    for group in range(parquet.metadata.num_row_groups):
        decoded = parquet.read_row_group(group).column("add").to_pylist()
        expected = [None if each is None else each["stats"] for each in decoded]
        texts = LongStrings.of(parquet.metadata, group, column, read_at(data), most_held=1 << 30)
        found, place = [], 0
        while place < len(expected):
            count = min(len(expected) - place, texts.rows_within(place, rng.choice([1, 500, 1 << 20])))
            found += texts.read(place, count, read_at(data)).to_pylist()
            place += count
        assert found == expected


@pytest.mark.parametrize(
    "layout",
    [{"compression": "zstd"}, {"compression": "none", "data_page_version": "2.0"}],
    ids=["compressed", "pages of the second version"],
)
def test_other_forms_are_left_alone(layout: dict[str, Any]) -> None:
    data = written(random_adds(random.Random(1), 50), **layout)
    metadata = pq.ParquetFile(io.BytesIO(data)).metadata
    with pytest.raises(UnlikeError):
        LongStrings.of(metadata, 0, text_column(metadata, "add.stats"), read_at(data))


def test_no_more_of_compressed_pages_is_held_than_there_is_room_for() -> None:
    """The footer says how much it is; where it says too little, the pages say so themselves."""
    adds = [{"path": "p", "stats": f"{number:04}" * 500} for number in range(50)]
    data = written(adds, compression="zstd")
    metadata = pq.ParquetFile(io.BytesIO(data)).metadata
    column = text_column(metadata, "add.stats")
    size = metadata.row_group(0).column(column).total_uncompressed_size
    with pytest.raises(UnlikeError):
        LongStrings.of(metadata, 0, column, read_at(data), most_held=size - 1)
    before = pa.total_allocated_bytes()
    texts = LongStrings.of(metadata, 0, column, read_at(data), most_held=size)
    assert 50 * 2_000 <= pa.total_allocated_bytes() - before <= size

    def nothing(start: int, length: int) -> bytes:
        raise AssertionError(f"{length} bytes are read again at {start}")

    assert texts.read(7, 3, nothing).to_pylist() == [f"{number:04}" * 500 for number in (7, 8, 9)]
    # The same bytes, described by the footer of a file that is smaller than this one, and compressed as it is.
    few = written([{"path": "p", "stats": "x"}] * 50, compression="zstd")
    small = pq.ParquetFile(io.BytesIO(few)).metadata
    chunk = small.row_group(0).column(column)
    shift = metadata.row_group(0).column(column).dictionary_page_offset - chunk.dictionary_page_offset
    with pytest.raises(UnlikeError):
        LongStrings.of(
            small, 0, column, lambda start, length: data[start + shift : start + shift + length], most_held=5_000
        )


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_damage_is_nothing_but_another_form(compression: str) -> None:
    """A page whose checksum is wrong, or that breaks off, is read in no other way than that of the form is."""
    rng = random.Random(3)
    data = written([{"path": "p", "stats": "x" * 500}] * 50, compression=compression, write_page_checksum=True)
    metadata = pq.ParquetFile(io.BytesIO(data)).metadata
    column = text_column(metadata, "add.stats")
    chunk = metadata.row_group(0).column(column)
    start = chunk.dictionary_page_offset
    for _ in range(200):
        hurt = bytearray(data)
        hurt[start + rng.randrange(chunk.total_compressed_size)] ^= 1 << rng.randrange(8)
        cut = hurt[: rng.choice([len(hurt), start + rng.randrange(chunk.total_compressed_size)])]
        try:
            texts = LongStrings.of(metadata, 0, column, read_at(bytes(cut)), most_held=1 << 20)
        except UnlikeError:
            continue
        # What a checksum does not cover is the header: its sizes decide, and the rows have to come out right.
        assert texts.read(0, 50, read_at(bytes(cut))).to_pylist() == ["x" * 500] * 50


def test_pages_that_claim_absurd_numbers_take_no_memory() -> None:
    """Without checksums any byte may lie: texts are another form then, or lie within their page."""
    rng = random.Random(4)
    texts = [f"{number:03}" * 40 for number in range(60)]
    for use_dictionary in (False, True):
        adds = [{"path": "p", "stats": text} for text in texts]
        data = written(adds, compression="none", use_dictionary=use_dictionary)
        metadata = pq.ParquetFile(io.BytesIO(data)).metadata
        column = text_column(metadata, "add.stats")
        chunk = metadata.row_group(0).column(column)
        start = chunk.dictionary_page_offset if use_dictionary else chunk.data_page_offset
        longest = 0
        for _ in range(400):
            hurt = bytearray(data)
            place = start + rng.choice([rng.randrange(40), rng.randrange(chunk.total_compressed_size)])
            hurt[place : place + 5] = b"\xff\xff\xff\xff\x07"  # as large a number as there is, of either kind
            tracemalloc.start()
            try:
                found = LongStrings.of(metadata, 0, column, read_at(bytes(hurt)))
                assert found.lengths.max(initial=0) <= chunk.total_compressed_size
                assert len(found.lengths) == len(texts)
            except UnlikeError:
                pass
            finally:
                longest = max(longest, tracemalloc.get_traced_memory()[1])
                tracemalloc.stop()
        assert longest < 4 << 20
