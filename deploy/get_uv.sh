#!/usr/bin/env bash
# Puts uv into .tools/ with Python's own venv and pip. Run by the Makefile where uv is not installed.
set -euo pipefail
python=""
for candidate in python3.13 python3.12 python3.11 python3; do
  if command -v "$candidate" >/dev/null && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    python=$candidate
    break
  fi
done
if [ -z "$python" ]; then
  echo "Python 3.11 or newer is missing: apt-get install python3 python3-venv (Debian 12 or newer)" >&2
  exit 1
fi
if ! "$python" -m venv .tools 2>/tmp/get_uv.$$; then
  cat /tmp/get_uv.$$ >&2
  rm -f /tmp/get_uv.$$
  echo "Python's venv is missing: apt-get install python3-venv" >&2
  exit 1
fi
rm -f /tmp/get_uv.$$
.tools/bin/pip install --quiet --disable-pip-version-check uv
