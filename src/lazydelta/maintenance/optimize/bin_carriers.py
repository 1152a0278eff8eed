"""Who rewrites bins: threads of this process, within one memory budget; adapters carry them to tasks elsewhere."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeAlias

from lazydelta.maintenance.optimize.bins import Bin
from lazydelta.maintenance.optimize.rewriting import Rewriter, Rewritten
from lazydelta.write.file_commit import delete_files

__all__ = ["BinCarrier", "in_threads"]

BinCarrier: TypeAlias = Callable[[Rewriter, Iterator[Bin]], Generator[Rewritten]]
"""Rewrites bins, and yields what became of each; closed early, it deletes what it has rewritten and not yielded."""

_MOST_THREADS = 4
# Of less a bin would be cut into many small files.
_LEAST_BUDGET = 32 << 20


def in_threads(rewriter: Rewriter, bins: Iterator[Bin]) -> Generator[Rewritten]:
    """Rewrite a few bins side by side, in the order in which they come; all of them share the memory budget."""
    threads = max(1, min(_MOST_THREADS, os.cpu_count() or 1, rewriter.memory_budget // _LEAST_BUDGET))
    if threads == 1:
        yield from (rewriter.rewrite(each) for each in bins)
        return
    each_with = rewriter.within(rewriter.memory_budget // threads)
    running: deque[Future[Rewritten]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="lazydelta-optimize") as pool:
        try:
            for bin_ in bins:
                running.append(pool.submit(each_with.rewrite, bin_))
                if len(running) >= threads:
                    # Only what has come through leaves the queue: what fails has deleted its own files.
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
        finally:
            for future in running:
                future.cancel()
            for future in running:
                if not future.cancelled() and future.exception() is None:
                    delete_files(rewriter.handle.store, future.result().adds)
