"""What the reader under test says, in the oracle's terms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.oracle.replay import FileFacts, dv_id

if TYPE_CHECKING:
    from lazydelta import DeltaTable


def observed_facts(table: DeltaTable) -> list[FileFacts]:
    """Return the table's active files, sorted; a file that comes twice is there twice."""
    return sorted(
        (
            FileFacts(
                path=file.path,
                size=file.size,
                modification_time=file.modification_time,
                partition_values=tuple(sorted(file.partition_values.items())),
                dv_id=dv_id({"deletionVector": file.deletion_vector}),
                num_records=file.num_records,
            )
            for file in table.files()
        ),
        key=repr,
    )
