# The commands of this repository; `make` alone lists them.
#
#   PYTHON=python3.12 make install    another Python for .venv
#   make test ARGS="-k wire -x"       more words for pytest

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
CODE   := $(wildcard remotely remotely_rl examples tools tests)

# Made last, so that an install that was cut short is taken up again.
INSTALLED := $(VENV)/.installed

# What `make bench` compares with: environments of their own, never the project's.
PEERS := .peers/.installed .peers-parl/.installed .peers-dask/.installed
NEEDS := tools/bench/peers

# And `make bench-rl`.
PEERS_RL := .peers-rl/.installed .peers-sf/.installed
NEEDS_RL := tools/bench_rl/peers

# And `make bench-replay`.
PEERS_REPLAY := .peers-replay/.installed .peers-torchrl/.installed
NEEDS_REPLAY := tools/bench_replay/peers

# make says "Leaving directory", "Nothing to be done" and the like to nobody's use here.
MAKEFLAGS += --no-print-directory --no-builtin-rules

.DEFAULT_GOAL := help
.PHONY: help install pong test test-slow test-ray test-outside test-python check types docs release format chaos soak mutate bench bench-peers bench-network bench-rl bench-rl-peers bench-replay bench-replay-peers clean

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-19s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(INSTALLED) ## make .venv with everything in it; does nothing when that is up to date
	@:

$(INSTALLED): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { \
		echo "There is no '$(PYTHON)' here. Install Python 3.11 or newer, or name yours:" >&2; \
		echo "  make install PYTHON=python3.12" >&2; exit 1; }
	@[ -x $(BIN)/python ] || $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "remotely needs Python 3.11 or newer, and '$(PYTHON)' is $$($(PYTHON) -V 2>&1). Name a newer one:" >&2; \
		echo "  make install PYTHON=python3.12" >&2; exit 1; }
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv --clear $(VENV) || { rm -rf $(VENV); \
		echo "'$(PYTHON) -m venv' failed (above). On Debian and Ubuntu it is a package of its own:" >&2; \
		echo "  sudo apt install python3-venv" >&2; exit 1; }
	@echo "Installing into $(VENV); the first time this takes some minutes, most of them for torch."
	@$(BIN)/python -m pip install --disable-pip-version-check -e '.[rl,dev,docs]' -c constraints.txt
	@touch $@

# `exec`: Ctrl-C then reaches the training alone, which saves its checkpoint and
# ends its actors before make hears of it.
pong: install ## train PPO on Pong until it wins, for 15 minutes at most
	@exec $(BIN)/remotely-rl train ppo --env ALE/Pong-v5 --minutes 15 --target 18

test: install ## run the tests, without the slow ones; four at a time, since most of them wait
	@exec $(BIN)/python -m pytest -n 4 --dist worksteal $(ARGS)

test-slow: install ## run the slow ones: chaos and learning too
	@exec $(BIN)/python -m pytest -m "slow or chaos or learning" $(ARGS)

test-ray: .venv-ray/.installed ## run the tests of what every engine promises on Ray, in an environment of its own
	@exec .venv-ray/bin/python -m pytest --engine ray tests/remotely $(ARGS)

test-outside: install ## run suites that others wrote on remotely, which are fetched into .outside/; a quarter of an hour
	@exec $(BIN)/python -m tests.outside $(ARGS)

test-python: ## try the wheel and `remotely` on another Python, in a Debian made for it: SUITE=trixie, sid; RL=1
	@exec tools/other_python.sh $(SUITE) $(ARGS)

.venv-ray/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -m venv .venv-ray
	@.venv-ray/bin/python -m pip install --disable-pip-version-check -e '.[rl,dev,ray]' -c constraints.txt
	@touch $@

chaos: install ## kill, stop and cut off everything at random, ten minutes; ARGS=--full takes hours
	@exec $(BIN)/python -m tests.chaos $(ARGS)

