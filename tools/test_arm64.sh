#!/usr/bin/env bash
# usage: [DEBIAN=trixie] tools/test_arm64.sh [OPTIONS OF MMDEBSTRAP...]
# On x86-64 Debian or Ubuntu: make an ARM64 root with Debian 12, or the given release, in a temporary folder, install this
# package in it, and run some of the tests and one epoch of LeNet, emulated by QEMU.
set -euo pipefail

if [ "${1:-}" != in-root ]; then
  fail() {
    printf '%s\n' "$@" >&2
    exit 1
  }
  if [ "$(uname -m)" = aarch64 ]; then
    fail 'This is an ARM64 machine and needs no emulation: make test'
  fi
  if ! type -p qemu-aarch64-static >/dev/null; then
    fail 'make test-arm64 emulates an ARM64 machine and needs QEMU. On Debian and Ubuntu:' \
      '  sudo apt-get install qemu-user-static mmdebstrap debian-archive-keyring'
  fi
  if [ ! -e /proc/sys/fs/binfmt_misc/qemu-aarch64 ]; then
    fail 'The kernel does not start QEMU for ARM64 programs. Restart the service systemd-binfmt or, without systemd:' \
      '  sudo apt-get install binfmt-support && sudo update-binfmts --enable qemu-aarch64'
  fi
  # Packages are unpacked but not configured, because emulated scripts take minutes
  packages=ca-certificates,coreutils,dash,bash,libc-bin,libgomp1,liblapacke,libopenblas0-pthread,libstdc++6,python3-venv,sed
  tools/debian_root.sh "${DEBIAN:-bookworm}" "$packages" tools/test_arm64.sh --architectures=arm64 --variant=extract "$@"
  exit
fi

cd /package
export PYTHON=python3
echo /usr/lib/aarch64-linux-gnu/openblas-pthread >/etc/ld.so.conf.d/openblas.conf # Debian does the same by links
ldconfig
tools/make_venv.sh .venv cpu
python=.venv/bin/python
"$python" -m pip install --quiet --disable-pip-version-check pytest
"$python" -m gluon_mgpu devices
"$python" -m pytest --durations=5 tests/mxnet_setup/test_arm64.py tests/devices/test_gpus.py tests/devices/test_lists.py tests/parallel/test_split.py \
  tests/parallel/test_allreduce.py
sed -i 's/^BATCHES = .*/BATCHES = [16, 15, 3, 1, 16]/' tests/test_scratch.py # fewer rows than on a real machine
"$python" -m pytest --durations=5 tests/test_scratch.py tests/test_concise.py tests/settings/test_resume.py \
  -k 'k_devices_equal_one or concise_equals_scratch or test_lenet'
PYTHONPATH=tests "$python" -c \
  'import idx_files, pathlib; idx_files.write(pathlib.Path("data/mnist"), idx_files.dataset(num_train=512, num_test=64))'
"$python" -m gluon_mgpu.scratch --dataset mnist --data-dir data --num-epochs 1 --out-dir run
"$python" -m gluon_mgpu.scratch --resume run --num-epochs 2
echo "All tests passed on $(uname -m)."
