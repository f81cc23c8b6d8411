#!/usr/bin/env bash
# Every group of tests in a process of its own, so that none can disturb another; all are run, any failure fails.
set -uo pipefail
run=("$@")
status=0
group() {
  printf '\n== %s\n' "$*"
  "${run[@]}" "$@" || status=1
}
group tests/fleet tests/faults tests/agents tests/activities tests/sim
group tests/temporal tests/clients tests/bench tests/training
group tests/workflows
group tests/contract
group tests/slurm
group tests/workers
group tests/crash
exit "$status"
