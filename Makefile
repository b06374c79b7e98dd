# make env    a virtual environment in $(VENV) with everything the suite needs
# make demo   baseline against conditioned attention on real images, in about five minutes
# make test   the test suite
# make lint   style and types
VENV ?= .venv
export VENV
RUN = OMP_NUM_THREADS=1 $(VENV)/bin/python -m

.PHONY: env demo test lint format
env:
	@scripts/env.sh

demo: env
	@$(VENV)/bin/spectral demo

test: env
	@$(RUN) pytest -n auto --dist loadfile

lint: env
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy

format: env
	@$(VENV)/bin/ruff check --fix .
	@$(VENV)/bin/ruff format .
