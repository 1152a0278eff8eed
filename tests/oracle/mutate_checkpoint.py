"""Ways to damage a checkpoint when nothing but the checkpoint can give the right answer."""

from __future__ import annotations

import json
import shutil
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from tests.oracle.mutate import refuse
from tests.oracle.victim import CHECKPOINT, Mutant, Verdict, Victim

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tests.oracle.mutate import Mutator

KINDS = ("classic", "multipart", "parquet+2", "json+2", "classic+1")
_FOOTER_LENGTH = 4


def _files(victim: Victim) -> list[Path]:
    """Return the files of the checkpoint that are Parquet."""
    return [path for path in victim.checkpoint if path.suffix == ".parquet"]


def _names(victim: Victim) -> tuple[str, ...]:
    """Return what an error about a broken checkpoint may name: each of its files."""
    return tuple(path.name for path in victim.checkpoint)


def cut_parquet(victim: Victim) -> Mutant:
    """Cut a file of the checkpoint anywhere."""
    path = victim.rng.choice(_files(victim))
    data = path.read_bytes()
    path.write_bytes(data[: victim.rng.randrange(1, len(data))])
    return refuse(path)


def random_parquet(victim: Victim) -> Mutant:
    """Replace a file of the checkpoint by random bytes, with Parquet's magic at both ends now and then."""
    path = victim.rng.choice(_files(victim))
    size = victim.rng.randrange(1, 5000)
    noise = victim.rng.randbytes(size)
    if victim.rng.random() < 0.5:
        noise = b"PAR1" + noise + victim.rng.randrange(size).to_bytes(_FOOTER_LENGTH, "little") + b"PAR1"
    path.write_bytes(noise)
    return refuse(path)


def appended_bytes(victim: Victim) -> Mutant:
    """Append bytes to a file of the checkpoint: who trusts a logged size never sees them."""
    path = victim.rng.choice(_files(victim))
    path.write_bytes(path.read_bytes() + victim.rng.randbytes(100) + b"\0")
    return Mutant(Verdict.EITHER, (path.name,), victim.healthy())


def zero_bytes(victim: Victim) -> Mutant:
    """Leave a file of the checkpoint without a byte: the version can no longer be reconstructed."""
    path = victim.rng.choice(victim.checkpoint)
    path.write_bytes(b"")
    return Mutant(Verdict.MUST_ERROR, (path.name, "_delta_log"))


def missing_file(victim: Victim) -> Mutant:
    """Delete a file of the checkpoint."""
    path = victim.rng.choice(victim.checkpoint)
    path.unlink()
    return Mutant(Verdict.MUST_ERROR, (path.name, "_delta_log"))


def folder_for_checkpoint(victim: Victim) -> Mutant:
    """Put a folder where a file of the checkpoint should be."""
    path = victim.rng.choice(victim.checkpoint)
    path.unlink()
    path.mkdir()
    (path / "x").write_text("x")
    return Mutant(Verdict.MUST_ERROR, (path.name, "_delta_log"))


def _flip(data: bytes, position: int, bit: int) -> bytes:
    return data[:position] + bytes([data[position] ^ (1 << bit)]) + data[position + 1 :]


def flipped_path(victim: Victim) -> Mutant:
    """Flip a bit of a path's text inside a page that has a checksum: a wrong path would be a silent lie."""
    path = victim.checkpoint[0]
    data = path.read_bytes()
    footer = pq.ParquetFile(path).metadata
    positions = []
    for group in range(footer.num_row_groups):
        chunk = footer.row_group(group).column(0)
        assert chunk.path_in_schema == "add.path"
        start = chunk.dictionary_page_offset or chunk.data_page_offset
        positions.append(data.find(b"p=a/file-", start, start + chunk.total_compressed_size))
    position = victim.rng.choice([found for found in positions if found >= 0])
    path.write_bytes(_flip(data, position + victim.rng.randrange(8), 0))
    return refuse(path)


def flipped_bit(victim: Victim) -> Mutant:
    """Flip any bit of a file of the checkpoint."""
    path = victim.rng.choice(_files(victim))
    data = path.read_bytes()
    path.write_bytes(_flip(data, victim.rng.randrange(len(data)), victim.rng.randrange(8)))
    return Mutant(Verdict.ANY, _names(victim))


