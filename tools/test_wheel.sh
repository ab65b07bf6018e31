#!/usr/bin/env bash
# usage: tools/test_wheel.sh FOLDER [DIST]
# Build the source archive and, from it, the wheel, using the environment FOLDER, and keep both in the new folder DIST.
# Install the wheel in an empty environment and train for one epoch in another folder.
set -euo pipefail
python=$PWD/$1/bin/python
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
dist=$(realpath -m "${2:-$out/dist}")
if [ -e "$dist" ]; then
  echo "$dist: exists; name a new folder" >&2
  exit 2
fi
export PIP_DISABLE_PIP_VERSION_CHECK=1

"$python" -m hatchling build --target sdist --directory "$dist"
"$python" -m pip wheel --quiet --no-deps --wheel-dir "$dist" "$dist"/gluon_mgpu-*.tar.gz
"$python" -m venv "$out/empty"
wheel=$(ls "$dist"/gluon_mgpu-*.whl)
"$out/empty/bin/python" -m pip install --quiet "$wheel[cpu]"
"$out/empty/bin/python" -m pip install --quiet --no-deps mxnet==1.9.1

mkdir "$out/elsewhere"
cd "$out/elsewhere"
run() { env -u PYTHONPATH XDG_CACHE_HOME="$out/cache" "$out/empty/bin/python" -m "$@"; }
problems=$(run pip check | grep -Ev '^(mxnet |No broken)' || true) # mxnet's metadata demands NumPy 1
if [ -n "$problems" ]; then
  echo "$problems" >&2
  exit 1
fi
run gluon_mgpu
run gluon_mgpu devices
run gluon_mgpu.scratch --dataset glyphs --train-size 2048 --num-epochs 1 --out-dir trained
run gluon_mgpu predict trained
if [ "$(wc -l <trained/history.csv)" -ne 2 ]; then
  echo "history.csv should contain a header and one epoch, but contains:" >&2
  cat trained/history.csv >&2
  exit 1
fi
echo "The wheel ${wheel##*/} installs and trains."
