# Every target but help and clean sets the machine up first, so each one works from a fresh clone.
# Defaults of a run live in conf/ alone: SEEDS, STEPS and OUT are passed on only when they are given.

PYTHON ?= python3.11
DEVICE ?= $(shell nvidia-smi -L >/dev/null 2>&1 && echo gpu || echo cpu)
TORCH_CPU_INDEX := https://download.pytorch.org/whl/cpu

BIN := .venv/bin
# Errors only: pip warns once per package and extra index. Progress is told by the lines of `make setup`.
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps
PINS := requirements/$(DEVICE).txt

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup doctor base-model plan train train-with-trl sweep-gating ablate-gating ablate-probe signals study gradient-signal dashboard dashboard-local report evaluate compare inspect reproduce-table1 recall bench-importance bench-learner bench-verifier fidelity fault-drills data-check lint format test test-fast clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: .venv/.ready ## Build .venv with the pinned packages (DEVICE=cpu|gpu, PYTHON=python3.11)

# The pinned set and nothing else, for one device: whatever stood there before is cleared.
.venv/.packages-$(DEVICE): $(PINS)
	@$(PYTHON) -c 'import sys, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' 2>/dev/null || { \
		echo 'setup: $(PYTHON) is not Python 3.11 or 3.12 with venv: install it, or name one with PYTHON=...' >&2; exit 1; }
	@echo 'setup: a new .venv for $(DEVICE) ($(PINS)), a few minutes'
	@$(PYTHON) -m venv --clear .venv
	@echo 'setup: 1/2 torch'
	@# A step of its own: only torch needs the second index, and one that cannot be reached must not slow every package.
	@torch=$$(grep '^torch==' $(PINS)); \
	$(PIP) $(if $(filter cpu,$(DEVICE)),--retries 2 --timeout 15 --extra-index-url $(TORCH_CPU_INDEX)) "$$torch" || { \
		echo "setup: pip could not get $$torch (see above); the CPU build is at $(TORCH_CPU_INDEX)." >&2; exit 1; }
	@echo "setup: 2/2 $$(grep -c == $(PINS)) packages"
	@$(PIP) -r $(PINS)
	@touch $@

.venv/.ready: .venv/.packages-$(DEVICE) pyproject.toml
	@$(PIP) --no-build-isolation -e .
	@touch $@
	@echo 'setup: done'

doctor: setup ## Say what this machine has, whether vLLM starts, and what to mend
	@$(BIN)/python -m experiments.doctor $(ARGS)

base-model: setup ## Teach the embedded base model (kept by the hash of its config)
	@$(BIN)/python -m experiments.base_model $(ARGS)

plan: setup ## What a run will need and cost, without running it: make plan PROFILE=paper ARGS='method=oar_g'
	@$(BIN)/python -m experiments.plan $(if $(PROFILE),profile=$(PROFILE)) $(ARGS)

train: setup ## One run: make train ARGS='method=oar_g seed=1'
	@$(BIN)/python -m experiments.train $(ARGS)

train-with-trl: setup ## The embedded task with TRL's trainer and OAR's weights
	@$(BIN)/python -m experiments.train_with_trl $(ARGS)

# Two runs at a time, as Table 1 has it; a run keeps about one core busy and its server takes 2 GiB.
# The base model first: workers that start together would each teach it.
SWEEP := $(BIN)/python -m experiments.base_model && $(BIN)/python -m experiments.train -m hydra/launcher=joblib hydra.launcher.n_jobs=2 method=oar_g learner.steps=40 tracking=disabled resume=auto
define page
$(if $(OUT),@$(BIN)/python -m experiments.stability 'folders=[multirun/$(1)]' 'output_dir=$(OUT)' 'repeat="make $@ OUT=$(OUT)"')
endef

sweep-gating: setup ## The stability frontier: tau x beta x two seeds, then its page (OUT=)
	@$(SWEEP) seed=1,2 gating.tau=0.2,0.4,0.7,0.9 gating.beta=1,2,4 hydra.sweep.dir=multirun/gating $(ARGS)
	$(call page,gating)

ablate-gating: setup ## Both halves of the gate, one of them, none (OUT=)
	@$(SWEEP) seed=1,2 gating=bilevel,boost_only,suppress_only,none hydra.sweep.dir=multirun/ablation-gating $(ARGS)
	$(call page,ablation-gating)

ablate-probe: setup ## What stands for the model's answer (OUT=)
	@$(SWEEP) seed=1,2 probe=warmup,as_mean,as_joint,lt_logits hydra.sweep.dir=multirun/ablation-probe $(ARGS)
	$(call page,ablation-probe)

