# make demo: install into a virtual environment and train an example inside a budget, with the proof.
# make test: the test suite, in the same environment (PROFILE=ci: more examples).
# make long, make slow: the tests that take seconds, and those that take minutes.
# make asan, make tsan: the engine's own tests under a sanitizer.
# make wheels: a wheel in dist/ that needs no compiler where it is installed.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

DEMO := examples/decoder.py
DEMO_ARGS := --layers 12 --width 384 --batch 16 --steps 4

# A run that hangs below Python, where no test's own limit reaches it, ends with the stacks of all threads.
ENDING := timeout --signal=ABRT 3000

# `dev` tries the same few examples of each property every time; `ci` five times as many, and new ones.
PROFILE ?= dev
# A file's tests run in one process, one after the other: sessions are a process's.
WORKERS ?= $(shell nproc)
IN_PARALLEL = -n $(WORKERS) --dist loadfile --hypothesis-profile $(PROFILE) $(PYTEST_ARGS)

.PHONY: demo test long slow stress asan tsan lint bench wheels gpu-first bench-gpu clean

$(STAMP): pyproject.toml constraints.txt CMakeLists.txt $(wildcard native/*/* native/*/*/*) $(shell find src -name '*.py')
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch numpy
	$(BIN)/pip install --quiet --constraint constraints.txt '.[test,dev]'
	touch $@

demo: $(STAMP)
	$(BIN)/memfit doctor
	$(BIN)/python -m benchmarks demo $(DEMO) -- $(DEMO_ARGS)

test: $(STAMP)
	$(BIN)/memfit doctor  # builds the engine, so that no test has to wait for it; so below
	$(ENDING) $(BIN)/python -m pytest -q $(IN_PARALLEL)

# The tests that take some seconds each, which `make test` leaves out; then a sample of the engine's tests on what other
# processors would do: fewer instructions of each library, and other counts of threads.
long: $(STAMP)
	$(BIN)/memfit doctor
	$(ENDING) $(BIN)/python -m pytest -q -m "long and not slow and not gpu" $(IN_PARALLEL)
	ONEDNN_MAX_CPU_ISA=AVX2 OMP_NUM_THREADS=1 $(other_processor)
	ATEN_CPU_CAPABILITY=default OMP_NUM_THREADS=2 $(other_processor)
	ATEN_CPU_CAPABILITY=avx2 OMP_NUM_THREADS=1 $(other_processor)

SAMPLE ?= $(patsubst %,tests/running/%,paging test_splitting.py test_swapping.py test_recomputing.py test_operands.py \
  test_windows.py planned/test_joint_execution.py)
other_processor = $(ENDING) $(BIN)/python -m pytest -q $(IN_PARALLEL) $(SAMPLE)

slow: $(STAMP)
	$(BIN)/memfit doctor
	$(BIN)/python -m pytest -q -m slow --hypothesis-profile explore

# The engine's tests with everything that may move evicted, moved, or discarded and made again, before every op, and with
# all that may be split in slices.
stress: $(STAMP)
	MEMFIT_STRESS=evict $(BIN)/python -m pytest -q -m "not slow and not gpu" tests/running
	MEMFIT_STRESS=move $(BIN)/python -m pytest -q -m "not slow and not gpu" tests/running
	MEMFIT_STRESS=recompute $(BIN)/python -m pytest -q -m "not slow and not gpu" tests/running
	MEMFIT_STRESS=split $(BIN)/python -m pytest -q -m "not slow and not gpu" tests/running

# What torch and Python leave lying about at the end is not looked at, and what they do is not instrumented. The engine
# is built before the first test, as in `make test`.
SANITIZED ?= tests/running/faults \
  $(patsubst %,tests/running/test_%.py,long_runs training_threads threads processes swapping planned operands pointers)
library = $(shell $(CXX) -print-file-name=$(1))
sanitized_pytest = $(BIN)/python -m pytest -q -p no:faulthandler -o addopts="--import-mode=importlib -m 'not slow and not gpu'" --timeout 1800 $(SANITIZED)
with_asan = MEMFIT_SANITIZE=address LD_PRELOAD="$(call library,libasan.so) $(call library,libstdc++.so)" \
  ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
# Without random addresses: otherwise the sanitizer may not find room for its own memory.
with_tsan = MEMFIT_SANITIZE=thread LD_PRELOAD="$(call library,libtsan.so)" \
  TSAN_OPTIONS=ignore_noninstrumented_modules=1:halt_on_error=1 setarch -R

asan: $(STAMP)
	$(with_asan) $(BIN)/memfit doctor
	$(with_asan) $(sanitized_pytest)

# It knows nothing of forks.
tsan: $(STAMP)
	$(with_tsan) $(BIN)/memfit doctor
	$(with_tsan) $(sanitized_pytest) -k "not loader and not worker and not fork and not child"

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMP)
	$(BIN)/python -m benchmarks overhead traffic how_low info_minimum matrix rss records checks planned executed packing allocators

# The wheel with the engines for the torch that is here and for those that are named, which are installed for it, one after
# the other: make wheels TORCH="2.12.1 2.14.1". It is for this Python.
wheels: $(STAMP)
	$(BIN)/python -m tools.make_wheels --python $(BIN)/python --torch $(TORCH)

# On a GPU machine, with the python there and what is installed in it: --resume goes on where a run ended.
gpu-first:
	$(PYTHON) -m benchmarks gpu_first $(GPU_FIRST)

bench-gpu:
	$(PYTHON) -m benchmarks gpu $(BENCH_GPU)

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
