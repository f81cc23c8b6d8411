#!/usr/bin/env bash
# Debian's Slurm packages for the real lab.
set -euo pipefail
LAB=Slurm
PACKAGES="slurmctld slurmd slurm-client munge util-linux openssh-client"
PROGRAMS="slurmctld slurmd squeue munged unshare ssh-keygen"
ELSEWHERE="install Slurm 22.05 or newer and munge"
. "$(dirname "${BASH_SOURCE[0]}")/debian.sh"
