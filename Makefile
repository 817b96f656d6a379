# One command per purpose; `make` alone lists them. Needs bash, Python 3.11 or later, Java 17 or 21.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:

# Compiled modules are kept below .cache: a run of the tests starts Python some hundred times.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(CURDIR)/.cache/pycache

SEEDS := 1000
SECONDS := 60
RUNS := 100
RECORDS := 5000000
MINUTES := 30
SEED := 1
STORE :=
STEPS :=
SPARK :=
# Which tests `make test` runs a second time, on Spark Connect: CONNECT=spark takes all.
CONNECT := connect
JVMS := 3
VENV := .venv
BIN := $(VENV)/bin
LOG := .cache/setup.log
SERVERS := .cache/servers
DOCS := .cache/docs
SITE := .cache/site
# Another interpreter: make setup PYTHON=/path/to/python3.12 (after make clean).
PYTHON ?=
FIND_PYTHON = for python in "$(PYTHON)" python3.12 python3.13 python3.11 python3 /usr/bin/python3 python3.14; do \
	  if [[ -n $$python ]] && "$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
	  then command -v "$$python"; exit 0; fi; \
	  if [[ -n "$(PYTHON)" ]]; then break; fi; done; \
	echo "Python 3.11 or later with venv is needed: install one (Debian: apt-get install python3-venv) or say PYTHON=/path/to/python3" >&2; \
	exit 1
# Runs a step quietly: one line for it, and the end of the log if it fails.
QUIETLY = quietly() { echo "$$1"; shift; mkdir -p .cache; "$$@" >>$(LOG) 2>&1 || { tail -n 25 $(LOG) >&2; exit 1; }; }; quietly
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input --quiet

.PHONY: help setup servers check lint test nightly slowest coverage matrix sim quorum fuzz crash unattended demo kafka brokers bench docs format lock java clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: java $(VENV)/.installed .cache/jars/.fetched ## the pinned packages into .venv, Spark's extra jars into .cache

# Not part of setup: one needs Node, the other Go, which compiles it for two minutes.
servers: $(VENV)/.installed ## servers of Azure's and Google's kind, axe-core, DuckDB and a checker of histories, into .cache; without them, their tests are skipped
	@mkdir -p $(SERVERS); : >> $(LOG)
	@[[ -x $(SERVERS)/node_modules/.bin/azurite-blob ]] || ( $(QUIETLY) "servers: Azurite" \
	  npm install --silent --no-fund --no-audit --prefix $(SERVERS) azurite@3.35.0 ) || echo "no Azurite: its tests are skipped" >&2
	@[[ -f $(SERVERS)/node_modules/axe-core/axe.min.js ]] || ( $(QUIETLY) "servers: axe-core" \
	  npm install --silent --no-fund --no-audit --prefix $(SERVERS) axe-core@4.14.1 ) || echo "no axe-core: its tests are skipped" >&2
	@[[ -x $(SERVERS)/fake-gcs-server ]] || ( $(QUIETLY) "servers: fake-gcs-server" env GOBIN=$(CURDIR)/$(SERVERS) \
	  go install github.com/fsouza/fake-gcs-server@v1.56.1 ) || echo "no fake-gcs-server: its tests are skipped" >&2
	@[[ -d $(SERVERS)/duckdb ]] || ( $(QUIETLY) "servers: DuckDB" $(PIP) install --target $(SERVERS)/duckdb \
	  duckdb==1.5.5 duckdb-extension-delta==1.5.5 duckdb-extension-iceberg==1.5.5 duckdb-extension-avro==1.5.5 pytz==2026.6 ) \
	  || echo "no DuckDB: its tests are skipped" >&2
	@( $(QUIETLY) "servers: the checker of histories" go -C tests/linearizability/checker build -o $(CURDIR)/$(SERVERS)/linearizable . ) \
	  || echo "no checker of histories: its tests are skipped" >&2

check: $(VENV)/.installed lint ## format, lint, types, and the tests that are quick and need neither a JVM nor a server
	@STRATALOG_TEST_DEPTH=check $(BIN)/python -m pytest -n auto --maxprocesses 8