soak: install ## the same in turn for eight hours; ARGS="--hours 1"
	@exec $(BIN)/python -m tests.chaos --hours 8 $(ARGS)

check: install ## check format, lint, types, and that the documentation builds
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(MAKE) types
	@$(MAKE) docs

types: install
	@$(BIN)/mypy $(CODE)
	@$(BIN)/basedpyright

docs: install ## build the documentation site: build/docs/index.html
	@$(BIN)/sphinx-build -q -W --keep-going -d build/doctrees docs build/docs

release: install ## build the wheel of the tagged version into dist/; refuses what does not agree
	@exec $(BIN)/python -m tools.release

format: install ## format, and mend what lint can mend
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

mutate: install ## put faults into the pure files, one by one; each must fail a test; an hour
	@exec $(BIN)/python -m tools.mutation $(ARGS)

bench: install ## measure speed against bars and peers, 20 minutes; ARGS=--quick takes one
	@exec $(BIN)/python -m tools.bench $(ARGS)

bench-peers: $(PEERS) ## install what `make bench` compares with: Ray, xoscar, Pyro5, RPyC, PARL, Dask
	@:

bench-network: install ## measure values between machines, in network namespaces; needs root
	@exec $(BIN)/python -m tools.bench_network $(ARGS)

.peers/.installed: $(NEEDS)/requirements.txt
	@$(PYTHON) -m venv .peers
	@.peers/bin/python -m pip install --disable-pip-version-check -r $<
	@touch $@

# Dask's actors, for `python -m tools.bench savina`.
.peers-dask/.installed: $(NEEDS)/requirements-dask.txt
	@$(PYTHON) -m venv .peers-dask
	@.peers-dask/bin/python -m pip install --disable-pip-version-check -r $<
	@touch $@

# PARL's build wants the setuptools that is installed here, not one that pip would fetch for it.
.peers-parl/.installed: $(NEEDS)/requirements-parl.txt
	@$(PYTHON) -m venv .peers-parl
	@.peers-parl/bin/python -m pip install --disable-pip-version-check -r $<
	@.peers-parl/bin/python -m pip install --disable-pip-version-check --no-build-isolation --no-deps parl==2.2.1
	@touch $@

bench-rl: install ## measure training against the machine's limit and peers, half an hour; ARGS=--quick takes minutes
	@exec $(BIN)/python -m tools.bench rl $(ARGS)

bench-rl-peers: $(PEERS_RL) ## install what `make bench-rl` compares with: Stable-Baselines3, RLlib, Sample Factory
	@:

.peers-rl/.installed: $(NEEDS_RL)/requirements.txt
	@$(PYTHON) -m venv .peers-rl
	@.peers-rl/bin/python -m pip install --disable-pip-version-check -r $<
	@touch $@

# Its gymnasium is older than the others allow.
.peers-sf/.installed: $(NEEDS_RL)/requirements-sf.txt
	@$(PYTHON) -m venv .peers-sf
	@.peers-sf/bin/python -m pip install --disable-pip-version-check -r $<
	@touch $@

bench-replay: install ## measure replays against bare copies and peers, ten minutes; ARGS=--quick takes one
	@exec $(BIN)/python -m tools.bench replay $(ARGS)

bench-replay-peers: $(PEERS_REPLAY) ## install what `make bench-replay` compares with: Stable-Baselines3, cpprb, torchrl
	@:

.peers-replay/.installed: $(NEEDS_REPLAY)/requirements.txt
	@$(PYTHON) -m venv .peers-replay
	@.peers-replay/bin/python -m pip install --disable-pip-version-check -r $<
	@touch $@

# It is compiled for one version of torch, its own.
.peers-torchrl/.installed: $(NEEDS_REPLAY)/requirements-torchrl.txt
	@$(PYTHON) -m venv .peers-torchrl
	@.peers-torchrl/bin/python -m pip install --disable-pip-version-check -r $<
	@touch $@

clean: ## remove caches and build outputs; .venv*, .peers* and runs/ stay
	@rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -path './.*' -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
