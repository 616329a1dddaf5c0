# make demo: tune a real kernel. make test: the quick tests, and the tests of promises. make test-all: all tests.
# make check: lint, types and all tests. make docs: the documentation as a site. Each sets up .venv first. With PYTHON=…
# it uses that interpreter, whose environment must already have the packages, and installs nothing.

SYSTEM_PYTHON ?= python3
# Number of processes that run the tests.
JOBS ?= 2
# Hundreds of processes import atune, so its modules should be compiled once.
unexport PYTHONDONTWRITEBYTECODE
PYTEST := -m pytest --numprocesses $(JOBS) --dist worksteal
WORKLOAD := $(shell nvidia-smi -L 2>/dev/null | grep -q GPU && echo examples/gemm.py || echo examples/gemm_cpu.py)

ifdef PYTHON
PY := PYTHONPATH=$(CURDIR)$${PYTHONPATH:+:$$PYTHONPATH} $(PYTHON)
SETUP :=
DOCS_SETUP :=
else
PY := .venv/bin/python
SETUP := .venv/installed
DOCS_SETUP := .venv/installed-docs
endif

.PHONY: demo test test-all test-asked durations test-floors test-newest test-light check size lint docs package release tables pictures notebook clean

demo: $(SETUP)
	$(PY) -m atune tune $(WORKLOAD):WORKLOAD

test: $(SETUP)
	$(PY) $(PYTEST) --quick

test-all: $(SETUP)
	$(PY) $(PYTEST)

# All tests, including those that compile for minutes, time the engine, or start Ray.
test-asked: $(SETUP)
	$(PY) $(PYTEST) --asked

# All tests; writes the slow ones to tests/durations.txt.
durations: $(SETUP)
	$(PY) $(PYTEST) --durations-file

# All tests, with the oldest versions of tilelang and of the Python packages that pyproject.toml admits.
test-floors: .venv-floors/installed
	.venv-floors/bin/python $(PYTEST)

# A test of each way to use atune, with the newest packages that pyproject.toml admits, installed as in the README. Only
# torch keeps its tested version, because an open range brings gigabytes of CUDA. Then the contract with the newest
# tilelang, even if pyproject.toml does not admit it.
test-newest:
	test -x .venv-newest/bin/python || $(SYSTEM_PYTHON) -m venv .venv-newest
	.venv-newest/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	.venv-newest/bin/python -m pip install --quiet --disable-pip-version-check --upgrade --upgrade-strategy eager \
		. $$(grep ^torch== constraints.txt) --group dev
	.venv-newest/bin/pytest --numprocesses $(JOBS) --dist loadfile --newest
	.venv-newest/bin/python -m pip install --quiet --disable-pip-version-check --upgrade tilelang
	.venv-newest/bin/pytest --numprocesses 0 tests/stages/test_tilelang_contract.py

# The tests that need neither tilelang nor torch, in an environment without them, for example for another Python.
test-light: .venv-light/installed
	.venv-light/bin/python -m pytest --light

check: size lint test-all

lint: $(SETUP)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

# Lines and files by folder. Fails if a part has more lines than pyproject.toml allows.
size:
	$(SYSTEM_PYTHON) release/size.py

# Build the sdist and the wheel into dist/, and try the wheel in an environment without tilelang and torch.
package: $(SETUP)
	$(PY) release/package.py

# Commit and tag a release after all checks: make release VERSION=0.1.0. DRY=--dry-run only shows the steps.
release: $(SETUP)
	$(PY) release/release.py $(VERSION) $(DRY)

# Build the documentation into site/. Warnings are errors.
docs: $(DOCS_SETUP)
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict

# Regenerate the tables in docs/, such as those of docs/options.md.
tables: $(SETUP)
	$(PY) docs/tables.py

# Regenerate the pictures of README and docs from stored results. The report's picture needs a headless Chromium.
pictures: $(SETUP)
	$(PY) docs/pictures.py

# Regenerate the outputs in the example notebook.
notebook: $(SETUP)
	$(PY) tests/notebook_cells.py examples/notebook.ipynb --store > /dev/null

.venv/installed: pyproject.toml constraints.txt
	$(SYSTEM_PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "atune needs Python 3.11 or newer: choose one with SYSTEM_PYTHON=…")'
	$(SYSTEM_PYTHON) -m venv .venv
	.venv/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	.venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e . --group dev
	touch $@

.venv/installed-docs: .venv/installed
	.venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --group docs
	touch $@

.venv-floors/installed: pyproject.toml floors.txt
	$(SYSTEM_PYTHON) -m venv .venv-floors
	.venv-floors/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	.venv-floors/bin/python -m pip install --quiet --disable-pip-version-check -c floors.txt -e . --group dev
	touch $@

.venv-light/installed: pyproject.toml constraints.txt
	$(SYSTEM_PYTHON) -m venv .venv-light
	.venv-light/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	.venv-light/bin/python -c 'import tomllib; \
		needed = tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"]; \
		print(*(name for name in needed if not name.startswith(("tilelang", "torch"))), sep="\n")' > .venv-light/needed
	.venv-light/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -r .venv-light/needed --group dev
	.venv-light/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	touch $@

clean:
	rm -rf dist site .venv .venv-floors .venv-light .venv-newest .mypy_cache .ruff_cache .pytest_cache
