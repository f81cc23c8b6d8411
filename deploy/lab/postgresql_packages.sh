#!/usr/bin/env bash
# Debian's PostgreSQL server for the tests of the history store: programs only. Each test run makes a cluster of its own
# in a temporary folder (tests/postgresql.py); Debian's first cluster, which would start with the machine, is not made.
set -euo pipefail
LAB=PostgreSQL
PACKAGES="postgresql"
PROGRAMS="postgres initdb pg_isready createdb pg_dump pg_restore"
PATH="$PATH$(printf ':%s' /usr/lib/postgresql/*/bin)"
ELSEWHERE="install a PostgreSQL 13 server or newer, with postgres, initdb, pg_isready, createdb, pg_dump on the PATH"
no_cluster=/etc/postgresql-common/createcluster.d/gpu-runbooks.conf
prepare() {
  mkdir -p "${no_cluster%/*}"
  echo "create_main_cluster = false" >"$no_cluster"
}
. "$(dirname "${BASH_SOURCE[0]}")/debian.sh"
rm -f "$no_cluster"
