#!/usr/bin/env bash
# Debian's Slurm packages for the real lab. In CI they are installed; outside CI a person is asked first.
# No package may start a service of its own: a policy-rc.d that forbids it stands while apt runs.
set -euo pipefail
PACKAGES="slurmctld slurmd slurm-client munge util-linux openssh-client"
missing=()
for program in slurmctld slurmd squeue munged unshare ssh-keygen; do
  PATH="$PATH:/usr/sbin:/sbin" command -v "$program" >/dev/null || missing+=("$program")
done
if [ ${#missing[@]} -eq 0 ]; then exit 0; fi
how="apt-get install --no-install-recommends $PACKAGES"
if [ "$(id -u)" != 0 ]; then
  echo "real Slurm lab: ${missing[*]} missing; it needs root and: $how" >&2
  exit 0
fi
if ! command -v apt-get >/dev/null; then
  echo "real Slurm lab: ${missing[*]} missing, and this is no Debian; install Slurm 22.05 or newer and munge" >&2
  exit 0
fi
if [ "${CI:-}" != true ]; then
  if [ ! -t 0 ]; then
    echo "real Slurm lab: ${missing[*]} missing; install them with: $how (or set CI=true)" >&2
    exit 0
  fi
  read -r -p "Install Debian's Slurm packages for the lab ($PACKAGES)? No service is started. [y/N] " answer
  case "$answer" in y | Y | yes) ;; *) exit 0 ;; esac
fi
policy=/usr/sbin/policy-rc.d
made=""
if [ ! -e "$policy" ]; then
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod 755 "$policy"
  made=yes
fi
trap '[ -z "$made" ] || rm -f "$policy"' EXIT
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq </dev/null
# shellcheck disable=SC2086  # a list of packages
apt-get install -y -qq --no-install-recommends $PACKAGES </dev/null
