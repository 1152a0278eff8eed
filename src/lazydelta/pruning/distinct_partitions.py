"""``DistinctPartitions``: a predicate on partition values, decided once for each combination of values."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa

from lazydelta import compute as pc
from lazydelta.arrays import boolean_array, typed_array
from lazydelta.pruning.evaluate import may_match
from lazydelta.pruning.tree import Predicate
from lazydelta.stats.partition_ranges import partition_ranges, partition_texts, text_range
from lazydelta.stats.ranges import Ranges
from lazydelta.types.schema import Column

if TYPE_CHECKING:
    import numpy.typing as npt  # its docstrings are made at import

__all__ = ["DistinctPartitions"]

_Values: TypeAlias = tuple[str | None, ...]
_MOST_REMEMBERED = 50_000  # combinations of values, beyond which all are forgotten
_LARGEST_CODE = 2**62
_ROWS_A_COMBINATION = 8  # below so many rows for each combination of values, all rows are decided anew


class DistinctPartitions:
    """Remembers which partition values let a file match: a million files lie in a few thousand partitions.

    Reading texts and comparing them takes some forty kernel calls a batch, this takes about ten.
    """

    def __init__(self, predicate: Predicate, columns: Sequence[Column]) -> None:
        self._predicate = predicate
        self._columns = tuple(column for column in columns if column.is_partition)
        self._decided: dict[_Values, bool] = {}

    def may_match(self, partition_values: pa.Array) -> pa.BooleanArray:
        """Tell for each file whether it may hold a row for which the predicate is true; false is proven."""
        distinct = _distinct(partition_values, self._columns)
        if distinct is None:
            return may_match(self._predicate, partition_ranges(partition_values, self._columns))
        values, rows = distinct
        return boolean_array(self._decide(values)[rows])

    def _decide(self, values: list[_Values]) -> npt.NDArray[np.bool_]:
        unknown = [each for each in values if each not in self._decided]
        if unknown:
            if len(self._decided) > _MOST_REMEMBERED:
                self._decided.clear()
                unknown = values
            self._decided.update(zip(unknown, self._evaluate(unknown), strict=True))
        return np.fromiter(map(self._decided.__getitem__, values), np.bool_, len(values))

    def _evaluate(self, values: list[_Values]) -> list[bool]:
        present = typed_array([True] * len(values), pa.bool_())
        ranges = {
            column.physical_path: text_range(column, typed_array(texts, pa.string()), present)
            for column, texts in zip(self._columns, zip(*values, strict=True), strict=True)
        }
        decided: list[bool] = may_match(self._predicate, Ranges(len(values), columns=ranges)).to_pylist()
        return decided


def _distinct(
    partition_values: pa.Array, columns: Sequence[Column]
) -> tuple[list[_Values], npt.NDArray[np.integer]] | None:
    """Return the combinations of values and which one each row has; None if one is missing or they are too many."""
    encoded = _encoded(partition_values, columns)
    if not encoded:
        return None
    most = len(partition_values) // _ROWS_A_COMBINATION
    if any(len(each.dictionary) > most for each in encoded):
        return None
    lists = [each.dictionary.to_pylist() for each in encoded]
    if len(encoded) == 1:
        return [(value,) for value in lists[0]], _codes(encoded[0])
    if prod(map(len, lists)) > _LARGEST_CODE:
        return None
    combined = np.zeros(len(partition_values), np.int64)
    for each in encoded:
        combined = combined * len(each.dictionary) + _codes(each)
    found, rows = np.unique(combined, return_inverse=True)
    if len(found) > most:
        return None
    texts = []
    for values in reversed(lists):
        found, codes = np.divmod(found, len(values))
        texts.append([values[code] for code in codes])
    return list(zip(*reversed(texts), strict=True)), rows


def _encoded(partition_values: pa.Array, columns: Sequence[Column]) -> list[pa.DictionaryArray]:
    """Return the values of each column as codes; none at all if a row lacks one of the columns."""
    if len(columns) == 1 and (items := _read_as_codes(partition_values, columns[0].physical_path[0])) is not None:
        return [items]
    texts = partition_texts(partition_values, columns)
    if any(present is None or present.false_count for _, _, present in texts):
        return []
    return [pc.dictionary_encode(values, "encode") for _, values, _ in texts]


def _read_as_codes(maps: pa.Array, name: str) -> pa.DictionaryArray | None:
    """Return the values under ``name`` where they came as codes and each row has just this key; else None."""
    if not isinstance(maps, pa.MapArray) or maps.null_count or not pa.types.is_dictionary(maps.type.item_type):
        return None
    offsets = np.frombuffer(maps.offsets.buffers()[1], np.int32, len(maps) + 1, maps.offsets.offset * 4)
    first, last = int(offsets[0]), int(offsets[-1])
    keys, items = maps.keys.slice(first, last - first), maps.items.slice(first, last - first)
    if keys.null_count or items.null_count or keys.dictionary.to_pylist() != [name]:
        return None
    return items if (np.diff(offsets) == 1).all() else None


def _codes(encoded: pa.DictionaryArray) -> npt.NDArray[np.int32]:
    indices = encoded.indices
    return np.frombuffer(indices.buffers()[1], np.int32, len(indices), indices.offset * 4)
