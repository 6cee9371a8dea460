# Two commands do everything on a fresh machine: `make demo` and `make test`. Each makes its own virtual environment.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# pip compiles what it copies, and nothing of an editable install: under PYTHONDONTWRITEBYTECODE each run would anew.
COMPILE := $(BIN)/python -m compileall -q

.PHONY: demo test check lint types imports unit coverage test-long test-packaging test-ui bench-overhead bench-ledger bench-faults bench-workers bench-loaders bench-ranks bench-loops bench-lines bench-gpu soak test-matrix test-ecosystem test-upstream test-pythons docs clean

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test]'
	$(COMPILE) src
	touch $@

demo: $(STAMP)
	$(BIN)/stallmeter demo

# The checks use what the tests leave of the CPUs while they wait for servers and processes.
test: $(STAMP)
	$(MAKE) --no-print-directory --jobs 2 --output-sync=target check unit

check: lint types imports

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(STAMP)
	$(BIN)/mypy

imports: $(STAMP)
	$(BIN)/lint-imports

# A test process for each CPU, four at most (JOBS=0: all in one). How they are shared out stands in tests/conftest.py.
# Nothing is tried again: a test that fails now and then is a defect, and a test process that crashes ends the run.
JOBS ?= logical
TEST := -n $(JOBS) --maxprocesses 4 --max-worker-restart 0 --dist loadfile --no-loadscope-reorder
REST := not ui and not gpu and not bench and not ecosystem and not packaging
UNIT := not long and $(REST)

unit: $(STAMP)
	$(BIN)/python -m pytest $(TEST) -m '$(UNIT)'

# The same tests with the share of lines that they run, in the test processes alone: tests of whole programs add none.
coverage: $(STAMP)
	$(BIN)/python -m pytest $(TEST) -m '$(REST)' --cov=src/stallmeter --cov-report=term:skip-covered

# Jobs of several ranks, servers that fail, programs compared with themselves, how they end and what they leave. Continuous
# integration runs it, too.
test-long: $(STAMP)
	$(BIN)/python -m pytest $(TEST) -m 'long and $(REST)'

# Builds the package and installs it where nothing else is. Continuous integration runs it after `make test`.
test-packaging: $(STAMP)
	$(BIN)/python -m pytest -m packaging

# Needs Chromium and its driver (Debian: apt-get install chromium chromium-driver). Takes the pictures of the docs.
test-ui: $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt selenium
	STALLMETER_SCREENSHOTS=docs/images $(BIN)/python -m pytest -m ui tests/ui

# The oldest versions that pyproject.toml allows, in an environment of their own (Python 3.10 or 3.11: the oldest matplotlib
# has no wheels for later ones). `make test` runs the newest. setuptools: lightning 2.2 imports pkg_resources.
OLDEST := .venv-oldest
$(OLDEST)/.installed: pyproject.toml constraints-oldest.txt
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet --upgrade pip
	$(OLDEST)/bin/python -m pip install --quiet --constraint constraints-oldest.txt setuptools --editable '.[test]'
	$(OLDEST)/bin/python -m pip check
	touch $@

test-matrix: $(OLDEST)/.installed
	$(OLDEST)/bin/python -m pytest $(TEST) -m '$(REST)'

# Other projects' libraries and loaders, unchanged, in an environment of their own.
ECOSYSTEM := .venv-ecosystem
$(ECOSYSTEM)/.installed: pyproject.toml constraints-ecosystem.txt
	$(PYTHON) -m venv $(ECOSYSTEM)
	$(ECOSYSTEM)/bin/python -m pip install --quiet --upgrade pip
	$(ECOSYSTEM)/bin/python -m pip install --quiet --constraint constraints-ecosystem.txt --editable '.[all,ray]' \
	    pytest pytest-timeout hypothesis accelerate pytorch-forecasting neuralforecast scvi-tools transformers \
	    pytorch-ignite keras \
	    datasets torchdata webdataset tifffile obstore
	$(ECOSYSTEM)/bin/python -m pip install --quiet --constraint constraints-ecosystem.txt --no-deps litdata
	$(ECOSYSTEM)/bin/python -m pip install --quiet --constraint constraints-ecosystem.txt grain spdl nvidia-dali-cuda120
	# Mosaic Streaming asks for an older NumPy and for clients of every cloud; what its import needs is installed instead.
	$(ECOSYSTEM)/bin/python -m pip install --quiet --constraint constraints-ecosystem.txt brotli python-snappy zstd catalogue
	$(ECOSYSTEM)/bin/python -m pip install --quiet --constraint constraints-ecosystem.txt --no-deps mosaicml-streaming
	touch $@

test-ecosystem: $(ECOSYSTEM)/.installed
	$(ECOSYSTEM)/bin/python -m pytest tests/ecosystem -m ecosystem -s

