# Debian with this package, for x86-64 and ARM64. Train LeNet on two devices:
#   docker build -t gluon_mgpu . && docker run --rm -it gluon_mgpu
FROM debian:12-slim

# README.md's packages, for ARM64 also OpenBLAS and LAPACKE, which bring libquadmath0 on x86-64
RUN apt-get update \
    && apt-get install -y --no-install-recommends \
       ca-certificates libgomp1 liblapacke libopenblas0-pthread make python3-venv \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /gluon_mgpu
COPY . .
RUN PIP_NO_CACHE_DIR=1 make install
CMD ["make", "demo"]
