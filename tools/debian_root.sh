#!/usr/bin/env bash
# usage: tools/debian_root.sh RELEASE PACKAGES SCRIPT [OPTIONS OF MMDEBSTRAP...]
# On Debian or Ubuntu: make a root of a Debian RELEASE with PACKAGES (separated by commas) in a temporary folder, copy this
# checkout to its /package, run `SCRIPT in-root` there, and delete the root.
set -euo pipefail
release=$1
packages=$2
script=$3
shift 3
if ! type -p mmdebstrap >/dev/null; then
  echo 'This needs mmdebstrap. On Debian and Ubuntu: sudo apt-get install mmdebstrap debian-archive-keyring' >&2
  exit 1
fi
files=$(mktemp)
trap 'rm -f "$files"' EXIT
git ls-files -z --cached --others --exclude-standard | tar --null --files-from=- -cf "$files"
chmod a+r "$files" # mmdebstrap may use another user
proxies=$(env | grep -i '^https\?_proxy=' | tr '\n' ' ' || true)
hook=--customize-hook
case "$*" in
  *--variant=extract*) hook=--extract-hook ;; # the last hook of this variant
esac
# The certificates of this system, because a proxy may open HTTPS connections
mmdebstrap "$@" --include="$packages" \
  "$hook=mkdir \"\$1/package\" && tar -C \"\$1/package\" -xf '$files'" \
  "$hook=mkdir -p \"\$1/etc/ssl/certs\" && cp /etc/ssl/certs/ca-certificates.crt \"\$1/etc/ssl/certs\"" \
  "$hook=cd / && chroot \"\$1\" env -i $proxies HOME=/root LANG=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin bash /package/$script in-root" \
  "$release" /dev/null
