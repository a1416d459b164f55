# make env, make test and make demo need Python 3.11 or later, and nothing else of ours.
PYTHON ?= python3
PY := .venv/bin/python
ARGS ?=

.PHONY: env test demo check versions airflow-versions bench soak lock format clean

env: .venv/.made

# Everything it says goes to standard error: `make demo ARGS="--yes --json"` prints one document and nothing else.
.venv/.made: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Interlock needs Python 3.11 or later; this is " + sys.version.split()[0] + ". Name another: make PYTHON=python3.12 ...")'
	@echo "Making the environment in .venv; this takes about a minute, once." >&2
	@test -x $(PY) || $(PYTHON) -m venv .venv >&2
	@$(PY) -m pip install --disable-pip-version-check --no-input --require-hashes -r requirements.lock >&2
	@$(PY) -m pip install --disable-pip-version-check --no-input --quiet --no-deps --no-build-isolation -e . >&2
	@touch $@

demo: env
	@$(PY) -m interlock demo $(ARGS)

test: env
	@$(PY) -m pytest -n 3 --dist worksteal $(ARGS)

check: env
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy
	.venv/bin/lint-imports

# The tests of the OpenAI Agents SDK with the oldest and the newest release that pyproject.toml allows, some minutes each.
versions: env
	$(PY) -m tests.openai_agents.ends $(ARGS)

# The tests of the bridge with the oldest release of Airflow that pyproject.toml allows, ten to fifteen minutes.
airflow-versions: env
	$(PY) -m tests.bridge.oldest $(ARGS)

format: env
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

bench: env
	$(PY) -m bench $(ARGS)

# Kills workers, servers and parts of Airflow for about 30 minutes. ARGS="--quick" does a tenth of it.
soak: env
	$(PY) -m soak $(ARGS)

# Pins every dependency with its hashes; no index address is written into the files. The others are for
# images: of the same versions, only what a worker, and Airflow, need.
COMPILE := $(PY) -m uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
    --no-annotate --no-emit-index-url --no-emit-find-links --no-config
lock:
	$(COMPILE) --all-extras --group dev --upgrade -o requirements.lock pyproject.toml
	$(COMPILE) --extra pydantic-ai --extra openai-agents --extra otel --constraint requirements.lock -o requirements.image.lock pyproject.toml
	$(COMPILE) --extra airflow --group airflow-image --constraint requirements.lock -o requirements.airflow.lock pyproject.toml

clean:
	rm -rf .venv .venv-ends build dist
