# syntax=docker/dockerfile:1

FROM python:3.11-slim-bookworm AS builder
WORKDIR /src
RUN python -m venv /opt/eluvix
# The protobuf modules are generated from protos/ while the wheel is built.
COPY pyproject.toml setup.py README.md ./
COPY protos ./protos
COPY eluvix_extproc ./eluvix_extproc
RUN pip wheel --no-cache-dir --wheel-dir /wheels ".[fast,tiktoken]" \
    && /opt/eluvix/bin/pip install --no-cache-dir --no-index --find-links /wheels "eluvix-extproc[fast,tiktoken]"

FROM python:3.11-slim-bookworm
RUN groupadd --gid 65532 eluvix \
    && useradd --uid 65532 --gid 65532 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin eluvix \
    && install --directory --owner 65532 --group 65532 /run/eluvix /etc/eluvix
COPY --from=builder /opt/eluvix /opt/eluvix
ENV PATH=/opt/eluvix/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
# By number: Kubernetes checks runAsNonRoot against it.
USER 65532:65532
EXPOSE 50051 9090
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 CMD ["eluvix-extproc", "healthcheck"]
ENTRYPOINT ["eluvix-extproc"]
CMD ["serve", "--config", "/etc/eluvix/extproc.yaml"]
