# `make demo` and `make test` work on a machine that has Python 3.10 to 3.13, gcc/g++ and make, and nothing else.
# A machine-local package index or CPU-only PyTorch wheels: set PIP_INDEX_URL / PIP_EXTRA_INDEX_URL as pip knows them.

SHELL := /bin/bash
.DEFAULT_GOAL := help

VENV ?= .venv
PY := $(VENV)/bin/python
BIN := $(VENV)/bin
TESTS ?= tests$(if $(ROOM),/$(ROOM))
PYTEST_ARGS ?=
PIP := $(PY) -m pip --disable-pip-version-check
# of the virtual environment's Python
PINS = constraints/python$(shell $(PY) -c 'import sys; print("%d.%d" % sys.version_info[:2])').txt
TORCH = $(shell sed -nE 's/^ *"(torch==[^"]+)".*/\1/p' pyproject.toml)

DEPS := $(VENV)/.openneutron-deps
READY := $(VENV)/.openneutron-ready
NATIVE := CMakeLists.txt $(shell find runtime -type f \( -name '*.c' -o -name '*.cpp' -o -name '*.h' -o -name CMakeLists.txt \))

# Without the cross tools or a browser their tests are skipped; in CI a skip would hide a failure.
export OPENNEUTRON_REQUIRE_FIRMWARE := $(if $(CI),1,$(OPENNEUTRON_REQUIRE_FIRMWARE))
export OPENNEUTRON_REQUIRE_AARCH64 := $(if $(CI),1,$(OPENNEUTRON_REQUIRE_AARCH64))
export OPENNEUTRON_REQUIRE_BROWSER := $(if $(CI),1,$(OPENNEUTRON_REQUIRE_BROWSER))

.PHONY: help setup demo app app-pages upstream upstream-sample test test-fast lint lint-scripts format check-generated bench native wheel docs lock cross-tools clean distclean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | while IFS=$$'\t' read -r t d; do printf '  make %-16s %s\n' "$$t" "$$d"; done

setup: $(READY) ## create .venv, install the pinned packages, build the native libraries

demo: $(READY) ## compile the trained CifarNet, run it on the simulator, print accuracy and summary
	$(BIN)/openneutron eval cifarnet -o out/cifarnet.pte

test: $(READY) cross-tools ## the whole test suite; ROOM=compiler: the fast tests of one folder of tests/
	$(PY) -m pytest -n 2 --dist worksteal --durations=10 $(if $(ROOM),-m "not slow") $(PYTEST_ARGS) $(TESTS)

test-fast: $(READY) ## the test suite without the slow tests
	$(PY) -m pytest -n 2 --dist worksteal -m "not slow" $(PYTEST_ARGS) $(TESTS)

app: $(READY) ## an example of one use: make app NAME=anomaly
	$(PY) -m examples.apps $(NAME) $(if $(SHORT),--short)

app-pages: $(READY) ## run all examples, and write their pages and docs/applications.md anew
	$(PY) -m examples.apps --keep --pages

upstream: $(READY) ## ExecuTorch's own NXP tests and shared operator suite over the open converter (hours)
	$(PY) -m tests.upstream.run $(UPSTREAM)

upstream-sample: $(READY) ## 150 of ExecuTorch's own NXP tests over the open converter
	$(PY) -m tests.upstream.run nxp --sample 150

BIOME := node_modules/.bin/biome
NPM_TOOLS := { [ node_modules -nt package-lock.json ] || { npm install --no-save --silent && touch node_modules; }; }
C_FILES = $(shell git ls-files '*.c' '*.h' '*.cpp' | grep -v runtime/generated)

lint: $(READY) lint-scripts ## ruff, mypy, the import contracts, clang-format, biome, licences of dependencies
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/clang-format --dry-run -Werror $(C_FILES)
	$(PY) tools/bill.py --check