# Beside the linters, one process compiles the tests, which each worker would do otherwise. First what needs no JVM and
# no server. Then files of tests side by side, the longest first, in JVMs that wait more
# than they compute. Last, side by side: a part on a session of Spark Connect, which cannot share a process with a
# classic one, and a smoke run on the oldest Spark, Arrow and pandas. Status 5: the chosen tests have none of that kind.
test: setup ## each guarantee once, on folders, S3, a classic session, Connect and the oldest Spark; or some: TESTS=tests/unit
	@$(BIN)/python -m pytest --collect-only $(TESTS) > .cache/collected.log 2>&1 & \
	  $(MAKE) --no-print-directory lint || { wait; exit 1; }; wait
	@rm -rf .cache/durations
	@$(BIN)/python -m pytest -n auto --maxprocesses 8 -m "not spark and not s3" $(TESTS) || [[ $$? == 5 ]]
	@$(BIN)/python -m pytest -n $(JVMS) --dist loadfile --no-loadscope-reorder -m "spark or s3" $(TESTS) || [[ $$? == 5 ]]
	@if [[ -z "$(TESTS)" ]]; then $(BIN)/python -m tests.matrix 4.0 --quick > .cache/smoke.log 2>&1 & fi; \
	  STRATALOG_TEST_CONNECT=1 $(BIN)/python -m pytest -m "$(CONNECT)" $(TESTS) || [[ $$? == 5 ]] || { wait; exit 1; }; \
	  if [[ -z "$(TESTS)" ]]; then wait $$! && tail -n 2 .cache/smoke.log || { cat .cache/smoke.log; exit 1; }; fi

nightly: setup servers .cache/jars/.kafka ## everything else, to its end, with a table in docs/proof.md; or some steps: make nightly STEPS="kafka sim"
	@$(BIN)/python -m tests.nightly $(STEPS)

slowest: $(VENV)/.installed ## where the time of the last make test went: by kind, test, file and fixture
	@$(BIN)/python -m tests.durations

coverage: setup ## branch coverage of the product by make test
	@$(BIN)/python -m tests.coverage

matrix: $(VENV)/.installed java ## the Spark tests on Spark 4.0 to 4.3 with Pythons and Arrows of their own; or one: make matrix SPARK=4.0
	@$(BIN)/python -m tests.matrix $(SPARK)

sim: $(VENV)/.installed ## the deterministic simulation: make sim SEEDS=20000 SEED=1
	@$(BIN)/python -m tests.simulation --seeds $(SEEDS) --seed $(SEED)

quorum: $(VENV)/.installed ## the same of the metadata quorum alone: make quorum SEEDS=20000 SEED=1
	@$(BIN)/python -m tests.quorum --seeds $(SEEDS) --seed $(SEED)

fuzz: $(VENV)/.installed ## mutate the files of a cluster, and run everything that reads them: make fuzz SECONDS=600 SEED=7
	@$(BIN)/python -m tests.fuzz --seconds $(SECONDS) $(if $(filter file,$(origin SEED)),,--seed $(SEED))

crash: setup ## kill -9 of real jobs at random moments: make crash RUNS=100 SEED=1
	@$(BIN)/python -m tests.crashes --runs $(RUNS) --seed $(SEED)

unattended: $(VENV)/.installed ## processes killed, a broker lost, nobody but maintain, on a real S3 server: make unattended MINUTES=30
	@$(BIN)/python -m tests.crashes.unattended --minutes $(MINUTES) --seed $(SEED)

demo: setup $(if $(filter azure gcs,$(STORE)),servers) ## real data through the whole life of a log, in a terminal; on a server: STORE=s3, s3fs, azure or gcs
	@$(BIN)/python -m demo $(if $(STORE),--store $(STORE)) $(ARGS)

kafka: setup .cache/jars/.kafka ## the same scripts on the engine and on a real Kafka broker, which is fetched and started
	@STRATALOG_TEST_DEPTH=nightly $(BIN)/python -m pytest tests/kafka

brokers: setup .cache/jars/.kafka ## three real Kafka brokers and mirrors of them, killed: make brokers RECORDS=20000000 RUNS=100 SEED=1
	@$(BIN)/python -m tests.kafka --records $(RECORDS) --kills $(RUNS) --seed $(SEED)

bench: setup ## throughput on this machine, into docs/performance.md: make bench BYTES=1GiB PARTITIONS=8
	@$(BIN)/python -m bench $(ARGS)

docs: $(DOCS)/.installed ## the documentation as pages in .cache/site, links checked; each page as Markdown, too
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --quiet --strict --site-dir $(SITE)
	@echo "$(SITE)/index.html"

