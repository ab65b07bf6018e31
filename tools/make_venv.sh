#!/usr/bin/env bash
# usage: tools/make_venv.sh FOLDER EXTRAS [oldest]
# Create the virtual environment FOLDER if it does not exist, and install this package with EXTRAS in it. With `oldest`,
# install the lowest versions that pyproject.toml allows; these have wheels for Python 3.9.
# PYTHON=/path/to/python selects the Python; otherwise the script looks for the newest one of 3.9 to 3.13, the versions that
# were tried, and then for a newer one; with `oldest`, first for 3.9.
set -euo pipefail
venv=$1
extras=$2
oldest=${3:-}

candidates() {
  if [ -n "${PYTHON:-}" ]; then
    type -p "$PYTHON" || echo "$PYTHON"
    return
  fi
  for version in ${oldest:+3.9} 3.13 3.12 3.11 3.10 3.9 3.14; do
    type -ap "python$version" || true
    ls -d "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/python 2>/dev/null || true
  done
  type -ap python3 python || true
}

find_python() {
  local python version found=()
  while IFS= read -r python; do
    # Run it, because an existing file may not work (pyenv has one for each inactive version).
    version=$("$python" -c 'import sys; print(sys.version.split()[0])' 2>/dev/null) || version='does not run'
    case $version in
      3.9.* | 3.[1-9][0-9].*)
        if "$python" -c 'import ensurepip, venv' 2>/dev/null; then
          echo "$python"
          return
        fi
        version="$version without venv, which is python${version%.*}-venv on Debian and Ubuntu" ;;
    esac
    found+=("$python ($version)")
  done < <(candidates)
  {
    echo "No usable Python was found; this package needs Python 3.9 or newer. Found:"
    printf '  %s\n' "${found[@]:-no Python at all}"
    echo "Install one, or select it: make ... PYTHON=/path/to/python3.13"
  } >&2
  return 1
}

if [ -e "$venv/unfinished" ]; then # interrupted last time
  rm -rf "$venv"
fi
if [ ! -d "$venv" ]; then
  python=$(find_python)
  echo "Creating $venv with $python and installing packages; this takes a minute or two."
  mkdir "$venv"
  touch "$venv/unfinished"
  "$python" -m venv "$venv"
fi
if compgen -G "$venv/lib/python3*/site-packages/mxnet_cu*" >/dev/null; then
  extras=${extras#cpu,} # the CUDA build is installed, and the CPU build would overwrite it
fi
# From Python 3.13 on, the extras do not install MXNet: its metadata demands NumPy 1, which is not available there
case $extras in
  cpu*) mxnet=mxnet==1.9.1 ;;
  cu112*) mxnet=mxnet-cu112==1.9.1 ;;
  mxnet2*) mxnet=mxnet==2.0.0b1 ;;
  *) mxnet= ;;
esac
pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check)
install_package() {
  if [ -z "$oldest" ]; then
    "${pip[@]}" --editable ".[$extras]"
  else # pip cannot select the lowest versions
    "${pip[@]}" 'uv>=0.5' &&
      "$venv/bin/uv" pip install --quiet --python "$venv/bin/python" --resolution lowest-direct --editable ".[$extras]"
  fi && if [ -n "$mxnet" ]; then
    "${pip[@]}" --no-deps "$mxnet"
  fi
}
if ! install_package; then
  echo "pip could not install the package into $venv: see its message above." >&2
  echo "If it found no mxnet for this machine ($(uname -sm)), see docs/devices.md." >&2
  exit 1
fi
rm -f "$venv/unfinished"
if [ "$(uname -sm)" = 'Linux aarch64' ] && [[ ",$extras," == *,cpu,* ]]; then
  "$venv/bin/python" -m gluon_mgpu.mxnet_setup.arm64
fi
touch "$venv/installed"
