"""``PartitionSelection``: the files of an overwrite by predicate, told by their partition values alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lazydelta.arrays import flags
from lazydelta.errors import PredicateError
from lazydelta.log.file_batch import FileBatch
from lazydelta.pruning import Predicate, Where, all_match, may_match, parse_predicate, partition_columns, stats_columns
from lazydelta.pruning.tree import Opaque, leaves
from lazydelta.stats import partition_ranges
from lazydelta.types.schema import TableSchema

__all__ = ["PartitionSelection"]


@dataclass(frozen=True, slots=True)
class PartitionSelection:
    """A predicate that is true or not true of a whole file."""

    predicate: Predicate

    @classmethod
    def of(cls, where: Where, schema: TableSchema, what: str = "An overwrite by predicate") -> PartitionSelection:
        """Bind ``where``; a predicate on anything but partition columns would select half a file, and is refused."""
        predicate = parse_predicate(where, schema)
        if predicate is None:
            raise PredicateError(
                "An overwrite by predicate needs a predicate", hint="overwrite the whole table instead"
            )
        strange = [column.name for column in stats_columns(predicate)]
        if strange:
            message = f"{what} may name partition columns only, and the predicate names {strange}"
            known = ", ".join(schema.partition_columns) or "none"
            raise PredicateError(message, hint=f"the partition columns are: {known}")
        opaque = [str(leaf) for leaf in leaves(predicate) if isinstance(leaf, Opaque)]
        if opaque:
            message = f"It cannot be told from partition values whether {opaque[0]!r} holds"
            raise PredicateError(message, hint="use comparisons of partition columns with values")
        return cls(predicate)

    def matches(self, batch: FileBatch) -> npt.NDArray[np.bool_]:
        """Tell for each file whether it is selected; where that cannot be told, it is an error."""
        ranges = partition_ranges(batch.partition_values, partition_columns(self.predicate))
        may, surely = flags(may_match(self.predicate, ranges)), flags(all_match(self.predicate, ranges))
        unsure = np.flatnonzero(may & ~surely)
        if len(unsure):
            path = batch.path[int(unsure[0])].as_py()
            message = f"It cannot be told from the partition values of {path} whether {self.predicate} holds"
            raise PredicateError(message, path=path, hint="name the partitions by = or IN")
        return surely
