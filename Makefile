# make demo: install into a virtual environment and train an example inside a budget, with the proof.
# make test: the test suite, in the same environment.
# make asan, make tsan: the engine's own tests under a sanitizer.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

DEMO := examples/decoder.py
DEMO_ARGS := --layers 12 --width 384 --batch 16 --steps 4

.PHONY: demo test slow stress asan tsan lint bench bench-gpu clean

$(STAMP): pyproject.toml constraints.txt CMakeLists.txt $(wildcard native/*/* native/*/*/*) $(shell find src -name '*.py')
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch numpy
	$(BIN)/pip install --quiet --constraint constraints.txt '.[test,dev]'
	touch $@

demo: $(STAMP)
	$(BIN)/memfit doctor
	$(BIN)/python benchmarks/demo.py $(DEMO) -- $(DEMO_ARGS)

test: $(STAMP)
	$(BIN)/memfit doctor  # builds the engine, so that no test has to wait for it
	$(BIN)/python -m pytest -q

slow: $(STAMP)
	$(BIN)/python -m pytest -q -m slow

# The engine's tests with everything that may move evicted, then moved, before every op.
stress: $(STAMP)
	MEMFIT_STRESS=evict $(BIN)/python -m pytest -q tests/running
	MEMFIT_STRESS=move $(BIN)/python -m pytest -q tests/running

# Built before the sanitizer's library is loaded, which would slow the compiler down, too. What torch and Python leave
# lying about at the end is not looked at.
RUNNING := tests/running
SANITIZED ?= $(addprefix $(RUNNING)/test_, long_runs.py training_threads.py threads.py swapping.py planned.py faults.py operands.py)
library = $(shell $(CXX) -print-file-name=$(1))
build_engine = $(BIN)/python -c "from memfit.running import engine; print(engine.build())"
pytest = $(BIN)/python -m pytest -q -p no:cacheprovider -p no:faulthandler --timeout 1800 -o timeout_func_only=true $(SANITIZED)

asan: $(STAMP)
	MEMFIT_SANITIZE=address $(build_engine)
	MEMFIT_SANITIZE=address LD_PRELOAD="$(call library,libasan.so) $(call library,libstdc++.so)" \
	  ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 $(pytest)

# What is not the engine's (torch, Python) is not instrumented; without random addresses, or the sanitizer may not start.
tsan: $(STAMP)
	MEMFIT_SANITIZE=thread $(build_engine)
	MEMFIT_SANITIZE=thread LD_PRELOAD="$(call library,libtsan.so)" \
	  TSAN_OPTIONS=ignore_noninstrumented_modules=1:halt_on_error=1 setarch -R $(pytest)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMP)
	cd benchmarks && for b in overhead traffic how_low matrix rss planned executed packing allocators; do ../$(BIN)/python $$b.py || exit 1; done

# On a GPU machine, with the python there and what is installed in it: --resume goes on where a run ended.
bench-gpu:
	$(PYTHON) -m benchmarks.gpu $(BENCH_GPU)

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
