# One way to set up: a virtual environment in .venv, filled with exactly what requirements.lock
# names. Needs Python 3.11 or newer, git, make and a package registry.
# Another Python: make test PYTHON=python3.13; it stays until another one is asked for.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
WORDS  := $(VENV)/.vocabulary
# Two more than there are cores, because some tests wait for processes; at most four.
WORKERS := $(shell cores=$$(nproc 2>/dev/null || echo 2); echo $$((cores < 3 ? cores + 2 : 4)))
# More to tell pytest or the benchmarks, for example: make test ARGS="-k interrupt"
ARGS   ?=

UV_ON_PATH := $(shell command -v uv 2>/dev/null)
UV         := $(or $(UV_ON_PATH),$(BIN)/uv)

# uv does not read pip's settings: a mirror or a certificate that pip was told of holds for uv, too.
# Where no home can be written to, its cache lives in .venv.
UV_ENV = pip_says() { $(PYTHON) -m pip config list 2>/dev/null | sed -n "s/^global\.$$1='\(.*\)'/\1/p"; }; \
  index="$${UV_DEFAULT_INDEX:-$${UV_INDEX_URL:-$${PIP_INDEX_URL:-$$(pip_says index-url)}}}"; \
  [ -z "$$index" ] || export UV_DEFAULT_INDEX="$$index"; \
  cert="$${SSL_CERT_FILE:-$${PIP_CERT:-$$(pip_says cert)}}"; \
  [ -z "$$cert" ] || export SSL_CERT_FILE="$$cert"; \
  [ -w "$$HOME" ] || export UV_CACHE_DIR="$${UV_CACHE_DIR:-$(VENV)/cache}";

# The same for the token vocabulary, which belongs into the user's cache.
ifeq ($(LLMSESSION_CACHE)$(XDG_CACHE_HOME)$(shell [ -w "$$HOME" ] && echo home),)
  export LLMSESSION_CACHE := $(CURDIR)/$(VENV)/cache
endif

# Where Python is told to keep no compiled files, as in many containers, every process of the tests
# would compile the whole package again: they are kept in .venv there.
ifneq ($(PYTHONDONTWRITEBYTECODE),)
  export PYTHONDONTWRITEBYTECODE :=
  export PYTHONPYCACHEPREFIX := $(CURDIR)/$(VENV)/pycache
endif

# A Python that was asked for by name replaces a .venv made with another version.
ifneq ($(origin PYTHON),file)
  WANTED := $(shell $(PYTHON) -c 'import sys; print("python%d.%d" % sys.version_info[:2])' 2>/dev/null)
  ifeq ($(wildcard $(VENV)/lib/$(or $(WANTED),none)),)
    REMAKE := remake
  endif
endif

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup remake run run-cluster test test-quick test-long mutants model check docs docs-tables pictures coverage release release-check bench bench-diff soak live vocabulary lock stubs clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(WORDS) ## make .venv from the lock; instant when nothing changed
	@:

run: setup ## a tour with a real service: recorded replies, no model, no key, offline
	@$(BIN)/python -m examples.story examples/recordings/*.jsonl

run-cluster: setup ## a tour of a cluster: three hosts; one is killed, one drained, one added
	@$(BIN)/python -m examples.cluster $(ARGS)

test: setup ## every test but the long ones
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

test-quick: setup ## the fast tests, in under a minute
	@$(BIN)/python -m pytest -n auto --maxprocesses 4 --quick $(ARGS)

test-long: setup ## the long versions alone
	@$(BIN)/python -m pytest -m long --timeout 3600 $(ARGS)

mutants: setup ## break the rules one by one, and see which test catches each
	@$(BIN)/python -m tests.mutants $(ARGS)

model: setup ## check the models of a session and a cluster, and put their bugs in (needs spin and gcc)
	@$(BIN)/python -m model $(ARGS)

check: setup ## lint, format, strict types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: setup ## build the site into docs/_build/html; a link that leads nowhere fails
	@$(BIN)/sphinx-build -q -b html -W --keep-going -d docs/_build/cache docs docs/_build/html
	@echo "docs/_build/html/index.html"

docs-tables: setup ## write the generated parts of the documents anew, from the code
	@$(BIN)/python -m docs.generate
	@$(BIN)/llmsession schema > llmsession/transport/v1/wire.schema.json

pictures: setup ## draw the pictures of the documents anew from their source
	@$(BIN)/python -m docs.pictures.draw

coverage: setup ## every test but the long ones, measured; fails below the floor in pyproject.toml
	@rm -f .coverage .coverage.*
	@$(BIN)/coverage run -m pytest -n $(WORKERS) --dist worksteal --timeout 600 $(ARGS) \
	  || [ $$? = 1 ]  # a test may fail because measuring is slow: make test judges them
	@$(BIN)/coverage combine -q
	@$(BIN)/coverage report

release: setup ## make and check the release VERSION=1.2.3; publishes nothing (ARGS=--tag: tags it, here only)
	@$(UV_ENV) $(BIN)/python -m tools.release $(VERSION) $(ARGS)

release-check: setup ## rehearse a release on the tree as it is (ARGS=--no-tests: without the tests)
	@$(UV_ENV) $(BIN)/python -m tools.release --rehearse $(ARGS)

bench: setup ## the benchmarks beside their bare baselines, then the peers (ARGS=peers: those alone; ARGS=--save: for the docs)
	@$(UV_ENV) $(BIN)/python -m benchmarks $(ARGS)

bench-diff: setup ## two commits side by side; fails if one row became slower: make bench-diff BASE=main
	@$(BIN)/python -m benchmarks.diff $(or $(BASE),main) $(ARGS)

soak: setup ## an hour of mixed load with faults: does anything grow? (ARGS="--minutes 20")
	@$(BIN)/python -m benchmarks.soak $(ARGS)

live: setup ## a smoke test with your key: names its highest cost, and asks
	@$(BIN)/python examples/live.py $(ARGS)

vocabulary: $(READY) ## fetch the vocabulary that tokens are counted with, if it is not there
	@$(UV_ENV) $(BIN)/llmsession vocabulary

lock: setup ## write requirements.lock anew from pyproject.toml
	@$(UV_ENV) $(UV) pip compile -q --universal --generate-hashes --no-emit-index-url --upgrade \
	  --python-version 3.11 --custom-compile-command "make lock" \
	  --all-extras --group dev pyproject.toml -o requirements.lock

stubs: setup ## generate the gRPC stubs anew from proto/
	@$(BIN)/python -m grpc_tools.protoc -I llmsession/transport/v1=proto/llmsession/v1 \
	  --python_out=. --grpc_python_out=. --pyi_out=. proto/llmsession/v1/session.proto
	@cp proto/llmsession/v1/session.proto llmsession/transport/v1/  # it ships in the wheel

clean: ## remove .venv and every cache
	rm -rf $(VENV) build dist .coverage .coverage.* .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

remake:

# A missing stamp means no .venv, one that was left half made, or another Python: start from nothing.
# The lock also names uv, so the bootstrapped one is pinned and hashed like the rest.
$(READY): pyproject.toml requirements.lock $(REMAKE)
	@if [ ! -e $@ ] || [ -n "$(REMAKE)" ] || ! $(BIN)/python -c "" 2>/dev/null; then \
	  $(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11))" 2>/dev/null || { \
	    echo "llmsession needs Python 3.11 or newer, and $(PYTHON) is" \
	      "$$($(PYTHON) --version 2>/dev/null || echo not there): try make $(firstword $(MAKECMDGOALS)) PYTHON=python3.13" >&2; \
	    exit 1; }; \
	  $(PYTHON) -m venv --clear $(if $(UV_ON_PATH),--without-pip) $(VENV) || exit 1; \
	fi
	@if [ ! -x "$(UV)" ]; then \
	  awk '/^[^ #]/ { on = /^uv==/ } on' requirements.lock > $(VENV)/uv.lock && \
	  $(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes --no-deps -r $(VENV)/uv.lock; \
	fi
	@$(UV_ENV) \
	$(UV) pip sync -q --python $(BIN)/python --require-hashes \
	  --build-constraints requirements.lock requirements.lock && \
	$(UV) pip install -q --python $(BIN)/python --no-deps --no-build-isolation -e .
	@touch $@
	@echo "ready: $(VENV), $$($(BIN)/python --version)"

# Made once, also when there is no vocabulary to be had: counts are estimates then, which is said,
# and `make vocabulary` tries again.
$(WORDS): $(READY)
	@$(UV_ENV) $(BIN)/llmsession vocabulary || true
	@touch $@
