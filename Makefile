# Every target sets up what it needs in .venv, with pip and the pinned versions.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEV := $(VENV)/.ready-dev
# first on PYTHONPATH it makes DuckDB one that DuckLake's extension exists for
LAKE := $(VENV)/lake/.ready
# test processes at once; more than the machine has cores makes them slower
WORKERS ?= auto

.PHONY: demo test check dashboard campaign clean

demo: $(READY)
	$(BIN)/sdc-guard demo $(ARGS)
	@echo "make dashboard opens the investigation of this run."

dashboard: $(READY)
	@test -f runs/demo/run.json || $(BIN)/sdc-guard demo
	$(BIN)/sdc-guard dashboard runs/demo $(ARGS)

test: $(DEV) $(LAKE)
	$(BIN)/python -m pytest -m "not slow and not gpu" -n $(WORKERS) --maxprocesses 4 --dist worksteal $(ARGS)

# two minutes; fails if a trial without a fault is not its twin, or one at rest or in a file is missed
campaign: $(DEV)
	@mkdir -p runs
	@rm -f runs/campaign.duckdb runs/campaign.duckdb.wal
	$(BIN)/sdc-guard campaign runs/campaign.duckdb --quick --trials 82 $(ARGS)

check: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/unit/test_architecture.py

# --no-build-isolation: the build tool is one of the pinned packages, not a newer one
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'SDC Guard needs Python 3.11 or newer')"
	@echo "Installing into $(VENV), about a minute"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt hatchling editables
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e ".[app]"
	touch $@

$(DEV): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e ".[app,dev]"
	touch $@

$(LAKE): $(READY) constraints-lake.txt
	rm -rf $(VENV)/lake
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(VENV)/lake -r constraints-lake.txt
	touch $@

clean:
	rm -rf $(VENV) runs dist