# The files of a page share one scope, so that they are linted as the one script they become.
lint-scripts: $(READY)
	@if ! command -v npm >/dev/null; then \
	  echo "note: npm is missing: the scripts of the HTML pages are not linted" >&2; [ -z "$(CI)" ]; exit; fi; \
	$(NPM_TOOLS) && mkdir -p build/scripts && for page in report search; do \
	  $(PY) -c "import openneutron.$$page.page as p; print(p.page_script())" > build/scripts/$$page.js || exit 1; done && \
	$(BIOME) format src && $(BIOME) lint --error-on-warnings build/scripts

format: $(READY) ## let ruff, clang-format and biome rewrite the files
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(C_FILES)
	@if command -v npm >/dev/null; then $(NPM_TOOLS) && $(BIOME) format --write src; fi

check-generated: $(READY) ## generated files equal what the Python definitions yield
	$(PY) -m openneutron.compiler.microcode --check
	$(PY) -m openneutron.package.header --check
	$(PY) -m openneutron.board.header --check
	$(PY) -m openneutron.bench.published --check
	$(BIN)/openneutron ops --markdown | diff - docs/operators.md
	$(BIN)/openneutron ops --onnx --markdown | diff - docs/onnx-operators.md
	$(BIN)/openneutron explain --markdown | diff - docs/troubleshooting.md

bench: $(READY) ## the benchmarks; prints tables
	@for f in benchmarks/bench_*.py; do echo "== $$f"; $(PY) "$$f" || exit 1; done

native: $(DEPS) ## rebuild the native libraries only (incremental)
	$(PIP) install --quiet --no-build-isolation --no-deps --editable .

wheel: $(READY) ## dist/: a wheel that needs no compiler, and the sdist
	@rm -rf build/wheel dist && mkdir -p dist
	$(PIP) wheel --quiet --no-build-isolation --no-deps -w build/wheel .
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/auditwheel repair --plat manylinux_2_28_x86_64 --only-plat \
	  --exclude 'libexecutorch*' -w dist build/wheel/openneutron-*.whl
	@$(PY) -c "from scikit_build_core.build import build_sdist; build_sdist('dist')" >/dev/null
	@$(PY) tools/bill.py --add dist/*
	@ls -l dist

docs: $(READY) ## build/docs/site: the documentation as a site, with every link checked
	@[ -x build/docs/venv/bin/mkdocs ] || { $(PY) -m venv build/docs/venv && build/docs/venv/bin/pip install --disable-pip-version-check \
	  --quiet --require-hashes --no-deps -r constraints/docs.txt; }
	$(PY) tools/site.py
	NO_MKDOCS_2_WARNING=1 build/docs/venv/bin/mkdocs build --quiet --strict --config-file build/docs/mkdocs.yml
	@echo "build/docs/site/index.html; with search: $(PY) -m http.server -d build/docs/site"

lock: $(READY) ## write constraints/: the newest versions that fit and the pins already there, for every Python, with hashes
	@for v in 3.10 3.11 3.12 3.13; do echo "constraints/python$$v.txt"; \
	  $(BIN)/uv pip compile --quiet --no-config --no-header --no-annotate --generate-hashes --python-version $$v \
	    --python-platform x86_64-manylinux_2_28 --override constraints/overrides.in --extra dev --extra accuracy --extra apps \
	    --output-file constraints/python$$v.txt pyproject.toml constraints/torch.in || exit 1; done
	@echo "$(TORCH)" | $(BIN)/uv pip compile --quiet --no-config --no-header --no-annotate --generate-hashes \
	  --python-version 3.10 --python-platform x86_64-manylinux_2_28 --constraint constraints/python3.10.txt \
	  $(addprefix --no-emit-package ,torch $(shell sed -nE 's/^([a-z0-9-]+)==.*/\1/p' constraints/python3.10.txt)) \
	  --output-file constraints/torch-cuda.txt -
	@$(BIN)/uv pip compile --quiet --no-config --no-header --no-annotate --generate-hashes --universal \
	  --python-version 3.10 --output-file constraints/docs.txt constraints/docs.in