# Lightning's own tests without us and with us in every Trainer, from a checkout that lies on this machine:
# make test-upstream LIGHTNING_SRC=path [ARGS='callbacks tuner']. Takes hours for all folders.
UPSTREAM := .venv-upstream
$(UPSTREAM)/.installed: pyproject.toml constraints-upstream.txt tests/upstream/requirements.txt
	$(PYTHON) -m venv $(UPSTREAM)
	$(UPSTREAM)/bin/python -m pip install --quiet --upgrade pip
	$(UPSTREAM)/bin/python -m pip install --quiet --constraint constraints-upstream.txt --editable . \
	    --requirement tests/upstream/requirements.txt
	touch $@

test-upstream: $(UPSTREAM)/.installed
	@test -f '$(LIGHTNING_SRC)/src/version.info' || { echo 'LIGHTNING_SRC is no checkout of Lightning: "$(LIGHTNING_SRC)"'; exit 2; }
	$(UPSTREAM)/bin/python tests/upstream/run.py '$(LIGHTNING_SRC)' $(ARGS)

# What needs no torch, on every Python of PYTHONS that this machine has; `make test` runs all of it on one.
PYTHONS := 3.10 3.11 3.12 3.13 3.14
NEEDS_TORCH := lightning probing ecosystem ui gpu upstream zero_code/test_pipelines.py cli/test_demo.py ranks/test_jobs.py \
    ranks/test_run_folder.py test_ranks_howto.py test_leaks.py test_plain.py test_platforms.py test_safety.py \
    delivery/trackers/test_lightning_logger.py delivery/trackers/test_neptune_end_to_end.py
IMPORTS_TORCH = $(shell cd tests && grep -lrE '^(import|from) (torch|benchmarks)\b' --include='test_*.py')
# This looks at the layers, which are the same on each.
SAME := test_architecture.py

test-pythons: $(PYTHONS:%=test-python-%)

test-python-%:
	@for found in python$* "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/$*.*/bin/python; do \
	    if "$$found" -c 'import sys' 2>/dev/null; then break; fi; found=; done; \
	if [ -z "$$found" ]; then echo "python$*: not on this machine, not run"; else \
	    "$$found" -m venv .venv-python-$* && \
	    .venv-python-$*/bin/python -m pip install --quiet --editable '.[report]' pytest pytest-timeout \
	        pytest-xdist hypothesis && \
	    .venv-python-$*/bin/python -m pytest $(TEST) -m '$(UNIT)' \
	        $(foreach path,$(NEEDS_TORCH) $(IMPORTS_TORCH) $(SAME),--ignore tests/$(path)); fi

bench-overhead: $(STAMP)
	$(BIN)/python benchmarks/overhead/lightning_loop.py
	$(BIN)/python benchmarks/overhead/plain_loop.py
	$(BIN)/python benchmarks/overhead/looks.py
	$(BIN)/python benchmarks/overhead/two_ranks.py
	$(BIN)/python benchmarks/overhead/transformers_hooks.py
	$(BIN)/python benchmarks/overhead/worker_probe.py
	$(BIN)/python benchmarks/overhead/forwarding.py
	$(BIN)/python benchmarks/overhead/ending.py

bench-ledger: $(STAMP)
	$(BIN)/python -m benchmarks.ledger

# litdata asks for torchvision, which it needs for pictures alone, and whose build must be that of torch.
bench-faults: $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[bench]'
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps litdata
	$(BIN)/python -m benchmarks.faults $(ARGS)

# Needs a CUDA device; with ARGS=--cpu-smoke it only runs the code.
bench-gpu: $(STAMP)
	$(BIN)/python -m benchmarks.gpu $(ARGS)

bench-workers: $(STAMP)
	$(BIN)/python -m benchmarks.workers --even

# In the environment of `make test-ecosystem`, whose libraries it draws among.
bench-loaders: $(ECOSYSTEM)/.installed
	$(ECOSYSTEM)/bin/python -m benchmarks.loaders $(ARGS)

# The place in the code that a verdict names, in programs drawn by seed; results are kept in build/lines.
bench-lines: $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[bench]'
	$(BIN)/python -m benchmarks.lines $(ARGS)

# Two ranks with gloo, then hundreds that are simulated.
bench-ranks: $(STAMP)
	$(BIN)/python -m benchmarks.ranks $(ARGS)
	$(BIN)/python -m benchmarks.ranks.scale
	$(BIN)/python -m benchmarks.ranks.killed

# The same faults in the loops of six frameworks and in Lightning; a folder keeps what was run (ARGS='--loops keras').
bench-loops: $(ECOSYSTEM)/.installed
	$(ECOSYSTEM)/bin/python -m benchmarks.loops $(ARGS)
	KERAS_BACKEND=torch $(ECOSYSTEM)/bin/python benchmarks/overhead/adapters.py

soak: $(STAMP)
	$(BIN)/python -m benchmarks.soak

docs: $(STAMP)
	$(BIN)/python tools/rule_docs.py

clean:
	rm -rf $(VENV) $(OLDEST) $(ECOSYSTEM) $(UPSTREAM) .venv-python-* .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist demo-output
