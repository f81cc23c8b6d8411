# `make help` explains every target. Nothing here needs anything but Python 3.11+ and make.
SHELL := /bin/bash
.DEFAULT_GOAL := help
BACKEND ?= sim
export GPU_RUNBOOKS_REQUIRE ?=
UV := $(shell command -v uv 2>/dev/null || echo .tools/bin/uv)
RUN := $(UV) run --quiet
BUILD := $(RUN) python deploy/lab/k8s/build.py
CAN_BUILD = [ "$$(id -u)" = 0 ] && command -v containerd >/dev/null

.PHONY: help demo test check lint test-matrix test-kinds fuzz bench setup format clean slurm-packages postgresql-packages \
	kubernetes-lab kubernetes-queues

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

demo: setup ## One recovery from end to end, with the incident report (BACKEND=sim; slurm or kubernetes: a real lab)
	@if [ "$(BACKEND)" = slurm ]; then deploy/lab/packages.sh; fi
	@if [ "$(BACKEND)" = kubernetes ]; then $(MAKE) --no-print-directory kubernetes-lab; fi
	@$(RUN) runbook demo --backend $(BACKEND)

test: setup slurm-packages postgresql-packages kubernetes-queues lint ## Set up what the tests need (real components included) and run all of them
	$(RUN) python -m tests.run_all

check: setup lint ## Fast checks: lint, and the tests that need no server and no cluster (about a minute)
	$(RUN) pytest tests/fleet tests/faults tests/checkpoints tests/agents tests/activities -x --durations=3

lint: setup ## Format, lint, types, import contracts
	$(RUN) ruff format --check .
	$(RUN) ruff check .
	$(RUN) mypy
	$(RUN) lint-imports

test-matrix: setup slurm-packages ## Every step boundary times every fault, on real Slurm and of a move on the embedded fleet (long)
	$(RUN) pytest -m matrix -vv tests/crash_slurm
	$(RUN) pytest -m matrix -vv tests/crash/test_transfer_on_sim.py

test-kinds: setup kubernetes-lab ## Job kinds of Kubernetes on all their real controllers; builds what is missing (about 2 minutes each)
	@$(BUILD) jobset kueue training-operator trainer kuberay >/dev/null
	$(RUN) pytest -m kinds tests/kubernetes tests/runbooks_kubernetes

fuzz: setup ## A longer look for inputs that our readers of bytes cannot stand (half an hour)
	GPU_RUNBOOKS_FUZZ=100 $(RUN) pytest tests/fuzz

bench: setup ## Every figure that we claim, beside its alternative
	$(RUN) python -m bench recovery
	$(RUN) python -m bench recovery --backend kubernetes
	$(RUN) python -m bench burst
	$(RUN) python -m bench overhead
	$(RUN) python -m bench copy
	$(RUN) python -m bench parse
	$(RUN) python -m bench placement

format: setup ## Format the code
	$(RUN) ruff format .
	$(RUN) ruff check --fix .

setup: .venv/.ready ## Python environment from the lock file

.venv/.ready: pyproject.toml uv.lock
	@command -v uv >/dev/null 2>&1 || [ -x .tools/bin/uv ] || deploy/get_uv.sh
	$(UV) sync --locked --quiet
	@touch $@

slurm-packages:
	@deploy/lab/packages.sh

postgresql-packages:
	@deploy/lab/postgresql_packages.sh

kubernetes-lab: setup ## Packages and programs of the Kubernetes lab; the first build takes minutes, later ones none
	@deploy/lab/k8s_packages.sh
	@if $(CAN_BUILD); then $(BUILD) >/dev/null; fi

kubernetes-queues: kubernetes-lab # and JobSet and Kueue, which the tests use
	@if $(CAN_BUILD); then $(BUILD) jobset kueue >/dev/null; fi

clean: ## Remove the environment and the state folder
	rm -rf .venv .tools .runbook
