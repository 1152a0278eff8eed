"""Benchmarks beside deltalake: ``python -m benchmarks`` (or ``make bench``). See docs/benchmarks.md."""
