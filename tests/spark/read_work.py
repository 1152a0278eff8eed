"""Reads a table in a driver of its own; each task says that it has begun and waits until it may go on."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from lazydelta.spark import start_session


def main(work: dict[str, Any]) -> None:
    """Collect the ids of the table, and write them down."""
    spark = start_session(master=work["master"], conf=work["conf"])
    folder = work["folder"]

    def held(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            place = Path(folder)
            (place / f"begun-{os.getpid()}").touch()
            while not (place / "go").exists():
                time.sleep(0.05)

    frame = spark.read.format("lazydelta").options(**work["options"]).load(work["table"]).select("id")
    ids = sorted(row.id for row in frame.mapInArrow(held, "id long").collect())
    Path(work["result"]).write_text(json.dumps(ids))
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