def flipped_footer(victim: Victim) -> Mutant:
    """Flip bits of a Parquet footer, which nothing guards."""
    path = victim.rng.choice(_files(victim))
    data = path.read_bytes()
    length = int.from_bytes(data[-8:-4], "little") + 8
    for _ in range(victim.rng.choice([1, 3])):
        data = _flip(data, len(data) - 1 - victim.rng.randrange(length), victim.rng.randrange(8))
    path.write_bytes(data)
    return Mutant(Verdict.ANY, _names(victim))


def noisy_middle(victim: Victim) -> Mutant:
    """Overwrite a run of bytes between magic and footer."""
    path = victim.rng.choice(_files(victim))
    data = bytearray(path.read_bytes())
    start = victim.rng.randrange(4, len(data) - 8)
    data[start : start + 64] = victim.rng.randbytes(len(data[start : start + 64]))
    path.write_bytes(bytes(data))
    return Mutant(Verdict.ANY, _names(victim))


# Good Parquet with the wrong things in it.


def rewritten(change: Callable[[pa.Table], pa.Table], verdict: Verdict, victim: Victim) -> Mutant:
    """Rewrite a classic checkpoint."""
    path = victim.checkpoint[0]
    pq.write_table(change(pq.read_table(path)), path)
    expected = victim.healthy() if verdict in {Verdict.EITHER, Verdict.MUST_EQUAL} else None
    return Mutant(verdict, (path.name,), expected, keys_only=True)


def _with_add(table: pa.Table, change: Callable[[str, pa.Array], pa.Array | None]) -> pa.Table:
    """Return the checkpoint with fields of its adds changed, or dropped where ``change`` gives None."""
    add = table["add"].combine_chunks()
    fields = {field.name: change(field.name, add.field(field.name)) for field in add.type}
    kept = {name: array for name, array in fields.items() if array is not None}
    struct = pa.StructArray.from_arrays(list(kept.values()), list(kept), mask=add.is_null())
    return table.set_column(table.schema.get_field_index("add"), "add", struct)


def _swap(field: str, new: Callable[[pa.Array], pa.Array | None]) -> Callable[[pa.Table], pa.Table]:
    return lambda table: _with_add(table, lambda name, array: new(array) if name == field else array)


_REWRITES: dict[str, tuple[Callable[[pa.Table], pa.Table], Verdict]] = {
    "no_protocol": (lambda t: t.drop_columns(["protocol"]), Verdict.MUST_ERROR),
    "no_metadata": (lambda t: t.drop_columns(["metaData"]), Verdict.MUST_ERROR),
    "null_metadata": (lambda t: t.filter(t["metaData"].is_null()), Verdict.MUST_ERROR),
    "other_table": (lambda _: pa.table({"x": [1, 2]}), Verdict.MUST_ERROR),
    "no_rows": (lambda t: t.slice(0, 0), Verdict.MUST_ERROR),
    "no_txn": (lambda t: t.drop_columns(["txn"]), Verdict.EITHER),
    "no_remove": (lambda t: t.drop_columns(["remove"]), Verdict.MUST_EQUAL),
    "extra_column": (lambda t: t.append_column("future", pa.array(["x"] * len(t))), Verdict.MUST_EQUAL),
    "add_is_a_number": (lambda t: t.set_column(0, "add", pa.array(range(len(t)))), Verdict.MUST_ERROR),
    "path_is_a_number": (_swap("path", lambda a: pa.array(range(len(a)))), Verdict.MUST_ERROR),
    "path_is_large_string": (_swap("path", lambda a: a.cast(pa.large_string())), Verdict.MUST_EQUAL),
    "path_is_binary": (_swap("path", lambda a: a.cast(pa.binary())), Verdict.EITHER),
    "path_is_dictionary": (_swap("path", lambda a: a.dictionary_encode()), Verdict.MUST_EQUAL),
    "path_is_null": (_swap("path", lambda a: pa.nulls(len(a), pa.string())), Verdict.ANY),
    "no_path": (_swap("path", lambda _: None), Verdict.MUST_ERROR),
    "size_is_text": (_swap("size", lambda a: a.cast(pa.string())), Verdict.EITHER),
    "size_is_int32": (_swap("size", lambda a: a.cast(pa.int32())), Verdict.EITHER),
    "size_is_double": (_swap("size", lambda a: a.cast(pa.float64())), Verdict.EITHER),
    "size_is_null": (_swap("size", lambda a: pa.nulls(len(a), pa.int64())), Verdict.EITHER),
    "no_size": (_swap("size", lambda _: None), Verdict.EITHER),
    "no_deletion_vector": (_swap("deletionVector", lambda _: None), Verdict.ANY),
    "vector_is_text": (_swap("deletionVector", lambda a: pa.array(["u"] * len(a))), Verdict.MUST_ERROR),
    "partitions_are_text": (_swap("partitionValues", lambda a: pa.array(["p=a"] * len(a))), Verdict.EITHER),
    "no_partitions": (_swap("partitionValues", lambda _: None), Verdict.EITHER),
    "no_stats": (_swap("stats", lambda _: None), Verdict.MUST_EQUAL),
    "stats_are_numbers": (_swap("stats", lambda a: pa.array(range(len(a)))), Verdict.EITHER),
    "stats_parsed_is_text": (_swap("stats_parsed", lambda a: pa.array(["x"] * len(a))), Verdict.EITHER),
    "protocol_is_text": (
        lambda t: t.set_column(t.schema.get_field_index("protocol"), "protocol", pa.array(["x"] * len(t))),
        Verdict.MUST_ERROR,
    ),
}


