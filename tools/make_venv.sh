#!/usr/bin/env bash
# usage: tools/make_venv.sh FOLDER EXTRAS [oldest]
# Create the virtual environment FOLDER if it does not exist, and install this package with EXTRAS in it. An MXNet that is
# installed there stays. With `oldest`, install the lowest versions that pyproject.toml allows; these have wheels for Python 3.10.
# PYTHON=/path/to/python selects the Python; otherwise the script looks for the newest one of 3.10 to 3.14, the versions that
# were tried, and then for a newer one; with `oldest`, first for 3.10.
set -euo pipefail
venv=$1
extras=$2
oldest=${3:-}

# The same folders after the script has changed to that of the project
case $venv in /*) folder=$venv ;; *) folder=$PWD/$venv ;; esac
case $0 in */*) project=${0%/*}/.. ;; *) project=.. ;; esac

# Libraries of the system that MXNet needs, and packages that a minimal system lacks: the same as in README.md
if [ "$(uname -m)" = aarch64 ]; then
  libraries=(libgomp.so.1 libopenblas.so.0 liblapacke.so.3)
  debian='libgomp1 libopenblas0-pthread liblapacke'
  fedora='libgomp openblas-serial lapack'
else
  libraries=(libgomp.so.1 libquadmath.so.0)
  debian='libgomp1 libquadmath0'
  fedora='libgomp libquadmath'
fi

fail() {
  printf '%s\n' "$@" >&2
  exit 1
}

how_to_install() { # PYTHON-PACKAGE-OF-DEBIAN: print the one command that installs all of the above
  local sudo='sudo '
  if [ "$EUID" = 0 ]; then
    sudo=
  fi
  if type -p dnf >/dev/null; then
    echo "${sudo}dnf install -y python3 $fedora"
  else
    echo "${sudo}apt-get install -y $1 $debian"
  fi
}

candidates() {
  if [ -n "${PYTHON:-}" ]; then
    type -p "$PYTHON" || echo "$PYTHON"
    return
  fi
  for version in ${oldest:+3.10} 3.14 3.13 3.12 3.11 3.10; do
    type -ap "python$version" || true
    ls -d "${PYENV_ROOT:-${HOME:-}/.pyenv}/versions/$version".*/bin/python 2>/dev/null || true
  done
  type -ap python3 python || true
}

find_python() {
  local python version found=() venv_package=python3-venv
  while IFS= read -r python; do
    # Run it, because an existing file may not work (pyenv has one for each inactive version).
    version=$("$python" -c 'import sys; print(sys.version.split()[0])' 2>/dev/null) || version='does not run'
    case $version in
      3.[1-9][0-9].*)
        if "$python" -c 'import ensurepip, venv' 2>/dev/null; then
          echo "$python"
          return
        fi
        venv_package=python${version%.*}-venv # on Debian and Ubuntu
        version+=' without venv' ;;
    esac
    found+=("  $python ($version)")
  done < <(candidates)
  fail 'No usable Python was found; this package needs Python 3.10 or newer with venv. Found:' \
    "${found[@]:-  no Python at all}" \
    "Install it: $(how_to_install "$venv_package")" \
    'Or select another Python: make ... PYTHON=/path/to/python3.14'
}

identity() { # PYTHON: print its version and where it is installed, also if it is that of an environment
  "$1" -c 'import sys; print("Python", sys.version.split()[0], "in", sys.base_prefix)' 2>/dev/null || echo 'no Python that runs'
}

# Marks an environment that this script has begun, which may be deleted; no other folder has a file with this content
marker=$folder/.gluon_mgpu-unfinished
marker_text='begun by tools/make_venv.sh of gluon_mgpu'
if [ -f "$marker" ] && [ "$(<"$marker")" = "$marker_text" ]; then # interrupted last time
  rm -rf "$folder"
fi
created=
if [ ! -e "$folder" ] && [ ! -L "$folder" ]; then
  created=yes
  python=$(find_python)
else
  python=$folder/bin/python
  # uv makes environments without pip
  if ! "$python" -c 'import pip, sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
    fail "$venv has no Python 3.10 or newer that runs and has pip. Delete $venv, or run 'make clean', and make it again."
  fi
  if [ -n "${PYTHON:-}" ]; then
    has=$(identity "$python")
    wanted=$(identity "$PYTHON")
    if [ "$has" != "$wanted" ]; then
      fail "$venv has $has, but PYTHON=$PYTHON is $wanted. Delete $venv, or run 'make clean', and make it again."
    elif [ "$folder/installed" -nt "$project/pyproject.toml" ]; then
      exit
    fi
  fi
fi

# The extras do not install MXNet from Python 3.13 on: its metadata demands NumPy 1, which is not available there
case $extras in
  cpu*) mxnet=mxnet==1.9.1 ;;
  cu112*) mxnet=mxnet-cu112==1.9.1 ;;
  mxnet2*) mxnet=mxnet==2.0.0b1 ;;
  *) mxnet= ;;
esac
if [ -n "$mxnet" ]; then
  missing=$("$python" -c '
import ctypes, sys
for library in sys.argv[1:]:
    try:
        ctypes.CDLL(library)
    except OSError:
        print(library)' "${libraries[@]}")
  if [ -n "$missing" ]; then
    fail "MXNet needs libraries that this system does not have: ${missing//$'\n'/, }" \
      "Install them: $(how_to_install python3-venv)"
  fi
  if [ -z "$created" ] && "$python" -Ic 'import importlib.util as u; assert u.find_spec("mxnet").origin' 2>/dev/null; then
    extras=${extras#*,} # pip would replace an installed MXNet, or its NumPy
    mxnet=
  fi
fi

if [ -n "$created" ]; then
  echo "Creating $venv with $python and installing packages; this takes a minute or two."
  mkdir "$folder"
  echo "$marker_text" >"$marker"
  "$python" -m venv "$folder"
fi
pip=("$folder/bin/python" -m pip install --quiet --disable-pip-version-check)
cd "$project" # pip installs what lies in the current folder
install_package() {
  "${pip[@]}" 'pip>=21.3' || return # an older one cannot install this package as editable
  if [ -z "$oldest" ]; then
    "${pip[@]}" --editable ".[$extras]"
  else # pip cannot select the lowest versions
    "${pip[@]}" 'uv>=0.5' &&
      "$folder/bin/uv" pip install --quiet --python "$folder/bin/python" --resolution lowest-direct --editable ".[$extras]"
  fi && if [ -n "$mxnet" ]; then
    "${pip[@]}" --no-deps "$mxnet"
  fi
}
if ! install_package; then
  fail "pip could not install the package into $venv: see its message above." \
    "If it found no mxnet for this machine ($(uname -sm)), see docs/devices.md."
fi
rm -f "$marker"
if [ "$(uname -sm)" = 'Linux aarch64' ] && [[ ",$2," == *,cpu,* ]]; then
  "$folder/bin/python" tools/repair_arm64.py
fi
touch "$folder/installed"
