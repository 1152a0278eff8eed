# Everything that a person or a machine does with this project. `make` alone lists it.
# Needs make and Python 3.11 or later; all else is installed by `make setup`, which the other targets call.

VENV        := .venv
PEERS       := .venv-peers
OLDEST      := .venv-oldest
PY          := $(VENV)/bin/python
UV          := $(VENV)/bin/uv
UV_VERSION  := 0.13.7
PYTHON      ?=
# Three on two cores: two begin with Spark, which waits a lot, and every test has its own folders, ports and services.
WORKERS     ?= 3
ARGS        ?=
# Files in the table of `make bench`: 100k, 1M, 10M.
SCALE       ?= 1M
# Folders that not every branch has yet.
SOURCES     := $(wildcard src tests scripts benchmarks)

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Only what each command names is used, not an environment that happens to be active.
unexport VIRTUAL_ENV PYTHONHOME PYTHONPATH
# Tests start many processes, and without the cache each compiles every module that it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup azurite kusto axe jdbc kusto-clients capi capi-bundle demo test lint unit soak bench bench-check gates docs dist test-oldest lock clean distclean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(VENV)/.deps $(PEERS)/.deps $(VENV)/.delta-spark azurite kusto axe jdbc $(VENV)/.mono $(VENV)/.chromium  ## install everything into .venv (a second run is quick)

# The demo does without Azurite and the other readers.
demo: $(VENV)/.deps $(VENV)/.java  ## show what lazydelta does, on a real table made on the spot
	@JAVA_HOME="$$(scripts/find_java --home)" $(VENV)/bin/lazydelta demo $(ARGS)

test: setup lint unit  ## lint, then all tests but the soak tests

lint: $(VENV)/.deps  ## ruff (rules and format) and mypy, all strict
	$(VENV)/bin/ruff check $(SOURCES)
	$(VENV)/bin/ruff format --check $(SOURCES)
	$(VENV)/bin/mypy $(SOURCES)

unit: setup  ## the tests alone; ARGS="-k name" chooses some
	$(PY) -m pytest -m "not slow" -n $(WORKERS) --dist loadgroup $(ARGS)

soak: setup kusto-clients  ## the tests that take minutes
	$(PY) -m pytest -m slow --timeout 3600 $(ARGS)

bench: setup  ## the ladder, its peers, growth, object store and writers; SCALE=10M for a larger table
	$(PY) -m benchmarks.full_run --scale $(SCALE) $(ARGS)

bench-check: setup  ## a short run of the ladder beside the committed one; fails on a regression
	$(PY) -m benchmarks.bench_check $(ARGS)

gates: setup  ## what is promised, measured beside deltalake and the other peers
	$(PY) -m benchmarks $(ARGS)

capi: $(VENV)/.deps  ## build libdelta_lazy.so and its header into build/capi
	@$(PY) -m lazydelta.capi.build build/capi

capi-bundle: $(VENV)/.deps  ## make a relocatable folder of libdelta_lazy.so with its Python, in build/capi-bundle
	@$(PY) -m lazydelta.capi.bundle build/capi-bundle

docs: $(VENV)/.deps  ## build the documentation into build/site; a broken link is an error
	$(VENV)/bin/zensical build --strict --clean

dist: $(VENV)/.deps  ## build wheel and sdist into dist, and try the wheel with each extra in empty environments
	@$(PY) scripts/try_wheel.py $(ARGS)

# What reads, writes and queries, with the oldest versions that pyproject.toml allows.
OLDEST_TESTS := tests/predicates tests/protocol tests/log/test_checkpoints.py tests/log/test_golden.py tests/rows/test_streams.py \
    tests/rows/test_types.py tests/write/test_arrow.py tests/sidecar/test_tiers.py tests/table/test_natural_lines.py

test-oldest: $(OLDEST)/.deps  ## a core of the tests with the oldest dependencies that are allowed
	$(OLDEST)/bin/python -m pytest -m "not slow and not azurite and not s3" -p no:cacheprovider -n $(WORKERS) $(OLDEST_TESTS) $(ARGS)

lock: $(VENV)/.uv  ## refresh requirements/dev.txt from pyproject.toml
	$(UV) pip compile --quiet --upgrade --universal --python-version 3.11 --extra dev --no-header --no-annotate \
	    --no-emit-index-url --no-emit-find-links --output-file requirements/dev.txt pyproject.toml

clean:  ## remove what builds, tests and tools leave behind
	rm -rf build dist site .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests scripts $(wildcard benchmarks) -type d -name __pycache__ -prune -exec rm -rf {} +

distclean: clean  ## also remove the environments
	rm -rf $(VENV) $(PEERS) $(OLDEST)

# Stamp files: each is written when its step is whole, so an interrupted setup goes on where it stopped. `scripts/step`
# says in a line what is done; what tools print goes to build/setup.log, and is shown where they fail.