# Parts, names and sidecar files.


def surplus_part(victim: Victim) -> Mutant:
    """Leave a third part of two, and one part of a checkpoint in three."""
    names = [f"{CHECKPOINT:020d}.checkpoint.{3:010d}.{n:010d}.parquet" for n in (2, 3)]
    for name in names:
        (victim.log / name).write_bytes(b"no part of this")
    return Mutant(Verdict.MUST_EQUAL, tuple(names), victim.healthy())


def same_part_twice(victim: Victim) -> Mutant:
    """Copy one part over the other: nothing says that what is gone was ever there."""
    shutil.copyfile(victim.checkpoint[0], victim.checkpoint[1])
    return Mutant(Verdict.ANY, (*_names(victim), "_delta_log"))


def odd_checkpoint_name(name: str, victim: Victim) -> Mutant:
    """Leave a file whose name is almost that of a newer checkpoint."""
    (victim.log / name).write_bytes(b"no checkpoint")
    return Mutant(Verdict.MUST_EQUAL, (name,), victim.healthy())


def _edit_sidecar(victim: Victim, **changes: object) -> Mutant:
    main = victim.checkpoint[0]
    lines = [json.loads(line) for line in main.read_text(encoding="utf-8").splitlines()]
    sidecar = next(line["sidecar"] for line in lines if "sidecar" in line)
    sidecar.update(changes)
    main.write_text("\n".join(json.dumps(line) for line in lines) + "\n", encoding="utf-8")
    path = changes.get("path")
    return Mutant(Verdict.MUST_ERROR, (main.name, *([path.rpartition("/")[2]] if isinstance(path, str) else [])))


def sidecar_path(path: object, victim: Victim) -> Mutant:
    """Point a V2 checkpoint at a sidecar that is elsewhere, absent or no name at all."""
    return _edit_sidecar(victim, path=path)


def sidecar_is_main(victim: Victim) -> Mutant:
    """Point a V2 checkpoint at itself."""
    return _edit_sidecar(victim, path=f"../{victim.checkpoint[0].name}")


def sidecar_size(size: object, victim: Victim) -> Mutant:
    """Lie about a sidecar's size."""
    mutant = _edit_sidecar(victim, sizeInBytes=size)
    return Mutant(Verdict.EITHER, (*mutant.names, *_names(victim)), victim.healthy())


