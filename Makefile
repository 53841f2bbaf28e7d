# Two commands for a new machine: `make calibrate` and `make test`, and `make nightly` for every night
# after that. All do the set-up first.
#   PYTHON=python3.12   the interpreter that .venv is made from (3.11 or newer)
#   MPI=system          use the MPI on this machine instead of the mpich wheel
#   GPU=yes             install what a GPU needs (yes where nvidia-smi finds one), or not: GPU=no
#   CONSTRAINTS=file    other pinned versions; pip's own environment variables are respected
#   ARGS="--quick"      passed on to calib calibrate, calib nightly or pytest
# A .venv that is there stays as it was chosen, until another choice is typed.
-include .venv/choice.mk
PYTHON ?= $(or $(CHOSEN_PYTHON),python3)
MPI ?= $(or $(CHOSEN_MPI),wheel)
GPU := $(or $(CHOSEN_GPU),$(shell nvidia-smi -L >/dev/null 2>&1 && echo yes || echo no))
CONSTRAINTS ?= $(or $(if $(filter $(CHOSEN_GPU),$(GPU)),$(CHOSEN_CONSTRAINTS)),constraints/$(if \
  $(filter yes,$(GPU)),gpu,cpu).txt)
comma := ,
EXTRAS := dev$(if $(filter wheel,$(MPI)),$(comma)mpich)$(if $(filter yes,$(GPU)),$(comma)gpu)
ARGS ?=
RUN ?= runs/latest

BIN := .venv/bin
# one stamp per choice of options: another choice makes .venv anew, the same does nothing
CHOICE := $(shell printf '%s' '$(PYTHON) $(MPI) $(CONSTRAINTS) $(GPU)' | cksum | cut -d' ' -f1)
STAMP := .venv/.set-up-$(CHOICE)

.PHONY: setup calibrate nightly report export test test-gpu torture lint bench clean
.DELETE_ON_ERROR:

setup: $(STAMP)

$(STAMP): pyproject.toml $(CONSTRAINTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "calib needs Python 3.11 or newer; choose one with make PYTHON=..." >&2; exit 2; }
	@test "$(MPI)" = wheel -o "$(MPI)" = system || \
	  { echo "MPI=$(MPI) is neither wheel nor system" >&2; exit 2; }
	@test "$(GPU)" = yes -o "$(GPU)" = no || { echo "GPU=$(GPU) is neither yes nor no" >&2; exit 2; }
	@test -e $@ || { echo "set-up: a new .venv with $(CONSTRAINTS), MPI=$(MPI)"; \
	  $(PYTHON) -m venv --clear .venv && printf 'CHOSEN_%s\n' 'PYTHON := $(PYTHON)' 'MPI := $(MPI)' \
	  'GPU := $(GPU)' 'CONSTRAINTS := $(CONSTRAINTS)' >.venv/choice.mk; }
	@# the build back end is pinned too, so nothing is fetched in an isolated build
	$(BIN)/python -m pip install --quiet -c $(CONSTRAINTS) hatchling editables
	$(BIN)/python -m pip install --quiet -c $(CONSTRAINTS) --no-build-isolation -e '.[$(EXTRAS)]'
	@# model shapes are traced once, so that `calib predict` needs no torch
	$(BIN)/python -m calib.training.models.specs
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

# Compiled files are kept whatever the environment says: hundreds of processes start here, and each
# would compile all it imports
test: export PYTHONDONTWRITEBYTECODE =
test: $(STAMP)
	@$(BIN)/python -m tests.stages $(ARGS)

test-gpu: $(STAMP)
	$(BIN)/python -m pytest -q -m gpu $(ARGS)

# mutated files through every reader, and drivers that are killed; ARGS="--seed 7 --inputs 500"
torture: export PYTHONDONTWRITEBYTECODE =
torture: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.torture $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP)
	$(BIN)/python -m benchmarks $(ARGS)

clean:
	rm -rf .venv