cross-tools:
	@sudo=; if [ "$$(id -u)" != 0 ]; then sudo="sudo -n"; fi; fresh=; \
	get() { tests="$$1"; shift; \
	  echo "the $$tests tests need: $$* (make INSTALL=no test leaves your system as it is)"; \
	  if [ "$(INSTALL)" = no ]; then why="INSTALL=no"; \
	  elif ! command -v apt-get >/dev/null; then why="this is not a Debian or Ubuntu system"; \
	  elif ! $$sudo true 2>/dev/null; then why="that needs root or passwordless sudo"; \
	  elif echo "installing them with $$sudo apt-get" && { [ -n "$$fresh" ] || $$sudo apt-get update -qq; } && fresh=1 \
	    && $$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$$@" >/dev/null; then return; \
	  else why="apt-get failed"; fi; \
	  echo "note: could not install $$* ($$why): the $$tests tests cannot run" >&2; }; \
	if ! command -v arm-none-eabi-gcc >/dev/null || ! command -v qemu-system-arm >/dev/null \
	  || [ "$$(arm-none-eabi-g++ -print-file-name=libstdc++.a 2>/dev/null)" = libstdc++.a ]; then \
	  get firmware gcc-arm-none-eabi libnewlib-arm-none-eabi libstdc++-arm-none-eabi-newlib qemu-system-arm; fi; \
	if ! command -v qemu-aarch64 >/dev/null || [ "$$(aarch64-linux-gnu-gcc -print-file-name=libc.a 2>/dev/null || echo libc.a)" = libc.a ]; then \
	  get AArch64 gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user; fi; \
	if ! command -v espeak-ng >/dev/null; then get speech espeak-ng; fi; \
	if ! command -v chromium >/dev/null && ! command -v google-chrome >/dev/null; then get browser chromium; fi; \
	if [ "$$(uname -m)" = x86_64 ] && ! echo 'int main(void){return 0;}' | gcc -m32 -x c - -o /dev/null 2>/dev/null; then \
	  get 32-bit gcc-$$(gcc -dumpversion | cut -d. -f1)-multilib; fi

# One recipe checks the interpreter and says what is wrong; a bare "python3: not found" helps nobody.
$(PY):
	@found=; for p in "$(PYTHON)" python3.11 python3 python3.12 python3.13 python3.10 python; do \
	  if [ -n "$$p" ] && "$$p" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then found="$$p"; break; fi; done; \
	if [ -z "$$found" ]; then echo "error: Python 3.10 to 3.13 not found; install one, or run: make PYTHON=/path/to/python3 $(MAKECMDGOALS)" >&2; exit 1; fi; \
	for c in gcc g++; do command -v $$c >/dev/null || { echo "error: $$c not found; install a C and C++ compiler (Debian: apt-get install g++)" >&2; exit 1; }; done; \
	echo "creating $(VENV) with $$found ($$("$$found" -V))"; \
	"$$found" -m venv $(VENV) || { rm -rf $(VENV); echo "error: this Python cannot create virtual environments (Debian: apt-get install python3-venv)" >&2; exit 1; }

# Every archive is checked against its hash but torch's: its builds, for CPUs and for GPUs, are many, and any of them
# will do. PyPI's build asks for CUDA's packages; they are pinned too.
$(DEPS): $(wildcard constraints/python*.txt) | $(PY)
	$(PIP) install --progress-bar off --require-hashes --no-deps -r $(PINS)
	$(PIP) install --progress-bar off --no-deps $(TORCH)
	@$(PY) tools/torch_needs.py >/dev/null || \
	  $(PIP) install --progress-bar off --require-hashes --no-deps -r constraints/torch-cuda.txt
	@$(PY) tools/torch_needs.py || { echo "note: this build of torch asks for the packages above, which are not pinned"; \
	  $(PIP) install --progress-bar off $(TORCH); }
	@touch $@

# --no-build-isolation: the delegate is built against the executorch just installed, not a second copy of it.
# --no-index: what pyproject.toml asks for and the pins do not have is an error, not one more download.
$(READY): $(DEPS) pyproject.toml $(NATIVE)
	$(PIP) install --quiet --no-build-isolation --no-index --editable '.[dev]'
	@touch $@

clean: ## remove build products, keep the virtual environment
	rm -rf build dist out node_modules src/openneutron/_native .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -f $(READY)

distclean: clean ## remove the virtual environment too
	rm -rf $(VENV)
