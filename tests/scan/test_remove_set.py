"""The set of the tail's keys: exact, compact, and the same whether it is in memory or on disk."""

from __future__ import annotations

import random
import tracemalloc
from contextlib import closing

import numpy as np
import pyarrow as pa
import pytest

from lazydelta.log import keys as plain_keys
from lazydelta.log.file_batch import DELETION_VECTOR
from lazydelta.log.keys import Hashes, RemoveSet, hash_keys
from lazydelta.runtime import compute as pc

MB = 1 << 20
Vector = dict[str, object] | None
LIMITS = {"in memory": 64 * MB, "spilled": 1}


def limited(limit: int) -> RemoveSet:
    """Return a set with a limit that may be below the least that users can set."""
    ours = RemoveSet(limit)
    ours._memory_limit = limit
    return ours


def assert_where(ours: RemoveSet, limit: int) -> None:
    """Check that the set is where the test means it to be, and end it."""
    assert bool(ours._spilled) == (limit == 1)
    ours.close()


def hashes(first: list[int], second: list[int]) -> Hashes:
    return np.array([first, second], np.uint64)


def keys_of(paths: list[str], vectors: list[Vector] | None = None) -> Hashes:
    return hash_keys(*files_of(paths, vectors))


def files_of(paths: list[str], vectors: list[Vector] | None = None) -> tuple[pa.Array, pa.Array | None]:
    return pa.array(paths, pa.string()), None if vectors is None else pa.array(vectors, DELETION_VECTOR)


def insert(ours: RemoveSet, paths: list[str], vectors: list[Vector] | None = None) -> None:
    assert (ours.add(*files_of(paths, vectors)) == keys_of(paths, vectors)).all()


def holds(ours: RemoveSet, paths: list[str], vectors: list[Vector] | None = None) -> list[bool]:
    """Ask for files, having checked that asking for their hashes gives the same."""
    found = ours.find(*files_of(paths, vectors)).tolist()
    assert found == ours.contains(keys_of(paths, vectors)).tolist()
    return list(found)


def vector(token: str, offset: int | None = None) -> dict[str, object]:
    return {"storageType": "u", "pathOrInlineDv": token, "offset": offset, "sizeInBytes": 1, "cardinality": 1}


