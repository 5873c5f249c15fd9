# Each target works as the first command on a machine that has only Python (>= 3.11.1, with pip) and make.
PYTHON ?= python3
VENV   := .venv
RUN    := $(VENV)/bin/python
READY  := $(VENV)/.ready
DEBUG  := PYTHONASYNCIODEBUG=1

unexport PYTHONDONTWRITEBYTECODE # hundreds of processes start sooner where bytecode is kept

.DEFAULT_GOAL := help
.PHONY: help setup demo forerunner test check coverage format integrations torch-suite faults fuzz soak bench docs wheel clean

help: ## show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: $(READY) ## create .venv and install everything into it (done by the others when needed)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("ringwide needs Python 3.11.1 or newer, this is %d.%d.%d: make PYTHON=python3.11 ..." % sys.version_info[:3] if sys.version_info < (3, 11, 1) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: $(READY) ## four nodes on this machine form a ring and train a classifier
	$(RUN) -m ringwide run configs/quickstart.yaml

forerunner: $(READY) ## the forerunner's workload, each of its generations for 30 s, and one report of all
	runs=runs/forerunner-$$(date +%Y%m%d-%H%M%S) && for file in configs/forerunner/*.yaml; do \
		$(RUN) -m ringwide run $$file --set report.directory=$$runs || exit; \
	done && $(RUN) -m ringwide report $$runs/*/ --out $$runs/report.html

test: $(READY) ## everything: format, lint, types, all tests but those of make integrations; some once more with asyncio debug
	$(RUN) -m ruff format --check src tests bench examples docs/hooks
	$(RUN) -m ruff check src tests bench examples docs/hooks
	@# Tests with processes of their own wait a lot, so the others run beside them, and types are looked at meanwhile.
	$(RUN) -m mypy & types=$$!; $(RUN) -m pytest -m system > .system-tests.txt 2>&1 & system=$$!; \
	$(RUN) -m pytest -m "not system and not integrations" -n 2 --dist loadfile; code=$$?; \
	$(DEBUG) $(RUN) -m pytest -m "not system and not integrations" -k "asyncio and not uvloop" -n 2 --dist loadfile tests/runtime tests/p2p || code=1; \
	wait $$system || code=1; cat .system-tests.txt; wait $$types || code=1; exit $$code

check: $(READY) ## format, lint, types, the fast tests (asyncio debug on)
	$(RUN) -m ruff format --check src tests bench examples docs/hooks
	$(RUN) -m ruff check src tests bench examples docs/hooks
	$(RUN) -m mypy
	$(DEBUG) $(RUN) -m pytest -m "not system and not integrations"

coverage: $(READY) ## every branch of protocol/ and compression/codecs/ is taken by their own tests, or it says which are not
	$(RUN) -m coverage run -m pytest tests/protocol tests/compression/codecs
	$(RUN) -m coverage report

format: $(READY) ## rewrite the sources in the house format
	$(RUN) -m ruff format src tests bench examples docs/hooks
	$(RUN) -m ruff check --fix src tests bench examples docs/hooks

integrations: $(READY) ## installs projects that ringwide works with, Ray for example, and runs the tests with them (5 to 10 minutes)
	$(RUN) -m pip install --quiet --constraint constraints.txt --editable '.[dev,docs,ray,integrations]'
	$(RUN) -m pytest -m integrations tests/integrations

torch-suite: $(READY) ## torch's own tests of torch.distributed with 2, 3 and 4 ranks, beside gloo (about 20 minutes)
	$(RUN) -m pip install --quiet --constraint constraints.txt --editable '.[dev,torch-suite]'
	$(RUN) -m tests.integrations.torch_suite

faults: $(READY) ## ranks are killed, frozen, cut off, slowed down, their frames damaged: all counts, one table (75 to 90 minutes)
	$(RUN) -m tests.faults

soak: $(READY) ## a million small collectives, with memory, descriptors, threads and tasks over time
	$(RUN) -m tests.faults.soak

fuzz: $(READY) ## a minute of bytes that a coverage-guided fuzzer makes up, for everything that reads from a network
	$(RUN) -m pip install --quiet --constraint constraints.txt --editable '.[fuzz]'
	$(RUN) -m tests.fuzz --seconds 60

bench: $(READY) ## all-reduce beside gloo, Open MPI, MPICH and hivemind, and beside the limit, on this machine (under ten minutes)
	$(RUN) -m bench speed --short

docs: $(READY) ## the documents as a site in site/, with the API; a link that leads nowhere is an error
	$(RUN) -m pip install --quiet --constraint constraints.txt --editable '.[dev,docs]'
	$(RUN) -m mkdocs build --strict

wheel: ## build the package into dist/, to be installed with pip on other machines
	rm -rf build dist # what an older build left there would be packed again
	$(PYTHON) -m pip wheel --quiet --no-deps --wheel-dir dist .
	@ls dist/*.whl

clean: ## remove what the other targets made, but the results in runs/
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .bench .coverage .system-tests.txt site
