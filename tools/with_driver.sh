#!/usr/bin/env bash
# usage: tools/with_driver.sh PYTHON ARGUMENTS...
# Run Python with the NVIDIA driver or, on a machine without one, with a stub driver that has no GPU, because MXNet's CUDA
# build cannot be imported without a driver.
set -euo pipefail
if ! "$1" -c 'import ctypes; ctypes.CDLL("libcuda.so.1")' 2>/dev/null; then
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  "${CC:-cc}" -shared -fPIC -o "$folder/libcuda.so.1" "$(dirname "$0")/stub_driver.c"
  export LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  echo "No NVIDIA driver found: using a stub driver."
fi
"$@"