format: $(VENV)/.installed ## rewrite the sources as the linter wants them
	@$(BIN)/ruff check --quiet --fix-only .
	@$(BIN)/ruff format --quiet .

# The hashes are those of every file of a version, for all platforms, as the index has them that pip is configured for.
lock: ## resolve the dependencies anew into requirements.lock, and hash those of the documentation
	@python=$$($(FIND_PYTHON)); rm -rf .cache/lock; $(QUIETLY) "resolving" $$python -m venv .cache/lock
	@$(QUIETLY) "installing" .cache/lock/bin/python -m pip install --quiet -e ".[spark,connect,s3fs,delta,azure,gcs,iceberg,metrics,otlp,completion,avro,protobuf,kafka,serve,kafka-tier,demo,dev]"
	@.cache/lock/bin/python -m pip freeze --all --exclude pip --exclude stratalog > .cache/lock/pinned
	@$(QUIETLY) "what hashes" .cache/lock/bin/python -m pip install --quiet uv
	@index=$${PIP_INDEX_URL:-$$(.cache/lock/bin/python -m pip config get global.index-url 2>/dev/null || true)}; \
	  if [[ -n $$index ]]; then export UV_DEFAULT_INDEX=$$index; fi; \
	  hashed() { .cache/lock/bin/uv pip compile --quiet --no-config --no-deps --generate-hashes --no-header --no-annotate \
	    --python .cache/lock/bin/python "$$1"; }; \
	  { echo "# Every package of the extras spark, connect, s3fs, delta, azure, gcs, iceberg, metrics, otlp, completion, avro, protobuf, kafka, serve, kafka-tier, demo and dev, pinned, with the hashes of its files; \`make lock\` writes this file again."; \
	    hashed .cache/lock/pinned; } > .cache/lock/requirements.lock; \
	  { grep '^#' docs/requirements.txt; hashed docs/requirements.txt; } > .cache/lock/docs.txt
	@mv .cache/lock/requirements.lock requirements.lock; mv .cache/lock/docs.txt docs/requirements.txt; rm -rf .cache/lock

clean: ## remove what setup and the tests left behind
	@rm -rf $(VENV) .cache .hypothesis .pytest_cache .mypy_cache .ruff_cache *.egg-info build dist
	@rm -rf spark-warehouse metastore_db derby.log artifacts
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

lint: $(VENV)/.installed
	@$(BIN)/ruff format --quiet --check --output-format concise . || { echo "not formatted: make format" >&2; exit 1; }
	@$(BIN)/ruff check --quiet --output-format concise .
	@$(BIN)/python -m tests.prose & prose=$$!; types=0; $(BIN)/mypy --no-error-summary || types=$$?; \
	  wait $$prose && exit $$types

# Before anything takes long, and with the system's Python: .venv may not be there yet.
java:
	@python=$$($(FIND_PYTHON)); $$python -m stratalog.jobs.java >/dev/null

$(VENV)/.installed: pyproject.toml requirements.lock
	@python=$$($(FIND_PYTHON)); mkdir -p .cache; : > $(LOG); \
	  if ! $(BIN)/python -c '' 2>/dev/null; then rm -rf $(VENV); $(QUIETLY) "setup: .venv from $$python" "$$python" -m venv $(VENV); fi
	@$(QUIETLY) "setup: packages of requirements.lock" $(PIP) install --no-deps --require-hashes -r requirements.lock
	@$(QUIETLY) "setup: the project itself, editable" $(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

# An environment of its own: what builds pages must not move what is tested.
$(DOCS)/.installed: docs/requirements.txt
	@python=$$($(FIND_PYTHON)); rm -rf $(DOCS); $(QUIETLY) "docs: an environment in $(DOCS)" $$python -m venv $(DOCS)
	@$(QUIETLY) "docs: packages of docs/requirements.txt" $(DOCS)/bin/python -m pip --disable-pip-version-check \
	  --no-input --quiet install --no-deps --require-hashes -r docs/requirements.txt
	@touch $@

.cache/jars/.fetched: conf/jars.xml $(VENV)/.installed
	@$(QUIETLY) "setup: Spark's extra jars" $(BIN)/python -m stratalog.jobs.jars
	@touch $@

.cache/jars/.kafka: conf/kafka.xml $(VENV)/.installed
	@$(QUIETLY) "setup: a Kafka broker to compare with" $(BIN)/python -m stratalog.jobs.jars kafka
	@touch $@
