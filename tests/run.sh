#!/usr/bin/env bash
# Everything a change must pass, from a bare machine with Python and git: installs what the tests need, then runs them all.
set -euo pipefail
cd "$(dirname "$0")/.."

missing=()
command -v chromium >/dev/null || missing+=(chromium fonts-noto-cjk)
command -v prometheus >/dev/null || missing+=(prometheus)
if ((${#missing[@]})); then
  as_root=()
  [[ $(id -u) == 0 ]] || as_root=(sudo)
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

python=${PYTHON:-python3}
[[ -x .venv/bin/python ]] || "$python" -m venv .venv
.venv/bin/python -m pip install -q --disable-pip-version-check -r requirements-dev.txt

.venv/bin/ruff check .
.venv/bin/mypy
.venv/bin/python -m sim conformance tests/data/oracle/*.json.gz
.venv/bin/python -m pytest "$@"