signals: setup ## An experiment on signals: make signals EXPERIMENT=mask_artefacts|proxy_mismatch|error_location (OUT=)
	@$(BIN)/python -m experiments.signals experiment=$(EXPERIMENT) $(if $(OUT),'output_dir=$(OUT)') $(ARGS)

study: setup ## Arms under conditions: make study EXPERIMENT=pays (or controls, suppression, written, dynamics; OUT=)
	@$(BIN)/python -m experiments.study experiment=$(EXPERIMENT) $(if $(OUT),'output_dir=$(OUT)') $(ARGS)

gradient-signal: setup ## How much of a gradient is signal under each weighting, without training (OUT=)
	@$(BIN)/python -m experiments.gradient_signal $(if $(OUT),'output_dir=$(OUT)') $(ARGS)

dashboard: setup ## The methods side by side at W&B: make dashboard ARGS='project=oar group=embedded'
	@$(BIN)/python -m experiments.dashboard $(ARGS)

dashboard-local: setup ## The same as one HTML page, from local runs: make dashboard-local ARGS='runs=[results/embedded]' (OUT=)
	@$(BIN)/python -m experiments.dashboard to=page $(if $(OUT),'output_dir=$(OUT)') $(ARGS)

report: setup ## Everything in results/ as one HTML page (OUT=)
	@$(BIN)/python -m experiments.report $(if $(OUT),'output=$(OUT)') $(ARGS)

evaluate: setup ## Evaluate a model: make evaluate ARGS='model.path=...'
	@$(BIN)/python -m experiments.evaluate $(ARGS)

compare: setup ## Two evaluations, paired over problems: make compare ARGS='a=FOLDER b=FOLDER'
	@$(BIN)/python -m experiments.compare $(ARGS)

inspect: setup ## Which tokens got the credit: a page of one step: make inspect ARGS='run=FOLDER step=10'
	@$(BIN)/python -m experiments.inspect $(ARGS)

reproduce-table1: setup ## Table 1: base model, GRPO, OAR-G, OAR-P (SEEDS=, STEPS=, OUT=)
	@$(BIN)/python -m experiments.table1 $(if $(SEEDS),seeds=$(SEEDS)) $(if $(STEPS),steps=$(STEPS)) \
		$(if $(OUT),'output_dir=$(OUT)') $(ARGS)

recall: setup ## Which signals find the tokens that are known to matter (OUT=)
	@$(BIN)/python -m experiments.recall $(if $(OUT),'output_dir=$(OUT)') $(ARGS)

bench-importance: setup ## What importance costs and how true it is (OUT=)
	@$(BIN)/python -m experiments.bench_importance $(if $(OUT),'output_dir=$(OUT)') $(ARGS)

bench-learner: setup ## Seconds and peak memory of a training step against TRL's GRPOTrainer (OUT=)
	@$(BIN)/python -m experiments.bench_learner $(if $(OUT),'output_dir=$(OUT)') $(ARGS)

bench-verifier: setup ## How many completions are graded a minute (OUT=)
	@$(BIN)/python -m experiments.bench_verifier $(if $(OUT),'output_dir=$(OUT)') $(ARGS)

fidelity: setup ## How well cheap signals agree with exact OAR-P, and at what cost (OUT=)
	@$(BIN)/python -m experiments.fidelity $(if $(OUT),'output_dir=$(OUT)') $(ARGS)

fault-drills: setup ## Damage real runs on purpose and see what is kept (OUT=, ARGS='short=true')
	@$(BIN)/python -m experiments.fault_drills $(if $(OUT),'output_dir=$(OUT)') $(ARGS)

data-check: setup ## Compare training sets with benchmarks (ARGS='path=FOLDER': local copies)
	@$(BIN)/python -m experiments.data_check $(ARGS)

lint: setup ## ruff, formatting and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy oar experiments

format: setup ## Mend formatting and what ruff can mend
	@$(BIN)/ruff check --fix-only .
	@$(BIN)/ruff format .

# Two files at a time: most of a whole run is waiting for a process to start.
test: lint ## Everything that must pass: lint, then every test (ARGS= goes to pytest)
	@$(BIN)/python -m experiments.base_model
	@$(BIN)/python -m pytest -n 2 --dist loadfile $(ARGS)

test-fast: setup ## The tests that start no vLLM server and no whole run
	@$(BIN)/python -m pytest -m 'not engine and not system' $(ARGS)

clean: ## Remove .venv and caches; runs and models stay
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
