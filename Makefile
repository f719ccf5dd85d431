# make demo     set up what is needed and run the first notebook headless; says what it found
# make lab      open the notebooks in JupyterLab
# make test     the first tier of tests, in parallel, and the core of the course against its stored outputs (minutes)
# make test-rest   the second tier: rare combinations, and the other notebooks
# make test-alone  tests that time this machine, one by one; other programs must be idle
# make test-all    all three
# make test-nightly  as test-all and starters, with many random examples for each property test
# make starters every notebook as a learner gets it, nothing filled in: each claim must fail (make starters-core: three)
# make lint     ruff and mypy
# make docs     the documentation site in build/site, with every link checked; show it: python -m http.server -d build/site
# make bench    what recording costs, as ratios
# make bench-diagnosis  how often the diagnosis is right and its predictions hold (half an hour)
# make bench-wild  which change makes each ordinary training loop fastest (hours; resumes where it stopped)
# make bench-virtual  how right the times of virtual GPUs are, against published measurements
# make bench-predictions  how right what-ifs are: pairs of real loops, before and after
# make bench-compare  whether a comparison tells a difference from chance: pairs of real loops
# make bench-replay  how well recorded traces are replayed, and how quickly
# make bench-endurance  memory and waiting of very long recordings: make bench-endurance SCALE=0.1
# make bench-holds  how long the loop waits for the profiler, over ten training loops
# make bench-load  what loading costs, beside other tools: make bench-load PEERS=a/python/that/has/them
# make fuzz     ten thousand damaged files, opened: make fuzz COUNT=100000 SEED=7
# make chaos    five thousand programs, plain and recorded, must end alike: make chaos AREA=signals COUNT=500 SEED=7
# make course      every notebook live on what is here: claims that hold, and seconds (make course SIZE=tiny)
# make gpu-check   the tests that need a CUDA GPU, and the notebooks on it
#
# The first of them makes .venv and installs into it; after that a change of pyproject.toml, constraints-dev.txt or the
# parser in C does. `make test PY=python3` takes an interpreter as it is instead, and installs nothing.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
READY := $(if $(filter $(VENV)/bin/python,$(PY)),$(VENV)/.ready)

.PHONY: setup demo lab test test-rest test-alone test-all test-nightly course starters starters-core lint docs bench bench-load bench-diagnosis bench-wild bench-predictions bench-compare bench-replay bench-virtual bench-endurance bench-holds fuzz chaos gpu-check clean

# Compiled modules and rewritten assertions are kept: the tests start hundreds of processes.
export PYTHONDONTWRITEBYTECODE :=

# What these try must neither read nor write the user's own history of predictions.
demo docs test test-rest test-alone course starters starters-core bench bench-compare bench-endurance gpu-check: export GPULAB_HISTORY := off
demo test test-rest test-alone course starters starters-core gpu-check: export GPULAB_PROGRESS := off
# Notebooks are stored as they are at this size.
test test-rest test-alone starters starters-core: export GPULAB_SIZE := tiny

setup: $(READY)

$(VENV)/.ready: pyproject.toml constraints-dev.txt hatch_build.py $(wildcard gpulab/trace/parser/*)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	    { echo 'gpulab needs Python 3.10 or newer; name one that is: make PYTHON=python3.12 $(MAKECMDGOALS)' >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	    { echo '$(PYTHON) cannot make virtual environments; on Debian and Ubuntu: apt-get install python3-venv' >&2; exit 1; }
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@echo 'installing gpulab, PyTorch, JupyterLab and the tools into $(VENV) (a few minutes the first time)'
	@$(PY) -m pip install --quiet --quiet --no-compile --editable '.[torch,lab,dev,docs]' --constraint constraints-dev.txt
	@touch $@

demo: $(READY)
	@$(PY) tools/demo.py notebooks/00_start_here.ipynb build

lab: $(READY)
	$(PY) -m gpulab lessons build/course
	$(PY) -m jupyterlab build/course

# Tests that share a browser, a kernel or a large trace form a group, which one process runs.
PARALLEL := --numprocesses auto --dist loadgroup
# The first tier compares the core of the course with its stored outputs, the second one the rest.
CORE_NUMBERS := 00 01 03 05 09 12
STARTER_NUMBERS := 00 05 12
CORE := $(foreach number,$(CORE_NUMBERS),$(wildcard notebooks/$(number)_*.ipynb)) notebooks/index.ipynb
NBVAL = PYTHONHASHSEED=0 $(PY) -m pytest $(1) -p no:python --nbval --nbval-current-env --nbval-cell-timeout=180 \
    --nbval-sanitize-with gpulab/lessons/nbval.cfg --numprocesses auto --dist loadfile

test: $(READY)
	$(call NBVAL,$(CORE))
	$(PY) -m pytest -m 'not full and not alone' $(PARALLEL) $(EXAMPLES)

test-rest: $(READY)
	$(call NBVAL,$(filter-out $(CORE),$(wildcard notebooks/*.ipynb)))
	$(PY) -m pytest -m 'full and not alone' $(PARALLEL) $(EXAMPLES)

test-alone: $(READY)
	$(PY) -m pytest -m alone $(EXAMPLES)

test-all: test test-rest test-alone

test-nightly: EXAMPLES := --hypothesis-profile=full
test-nightly: test-all starters

course: $(READY)
	GPULAB_SIZE=$(or $(SIZE),lab) $(PY) tools/notebooks.py live

starters: $(READY)
	$(PY) tools/notebooks.py starters

starters-core: $(READY)
	$(PY) tools/notebooks.py starters $(STARTER_NUMBERS)

lint: $(READY)
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m mypy

docs: $(READY)
	$(PY) -m tools.site

bench: $(READY)
	$(PY) benchmarks/overhead.py

bench-load: $(READY)
	$(PY) benchmarks/loading/load.py $(if $(PEERS),--peers $(PEERS))

bench-predictions: $(READY)
	$(PY) benchmarks/predictions/predictions.py

bench-wild: $(READY)
	$(PY) -m pip install --quiet --editable '.[wild]' --constraint constraints-dev.txt
	mkdir -p build
	$(PY) -m benchmarks.wild.measure --out build/wild.json --resume

bench-compare: $(READY)
	$(PY) benchmarks/predictions/comparisons.py --loops in_one tiny_ops --patience 45

bench-replay: $(READY)
	$(PY) benchmarks/predictions/replay.py

bench-virtual: $(READY)
	$(PY) benchmarks/virtual/accuracy.py

bench-endurance: $(READY)
	$(PY) benchmarks/endurance.py $(if $(SCALE),--scale $(SCALE))

bench-holds: $(READY)
	$(PY) -m pip install --quiet --editable '.[wild]' --constraint constraints-dev.txt
	$(PY) benchmarks/holds.py

bench-diagnosis: $(READY)
	$(PY) benchmarks/diagnosis/diagnosis.py $(if $(REPEATS),--repeats $(REPEATS))

fuzz: $(READY)
	$(PY) tests/support/fuzz.py $(if $(COUNT),--count $(COUNT)) $(if $(SEED),--seed $(SEED))

chaos: $(READY)
	$(PY) -m tests.chaos $(if $(AREA),--area $(AREA)) $(if $(COUNT),--count $(COUNT)) $(if $(SEED),--seed $(SEED))

gpu-check: $(READY)
	@$(PY) -c 'import sys, torch; torch.cuda.is_available() or sys.exit("gpu-check: PyTorch sees no CUDA GPU here")'
	$(PY) -m pytest -m gpu
	GPULAB_SIZE=full $(PY) tools/notebooks.py live

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
