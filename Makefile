# Two commands for a new machine: `make calibrate` and `make test`, and `make nightly` for every night
# after that. All do the set-up first.
#   PYTHON=python3.12   the interpreter that .venv is made from (3.11 or newer)
#   MPI=system          use the MPI on this machine instead of the mpich wheel
#   GPU=yes             install what a GPU needs (yes where nvidia-smi finds one), or not: GPU=no
#   CONSTRAINTS=file    other pinned versions; pip's own environment variables are respected
#   WHEELS=folder       no package index: what $(PYTHON) does not have itself comes from this folder,
#                       which `make wheelhouse` fills on a machine that has one
#   ARGS="--quick"      passed on to calib calibrate, calib nightly or pytest
# A .venv that is there stays as it was chosen, until another choice is typed.
-include .venv/choice.mk
PYTHON ?= $(or $(CHOSEN_PYTHON),python3)
MPI ?= $(or $(CHOSEN_MPI),wheel)
WHEELS ?= $(CHOSEN_WHEELS)
# the driver's major version; empty without a GPU. CUDA 13 needs 580
DRIVER := $(shell nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | \
  sed -n '1s/^\([0-9]*\)\..*/\1/p')
GPU := $(or $(CHOSEN_GPU),$(if $(DRIVER),yes,no))
GPU_PINS := gpu$(shell test $(or $(DRIVER),580) -ge 580 || echo -cu12)
CONSTRAINTS ?= $(or $(if $(filter $(CHOSEN_GPU),$(GPU)),$(CHOSEN_CONSTRAINTS)),constraints/$(if \
  $(filter yes,$(GPU)),$(GPU_PINS),cpu).txt)
comma := ,
# what is only for developers stays out of a folder of wheels: it may have to be carried by hand
EXTRAS = $(if $(WHEELS),test,dev)$(if $(filter wheel,$(MPI)),$(comma)mpich)$(if \
  $(filter yes,$(GPU)),$(comma)gpu)
ARGS ?=
RUN ?= runs/latest
OUT ?= runs/test-gpu

BIN := .venv/bin
# one stamp per choice of options: another choice makes .venv anew, the same does nothing
CHOICE := $(shell printf '%s' '$(PYTHON) $(MPI) $(CONSTRAINTS) $(GPU) $(WHEELS)' | cksum | cut -d' ' -f1)
STAMP := .venv/.set-up-$(CHOICE)

.PHONY: setup wheelhouse calibrate nightly report export test test-gpu torture lint bench clean
.DELETE_ON_ERROR:

# Pinned versions from an index; or from a folder, and then what the site has stays where calib can use
# it. The site's Python may itself be one of a venv, whose packages --system-site-packages does not show;
# it may have no ensurepip, but then it has pip.
FROM = $(if $(WHEELS),--no-index --find-links $(WHEELS),-c $(CONSTRAINTS))
SHOW_SITE = $(PYTHON) -c 'import sys; print(*(x for x in sys.path if x.endswith("-packages")), sep="\n")' \
  >"$$(echo .venv/lib/python3*/site-packages)/site.pth" && \
  { $(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip >/dev/null; }

setup: $(STAMP)

$(STAMP): pyproject.toml $(CONSTRAINTS) constraints/cpu.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "calib needs Python 3.11 or newer; choose one with make PYTHON=..." >&2; exit 2; }
	@test "$(MPI)" = wheel -o "$(MPI)" = system || \
	  { echo "MPI=$(MPI) is neither wheel nor system" >&2; exit 2; }
	@test "$(GPU)" = yes -o "$(GPU)" = no || { echo "GPU=$(GPU) is neither yes nor no" >&2; exit 2; }
	@test -z "$(WHEELS)" -o -d "$(WHEELS)" || { echo "WHEELS=$(WHEELS) is not a folder" >&2; exit 2; }
	@test -e $@ || { echo "set-up: a new .venv with $(or $(WHEELS),$(CONSTRAINTS)), MPI=$(MPI)"; \
	  $(PYTHON) -m venv --clear $(if $(WHEELS),--system-site-packages --without-pip) .venv && \
	  printf 'CHOSEN_%s\n' 'PYTHON := $(PYTHON)' 'MPI := $(MPI)' 'GPU := $(GPU)' \
	  'CONSTRAINTS := $(CONSTRAINTS)' 'WHEELS := $(WHEELS)' >.venv/choice.mk; }
	$(if $(WHEELS),@$(SHOW_SITE))
	@# the build back end is pinned too, so nothing is fetched in an isolated build
	$(BIN)/python -m pip install --quiet $(FROM) hatchling editables
	$(BIN)/python -m pip install --quiet $(FROM) --no-build-isolation -e '.[$(EXTRAS)]'
	@# compiled once, or every rank of the first launch writes the same files
	$(BIN)/python -m compileall -q calib reports training search oracle fitting microbench foundation
	@# model shapes are traced once, so that `calib predict` needs no torch
	$(BIN)/python -m calib.training.models.specs
	@touch $@

# Where there is an index, for a machine that has none: all that its Python needs but the packages that
# it has, which WITHOUT names, and what only they need. FOR=3.12 WITHOUT=torch,numpy GPU=yes WHEELS=wheels
# pip cannot leave a package out, so an empty one stands in for each of WITHOUT and is thrown away.
wheelhouse: WHEELS := $(or $(WHEELS),wheels)
wheelhouse: NEW = $(WHEELS).new
wheelhouse:
	@test -n "$(FOR)" || { echo "say for which Python: make wheelhouse FOR=3.12" >&2; exit 2; }
	@rm -rf $(NEW) && mkdir -p $(NEW) $(WHEELS)
	$(PYTHON) constraints/stand_ins.py $(CONSTRAINTS) $(NEW)/without $(subst $(comma), ,$(WITHOUT))
	$(PYTHON) -m pip download --quiet -d $(NEW) -c $(CONSTRAINTS) --python-version $(FOR) \
	  --only-binary=:all: hatchling editables '.[$(EXTRAS)]' $$(find $(NEW)/without -name '*.whl')
	@# calib itself, for containers/
	$(PYTHON) -m pip wheel --quiet --no-deps -w $(NEW) .
	@cd $(NEW)/without && for made in *.whl; do rm -f "../$$made"; done
	@mv $(NEW)/*.whl $(WHEELS) && rm -r $(NEW) && du -sh $(WHEELS)

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
test test-gpu: export PYTHONDONTWRITEBYTECODE =
test: $(STAMP)
	@$(BIN)/python -m tests.stages $(ARGS)

# 8 minutes at most; $(OUT)/test-gpu.json has what became of every test, also where it was interrupted
test-gpu: $(STAMP)
	@$(BIN)/python -m tests.gpu_stages $(OUT) $(ARGS)

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