def random_keys(rng: random.Random, count: int) -> list[tuple[int, int]]:
    """Draw keys of which many share a half, as 64-bit hashes of honest paths never would."""
    halves = [rng.getrandbits(64) for _ in range(max(2, count // 3))]
    return [(rng.choice(halves), rng.choice(halves)) for _ in range(count)]


def as_hashes(keys: list[tuple[int, int]]) -> Hashes:
    return hashes([key[0] for key in keys], [key[1] for key in keys])


@pytest.mark.parametrize("limit", LIMITS.values(), ids=LIMITS)
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.each_value
def test_it_answers_as_a_set_of_python_does(seed: int, limit: int) -> None:
    rng = random.Random(seed)
    known, ours = set[tuple[int, int]](), limited(limit)
    for _ in range(rng.choice([1, 5, 40])):
        batch = random_keys(rng, rng.choice([0, 1, 7, 300]))
        batch += rng.sample(sorted(known), min(len(known), 5)) + batch[:3]  # known ones again, and twice in a batch
        ours.add_hashes(as_hashes(batch))
        known.update(batch)
        asked = random_keys(rng, 50) + rng.sample(sorted(known), min(len(known), 50))
        asked += [(first, second ^ 1) for first, second in asked] + [(first ^ 1, second) for first, second in asked]
        assert ours.contains(as_hashes(asked)).tolist() == [key in known for key in asked]
    assert bool(ours._spilled) == (limit == 1 and bool(known))
    ours.close()


@pytest.mark.parametrize("limit", LIMITS.values(), ids=LIMITS)
def test_large_runs_with_their_bitmaps_answer_exactly(limit: int) -> None:
    """Above 16,384 keys a bitmap stands before the search; it may only pre-filter."""
    random_bits = np.random.default_rng(5)
    inside = random_bits.integers(0, 2**64, (2, 100_000), np.uint64)
    outside = random_bits.integers(0, 2**64, (2, 100_000), np.uint64)
    near = np.stack([inside[0], inside[1] ^ np.uint64(1)])  # the same slot of the bitmap, another key
    ours = limited(limit)
    for part in np.array_split(inside, 7, axis=1):
        ours.add_hashes(part)
    assert ours.contains(inside).all()
    assert not ours.contains(outside).any()
    assert not ours.contains(near).any()
    assert_where(ours, limit)


def test_a_million_keys_stay_under_64_megabytes() -> None:
    """A million tombstones by a thousand commits: what is held, and what is said to be held."""
    random_bits = np.random.default_rng(1)
    ours = RemoveSet()
    most = 0
    for _ in range(1000):
        ours.add_hashes(random_bits.integers(0, 2**64, (2, 1000), np.uint64))
        most = max(most, ours.memory)
    assert len(ours) == 1_000_000
    assert 16 * MB * 0.95 < ours.memory <= most < 64 * MB
    held = sum(run.keys.nbytes + (0 if run._bits is None else run._bits.nbytes) for run in ours._runs)
    assert held == ours.memory


def test_above_its_limit_it_holds_less_and_answers_the_same() -> None:
    random_bits = np.random.default_rng(2)
    parts = [random_bits.integers(0, 2**64, (2, 5000), np.uint64) for _ in range(40)]
    asked = np.concatenate([*parts, random_bits.integers(0, 2**64, (2, 5000), np.uint64)], axis=1)
    small, large = RemoveSet(1 * MB), RemoveSet()
    for part in parts:
        small.add_hashes(part)
        large.add_hashes(part)
    assert small.memory <= 1 * MB < large.memory
    assert len(small) == len(large) == 200_000
    assert (small.contains(asked) == large.contains(asked)).all()
    small.close()


def test_a_small_limit_does_not_take_a_file_for_every_commit() -> None:
    """However many commits follow once the limit is passed, a bounded number of temporary files is open."""
    random_bits = np.random.default_rng(3)
    with closing(RemoveSet(1 * MB)) as ours:
        ours.add_hashes(random_bits.integers(0, 2**64, (2, 1_200_000), np.uint64))
        last = random_bits.integers(0, 2**64, (2, 400), np.uint64)
        for start in range(400):
            ours.add_hashes(last[:, start : start + 1])
        assert 1 <= len(ours._spilled) < 50
        assert ours.contains(last).all()


@pytest.mark.parametrize("limit", LIMITS.values(), ids=LIMITS)
def test_keys_that_share_their_first_half_are_told_apart(limit: int) -> None:
    """However long the stretch of equal first halves, the second decides."""
    ours = limited(limit)
    ours.add_hashes(hashes([7] * 500, list(range(0, 1000, 2))))
    ours.add_hashes(hashes([7, 8, 6], [1001, 1, 1]))
    asked = list(range(1000))
    assert ours.contains(hashes([7] * 1000, asked)).tolist() == [number % 2 == 0 for number in asked]
    assert ours.contains(hashes([7, 8, 6, 8, 6], [1001, 1, 1, 2, 0])).tolist() == [True, True, True, False, False]
    assert_where(ours, limit)


@pytest.mark.parametrize("limit", LIMITS.values(), ids=LIMITS)
def test_keys_that_share_their_second_half_are_told_apart(limit: int) -> None:
    ours = limited(limit)
    ours.add_hashes(hashes([1, 3, 5], [9, 9, 9]))
    assert ours.contains(hashes([1, 2, 3, 4, 5], [9] * 5)).tolist() == [True, False, True, False, True]
    assert_where(ours, limit)


def test_a_key_counts_once_within_a_batch_and_a_run() -> None:
    ours = RemoveSet()
    ours.add_hashes(hashes([1, 1, 2], [1, 1, 2]))
    ours.add_hashes(hashes([2, 1, 3], [2, 1, 3]))
    assert len(ours) == 3


def test_an_empty_set_and_an_empty_question_are_fine() -> None:
    ours = RemoveSet()
    ours.add_hashes(np.empty((2, 0), np.uint64))
    assert len(ours) == ours.memory == 0
    assert ours.contains(hashes([1], [2])).tolist() == [False]
    ours.add_hashes(hashes([1], [2]))
    assert ours.contains(np.empty((2, 0), np.uint64)).tolist() == []


def test_a_file_with_a_deletion_vector_has_another_key_than_the_file_without() -> None:
    ours = RemoveSet()
    insert(ours, ["a", "b"], [vector("x"), None])
    asked = [None, vector("x"), vector("x", 1), vector("y"), None, vector("x")]
    assert holds(ours, ["a", "a", "a", "a", "b", "b"], asked) == [False, True, False, False, True, False]


def test_a_vector_cannot_be_mistaken_for_a_part_of_the_path() -> None:
    ours = RemoveSet()
    insert(ours, ["a"], [vector("x", 1)])
    assert holds(ours, ["aux@1", "a@1", "aux"]) == [False, False, False]
    assert holds(ours, ["a", "au"], [vector("x@1"), vector("x", 1)]) == [True, False]


@pytest.mark.parametrize(
    "spellings",
    [
        ["/x/y.pq", "file:/x/y.pq", "file:///x/y.pq", "file://localhost/x/y.pq", "FILE:/x/y.pq"],
        ["a b", "a%20b"],
        ["p=ü/f", "p=%C3%BC/f", "p=%c3%bc/f", "p%3D%C3%BC/f"],
        ["plain.parquet", "pl%61in.parquet", "plain%2Eparquet"],
        ["a%2520b", "%61%2520b"],
    ],
)
def test_all_spellings_of_a_path_are_one_key(spellings: list[str]) -> None:
    """Whichever spelling was recorded, each of them is found, alone or beside others."""
    for recorded in spellings:
        ours = RemoveSet()
        insert(ours, [recorded])
        assert all(holds(ours, spellings))
        assert all(holds(ours, [spelling])[0] for spelling in spellings)
        insert(ours, spellings)
        assert len(ours) == 1


def test_paths_that_only_look_alike_are_different_keys() -> None:
    paths = ["a", "A", "a/", "/a", "./a", "a%2520", "a%20", "a+", "aa", "a\0", "é", "e\u0301", "x/a", "file:a"]
    everything = RemoveSet()
    insert(everything, paths)
    assert len(everything) == len(paths)
    for path in paths:
        alone = RemoveSet()
        insert(alone, [path])
        assert holds(alone, paths) == [other == path for other in paths]


@pytest.mark.parametrize("count", [10, 4096, 4097, 20_000])
def test_files_are_found_by_text_and_by_hash_alike(count: int) -> None:
    """Small sets of plainly spelled paths are looked up by their text; the answer is that of the hashes."""
    paths = [f"p={number % 7}/part-{number:06d}.parquet" for number in range(count)]
    ours = RemoveSet()
    for start in range(0, count, 1500):
        insert(ours, paths[start : start + 1500])
    assert all(holds(ours, paths))
    assert not any(holds(ours, [f"{path}x" for path in paths]))
    assert not any(holds(ours, paths[:10], [vector(str(number)) for number in range(10)]))
    assert holds(ours, [paths[0].replace("part", "p%61rt"), "p%61rt", paths[-1]]) == [True, False, True]


def test_hashes_do_not_depend_on_the_batch_they_came_in() -> None:
    """Offsets, slices and neighbours of other lengths leave a key's hash alone."""
    rng = random.Random(4)
    paths = ["".join(rng.choices("abc/=é%", k=rng.randrange(1, 60))).replace("%", "%25") for _ in range(200)]
    paths = [path for path in paths if "//" not in path]
    whole = keys_of(paths)
    one_by_one = np.concatenate([keys_of([path]) for path in paths], axis=1)
    sliced = hash_keys(pa.array(["x", *paths, "y"], pa.string()).slice(1, len(paths)))
    assert (whole == one_by_one).all()
    assert (whole == sliced).all()
    assert len({(int(a), int(b)) for a, b in whole.T}) == len(set(paths))


def test_what_is_allocated_does_not_grow_with_the_keys() -> None:
    """Sorting, merging and moving to disk stay within the limit, though the keys are several times as large."""
    keys, limit = 1_000_000, 4 * MB
    rng = np.random.default_rng(7)
    ours = RemoveSet(limit)
    batch = 20_000
    tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        for start in range(0, keys, batch):
            ours.add_hashes(rng.integers(0, 2**64, (2, min(batch, keys - start)), dtype=np.uint64))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert ours._spilled
    assert len(ours) == keys
    # A stretch of 65,536 keys is sorted at a time when files are merged, whatever the limit.
    assert peak < 1.25 * limit + 6 * MB
    assert ours.memory <= limit
    ours.close()


def test_files_that_were_merged_answer_exactly() -> None:
    """Many spills, keys that come again, and nothing lost or invented, with a bitmap and without."""
    rng = np.random.default_rng(8)
    for limit in (1 * MB, 3 * MB):
        ours = RemoveSet(limit)
        batches = [rng.integers(0, 2**64, (2, 30_000), dtype=np.uint64) for _ in range(12)]
        for known in batches:
            ours.add_hashes(known)
            ours.add_hashes(known[:, ::3])
        assert ours._spilled
        assert all(ours.contains(known).all() for known in batches)
        assert not ours.contains(rng.integers(0, 2**64, (2, 50_000), dtype=np.uint64)).any()
        ours.close()


_WRITERS = {
    "Spark": ["h={few}/part-{n:05d}-{bits:016x}.c000.snappy.parquet"],
    "numbers in front": ["{n:08d}/part-0.snappy.parquet"],
    "numbers at the end": ["a-long-name-that-all-share-{n}"],
    "of any length": ["x{n}", "the-one-before-is-shorter-{n}", "x/y/{n}", "p=1/q=2/r=3/s=4/{n}.parquet"],
    "short": ["{n}"],
    "only far in front": ["{n}" + "/the-rest-is-always-the-same" * 12],
    "some escaped": ["day=2026-01-01 {few}%3A00/part-{n:06d}.parquet", "day=2/part-{n:06d}.parquet"],
    "some with schemes": ["file:/t/part-{n:06d}.parquet", "t/part-{n:06d}.parquet"],
}


def named_by(writer: str, rng: random.Random, count: int) -> list[str]:
    names = _WRITERS[writer]
    return [names[n % len(names)].format(n=n, few=n % 5, bits=rng.getrandbits(64)) for n in range(count)]


@pytest.mark.parametrize("writer", _WRITERS)
def test_whoever_named_the_files_a_text_is_found_as_its_hash_is(writer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_keys, "_FEW", 0)
    rng = random.Random(writer)
    paths, others = named_by(writer, rng, 3000), named_by("Spark", rng, 500)
    for known in (rng.sample(paths, 1), rng.sample(paths, 300), [*rng.sample(paths, 20), *others[:20]]):
        ours = RemoveSet()
        insert(ours, known)
        for asked in (paths, paths[:1], paths[1000:], [*others, *paths], others):
            assert holds(ours, asked) == [path in set(known) for path in asked]


def test_nearly_all_rows_are_told_apart_without_being_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither hashed nor searched for: eight bytes of each path are enough."""
    rng = random.Random(3)
    paths = named_by("Spark", rng, 20_000)
    known = rng.sample(paths, 100)
    ours = RemoveSet()
    insert(ours, known)
    looked_up = 0
    is_in = pc.is_in

    def counting(values: pa.Array, **options: object) -> pa.Array:
        nonlocal looked_up
        looked_up += len(values)
        return is_in(values, **options)

    monkeypatch.setattr(pc, "is_in", counting)
    assert int(ours.find(pa.array(paths, pa.string())).sum()) == 100
    assert 100 <= looked_up < 400
