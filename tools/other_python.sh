#!/usr/bin/env bash
# Run the tests of `remotely` and of the wheel on the Python of another Debian, in a separate root
# file system.
#
#   tools/other_python.sh trixie                                  Python 3.13
#   tools/other_python.sh sid -n 2 tests/remotely/api -k partial  3.14; arguments of pytest
#   WITH=--components=main,universe tools/other_python.sh noble   3.12, of Ubuntu
#   RL=1 tools/other_python.sh sid                                also the tests of `remotely_rl`
#
# With RL, torch is that Debian's if pyproject.toml allows it: sid's, but not trixie's.
#
# It needs root and a debootstrap that knows the suite.  The first run takes minutes; remove
# /var/tmp/other-python/SUITE to start again.
set -euo pipefail
suite=${1:?which suite, trixie or sid}
shift
[ $# -gt 0 ] || set -- -n 4 tests/test_wheel.py tests/remotely ${RL:+tests/remotely_rl}
root=/var/tmp/other-python/$suite
if [ ! -f "$root/made" ]; then
  rm -rf "$root"
  needs=python3-dev,python3-venv,g++,ca-certificates,git,iproute2,iptables,openssh-client,openssh-server,procps
  debootstrap --variant=minbase ${WITH-} --include=$needs "$suite" "$root"
  touch "$root/made"
fi
# Use this machine's mirrors and package indexes.
for file in /etc/hosts /etc/pip.conf /etc/resolv.conf /etc/ssl/certs/ca-certificates.crt; do
  [ ! -f $file ] || cp $file "$root$file"
done
rm -rf "$root/src"
mkdir "$root/src"
cd "$(git rev-parse --show-toplevel)"
git ls-files -z | xargs -0 tar c | tar x -C "$root/src"
# The namespaces end with their mounts and processes in any case.  The first bash stays to reap
# orphans, because of the `exit` after its last command.
unshare --mount --pid --fork --kill-child bash -euc '
  root=$1; shift
  mount --bind "$root" "$root"  # a mount point, which "ip netns" needs of its root
  mount -t proc proc "$root/proc"
  for part in sys dev; do mount --rbind /$part "$root/$part"; done
  chroot "$root" bash -euc "$@"
  exit' -- "$root" '
  cd /src
  git init --quiet && git add --all  # tests ask git for the files
  venv=/venv${RL:+-rl}
  if ! cmp --quiet pyproject.toml $venv/made; then
    if [ ${RL-} ]; then
      apt-get -qq -o Acquire::Check-Valid-Until=false update  # a mirror of sid may be behind
      DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends python3-torch
    fi
    python3 -m venv --clear ${RL:+--system-site-packages} $venv
    $venv/bin/pip install --quiet --disable-pip-version-check --editable .[dashboard${RL:+,rl,dev}] hatchling \
      pytest pytest-timeout pytest-xdist hypothesis scikit-learn import-linter pyyaml httpx2
    cp pyproject.toml $venv/made
  fi
  export PATH=$venv/bin:$PATH
  python --version
  python -m pytest "$@"' -- "$@"
