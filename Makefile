# Each target does its own set-up: on a fresh machine `make study` or `make test` is all there is to type.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
PAGE   := src/anchorwatch/explorer/built/app.js
WEB    := $(wildcard web/*.json web/*.ts web/*.js web/src/*.* web/src/*/*.*)

.PHONY: setup setup-browser web check test test-web test-real bench bench-read bench-train lab variants study film figures tour clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "anchorwatch needs Python 3.11 or newer: make PYTHON=python3.11"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(READY)

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

web: $(PAGE)

$(PAGE): $(WEB)
	@node -e 'const [a, b] = process.versions.node.split("."); process.exit(a > 20 || (a == 20 && b >= 19) ? 0 : 1)' || { echo "the explorer's page needs Node 20.19 or newer"; exit 1; }
	cd web && npm install --no-save --silent && npm run build

# Playwright drives the machine's own Chromium: nothing is downloaded but Debian's package.
setup-browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || \
	if [ "$$(id -u)" = 0 ]; then apt-get update -qq && apt-get install -y -qq chromium; \
	else echo "the browser tests need Chromium: sudo apt-get install chromium"; exit 1; fi

test-web: $(PAGE)
	test -d web/node_modules || (cd web && npm install --no-save --silent)
	cd web && npm run check && npm test

test: $(READY) setup-browser test-web
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -n 2 -m "not real"

test-real: $(READY)
	$(BIN)/python tests/real/fetch.py .real
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -m real tests/real

film: $(READY)
	$(BIN)/python docs/film.py

bench: $(READY)
	$(BIN)/python benchmarks/attention.py

bench-read: $(READY)
	$(BIN)/python benchmarks/metrics.py

bench-train: $(READY)
	$(BIN)/python benchmarks/training.py

lab: $(READY)
	$(BIN)/python recipes/lab.py

variants: $(READY)
	$(BIN)/python recipes/variants.py

figures: $(READY)
	$(BIN)/python docs/gallery.py

tour: $(READY) $(PAGE) setup-browser
	$(BIN)/python docs/tour.py

study: $(READY)
	$(BIN)/python examples/first_run.py

clean:
	rm -rf $(VENV) .real dist build web/node_modules $(dir $(PAGE))
