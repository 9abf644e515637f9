# `make help` explains every target.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
TESTS ?= tests
WORKERS ?= 2
NODES ?=

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: install
install: .venv/installed ## Create .venv with everything pinned, and kimi-k3 in it

.venv/installed: requirements/dev.txt pyproject.toml
	@echo "creating .venv (about a minute)"
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

.PHONY: controlplane
controlplane: ## Build etcd, Kubernetes 1.37.2 and kwok for tests, once per user (needs Go; minutes when cold)
	$(PYTHON) tools/build.py --only controlplane,kwok

.PHONY: tools
tools: ## As controlplane, and helm
	$(PYTHON) tools/build.py

.PHONY: tools-dir
tools-dir: ## Print the folder of the built programs: PATH="$$(make -s tools-dir):$$PATH"
	@$(PYTHON) tools/build.py --print-dir

.PHONY: cluster
cluster: install controlplane ## Run a practice cluster in the foreground; NODES=file.yaml takes other nodes
	$(BIN)/python -m tests.harness.practice $(foreach file,$(NODES),--nodes $(file))

.PHONY: demo
demo: install controlplane ## Show it: practice cluster, operator, seven replicas on three kinds of hardware, a change
	$(BIN)/python -m tests.harness.demo

.PHONY: test
test: install controlplane ## All tests of this machine, with progress
	$(BIN)/pytest $(TESTS) -n $(WORKERS) --dist loadfile --durations 10

.PHONY: unit
unit: install ## Only the tests that need nothing but Python; seconds
	$(BIN)/pytest tests/unit tests/golden -q

.PHONY: coverage
coverage: install ## Unit and golden tests with the coverage gate
	$(BIN)/pytest tests/unit tests/golden -q --cov --cov-report=term --cov-fail-under=$(COVERAGE)
COVERAGE := 97

.PHONY: test-engine
test-engine: install ## Rendered command lines against the real vLLM parser (4 minutes and 7 GB the first time)
	$(BIN)/python tools/engine_venv.py
	$(BIN)/pytest tests/engine -m engine

.PHONY: test-kubelet
test-kubelet: install controlplane ## Pods run as processes in network namespaces of their own (root, iproute2)
	$(BIN)/pytest tests/harness -m kubelet -q

.PHONY: golden
golden: install ## Write the golden files anew; review the difference as YAML
	KIMI_K3_UPDATE_GOLDEN=1 $(BIN)/pytest tests/golden -q

.PHONY: generate
generate: install ## Write everything that is generated: CRDs, profile schema, pages
	$(BIN)/python tools/generate_crds.py
	$(BIN)/python tools/generate_profiles.py
	$(BIN)/python tools/generate_refusals.py

.PHONY: format
format: install ## Format the code
	$(BIN)/ruff format operator tests tools
	$(BIN)/ruff check --fix operator tests tools

.PHONY: lint
lint: install ## ruff, mypy strict, import contracts, dependencies, YAML, generated files up to date
	$(BIN)/ruff format --check operator tests tools
	$(BIN)/ruff check operator tests tools
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/deptry operator
	$(BIN)/yamllint --strict profiles samples crds
	$(BIN)/python tools/generate_crds.py --check
	$(BIN)/python tools/generate_profiles.py --check
	$(BIN)/python tools/generate_refusals.py --check

.PHONY: lock
lock: install ## Write the hashed lock files anew from pyproject.toml (needs uv)
	uv pip compile pyproject.toml --generate-hashes --no-emit-index-url --no-header --universal --python-version 3.11 -q -o requirements/runtime.txt
	uv pip compile pyproject.toml --group dev --generate-hashes --no-emit-index-url --no-header --universal --python-version 3.11 -q -o requirements/dev.txt

.PHONY: check
check: lint coverage test ## What CI runs; nothing else is "the check"

.PHONY: clean
clean: ## Remove what make made here (not the built programs, which other checkouts share)
	rm -rf .venv .cluster .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage
