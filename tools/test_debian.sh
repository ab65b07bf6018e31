#!/usr/bin/env bash
# usage: [DEBIAN=sid] tools/test_debian.sh [OPTIONS OF MMDEBSTRAP...]
# On Debian or Ubuntu: run the commands of README.md in a minimal root of the given release with its own Python, after
# installing the packages that README.md names, and no others.
set -euo pipefail

if [ "${1:-}" != in-root ]; then
  packages=$(sed -n 's/^ *sudo apt-get install -y \([^#]*[^# ]\).*/\1/p' README.md)
  tools/debian_root.sh "${DEBIAN:-sid}" "${packages// /,}" tools/test_debian.sh --variant=minbase "$@"
  exit
fi

cd /package
make demo ARGS='--dataset glyphs --train-size 4096 --num-epochs 1'
make test
echo "The demo and all quick tests passed on $(. /etc/os-release && echo "$PRETTY_NAME"), $(python3 -V)."
