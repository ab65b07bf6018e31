# Debian with this package, for x86-64 and ARM64. Train LeNet on two devices:
#   docker build -t gluon_mgpu . && docker run --rm -it gluon_mgpu
FROM debian:12-slim

# MXNet needs libgomp1 and libstdc++6, on ARM64 also OpenBLAS and LAPACKE
RUN apt-get update \
    && apt-get install -y --no-install-recommends \
       ca-certificates libgomp1 liblapacke libopenblas0-pthread libstdc++6 make python3-venv \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /gluon_mgpu
COPY . .
RUN PIP_NO_CACHE_DIR=1 make .venv/installed
CMD ["make", "demo"]
