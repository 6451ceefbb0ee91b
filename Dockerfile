# The command line and the service. Checked with hadolint; it is built from the tree, so nothing of covis is pinned.
FROM python:3.12-slim-bookworm

WORKDIR /opt/covis
COPY pyproject.toml README.md LICENSE ./
COPY src src
# hadolint ignore=DL3013
RUN pip install --no-cache-dir ".[train,search,hdf5,serve,onnx,heic,postgres,milvus]" && useradd --create-home --uid 1000 covis

USER 1000
WORKDIR /data
ENV COVIS_CACHE=/home/covis/.cache/covis
EXPOSE 8765
ENTRYPOINT ["covis"]
CMD ["--help"]