def sidecar_in_sidecar(victim: Victim) -> Mutant:
    """Let a sidecar name itself as a sidecar."""
    path = victim.checkpoint[1]
    table = pq.read_table(path)
    kind = pa.struct({"path": pa.string(), "sizeInBytes": pa.int64(), "modificationTime": pa.int64()})
    value = {"path": path.name, "sizeInBytes": 1, "modificationTime": 1}
    pq.write_table(table.append_column("sidecar", pa.array([value] * len(table), kind)), path)
    return Mutant(Verdict.EITHER, _names(victim), victim.healthy())


def json_checkpoint(change: Callable[[bytes], bytes], victim: Victim) -> Mutant:
    """Damage the main file of a V2 checkpoint in JSON."""
    path = victim.checkpoint[0]
    path.write_bytes(change(path.read_bytes()))
    return Mutant(Verdict.MUST_ERROR, (path.name, "_delta_log"))


_SIDECAR_PATHS: list[object] = [
    "../../../../etc/passwd",
    "/etc/passwd",
    "file:///etc/passwd",
    "",
    ".",
    "..",
    "absent.parquet",
    "%2e%2e/x.parquet",
    "nul\0.parquet",
    5,
    None,
]
_JSON_CHANGES: list[Callable[[bytes], bytes]] = [
    lambda data: data[:-30],
    lambda data: data.replace(b'"metaData"', b'"otherData"'),
    lambda data: data.replace(b'"protocol"', b'"otherData"'),
    lambda data: b"\xff" + data,
    lambda data: data.replace(b'"partitionColumns": ["p"]', b'"partitionColumns": "p"'),
    lambda _: b"[]\n",
]
_ODD_NAMES = [
    f"{CHECKPOINT + 1:020d}.checkpoint",
    f"{CHECKPOINT + 1:020d}.checkpoint.not-a-uuid.txt",
    f"{CHECKPOINT + 1:020d}.checkpoint.0000000000.0000000000.parquet",
    f"{CHECKPOINT + 1:020d}.checkpoint.0000000002.0000000001.parquet",
    f"{CHECKPOINT + 1:020d}.checkpoint.parquet.tmp",
    f".{CHECKPOINT + 1:020d}.checkpoint.parquet",
    f"{CHECKPOINT + 1:019d}.checkpoint.parquet",
]


def _checkpoint_mutators() -> Mapping[str, tuple[str, Mutator]]:
    """Return each mutator with the kind of checkpoint it damages."""
    found: dict[str, tuple[str, Mutator]] = {}
    plain = [cut_parquet, random_parquet, appended_bytes, zero_bytes, missing_file, folder_for_checkpoint]
    plain += [flipped_bit, flipped_footer, noisy_middle]
    for kind in KINDS:
        found |= {f"{function.__name__}-{kind}": (kind, function) for function in plain}
    for i in range(12):
        found |= {f"{f.__name__}-again-{i}": ("classic", f) for f in (flipped_bit, flipped_footer, noisy_middle)}
    for i in range(10):
        found |= {f"{f.__name__}-again-{i}": ("classic", f) for f in (cut_parquet, random_parquet)}
    found |= {f"flipped_path-{i}": ("plain", flipped_path) for i in range(3)}
    found |= {f"rewritten-{n}": ("classic", partial(rewritten, *row)) for n, row in _REWRITES.items()}
    found["surplus_part"] = ("multipart", surplus_part)
    found["same_part_twice"] = ("multipart", same_part_twice)
    for i, name in enumerate(_ODD_NAMES):
        found[f"odd_checkpoint_name-{i}"] = ("classic", partial(odd_checkpoint_name, name))
    for i, path in enumerate(_SIDECAR_PATHS):
        found[f"sidecar_path-{i}"] = ("json+2", partial(sidecar_path, path))
    found["sidecar_is_main"] = ("json+2", sidecar_is_main)
    for i, size in enumerate([0, -1, 2**70, "x", None]):
        found[f"sidecar_size-{i}"] = ("json+2", partial(sidecar_size, size))
    found["sidecar_in_sidecar"] = ("parquet+2", sidecar_in_sidecar)
    for i, change in enumerate(_JSON_CHANGES):
        found[f"json_checkpoint-{i}"] = ("json+2", partial(json_checkpoint, change))
    return found


CHECKPOINT_MUTATORS = _checkpoint_mutators()
