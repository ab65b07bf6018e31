#!/usr/bin/env bash
# usage: tools/install_horovod.sh FOLDER
# Build Horovod 0.28.1 with MXNet and gloo, and with NCCL if mxnet-cu112 is installed, into the virtual environment FOLDER.
# This package and MXNet must already be installed there.
set -euo pipefail
venv=$1
horovod=horovod==0.28.1

cuda_build=$(compgen -G "$venv/lib/python3*/site-packages/mxnet_cu*" || true)
works="import gluon_mgpu, horovod.mxnet as hvd; assert hvd.nccl_built() or not '${cuda_build:+yes}'"
if "$venv/bin/python" -c "$works" 2>/dev/null && grep -q gluon_mgpu "$venv/bin/horovodrun"; then
  exit 0
fi
for tool in "a C++ compiler:${CXX:-c++}:g++" "cmake 3.13 or newer:cmake:cmake" "make:make:make"; do
  IFS=: read -r name command package <<<"$tool"
  if ! type -p "$command" >/dev/null; then
    echo "Horovod is built from source and needs $name (command $command): apt-get install $package" >&2
    exit 1
  fi
done

# Build exactly these parts, whatever else is on the machine
export HOROVOD_WITH_MXNET=1 HOROVOD_WITH_GLOO=1 HOROVOD_CPU_OPERATIONS=GLOO
export HOROVOD_WITHOUT_MPI=1 HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1
if [ -n "$cuda_build" ]; then
  export HOROVOD_GPU_OPERATIONS=NCCL
fi
# Let the Pythons that the build starts import MXNet
export PYTHONPATH="$PWD/tools/horovod_build:$PWD${PYTHONPATH:+:$PYTHONPATH}"
export CMAKE_POLICY_VERSION_MINIMUM=3.5 # gloo's own files are older than CMake 4 allows
# For GCC 13 to 16: includes that the sources lack, and a template that is never used
export CXXFLAGS="-include cstdint -include stdexcept -Wno-template-body ${CXXFLAGS:-}"
export MAKEFLAGS="${MAKEFLAGS:--j$(nproc)}"

echo "Building Horovod into $venv; this takes a few minutes."
log=$venv/horovod.log
source=$(mktemp -d)
trap 'rm -rf "$source"' EXIT
pip() { "$venv/bin/python" -m pip "$@" --disable-pip-version-check >>"$log" 2>&1; }
build() {
  pip install setuptools wheel packaging &&
    pip download --no-deps --no-build-isolation --no-binary horovod --dest "$source" "$horovod" &&
    tar -xzf "$source"/horovod-*.tar.gz -C "$source" --strip-components 1 &&
    # A gloo thread that finds a connection locked spins, and so keeps the lock's holder off a busy core. A short sleep
    # makes an allreduce of a few numbers take 1 ms instead of 5
    sed -i '/^  if (!lock) {/a\    usleep(50);' "$source/third_party/gloo/gloo/transport/tcp/pair.cc" &&
    # Horovod ignores the network interface it was given and uses the address of the host name, often 127.0.1.1
    sed -i '/::InitializeForProcessSet/,/^}/ s/device_attr.iface = gloo_iface_/device_attr.iface = global_context.gloo_iface_/' \
      "$source/horovod/common/gloo/gloo_context.cc" &&
    # Horovod cuts the path of MXNet's library at each space
    sed -i "s/print(' '.join(mx.libinfo.find_lib_path()))/print(mx.libinfo.find_lib_path()[0])/
      /string(REPLACE \" \" \";\" Mxnet_LIBRARIES/d" "$source/cmake/Modules/FindMxnet.cmake" &&
    pip install --no-build-isolation --force-reinstall --no-deps "$source" &&
    pip install "$horovod" # its dependencies
}
: >"$log"
if ! build; then
  grep -i 'error' "$log" | tail -3 >&2 || true
  echo "Horovod could not be built: $log shows the errors." >&2
  exit 1
fi
# The launcher also imports MXNet, to see what Horovod was built with
sed -i '0,/^from horovod/s//import gluon_mgpu  # supplies the names that MXNet misses in NumPy\n&/' "$venv/bin/horovodrun"
"$venv/bin/python" -c "$works"
