#!/usr/bin/env bash
# Debian's packages for the Kubernetes lab: a container runtime and small tools.
set -euo pipefail
LAB=Kubernetes
PACKAGES="containerd runc containernetworking-plugins busybox-static iproute2 iptables openssl util-linux"
PROGRAMS="containerd runc busybox ip iptables openssl unshare nsenter /usr/lib/cni/bridge"
ELSEWHERE="install containerd, runc, CNI plugins and a static busybox"
. "$(dirname "${BASH_SOURCE[0]}")/debian.sh"
