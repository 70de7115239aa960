# blutrain: every target sets up its own environment in .venv first; nothing but make and a Python 3.10-3.14 is needed.
#
#   make train   train the example on real text       make test    run all tests
#   make lint    ruff and pyright                      make bench   the benchmarks (JSON in bench-results/)
#   make setup   the environment alone                 make clean   remove .venv and caches
#
#   PYTHON=python3.12  the interpreter to build .venv with (default: the first suitable one found)
#   ARGS="..."         extra arguments for train, test and bench, e.g. make train ARGS="--steps 50 --no-compile"
#   CUDA=12|13|none    the GPU packages to install (default: what nvidia-smi reports)

SHELL := /bin/sh
PYTHON ?=
CUDA ?= auto
ARGS ?=
PY := .venv/bin/python
STAMP := .venv/.installed
export PYTHON CUDA

.PHONY: help setup train test test-fast lint format bench clean
.DEFAULT_GOAL := help

help:
	@sed -n 's/^#  */  /p' Makefile

setup: $(STAMP)

$(STAMP): pyproject.toml .ci/setup
	@sh .ci/setup
	@touch "$@"

train: $(STAMP)
	$(PY) -m examples.gpt_mlp.train $(ARGS)

test: $(STAMP)
	$(PY) -m pytest $(ARGS)

test-fast: $(STAMP)
	$(PY) -m pytest -m "not slow" $(ARGS)

lint: $(STAMP)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m pyright

format: $(STAMP)
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

bench: $(STAMP)
	mkdir -p bench-results
	$(PY) benchmarks/step.py --n-embd 128 --n-layer 4 --block-size 128 --batch-size 8 --mode both --json bench-results/step-128.json $(ARGS)
	$(PY) benchmarks/step.py --n-embd 256 --n-layer 4 --block-size 256 --batch-size 8 --mode both --json bench-results/step-256.json $(ARGS)
	$(PY) benchmarks/dispatch.py --json bench-results/dispatch.json

clean:
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis build dist *.egg-info