# An existing environment is adopted as it is.
$(VENV)/.venv: scripts/find_python
	@if ! $(PY) -m pip --version >/dev/null 2>&1; then \
	    python="$(PYTHON)"; [ -n "$$python" ] || python=$$(scripts/find_python) || exit 1; \
	    scripts/step "making $(VENV) with $$python" "$$python" -m venv $(VENV) || exit 1; \
	fi
	@touch $@

$(VENV)/.uv: $(VENV)/.venv
	@scripts/step "installing uv $(UV_VERSION)" $(PY) -m pip install 'uv==$(UV_VERSION)'
	@touch $@

# The pins go in as constraints, so that a dependency missing from them is installed rather than forgotten.
$(VENV)/.deps: $(VENV)/.uv pyproject.toml requirements/dev.txt
	@scripts/step "installing lazydelta with PySpark and what its tests need" $(UV) pip install --python $(PY) \
	    --constraint requirements/dev.txt --build-constraint requirements/dev.txt --editable '.[dev]'
	@touch $@

$(PEERS)/.deps: $(VENV)/.uv requirements/peers.txt
	@scripts/step "making $(PEERS)" $(UV) venv --allow-existing --python $(PY) $(PEERS)
	@scripts/step "installing the other readers" $(UV) pip install --python $(PEERS)/bin/python \
	    --requirement requirements/peers.txt
	@touch $@

# Tools of the tests are as pinned, and need what is newer than our bounds where these are theirs as well.
$(OLDEST)/.deps: $(VENV)/.uv pyproject.toml requirements/dev.txt
	@scripts/step "making $(OLDEST)" $(UV) venv --allow-existing --python $(PY) $(OLDEST)
	@mkdir -p build
	@scripts/step "finding the oldest versions" $(UV) pip compile --quiet --resolution lowest-direct --python $(PY) \
	    --extra datafusion --extra duckdb --extra kql --extra pandas --extra polars --no-header --no-annotate \
	    --output-file build/oldest.txt pyproject.toml
	@grep -E '^(deltalake|hypothesis|pytest|pytest-asyncio|pytest-timeout|pytest-xdist|zstandard)==' requirements/dev.txt > build/tools.txt
	@scripts/step "installing them" $(UV) pip install --python $(OLDEST)/bin/python \
	    --requirement build/oldest.txt --requirement build/tools.txt
	@scripts/step "installing lazydelta" $(UV) pip install --python $(OLDEST)/bin/python --no-deps --editable .
	@touch $@

# The JAR comes with the first session that asks for it; a set-up without Java or network goes on without this peer.
$(VENV)/.delta-spark: $(VENV)/.deps | $(VENV)/.java
	@scripts/step --optional "fetching Delta-Spark" $(PY) tests/peers/delta_spark_server.py --fetch \
	    || echo "warning: tests with Delta-Spark are skipped" >&2
	@touch $@

# Java is for the Spark pipeline only, so its absence is a warning. Asked for once, not at every run.
$(VENV)/.java: scripts/find_java | $(VENV)/.venv
	@scripts/step --optional "looking for Java 17" scripts/find_java --install || echo "warning: going on without Java" >&2
	@touch $@

# mono is for the tests of the C# example only.
$(VENV)/.mono: scripts/find_mono | $(VENV)/.venv
	@scripts/step --optional "looking for mono" scripts/find_mono --install || echo "warning: the C# example is not tested" >&2
	@touch $@

# Chromium is for the tests of the page only.
$(VENV)/.chromium: scripts/find_chromium | $(VENV)/.venv
	@scripts/step --optional "looking for Chromium" scripts/find_chromium --install || echo "warning: the page is not tested" >&2
	@touch $@

# Looked at every time, because the cache it lives in is outside this folder and may be emptied.
azurite: $(VENV)/.deps
	@$(PY) -m scripts.install_azurite --is-there || scripts/step "installing Azurite" $(PY) -m scripts.install_azurite

kusto: $(VENV)/.deps
	@$(PY) -m scripts.install_kusto --is-there || scripts/step "installing Microsoft's analyser of KQL" $(PY) -m scripts.install_kusto

axe: $(VENV)/.deps
	@$(PY) -m scripts.install_axe --is-there || scripts/step "installing axe-core" $(PY) -m scripts.install_axe

jdbc: $(VENV)/.deps | $(VENV)/.java
	@$(PY) -m scripts.install_jdbc --is-there || scripts/step --optional "fetching Arrow's JDBC driver" $(PY) -m scripts.install_jdbc \
	    || echo "warning: tests with JDBC are skipped" >&2

# For the slow tests only.
kusto-clients: $(VENV)/.deps | $(VENV)/.java
	@$(PY) -m scripts.install_kusto_clients --is-there || scripts/step --optional "fetching Kusto clients for Node and Java" \
	    $(PY) -m scripts.install_kusto_clients || echo "warning: tests with other Kusto clients are skipped" >&2
