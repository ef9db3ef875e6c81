#!/usr/bin/env bash
# Runs the tests of `remotely` on the Python of another Debian, made beside this system.
#
#   tools/other_python.sh trixie                                  Python 3.13
#   tools/other_python.sh sid -n 2 tests/remotely/api -k partial  the newest; words for pytest
#
# It needs root and debootstrap.  The first run of a suite takes some minutes; remove
# /var/tmp/other-python/SUITE to begin anew.  torch is not installed: `remotely` needs none.
set -euo pipefail
suite=${1:?which suite of Debian: trixie, sid}
shift
[ $# -gt 0 ] || set -- -n 4 tests/remotely
root=/var/tmp/other-python/$suite
if [ ! -f "$root/made" ]; then
  rm -rf "$root"
  debootstrap --variant=minbase --include=python3-dev,python3-venv,g++,ca-certificates,git,iproute2,iptables,openssh-client,openssh-server,procps \
    "$suite" "$root"
  touch "$root/made"
fi
# How this machine reaches a mirror and a package index, the other shall too.
for file in /etc/hosts /etc/pip.conf /etc/resolv.conf /etc/ssl/certs/ca-certificates.crt; do
  [ ! -f $file ] || cp $file "$root$file"
done
rm -rf "$root/src"
mkdir "$root/src"
cd "$(git rev-parse --show-toplevel)"
git ls-files -z | xargs -0 tar c | tar x -C "$root/src"
# Mounts of a namespace of its own go with it, whatever happens.
exec unshare --mount bash -euc '
  root=$1; shift
  for part in proc sys dev; do mount --rbind /$part "$root/$part"; done
  exec chroot "$root" bash -euc "$@"' -- "$root" '
  cd /src
  git init --quiet && git add --all  # tests ask git for the files
  if ! cmp --quiet pyproject.toml /venv/made; then
    python3 -m venv --clear /venv
    /venv/bin/pip install --quiet --disable-pip-version-check --editable . \
      pytest pytest-timeout pytest-xdist hypothesis scikit-learn import-linter
    cp pyproject.toml /venv/made
  fi
  export PATH=/venv/bin:$PATH
  python --version
  exec python -m pytest "$@"' -- "$@"
