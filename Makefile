# Two commands for a new machine with Python 3.11, make and git:
#   make demo                        trades on the embedded service, play money, offline; make demo ARGS="--for 60s"
#   make test                        installs what the tests need and runs all of them
# Also: make docs · make dist (wheel, sdist, SBOM and notes of a release, tried on each Python) · make soak (ARGS="--worlds 500 --kills 5": smaller) · make bench · make lint · make pins (after a change of dependencies) · make clean
# Another interpreter: make demo PYTHON=/path/to/python3.12

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

ARGS ?=
BIN := .venv/bin

# The installer is pinned like everything else, and lives in the project's own folder: it needs no rights and touches no other Python.
UV_VERSION := $(shell sed -n 's/^uv==\([^ ]*\).*/\1/p' requirements-uv.txt)
UV_READY := .tools/uv-$(UV_VERSION).dist-info/RECORD
UV := .tools/bin/uv

export UV_PYTHON_DOWNLOADS := never
export UV_NO_PROGRESS := 1
unexport VIRTUAL_ENV PYTHONHOME PYTHONPATH
# Compiled once, not at each of the hundreds of process starts of a test run.
unexport PYTHONDONTWRITEBYTECODE
ifdef PIP_INDEX_URL
export UV_DEFAULT_INDEX ?= $(PIP_INDEX_URL)
endif
ifneq ($(shell mkdir -p "$${XDG_CACHE_HOME:-$$HOME/.cache}" 2>/dev/null && test -w "$${XDG_CACHE_HOME:-$$HOME/.cache}" && echo yes),yes)
export UV_CACHE_DIR := .tools/cache
endif

# Looked for only when something has to be installed.
PYTHON = $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null && { command -v "$$p"; break; }; done)

# An environment whose interpreter is gone, or that stood in another folder, is made again.
# A link to the folder is the same folder.
$(shell [ -e $(BIN)/python ] && [ "$$(cat .venv/home 2>/dev/null)" = "$$(pwd -P)" ] || rm -f .venv/run.stamp .venv/dev.stamp .venv/markets.stamp)

# One environment. The development pins contain the run-time pins, so whoever has run the tests is not stepped back by the demo.
READY := $(if $(wildcard .venv/dev.stamp),.venv/dev.stamp,.venv/run.stamp)

.PHONY: help demo test docs dist soak bench lint install pins clean

help:
	@sed -n '1,/^$$/s/^# \{0,1\}//p' Makefile

demo: $(READY)
	@exec $(BIN)/bot demo $(ARGS)

test: .venv/dev.stamp .venv/markets.stamp
	@exec $(BIN)/python -m pytest -q -n auto $(ARGS)

# The site goes into build/site; `bot docs` shows it.
docs: .venv/dev.stamp
	@exec $(BIN)/bot docs --build

# The files of a release go into dist/. It installs the wheel into an empty environment of each Python that is here.
dist: .venv/dev.stamp
	@exec $(BIN)/python -m tests.dist $(ARGS)

soak: .venv/dev.stamp .venv/markets.stamp
	@exec $(BIN)/python -m pytest -q -m soak -n auto -o faulthandler_timeout=0 --full $(ARGS)
	@$(BIN)/python -m tests.bench.soak
	@exec $(BIN)/python -m tests.bench.exchange_month

bench: .venv/dev.stamp .venv/markets.stamp
	@for one in venue journal session http scale daemon many pull dashboard sweep exchange exchange_order; do echo "== tests/bench/$$one.py"; $(BIN)/python -m tests.bench.$$one; done

# `make test` runs each of these lines once, as a test: tests/test_house.py reads them here.
lint: .venv/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/deptry .
	$(BIN)/hadolint Dockerfile
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec compose.yaml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/release.yml

install: $(READY)

# One `make` at a time changes the environment; another one waits, and installs nothing that the first has installed.
LOCK = exec 9>.make.lock; flock 9; if [ -n "$$(find $@ $(addprefix -newer ,$^) 2>/dev/null)" ]; then exit 0; fi;

define check_python
	@[ -n "$(PYTHON)" ] && "$(PYTHON)" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null || { \
		echo "Bracketbot needs Python 3.11 to 3.14; $(or $(PYTHON),python3) here is $$("$(or $(PYTHON),python3)" --version 2>&1 || true)." \
		"Install one, or name it: make demo PYTHON=/path/to/python3.12" >&2; exit 1; }
endef

$(UV_READY):
	$(check_python)
	@"$(PYTHON)" -m pip --version >/dev/null 2>&1 || { echo "$(PYTHON) has no pip (on Debian: apt install python3-pip)." >&2; exit 1; }
	@$(LOCK) echo "Installing uv $(UV_VERSION) into .tools"; \
	PIP_USER=0 "$(PYTHON)" -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --upgrade \
		--require-hashes --target .tools -r requirements-uv.txt; touch $@

# `bot` stays in place meanwhile, because a daemon may be started: the package is never uninstalled, and what is not needed is removed last.
# The hashes are checked first, since an editable package has none.
FILL = $(UV) pip install --quiet --compile-bytecode --require-hashes --no-deps --python $(BIN)/python -r $(1) && \
	{ cat $(1); echo "-e ."; } > .venv/wanted.txt && \
	$(UV) pip install --quiet --exact --no-deps --python $(BIN)/python -r .venv/wanted.txt && $(BIN)/bot --version >/dev/null
NEW_VENV = $(UV) venv --quiet --clear --python "$(PYTHON)" .venv && pwd -P > .venv/home

# The stamp is written after `bot --version` ran. What an interrupted installation has left is made anew. Who has the tools of the tests keeps them.
define install
	$(check_python)
	@$(LOCK) if [ $@ = .venv/run.stamp ] && [ -e .venv/dev.stamp ]; then touch $@; exit 0; fi; rm -f $@; \
	[ -x $(BIN)/python ] && [ "$$(cat .venv/home 2>/dev/null)" = "$$(pwd -P)" ] || { $(NEW_VENV); }; \
	echo "Installing $(1) into .venv"; \
	{ $(FILL); } || { echo "Starting again with an empty .venv" >&2; $(NEW_VENV) && $(FILL); }; \
	touch $@
endef

.venv/run.stamp: requirements.txt pyproject.toml $(UV_READY)
	$(call install,requirements.txt)

.venv/dev.stamp: requirements-dev.txt pyproject.toml $(UV_READY)
	$(call install,requirements-dev.txt)

# The feeder process of exchange prices: ccxt pins versions that differ from ours, so it has an environment of its own.
.venv/markets.stamp: requirements-markets.txt .venv/dev.stamp
	@$(LOCK) echo "Installing requirements-markets.txt into .venv/markets"; rm -f $@; \
	[ -e .venv/markets/bin/python ] || $(UV) venv --quiet --clear --python $(BIN)/python .venv/markets; \
	$(UV) pip sync --quiet --compile-bytecode --require-hashes --python .venv/markets/bin/python requirements-markets.txt; \
	touch $@

# The pins are for Python 3.11 to 3.14 on every platform at once, and name no registry.
PIN = $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate --no-header

pins: $(UV_READY)
	$(PIN) pyproject.toml --extra ui -o requirements.txt
	$(PIN) pyproject.toml --extra ui --group dev --group docs -c requirements.txt -o requirements-dev.txt
	$(PIN) --group pyproject.toml:markets --group pyproject.toml:calendars -o requirements-markets.txt

clean:
	rm -rf .venv .tools .make.lock .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist
