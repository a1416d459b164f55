# The image of a worker: what requirements.image.lock pins, and Interlock's own wheel. docs/operating.md says how to use it.
FROM python:3.11-slim-trixie AS build
ENV UV_COMPILE_BYTECODE=1 \
    UV_PYTHON_DOWNLOADS=never
WORKDIR /build
COPY requirements.lock requirements.image.lock ./
# The tools that build, each by its hash: uv, hatchling and what hatchling needs.
RUN awk '/^[^ ]/ { wanted = /^(uv|hatchling|packaging|pathspec|pluggy|tomlkit|trove-classifiers)==/ } wanted' requirements.lock > tools.lock \
    && pip install --disable-pip-version-check --require-hashes -r tools.lock
RUN uv venv --relocatable --python "$(command -v python)" /opt/interlock \
    && uv pip install --python /opt/interlock --require-hashes -r requirements.image.lock
COPY . .
RUN hatchling build -t wheel -d dist \
    && uv pip install --python /opt/interlock --offline --no-deps dist/*.whl \
    && mkdir data

FROM python:3.11-slim-trixie
# The demo's database is the only thing that is ever written.
ENV PATH=/opt/interlock/bin:$PATH \
    HOME=/tmp \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    INTERLOCK_DEMO_DATABASE=/data/orders.db
COPY --from=build /opt/interlock /opt/interlock
COPY --from=build --chown=10001:10001 /build/data /data
WORKDIR /app
USER 10001:10001
ENTRYPOINT ["interlock"]
CMD ["worker", "run", "interlock.demo.deployed:app"]
