# Debian with this package and Jupyter, for x86-64 and ARM64: docs/devices.md. Train LeNet on two devices:
#   docker build -t gluon_mgpu . && docker run --rm -it -v "$PWD/runs:/gluon_mgpu/runs" gluon_mgpu
FROM debian:12-slim

# README.md's packages, for ARM64 also OpenBLAS and LAPACKE, which bring libquadmath0 on x86-64
RUN apt-get update \
    && apt-get install -y --no-install-recommends \
       ca-certificates libgomp1 liblapacke libopenblas0-pthread make python3-venv \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /gluon_mgpu
COPY . .
ENV PIP_NO_CACHE_DIR=1
RUN make install && .venv/bin/python -m pip install --editable '.[notebook]'
# The environment is active, and datasets are in runs/, which outlives the container if it is mounted
ENV PATH=/gluon_mgpu/.venv/bin:$PATH XDG_CACHE_HOME=/gluon_mgpu/runs/cache
CMD ["make", "demo"]
