"""A build on a cluster in which one task takes its executor with it, after it has written its part."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path

from lazydelta.sidecar.building.distributed import BucketParts, SpreadBuild
from lazydelta.spark import build_sidecar, sidecar, start_session

__all__ = ["DyingBuild", "main"]

_MARK = "LAZYDELTA_TEST_MARK"


class DyingBuild(SpreadBuild):
    """Kills the executor of the first task that writes the middle bucket, after its file was written."""

    def write(self, bucket: int, pieces: Iterable[bytes], attempt: int) -> BucketParts:
        """Write, and perhaps die."""
        done = super().write(bucket, pieces, attempt)
        mark = Path(os.environ[_MARK])
        if bucket == 2 and not mark.exists():
            mark.write_text(done.parts[0][0].file)
            daemon = os.getppid()
            executor = int(Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1])
            os.kill(executor, signal.SIGKILL)
        return done


def main() -> None:
    """Build the sidecar of the table ``sys.argv[1]`` and print what was done."""
    vars(sidecar).update(SpreadBuild=DyingBuild, _UNIT_ROWS=5_000)  # what the driver sends
    mark = os.environ[_MARK]
    conf = {"spark.executorEnv." + _MARK: mark, "spark.executor.memory": "512m", "spark.driver.memory": "512m"}
    spark = start_session(master="local-cluster[2,1,1024]", conf=conf)
    try:
        done = build_sidecar(spark, sys.argv[1], memory_budget=int(sys.argv[2]))
        sys.stdout.write(json.dumps({"files": done.num_files, "parts": done.num_parts, "action": done.action}) + "\n")
    finally:
        spark.stop()


if __name__ == "__main__":
    from tests.spark import dying_build

    dying_build.main()  # under the name by which tasks know the class
