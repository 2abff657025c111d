# Two commands do everything: `make compare` and `make test`. Both set up .venv when needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: compare test test-faults test-slurm lint clean help

help:
	@echo "make compare      install, then train and measure the variants of experiment=quickstart"
	@echo "make test         install, then ruff, mypy and pytest"
	@echo "make test-faults  the whole fault suite: what a sweep must survive, many rounds"
	@echo "make test-slurm   a sweep on a real Slurm cluster of one node; needs root and apt"

# The lock file names exact versions; the project itself is installed in place, so that
# `from spanwise.attention import rule_attention` works from any folder.
$(READY): requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Spanwise needs Python 3.11 or newer; set PYTHON=/path/to/python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $(READY)

compare: $(READY)
	$(BIN)/python runner.py experiment=quickstart

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

test-faults: $(READY)
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal tests/faults

test-slurm: $(READY)
	@if [ "$$(id -u)" != 0 ] || ! command -v apt-get > /dev/null; then \
		echo "make test-slurm: skipped, it needs root and apt-get"; exit 0; fi; \
	command -v slurmctld > /dev/null || apt-get install -y -qq --no-install-recommends slurm-wlm; \
	$(BIN)/python -m pip install --quiet "hydra-submitit-launcher>=1.2"; \
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest tests/slurm

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache *.egg-info
