# Everything runs in .venv, which the first target that needs it creates. Nothing else on the machine is touched.
PYTHON ?= python3
VENV   := .venv
RUN    := $(VENV)/bin/python
STAMP  := $(VENV)/.installed
ARGS   ?=

.DEFAULT_GOAL := help
.PHONY: help install train test test-quick test-slow test-interop lint docs bench gpu figures doctor wheel clean

help:           ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP) ## create .venv with the pinned packages (other targets do this by themselves)

# The stamp is written last, so an interrupted installation is started again and a finished one is not.
$(STAMP): requirements.txt setup.py pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11, 4))' || { \
	  echo "make: fractal_ssm needs Python 3.11.4 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1)." ; \
	  echo "      Name another one: make $(MAKECMDGOALS) PYTHON=python3.11" ; exit 1 ; }
	@echo "Creating $(VENV) with the packages pinned in requirements.txt (about 2.2 GB, one to five minutes) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(RUN) -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@$(RUN) -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@
	@echo "$(VENV) is ready."

train: $(STAMP) ## train FRACTAL on ListOps within the CPU budget (ARGS="seed=1 ..." to change it)
	@echo "python -m train experiment=lra/fractal-listops budget=cpu $(ARGS)"
	@$(RUN) -m train experiment=lra/fractal-listops budget=cpu $(ARGS)

# One process a core; the tests of one file stay together, since they share what they build.
test: $(STAMP) ## run the fast tests (ARGS="tests/ops -x" to choose)
	@echo "python -m pytest -m 'not slow' -n auto --dist loadfile $(ARGS)"
	@$(RUN) -m pytest -m 'not slow' -n auto --dist loadfile $(ARGS)

# Fast files of each room: command line, registry, functions on tensors, measures, models, data, training, comparisons.
QUICK := tests/test_arguments.py tests/test_registry.py tests/ops/test_discretize.py \
  tests/hippo/test_hippo_time_scale.py tests/models/test_lru.py tests/data/test_vocabulary_splits.py \
  tests/training/test_scheduler.py tests/training/test_optim.py tests/compare/test_statistics.py

test-quick: $(STAMP) ## run a few fast files of every room (under a minute)
	@$(RUN) -m pytest -m 'not slow' -n auto --dist loadfile $(QUICK) $(ARGS)

test-slow: $(STAMP) ## run the tests that take minutes
	@$(RUN) -m pytest -m slow $(ARGS)

# Libraries of others, which CI does not install. The pins keep torch and the rest as they are.
test-interop: $(STAMP) ## install transformers, accelerate and darts into .venv, run the tests of the code of others
	@$(RUN) -m pip install --quiet --disable-pip-version-check -c requirements.txt 'transformers>=5.24' 'accelerate>=1.10' 'darts>=0.48'
	@$(RUN) -m pytest tests/interop tests/test_examples.py $(ARGS)

lint: $(STAMP)   ## ruff: lint and format; mypy: the types of the public names
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .
	@mkdir -p .typing && ln -sfn ../src .typing/fractal_ssm
	@$(RUN) -m mypy

docs: $(STAMP)   ## build the documentation site into site/
	@NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build

bench: $(STAMP) ## time scans, kernels and layers beside every installed peer; writes docs/performance.md
	@$(RUN) -m scripts.bench $(ARGS)

gpu: $(STAMP) ## on a machine with a GPU: check every kernel against double precision, then time it
	@$(RUN) -m pytest -m gpu tests/gpu $(ARGS)
	@$(RUN) -m scripts.bench.gpu

figures: $(STAMP) ## draw every figure into docs/figures/
	@$(RUN) scripts/figures/all.py $(ARGS)

doctor: $(STAMP) ## print versions, devices, backends and registered parts
	@$(RUN) -m fractal_ssm.doctor $(ARGS)

wheel: $(STAMP) ## build dist/fractal_ssm-*.whl
	@rm -rf build
	@$(RUN) -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
	@ls dist

clean:          ## remove .venv and build products; data/ and runs/ are kept
	rm -rf $(VENV) build dist *.egg-info .pytest_cache
