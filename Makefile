# Two commands for a new machine: `make calibrate` and `make test`, and `make nightly` for every night
# after that. All do the set-up first.
#   PYTHON=python3.12   the interpreter that .venv is made from (3.11 or newer)
#   MPI=system          use the MPI on this machine instead of the mpich wheel
#   CONSTRAINTS=file    other pinned versions; pip's own environment variables are respected
#   ARGS="--quick"      passed on to calib calibrate, calib nightly or pytest
PYTHON ?= python3
MPI ?= wheel
GPU := $(shell nvidia-smi -L >/dev/null 2>&1 && echo yes)
CONSTRAINTS ?= $(if $(GPU),constraints/gpu.txt,constraints/cpu.txt)
comma := ,
EXTRAS := dev$(if $(filter system,$(MPI)),,$(comma)mpich)$(if $(GPU),$(comma)gpu)
ARGS ?=
RUN ?= runs/latest

BIN := .venv/bin
# one stamp per choice of options: another choice makes .venv anew, the same does nothing
CHOICE := $(shell printf '%s' '$(PYTHON) $(MPI) $(CONSTRAINTS) $(GPU)' | cksum | cut -d' ' -f1)
STAMP := .venv/.set-up-$(CHOICE)

.PHONY: setup calibrate nightly report export test test-gpu lint bench clean
.DELETE_ON_ERROR:

setup: $(STAMP)

$(STAMP): pyproject.toml $(CONSTRAINTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "calib needs Python 3.11 or newer; choose one with make PYTHON=..." >&2; exit 2; }
	@test "$(MPI)" = wheel -o "$(MPI)" = system || \
	  { echo "MPI=$(MPI) is neither wheel nor system" >&2; exit 2; }
	@test -e $@ || { echo "set-up: a new .venv with $(CONSTRAINTS), MPI=$(MPI)"; \
	  $(PYTHON) -m venv --clear .venv; }
	@# the build back end is pinned too, so nothing is fetched in an isolated build
	$(BIN)/python -m pip install --quiet -c $(CONSTRAINTS) hatchling editables
	$(BIN)/python -m pip install --quiet -c $(CONSTRAINTS) --no-build-isolation -e '.[$(EXTRAS)]'
	@# model shapes are traced once, so that `calib predict` needs no torch
	$(BIN)/python -m training.models.specs
	@touch $@

calibrate: $(STAMP)
	$(BIN)/calib calibrate $(ARGS)

# exits with 1 where something is not right any more: make says so as "Error 1" and exits with 2
nightly: $(STAMP)
	$(BIN)/calib nightly $(ARGS)

report: $(STAMP)
	$(BIN)/calib report $(RUN) $(ARGS)

# for every tool that the file has enough for: $(RUN)/export/platform.xml, ...
export: $(STAMP)
	$(BIN)/calib export $(RUN)/parameters.json --to all -o $(RUN)/export $(ARGS)

# tests that start ranks have the cores to themselves, but for those that mostly wait for them: two at
# a time; all others share the cores (5: no test was chosen). Compiled files are kept whatever the
# environment says: hundreds of processes start here, and each would compile all it imports
test: export PYTHONDONTWRITEBYTECODE =
test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n logical --maxprocesses 8 --dist worksteal \
	  -m "not gpu and not mpi and not cluster" $(ARGS) || test $$? -eq 5 -a -n '$(ARGS)'
	$(BIN)/python -m pytest -q -n 2 --dist loadfile --files-marked waits \
	  -m "waits and not gpu" $(ARGS) || test $$? -eq 5 -a -n '$(ARGS)'
	$(BIN)/python -m pytest -q --files-marked mpi --files-marked cluster \
	  -m "not gpu and not waits and (mpi or cluster)" $(ARGS) || test $$? -eq 5 -a -n '$(ARGS)'

test-gpu: $(STAMP)
	$(BIN)/python -m pytest -q -m gpu $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMP)
	$(BIN)/python -m benchmarks $(ARGS)

clean:
	rm -rf .venv
