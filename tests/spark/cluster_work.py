"""Reads a table, writes it and streams it in a driver of its own; made to lose executors at each of the three."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from lazydelta.spark import ingest_stream, start_session, write


def main(work: dict[str, Any]) -> None:
    """Collect the ids of the table and write them down, then write its rows to two others."""
    spark = start_session(master=work["master"], conf=work["conf"])
    folder = work["folder"]

    def held(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Say that a task has begun, and wait until it may go on."""
        for batch in batches:
            yield batch
            place = Path(folder)
            (place / f"begun-{os.getpid()}").touch()
            while not (place / "go").exists():
                time.sleep(0.05)

    frame = spark.read.format("lazydelta").options(**work["options"]).load(work["table"])
    ids = sorted(row.id for row in frame.select("id").mapInArrow(held, "id long").collect())
    # Small files, or few rows would travel with the result, and no task would write a file.
    done = write(frame, work["written"], target_file_size=1)
    stream = spark.readStream.format("lazydelta").option("maxFilesPerTrigger", 1).load(work["table"])
    query = ingest_stream(
        stream,
        work["streamed"],
        checkpoint_location=work["checkpoint"],
        trigger={"availableNow": True},
        target_file_size=1,
        maintain=False,
    )
    query.awaitTermination()
    batches = sum(1 for each in query.recentProgress if each["numInputRows"])
    result = {"ids": ids, "rows": None if done is None else done.rows, "batches": batches}
    Path(work["result"]).write_text(json.dumps(result))
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
