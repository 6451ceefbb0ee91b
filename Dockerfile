# The command line and the service, built from the tree with the versions of requirements.lock. Checked with hadolint.
# A digest fixes the base as well: docker build --build-arg BASE=python:3.12-slim-bookworm@sha256:…
ARG BASE=python:3.12-slim-bookworm
FROM ${BASE}

WORKDIR /opt/covis
COPY pyproject.toml README.md LICENSE requirements.lock ./
COPY src src
# pip takes no hashes beside a folder, so the versions alone are given to it.
# hadolint ignore=DL3013
RUN sed -e '/--hash=/d' -e 's/ \\$//' requirements.lock > /tmp/versions.txt \
    && pip install --no-cache-dir --constraint /tmp/versions.txt ".[train,search,hdf5,serve,onnx,heic,postgres,milvus]" \
    && useradd --create-home --uid 1000 covis

USER 1000
WORKDIR /data
ENV COVIS_CACHE=/home/covis/.cache/covis
EXPOSE 8765
ENTRYPOINT ["covis"]
CMD ["--help"]
