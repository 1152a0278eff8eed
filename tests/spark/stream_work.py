"""A driver of its own that streams JSON files, or a table, into a table until all is in; made to be killed."""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.errors import StreamingQueryException

from lazydelta.spark import ingest_stream, start_session


def main(work: dict[str, Any]) -> int:
    """Stream what there is; a query that fails is started again, as a supervisor would."""
    session = start_session("stream_work", master=work["master"], conf=work["conf"])
    reader = session.readStream.format(work["reads"]).option("maxFilesPerTrigger", 1)
    if work["reads"] == "json":
        reader = reader.schema("id long, ts timestamp")
    files = reader.load(work["source"])
    for _ in range(work["starts"]):
        query = ingest_stream(
            files,
            work["table"],
            checkpoint_location=work["checkpoint"],
            trigger={"availableNow": True},
            timestamp_column="ts",
            **work["options"],
        )
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            print(f"the query failed: {str(error)[:2000]}", file=sys.stderr, flush=True)  # noqa: T201 - for the reader of the log
            continue
        session.stop()
        return 0
    return 3


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
