# A small image of the daemon: no root, no secrets, state in one volume. compose.yaml runs it.
# A strategy that needs more packages needs an image of its own, built FROM this one.
FROM python:3.13-slim-bookworm AS base

FROM base AS build
WORKDIR /src
RUN python -m venv --without-pip /opt/bot
COPY requirements.txt ./
RUN pip --python /opt/bot/bin/python install --no-cache-dir --require-hashes -r requirements.txt
COPY pyproject.toml README.md LICENSE ./
COPY configs/demo.yaml configs/
COPY strategies strategies/
COPY bot bot/
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheel . \
    && pip --python /opt/bot/bin/python install --no-cache-dir --no-index --no-deps /wheel/*.whl

FROM base
RUN useradd --uid 10001 --no-create-home --home-dir /var/lib/bot bot \
    && install --directory --owner bot --mode 0700 /var/lib/bot
COPY --from=build /opt/bot /opt/bot
ENV PATH=/opt/bot/bin:$PATH XDG_STATE_HOME=/var/lib PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PYTHONSAFEPATH=1
USER 10001
WORKDIR /srv/bot
VOLUME /var/lib/bot
# Unhealthy: no daemon runs, it does not answer, or a position of its strategies has no stop.
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s CMD ["bot", "status"]
ENTRYPOINT ["bot"]
CMD ["demo"]
