#!/usr/bin/env bash
# usage: tools/test_onnxruntime.sh VENV [ARGS of pytest]
# Export the networks of tests/programs/onnx with the environment VENV, and compare each model with its network in the oldest
# onnxruntime of pyproject.toml, one in the middle and the newest, in environments of their own in .venv-onnxruntime.
# PYTHON=/path/to/python3.11 selects their Python; newer ones have no wheels of the oldest onnxruntime.
set -euo pipefail
venv=$1
shift
oldest=$(sed -n "s/^onnx = .*onnxruntime>=\([0-9.]*\).*/\1/p" pyproject.toml)
python=${PYTHON:-$(type -p python3.11 || true)}
for each in "${PYENV_ROOT:-${HOME:-}/.pyenv}"/versions/3.11.*/bin/python; do
  if ! "${python:-false}" -c '' 2>/dev/null; then python=$each; fi
done
if ! "$python" -c '' 2>/dev/null; then
  echo 'No Python 3.11 was found: make test-onnxruntime PYTHON=/path/to/python3.11' >&2
  exit 1
fi

models=$(mktemp -d)
trap 'rm -rf "$models"' EXIT
SAVE_MODELS=$models "$venv/bin/python" -m pytest tests/programs/onnx --all "$@"
status=0
for each in "oldest ==$oldest" 'middle ==1.23.*' "newest >$oldest"; do
  read -r name version <<<"$each"
  folder=.venv-onnxruntime/$name
  if [ ! -e "$folder/installed" ] || [ "$name" = newest ]; then
    "$python" -m venv "$folder"
    # onnxruntime before 1.19 needs NumPy 1, which its metadata does not say
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade "onnxruntime$version" 'numpy<2'
    touch "$folder/installed"
  fi
  "$folder/bin/python" tools/compare_models.py "$models" || status=1
done
exit $status
