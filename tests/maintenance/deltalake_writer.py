"""A writer of delta-rs in a process of its own: commits, and a checkpoint now and then, as fast as it can."""

from __future__ import annotations

import sys

import deltalake
import pyarrow as pa

__all__ = ["main"]


def main() -> None:
    """Write ``sys.argv[2]`` commits of two rows to the table ``sys.argv[1]``, with a checkpoint after every tenth.

    After the first checkpoint it waits for a line on its standard input: then others are at work as well.
    """
    root, commits = sys.argv[1], int(sys.argv[2])
    for number in range(commits):
        rows = pa.table({"id": pa.array([2 * number, 2 * number + 1]), "hour": [f"h{number % 5}"] * 2})
        deltalake.write_deltalake(root, rows, mode="append", partition_by=["hour"])
        if number % 10 == 9:
            deltalake.DeltaTable(root).create_checkpoint()
        if number == 9:
            sys.stdin.readline()


if __name__ == "__main__":
    main()
