# Each target does its own set-up: on a fresh machine `make study` or `make test` is all there is to type.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
RUN    := $(VENV)/.run
PAGE   := src/anchorwatch/explorer/built/app.js
WEB    := $(wildcard web/*.json web/*.ts web/*.js web/src/*.* web/src/*/*.*)
# From a clone the explorer's page is built; a wheel or an sdist brings it, and needs no Node.
NODE   := node -e 'const [a, b] = process.versions.node.split(".").map(Number); process.exit(a > 20 || (a === 20 && b >= 19) ? 0 : 1)' 2>/dev/null || { echo "the explorer's page needs Node 20.19 or newer, this is $$(node --version 2>/dev/null || echo none): install it (https://nodejs.org), or set ANCHORWATCH_WITHOUT_PAGE=1 to do without the explorer"; exit 1; }

.PHONY: setup setup-browser web check test test-web test-slow test-machines test-real torture torture-sweeps bench bench-decoding bench-read bench-sweeps bench-train bench-view bench-peers rehearse lab variants variants-by-position look study papers film figures tour notebooks docs clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "anchorwatch needs Python 3.11 or newer: make PYTHON=python3.11"; exit 1; }
	@test -n "$$ANCHORWATCH_WITHOUT_PAGE" || $(NODE)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(READY) $(RUN)

# What a study and the explorer take, and no more.
$(RUN): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "anchorwatch needs Python 3.11 or newer: make PYTHON=python3.11"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	test -e $(READY) || ANCHORWATCH_WITHOUT_PAGE=1 $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[run,explore]'
	touch $(RUN)

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

web: $(PAGE)

# The page's types of header and packets, from the Python half; a clone has them, a test compares.
web/src/lib/schema.ts: src/anchorwatch/trace/schema.py src/anchorwatch/explorer/contract.py web/make_schema.py
	test ! -x $(BIN)/python || $(BIN)/python web/make_schema.py

$(PAGE): $(WEB)
	@$(NODE)
	cd web && npm install --no-save --silent && npm run --silent build -- --logLevel error

# Playwright drives the machine's own Chromium: nothing is downloaded but Debian's package.
setup-browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then apt-get update -qq && apt-get install -y -qq chromium; \
	else echo "the tests of the explorer need Chromium: sudo apt-get install chromium"; exit 1; fi

test-web: $(PAGE)
	test -d web/node_modules || (cd web && npm install --no-save --silent)
	cd web && npm run check && npm test

# Each worker begins with one half of the tests, in order, so that what modules share is made once;
# who is done first takes over tests of the other.
PYTEST := HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -n 2 --dist worksteal

test: $(READY) setup-browser test-web
	$(PYTEST) -m "not real and not slow"

# What takes long: runs killed at every point, whole reports, cards measured again, wheels.
test-slow: $(READY) $(PAGE) setup-browser
	$(PYTEST) -m "slow and not real"

# Parity and laws as other CPUs would compute them: vector widths, threads, kernels.
test-machines: $(READY)
	$(BIN)/python tests/machines.py

test-real: $(READY)
	$(BIN)/python tests/real/fetch.py .real
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -m real tests/real

# Kills, damages and misuses everything: docs/reliability.md. ARGS=--write puts the table there.
torture: $(READY) $(PAGE)
	HF_HUB_OFFLINE=1 $(BIN)/python tests/torture $(ARGS)

# 200 cells, 25 workers killed and, on Ray, a node: every byte as if nobody had.
torture-sweeps: $(READY)
	PYTHONPATH=tests HF_HUB_OFFLINE=1 $(BIN)/python tests/kill_sweeps.py --engine local
	PYTHONPATH=tests HF_HUB_OFFLINE=1 $(BIN)/python tests/kill_sweeps.py --engine ray

# Overhead, speed-up of two workers, 100,000 cells listed: each number beside its limit.
bench-sweeps: $(READY)
	$(BIN)/python benchmarks/sweeps.py

film: $(READY)
	$(BIN)/python docs/film.py

# What watching costs; then help, loading and lab runs, each number beside its limit.
bench: $(READY)
	$(BIN)/python benchmarks/attention.py
	$(BIN)/python benchmarks/start.py

# Decoding: exact savings, the dual cache, batches. 3.5 GB, minutes on one core.
bench-decoding: $(READY)
	$(BIN)/python benchmarks/decoding.py --json docs/benchmarks.json

bench-read: $(READY)
	$(BIN)/python benchmarks/metrics.py

bench-train: $(READY)
	$(BIN)/python benchmarks/training.py

# Attention received by every key against other tools, in an environment of its own. What is in
# docs/benchmarks.json is not measured again without ARGS=--again.
PEERS := runs/peers
bench-peers:
	test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	ANCHORWATCH_WITHOUT_PAGE=1 $(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[eval]' -r benchmarks/peers.txt
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(PEERS)/bin/python benchmarks/peers.py $(ARGS)
	$(PEERS)/bin/python docs/benchmarks.py

# First paint, scrub, export: on a quiet machine, each number beside its limit.
bench-view: $(READY) $(PAGE) setup-browser
	$(BIN)/python benchmarks/view.py

# Random checkpoints of real size, loaded, run and replayed: 17 GB of memory and of disk, an hour.
rehearse: $(READY)
	HF_HUB_OFFLINE=1 $(BIN)/python benchmarks/rehearse.py $(ARGS)

lab: $(READY)
	$(BIN)/python recipes/lab.py
	$(BIN)/python recipes/tales.py
	$(BIN)/python recipes/tales_answers.py

variants: $(READY)
	$(BIN)/python recipes/variants.py

variants-by-position: $(READY)
	$(BIN)/python recipes/variants_by_position.py

figures: $(READY)
	$(BIN)/python docs/gallery.py
	$(BIN)/python docs/concept_pictures.py

# 3 says that some claims lack something: the pages say what
papers: $(READY)
	$(BIN)/anchorwatch study --budget standard --engine local -o runs/papers || test $$? -eq 3
	$(BIN)/python docs/papers.py runs/papers

# A model writes a story; its sinks, step by step, in the browser.
look: $(RUN) $(PAGE)
	mkdir -p runs
	test -e runs/lily.trace || HF_HUB_OFFLINE=1 $(BIN)/anchorwatch run lab/tales-mdm "Once upon a time, there was a little girl named Lily. She" --length 32 -o runs/lily.trace
	$(BIN)/anchorwatch view runs/lily.trace --model lab/tales-mdm $(ARGS)

study: $(RUN)
	$(BIN)/anchorwatch study --budget quick --engine local -o runs/study || test $$? -eq 3

tour: $(READY) $(PAGE) setup-browser
	$(BIN)/python docs/tour.py

# Runs docs/notebooks and keeps what they show.
notebooks: $(READY)
	$(BIN)/python docs/run_notebooks.py

# The documents and the API reference as pages: runs/docs/index.html. A broken link fails.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "wrote runs/docs: $(BIN)/python -m http.server -d runs/docs shows it, with search"

clean:
	rm -rf $(VENV) .real dist build web/node_modules $(dir $(PAGE))
