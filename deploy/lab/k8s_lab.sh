#!/usr/bin/env bash
# k8s_lab.sh - private, throw-away Kubernetes clusters on one machine (root, no systemd, no Docker).
#   k8s_lab.sh [--root DIR] VERB ...
#
#   start  NAME [-n NODES] [-g GPUS] [-s SLOT] [-c CONTROLLERS] [-k]
#            etcd, kube-apiserver, scheduler, controller-manager; then nodes NAME-n1 .. (default 2 nodes of 8 GPUs, at most 8 nodes)
#            -s 0 to 30, default the first free: ports from 13000+50*SLOT, node I on 10.244.(8*SLOT+I).0/24
#            -c of jobset,kueue,training-operator,trainer,kuberay: controllers of job kinds, beside Kubernetes' own (default none)
#            -k keeps the saved state, controllers too; without it the cluster is new
#   stop   NAME                     end every process of the cluster, keep its folder
#   rm     NAME                     the same, and delete the folder, the bridges, the cgroups
#   check                           can `start` work here (root, packages, programs)? exit 0, else 1 with the reason
#   list                            one line a cluster: NAME running|stopped
#   kubeconfig NAME                 path of the admin's kubeconfig (its context is NAME)
#   cgroup NAME                     path of the cluster's cgroup below each controller, running or not
#   status NAME                     daemons, power, processes and the apiserver's view of each node
#   shell  [COMMAND...]             a shell, or a command, in the lab's network namespace
#   node-start  NAME NODE [-g GPUS] boot a node: kubelet and containerd in PID, mount and UTS namespaces of their own
#   power-status|power-on|power-off|power-cycle NAME NODE
#            what a BMC does; status prints on or off alone on a line; the others end with 0 once it is so
#   node-crash  NAME NODE           power loss: every process of the node dies at once; node-start or power-on boots it
#   node-freeze|node-thaw NAME NODE a hung node: SIGSTOP / SIGCONT to every process of it
#   node-reboot NAME NODE           crash, REBOOT_SECS, boot with a new boot id
#   kubelet-kill|kubelet-start NAME NODE   only the daemon; containers go on
#   gpu-lose    NAME NODE INDEX     that GPU is gone from the node's status until its next boot
#   check-fail  NAME NODE [TEXT|ok] what the check pod (NAME/check.yaml) finds: TEXT fails the check
#   fake-nodes  NAME [COUNT] [-g GPUS]     kwok answers for COUNT nodes NAME-f1 .. (annotation kwok.x-k8s.io/node=fake)
#   api-kill|api-start|api-freeze|api-thaw NAME
#   api-slow    NAME PERCENT        stopped that part of each half second; api-thaw ends it
#   controller-kill|controller-start NAME CONTROLLER   what is admitted only by the webhooks of a dead one is refused meanwhile
#
# NODE is a number or NAME-nNUMBER. Everything runs in a network namespace of its own: the caller's where that is not the
# machine's, else one that the first `start` of a root makes and the last `rm` ends; every verb enters it by itself.
# K8S_LAB_ROOT  parent folder of all clusters, as --root   (default: ${TMPDIR:-/tmp}/k8s-lab; keep it short)
# K8S_BIN       folders of the programs, as a PATH         (default: what k8s/build.py built)
# NODE_GRACE    how long a silent node stays Ready (default 16s; Kubernetes' own is 50s), REBOOT_SECS seconds off (default 3)
#
# Images on every node: lab/base:1 (busybox), lab/train:1 (/training: train.py, flight_recorder.py, check_gpus.py), lab/pause:1; a pod
# that mounts the machine's /usr, /lib and /lib64 by hostPath has its Python.
#
# Processes are found by their command lines, which name the cluster's folder, never by a stored pid.
set -euo pipefail
shopt -s extglob
umask 022
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
SELF=$(readlink -f "${BASH_SOURCE[0]}") HERE=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
if [[ ${1:-} == --root ]]; then export K8S_LAB_ROOT=${2:?--root wants a folder}; shift 2; fi
LAB_ROOT=$(readlink -m "${K8S_LAB_ROOT:-${TMPDIR:-/tmp}/k8s-lab}")
export KUBECACHEDIR=$LAB_ROOT/_kube-cache   # kubectl's own would be in the home folder
CNI_BIN=${CNI_BIN:-/usr/lib/cni} MOST_NODES=8 MOST_SLOT=30
# shellcheck source-path=SCRIPTDIR source=k8s_lab_config.sh
. "$HERE/k8s_lab_config.sh"
# shellcheck source-path=SCRIPTDIR source=k8s_controllers.sh
. "$HERE/k8s_controllers.sh"

die() { echo "k8s_lab: $*" >&2; exit 1; }
unknown() { echo "k8s_lab: $*" >&2; exit 64; } # a name that is not there (EX_USAGE)
usage() { sed -n '2,/^set -euo/{/^set/d;s/^# \{0,1\}//;p}' "$SELF"; exit "$1"; }
until_true() { # SECONDS COMMAND...: poll it every 20 ms
  local end=$(( ${EPOCHREALTIME/./} + $1 * 1000000 )); shift
  until "$@"; do (( ${EPOCHREALTIME/./} < end )) || return 1; sleep 0.02; done
}
programs() { # put the lab's programs in front
  [[ -n ${K8S_BIN:-} ]] || K8S_BIN=$("$HERE/k8s/build.py" --check) || die "run $HERE/k8s/build.py first (several minutes, once)"
  export K8S_BIN; export PATH="$K8S_BIN:$PATH"
}
cluster() { # sets NAME, D
  NAME=${1:-}
  [[ $NAME =~ ^[a-z][a-z0-9-]{0,19}$ && $NAME != *- ]] || die "a cluster's name is 1 to 20 of a-z 0-9 -, first a letter: not '$NAME'"
  D=$LAB_ROOT/$NAME
}
existing() { # sets SLOT, PORT, NODES, GPUS too, and enters the cluster's network
  cluster "${1:-}"; [[ -f $D/lab.env ]] || unknown "no cluster $NAME under $LAB_ROOT"
  # shellcheck source=/dev/null
  . "$D/lab.env"
}
node_of() { # CLUSTER NODE -> existing cluster, I = its number, N = its name, ND = its folder
  (( EUID == 0 )) || die "needs root"   # who cannot see every process must not take a node for dead
  existing "${1:-}"; I=${2:-}; I=${I#"$NAME-n"}
  if ! [[ $I =~ ^[1-9]$ ]] || (( I > NODES )); then unknown "no node '${2:-}' in $NAME (1 to $NODES, or $NAME-n1 ..)"; fi
  N=$NAME-n$I ND=$D/nodes/$I
}
bridge_of() { echo "lab${SLOT}n$1"; }
subnet_of() { echo "10.244.$(( SLOT * 8 + $1 ))"; }
cgroup_of() { echo "k8slab/$NAME-$(cksum <<<"$D" | cut -d' ' -f1)/${1:+$NAME-n$1}"; }
K() { kubectl --kubeconfig "$D/admin.kubeconfig" --request-timeout=10s "$@"; }
W() { kubectl --kubeconfig "$D/admin.kubeconfig" wait "$@" >/dev/null 2>&1; }

# --- finding processes. Zombies have no command line, so they count as gone.
find_pids() { # COMM PATTERN -> processes whose name and one of whose arguments match (extended regular expressions)
  local f comm
  while read -r f; do
    f=${f%/cmdline}
    if read -r comm 2>/dev/null <"$f/comm" && [[ $comm =~ ^($1)$ && $f != /proc/$$ && $f != /proc/$BASHPID ]]; then echo "${f#/proc/}"; fi
  done < <(grep -lzE -- "^$2$" /proc/[0-9]*/cmdline 2>/dev/null)
}
DE() { echo "${D//./\\.}"; }   # the folder in a pattern; comm has at most 15 characters
api_pid() { find_pids kube-apiserver "--cert-dir=$(DE)/pki"; }
etcd_pid() { find_pids etcd "--data-dir=$(DE)/etcd"; }
manager_pid() { find_pids kube-controller "--kubeconfig=$(DE)/controller-manager\\.kubeconfig"; }
scheduler_pid() { find_pids kube-scheduler "--kubeconfig=$(DE)/scheduler\\.kubeconfig"; }
kwok_pid() { find_pids kwok "--kubeconfig=$(DE)/admin\\.kubeconfig"; }
slow_pids() { find_pids bash "k8s-lab-slow:$(DE)"; }
namespace_pids() { find_pids 'bash|unshare|setsid' "k8s-lab-node:$(DE):${1:-.*}"; }   # PID 1 of nodes and its parent
network_pid() { local p; for p in $(find_pids sleep "k8s-lab-net:${LAB_ROOT//./\\.}"); do echo "$p"; return; done; }
control_pids() { controller_pids; kwok_pid; slow_pids; scheduler_pid; manager_pid; api_pid; etcd_pid; }
any_process() { [[ -n $(control_pids)$(namespace_pids) ]]; }
node_init() { # host pid of the PID 1 of the node's namespace; empty while the node is off
  local p
  for p in $(namespace_pids "$1"); do
    if grep -Eqs '^NSpid:.*[[:space:]]1$' "/proc/$p/status"; then echo "$p"; return; fi
  done
}
node_pids() { # every process of the node, also those in the containers' own PID namespaces: all descend from its PID 1
  local p; p=$(node_init "$1"); [[ -z $p ]] || descendants "$p"
}
descendants() { local c; echo "$1"; for c in $(cat /proc/"$1"/task/*/children 2>/dev/null); do descendants "$c"; done; }
kubelet_pid() { # of node I
  local p; for p in $(find_pids kubelet "--config=$(DE)/nodes/$1/kubelet\\.yaml"); do echo "$p"; return; done
}
alive() { [[ -n ${1:-} ]] && grep -qs '^State:[[:space:]]*[^ZX[:space:]]' "/proc/$1/status"; }
dead() { ! alive "$1"; }
frozen() { local p; p=$(node_init "$1"); [[ -n $p ]] && grep -q '^State:[[:space:]]*[Tt]' "/proc/$p/status"; }
end_pid() { # PID: SIGKILL, and wait
  alive "$1" || return 0
  kill -KILL "$1" 2>/dev/null || true
  until_true 10 dead "$1" || die "process $1 does not die"
}

# --- the network namespace
private() { # no interface leads out of here: only loopback, the lab's own, and those that the kernel puts into every namespace
  ! grep -Ev '^ *(lo|lab[0-9]+n[0-9]|veth[0-9a-f]+|tunl0|sit0|ip6tnl0|gre0|gretap0|erspan0|ip_vti0|ip6_vti0|ip6gre0):|\|' /proc/net/dev | grep -q .
}
enter_network() { # run the rest of this script in the lab's network; $@ are its words
  local p; p=$(network_pid)
  if [[ -z $p && -n ${D:-} ]]; then p=$(control_pids; namespace_pids); p=${p%%$'\n'*}; fi
  if [[ -n $p && ! /proc/$p/ns/net -ef /proc/self/ns/net ]]; then exec nsenter --net="/proc/$p/ns/net" -- bash "$SELF" --root "$LAB_ROOT" "$@"; fi
}
make_network() { # under the root's lock
  private || [[ -n $(network_pid) ]] || {
    # shellcheck disable=SC2016  # expanded inside
    setsid unshare --net bash -c 'ip link set lo up; echo 1 >/proc/sys/net/ipv4/ip_forward; exec -a "$1" sleep infinity' - "k8s-lab-net:$LAB_ROOT" >/dev/null 2>&1 7>&- 8>&- &
    until_true 10 network_is_up || die "no network namespace"
  }
}
network_is_up() { local p; p=$(network_pid) && [[ -n $p ]]; }
end_network() { # when no cluster of this root runs any more
  local e p
  for e in "$LAB_ROOT"/*/lab.env; do if [[ -f $e ]] && ( D=${e%/lab.env}; any_process ); then return 0; fi; done
  for p in $(network_pid); do end_pid "$p"; done
}

# --- daemons
daemon() { # NAME COMMAND...: files as its output, so that a caller's pipe ends with this script
  local n=$1; shift
  setsid "$@" >>"$D/log/$n.log" 2>&1 7>&- 8>&- &
  disown
}
etcd_start() {
  [[ -z $(etcd_pid) ]] || return 0
  local client=http://127.0.0.1:$(( PORT + 1 )) peer=http://127.0.0.1:$(( PORT + 2 ))
  daemon etcd etcd --name="$NAME" --data-dir="$D/etcd" --listen-client-urls="$client" --advertise-client-urls="$client" \
    --listen-peer-urls="$peer" --initial-advertise-peer-urls="$peer" --initial-cluster="$NAME=$peer" --unsafe-no-fsync --log-level=warn
}
api_start() { # until it answers
  local words; mapfile -t words < <(apiserver_words)
  [[ -n $(api_pid) ]] || daemon kube-apiserver kube-apiserver "${words[@]}"
  until_true 60 api_ready || die "the apiserver of $NAME is not ready after 60 s: $(tail -n 3 "$D/log/kube-apiserver.log")"
}
api_ready() { # kubectl costs a quarter of a second of CPU: only where somebody listens
  ( : <>"/dev/tcp/127.0.0.1/$PORT" ) 2>/dev/null && K get --raw /readyz >/dev/null 2>&1
}
controllers_start() {
  local rates=(--leader-elect=false --kube-api-qps=500 --kube-api-burst=1000 --v=1)
  [[ -n $(manager_pid) ]] ||
    daemon kube-controller-manager kube-controller-manager --kubeconfig="$D/controller-manager.kubeconfig" --service-account-private-key-file="$D/pki/sa.key" \
      --root-ca-file="$D/pki/apiserver.crt" --use-service-account-credentials=true --bind-address=127.0.0.1 --secure-port=$(( PORT + 3 )) \
      --node-monitor-grace-period="${NODE_GRACE:-16s}" --node-monitor-period=1s "${rates[@]}"
  [[ -n $(scheduler_pid) ]] || daemon kube-scheduler kube-scheduler --kubeconfig="$D/scheduler.kubeconfig" --bind-address=127.0.0.1 --secure-port=$(( PORT + 4 )) "${rates[@]}"
  W serviceaccount/default --for=create --timeout=30s || die "$NAME: no service account after 30 s"
}
api_signal() { local p; p=$(api_pid); [[ -n $p ]] || die "the apiserver of $NAME does not run"; kill -"$1" "$p"; }
api_kill() { api_steady; local p; for p in $(api_pid); do end_pid "$p"; done; }
api_steady() { local p; for p in $(slow_pids); do end_pid "$p"; done; }
api_slow() { # PERCENT
  [[ ${1:-} =~ ^[1-9][0-9]?$ ]] || die "api-slow wants 1 to 99 percent, not '${1:-}'"
  api_steady
  daemon slow bash "$SELF" --root "$LAB_ROOT" _slow "$NAME" "$1" "k8s-lab-slow:$D"
}
slow_loop() { # until the apiserver is gone
  local p off on; p=$(api_pid); off=$(printf '0.%03d' $(( $1 * 5 ))) on=$(printf '0.%03d' $(( (100 - $1) * 5 )))
  trap 'kill -CONT "$p" 2>/dev/null || true' EXIT
  while alive "$p"; do kill -STOP "$p"; sleep "$off"; kill -CONT "$p"; sleep "$on"; done
}

# --- nodes. run/nI.power says why a node is off: off or crashed; no such file while it is on.
exclusive() { # WHAT COMMAND...: run it under the lock of a node or of the controllers, so that e.g. power verbs and reboots exclude one another
  local what=$1; shift
  ( flock -w 90 8 || die "$NAME: $what is locked by another command"
    [[ ! -e $D/run/ending ]] || die "$NAME is being stopped"
    "$@" ) 8>"$D/run/$what.lock"
}
in_node() { local i=$1; shift; exclusive "n$i" "$@"; }
node_boot() { # I: a machine that starts: namespaces, new boot id, empty /run, bridge, cgroup, then containerd and kubelet
  local i=$1 N=$NAME-n$1 ND=$D/nodes/$1 u
  write_node "$i"; cat /proc/sys/kernel/random/uuid >"$ND/boot_id"
  rm -rf "$ND/cstate" "$ND"/c.sock* "$ND/ready"; make_gpus "$i"
  make_bridge "$i"; remove_cgroup "$(cgroup_of "$i")"; make_cgroup "$(cgroup_of "$i")"
  setsid unshare --pid --uts --mount-proc --fork --kill-child --propagation private \
    bash "$SELF" --root "$LAB_ROOT" _node "$NAME" "$i" "k8s-lab-node:$D:$i" >>"$D/log/n$i-boot.log" 2>&1 7>&- 8>&- &
  u=$!
  until_true 60 node_up_or_dead "$ND" "$u" || true
  [[ -e $ND/ready ]] || die "$N does not boot: $(tail -n 3 "$D/log/n$i-boot.log" "$D/log/n$i-containerd.log" 2>/dev/null)"
  rm -f "$D/run/n$i.power"
}
node_up_or_dead() { [[ -e $1/ready ]] || dead "$2"; }
node_start() { # I [GPUS]: boot, and wait until the apiserver has seen this boot
  local i=$1 gpus=${2:-}
  [[ -z $(node_init "$i") ]] || die "$NAME-n$i runs already"
  [[ -n $gpus ]] || gpus=$(cat "$D/nodes/$i/gpus" 2>/dev/null || echo "$GPUS")
  mkdir -p "$D/nodes/$i"; echo "$gpus" >"$D/nodes/$i/gpus"
  node_boot "$i"
  until_true 60 node_ready "$i" || die "$NAME-n$i is not Ready after 60 s; see $D/log/n$i-kubelet.log"
  set_gpus "$i" "$gpus"
}
node_ready() { # the boot id tells this boot from the one before; a kubelet's first status has both it and its Ready
  local n=node/$NAME-n$1 boot; boot=$(<"$D/nodes/$1/boot_id")
  [[ ! -e $D/run/ending ]] || die "$NAME is being stopped"
  kubelet_runs "$1" || { sleep 0.5; kubelet_runs "$1"; } || die "the kubelet of $NAME-n$1 ended: $(tail -n 2 "$D/log/n$1-kubelet.log")"
  W "$n" --for=create --timeout=3s && W "$n" --for="jsonpath={.status.nodeInfo.bootID}=$boot" --timeout=3s && W "$n" --for=condition=Ready --timeout=3s
}
set_gpus() { # I COUNT, as a device plugin would report them
  local q="{\"nvidia.com/gpu\":\"$2\"}"
  K patch node "$NAME-n$1" --subresource=status --type=merge -p "{\"status\":{\"capacity\":$q,\"allocatable\":$q}}" >/dev/null
}
make_gpus() { # device files that check_gpus.py counts
  local d=$D/dev/$NAME-n$1 g; rm -rf "$d"; mkdir -p "$d"
  for (( g = 0; g < $(<"$D/nodes/$1/gpus"); g++ )); do mknod "$d/gpu$g" c 1 3 2>/dev/null || : >"$d/gpu$g"; done
}
gpu_lose() { # I INDEX
  local d=$D/dev/$NAME-n$1
  [[ ${2:-} =~ ^[0-9]{1,2}$ && -e $d/gpu$2 ]] || die "no GPU '${2:-}' in $NAME-n$1"
  rm -f "$d/gpu$2"; set_gpus "$1" "$(find "$d" -name 'gpu*' | wc -l)"
}
make_bridge() { # the bridge carries the node's address: kubelet refuses a loopback one
  local b; b=$(bridge_of "$1")
  ip link show "$b" >/dev/null 2>&1 || { ip link add "$b" type bridge; ip addr add "$(subnet_of "$1").1/24" dev "$b"; ip link set "$b" up; }
}
cgroup_mounts() { # every controller's folder of v1, or the one of v2
  if [[ -f /sys/fs/cgroup/cgroup.controllers ]]; then echo /sys/fs/cgroup; return; fi
  local c; for c in /sys/fs/cgroup/*/; do [[ ! -f $c/cgroup.procs ]] || echo "${c%/}"; done
}
make_cgroup() ( # PATH, under a lock, for another lab may be removing the parent. Kubelet insists that its root exists under every controller; cpuset of v1 starts empty
  flock -w 60 9; local c p part IFS=/
  while IFS= read -r c; do
    p=$c
    for part in $1; do
      [[ ! -f $p/cgroup.controllers || ! -w $p/cgroup.subtree_control || $c != /sys/fs/cgroup ]] ||
        sed 's/[^ ]*/+&/g' "$p/cgroup.controllers" >"$p/cgroup.subtree_control" 2>/dev/null || true
      mkdir -p "$p/$part"
      if [[ -f $p/cpuset.cpus && -f $p/$part/cpuset.cpus && $c != /sys/fs/cgroup ]]; then
        cat "$p/cpuset.cpus" >"$p/$part/cpuset.cpus"; cat "$p/cpuset.mems" >"$p/$part/cpuset.mems"
      fi
      p=$p/$part
    done
  done < <(cgroup_mounts)
) 9</sys/fs/cgroup
remove_cgroup() { # PATH with all below; the kernel needs a moment for those whose processes have just died
  local c; for c in $(cgroup_mounts); do until_true 10 cgroup_gone "$c/$1" || die "cgroup $c/$1 is in use"; done
}
cgroup_gone() { [[ ! -d $1 ]] || { find "$1" -depth -type d -exec rmdir {} + 2>/dev/null; [[ ! -d $1 ]]; }; }
node_down() { # I WHY: SIGKILL to PID 1 takes all of the node along, stopped processes and containers too
  echo "$2" >"$D/run/n$1.power"
  local p; for p in $(node_init "$1") $(namespace_pids "$1"); do end_pid "$p"; done
}
node_signal() { # I STOP|CONT; again for those that were forked meanwhile
  local p; [[ -n $(node_init "$1") ]] || die "$NAME-n$1 is off"
  for p in $(node_pids "$1") $(node_pids "$1"); do kill -"$2" "$p" 2>/dev/null || true; done
}
power_on() { [[ -n $(node_init "$1") ]] || node_start "$1"; }
power_cycle() { node_down "$1" off; sleep "${REBOOT_SECS:-3}"; node_start "$1"; }
power_status() { if [[ -n $(node_init "$1") ]]; then echo on; else echo off; fi; }
kubelet_kill() { local p; p=$(kubelet_pid "$1"); [[ -z $p ]] || end_pid "$p"; }
kubelet_start() { # PID 1 of the node starts it, so that it stays the node's
  local p; p=$(node_init "$1"); [[ -n $p ]] || die "$NAME-n$1 is off: node-start boots it"
  ! frozen "$1" || die "$NAME-n$1 is frozen: node-thaw it first"
  [[ -z $(kubelet_pid "$1") ]] || return 0
  kill -USR1 "$p"; until_true 10 kubelet_runs "$1" || die "the kubelet of $NAME-n$1 does not start"
}
kubelet_runs() { [[ -n $(kubelet_pid "$1") ]]; }
node_main() { # I: PID 1 of a node. Nothing of the node stays on the machine's file system outside the cluster's folder
  local i=$1 N=$NAME-n$1 ND=$D/nodes/$1 d image
  hostname "$N"; mount --bind "$ND/boot_id" /proc/sys/kernel/random/boot_id
  for d in /run /var/lib /var/log; do mount -t tmpfs -o mode=755 tmpfs "$d"; done
  mkdir -p /run/containerd; mount --make-rshared /
  trap 'run_kubelet "$i"' USR1; trap '' TERM INT HUP
  containerd --config "$ND/containerd.toml" --log-level warn >>"$D/log/n$i-containerd.log" 2>&1 &
  until_true 30 containerd_ready "$ND" || { echo "containerd does not answer" >&2; exit 1; }
  for image in "$LAB_ROOT"/_images/*.tar; do ctr -a "$ND/c.sock" -n k8s.io images import "$image" >/dev/null; done
  run_kubelet "$i"; : >"$ND/ready"
  while :; do wait -n 2>/dev/null || sleep 0.2; done
}
containerd_ready() { [[ -S $1/c.sock ]] && ctr -a "$1/c.sock" version >/dev/null 2>&1; }
run_kubelet() {
  kubelet --config="$D/nodes/$1/kubelet.yaml" --kubeconfig="$D/node$1.kubeconfig" --root-dir="$D/nodes/$1/kubelet" \
    --cert-dir="$D/nodes/$1/kubelet/pki" --hostname-override="$NAME-n$1" --node-ip="$(subnet_of "$1").1" --v=1 >>"$D/log/n$1-kubelet.log" 2>&1 &
}

# --- whole clusters
check_machine() {
  local c missing=()
  (( EUID == 0 )) || die "needs root (namespaces, cgroups, a container runtime)"
  for c in containerd ctr runc busybox ip openssl unshare nsenter flock python3; do [[ -x $(command -v "$c") ]] || missing+=("$c"); done
  [[ -x $CNI_BIN/bridge ]] || missing+=("$CNI_BIN/bridge")
  (( ${#missing[@]} == 0 )) || die "missing: ${missing[*]}. Install with: $(sed -n 's/^PACKAGES="\(.*\)"/apt-get install --no-install-recommends \1/p' "$HERE/k8s_packages.sh")"
  [[ -n $(cgroup_mounts) ]] || die "no cgroup file system under /sys/fs/cgroup"
  programs
}
check_folder() { # never write to or delete a folder that is somebody else's; socket paths have 107 characters at most
  [[ $D =~ ^/[A-Za-z0-9_./-]+$ && $D != /run/* && $D != /var/lib/* && $D != /var/log/* ]] || die "folder $D: letters, digits and _ . / - only, not under /run, /var/lib, /var/log"
  (( ${#D} + 60 < 108 )) || die "folder too deep: $D; set a shorter K8S_LAB_ROOT"
  [[ ! -e $D || -f $D/lab.env || -z $(ls -A "$D") ]] || die "$D is not a cluster of this lab"
}
slot_is_free() { # SLOT: no cluster of this root has it, and nobody listens on its ports here
  local e p used
  for e in "$LAB_ROOT"/*/lab.env; do
    if [[ -f $e && $e != "$D/lab.env" ]] && grep -qx "SLOT=$1" "$e"; then return 1; fi
  done
  used=$(awk 'FNR > 1 && $4 == "0A" { sub(/.*:/, "", $2); print $2 }' /proc/net/tcp /proc/net/tcp6 2>/dev/null)
  for (( p = 13000 + 50 * $1; p < 13050 + 50 * $1; p++ )); do if grep -qix "$(printf '%04X' "$p")" <<<"$used"; then return 1; fi; done
}
claim() { # under the lock of the root folder: nobody else starts the same name or takes the same slot
  flock -w 60 7 || die "$LAB_ROOT is locked by another start"
  ! any_process || die "$NAME is running already; stop or rm it first"
  if [[ -n $KEEP && -f $D/lab.env ]]; then SLOT=$(sed -n 's/^SLOT=//p' "$D/lab.env"); fi
  if [[ -z $SLOT ]]; then for (( SLOT = 0; SLOT <= MOST_SLOT; SLOT++ )); do ! slot_is_free "$SLOT" || break; done; fi
  (( SLOT <= MOST_SLOT )) && slot_is_free "$SLOT" || die "slot $SLOT is taken (or all are); choose another with -s"
  [[ $KEEP ]] || rm -rf "${D:?}"; rm -rf "$D/run"
  mkdir -p "$D"/{run,log,pki,etcd,nodes,dev,health} "$LAB_ROOT/_images"; chmod 700 "$D/pki" "$D/etcd"
  printf 'SLOT=%s\nPORT=%s\nNODES=%s\nGPUS=%s\n' "$SLOT" $(( 13000 + 50 * SLOT )) "$NODES" "$GPUS" >"$D/lab.env"
  image pause /bin/sleep 2147483647
  image base /bin/sh
  local t=training; image train /bin/sh --add "$HERE/$t/train.py=$t/train.py" --add "$HERE/$t/flight_recorder.py=$t/flight_recorder.py" \
    --add "$HERE/$t/ray_head.py=$t/ray_head.py" --add "$HERE/check_gpus.py=$t/check_gpus.py"
}
image() { # NAME OPTION...: lab/NAME:1, which every node imports when it boots
  local n=$1; shift; python3 "$HERE/make_image.py" "lab/$n:1" "$LAB_ROOT/_images/$n.tar" "$@"
}
parse_start() {
  local f
  NODES=2 GPUS=8 SLOT="" KEEP="" CONTROLLERS=() OPTIND=1
  while getopts n:g:s:c:k f; do case $f in n) NODES=$OPTARG;; g) GPUS=$OPTARG;; s) SLOT=$OPTARG;; c) check_controllers "$OPTARG";; k) KEEP=1;; *) exit 2;; esac; done
  (( OPTIND > $# )) || die "start does not know '${!OPTIND}'"
  if ! [[ $NODES =~ ^[0-9]$ ]] || (( NODES > MOST_NODES )); then die "-n wants 0 to $MOST_NODES nodes, not '$NODES'"; fi
  [[ $GPUS =~ ^[0-9]{1,2}$ ]] || die "-g wants 0 to 99 GPUs, not '$GPUS'"
  [[ $SLOT =~ ^([0-9]{1,2})?$ ]] || die "-s wants 0 to $MOST_SLOT, not '$SLOT'"
}
start() {
  local t0=${EPOCHREALTIME/./} i p pids=()
  ( claim ) 7<"$LAB_ROOT"; existing "$NAME"
  trap undo_start EXIT; trap 'exit 130' INT TERM HUP
  [[ $(</proc/sys/net/ipv4/ip_forward) == 1 ]] || ! private || echo 1 >/proc/sys/net/ipv4/ip_forward
  write_pki; write_tokens; write_check; write_audit; etcd_start; api_start; controllers_start
  mapfile -t -O ${#CONTROLLERS[@]} CONTROLLERS < <(installed_controllers)   # of the saved state
  exclusive controllers controllers_up "${CONTROLLERS[@]}" & pids+=($!)
  for (( i = 1; i <= NODES; i++ )); do in_node "$i" node_start "$i" & pids+=($!); done
  for p in "${pids[@]}"; do wait "$p" || die "a node or a controller of $NAME does not start"; done
  trap - EXIT INT TERM HUP
  echo "$NAME: $NODES nodes ready in $(( (${EPOCHREALTIME/./} - t0) / 1000 )) ms"
  echo "export KUBECONFIG=$D/admin.kubeconfig"
}
undo_start() {
  local rc=$?
  trap - EXIT; end_all || true; end_network || true
  echo "k8s_lab: $NAME did not start; its logs are in $D/log" >&2; exit "$rc"
}
end_all() {
  local p f i
  [[ ! -d $D/run ]] || : >"$D/run/ending"
  for p in $(control_pids); do end_pid "$p"; done
  for f in "$D"/run/*.lock; do [[ ! -e $f ]] || flock -w 90 "$f" true || true; done   # who works on a node or a controller ends, nobody begins
  for p in $(controller_pids); do end_pid "$p"; done
  while p=$(namespace_pids) && [[ -n $p ]]; do for p in $p; do end_pid "$p"; done; done
  remove_cgroup "$(cgroup_of "")"
  ( flock -w 60 9; for p in $(cgroup_mounts); do rmdir "$p/k8slab" 2>/dev/null || true; done ) 9</sys/fs/cgroup   # with the last cluster
  if [[ -n ${SLOT:-} ]]; then for (( i = 1; i <= MOST_NODES; i++ )); do ip link del "$(bridge_of "$i")" 2>/dev/null || true; done; fi
}
finish() { # stop or rm; also what a killed start has left, folder or not
  [[ -d $LAB_ROOT ]] || return 0
  check_folder
  if [[ -f $D/lab.env ]]; then existing "$NAME"; fi
  ( flock -w 60 7 || die "$LAB_ROOT is locked by a start" ) 7<"$LAB_ROOT"   # a start that is under way gets as far as it can
  end_all
  if [[ $1 == rm ]]; then rm -rf "$D"; else rm -rf "$D/run"; fi
  if [[ $1 == rm && -z $(list) ]]; then rm -rf "$LAB_ROOT"/_*; fi
  end_network
}
list() {
  local e
  for e in "$LAB_ROOT"/*/lab.env; do
    [[ -f $e ]] || continue
    if ( D=${e%/lab.env}; any_process ); then echo "$(basename "${e%/lab.env}") running"; else echo "$(basename "${e%/lab.env}") stopped"; fi
  done
}
status() {
  local i p n
  {
    for n in etcd api manager scheduler kwok; do p=$("${n}_pid"); echo "$n=$p$(frozen_pid "$p")"; done
    for n in $(installed_controllers); do echo "$n=$(controller_pid "$n")"; done
  } | paste -sd' '
  for (( i = 1; i <= MOST_NODES; i++ )); do
    [[ -d $D/nodes/$i ]] || continue
    echo "$NAME-n$i power=$(power_status "$i")$(frozen "$i" && echo ,frozen) init=$(node_init "$i") kubelet=$(kubelet_pid "$i") pids=$(node_pids "$i" | wc -l)"
  done
  [[ -n $(api_pid) ]] || return 0
  K --request-timeout=3s get nodes --no-headers -o 'custom-columns=N:.metadata.name,R:.status.conditions[?(@.type=="Ready")].status,U:.spec.unschedulable,G:.status.allocatable.nvidia\.com/gpu,B:.status.nodeInfo.bootID' 2>/dev/null |
    sed 's/^/node /' || echo "the apiserver does not answer"
}
frozen_pid() { [[ -z $1 ]] || ! grep -qs '^State:[[:space:]]*[Tt]' "/proc/$1/status" || echo ,frozen; }
running() { [[ -n $(etcd_pid) ]] || die "$NAME is stopped; start it first"; }
fake_nodes() { # COUNT GPUS
  [[ ${1:-0} =~ ^[0-9]{1,4}$ ]] || die "fake-nodes wants a number, not '$1'"
  [[ -n $(kwok_pid) ]] || daemon kwok kwok --kubeconfig="$D/admin.kubeconfig" --manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake \
    --node-lease-duration-seconds=40 --server-address="127.0.0.1:$(( PORT + 5 ))" --config "${KWOK_STAGES:-$HERE/k8s_fake_nodes.yaml}"
  (( ${1:-0} > 0 )) || return 0
  python3 "$HERE/k8s_fake_nodes.py" --kubeconfig "$D/admin.kubeconfig" --prefix "$NAME-f" --count "$1" --gpus "$2"
  until_true 120 fake_ready "$1" || die "not all of $1 fake nodes are Ready after 120 s; see $D/log/kwok.log"
}
fake_ready() { # COUNT
  local all; all=$(K get nodes -l type=kwok -o 'jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}') && (( $(wc -w <<<"${all//@(False|Unknown)/}") >= $1 ))
}

cmd=${1:-}; shift || true
[[ $cmd == shell ]] || exec </dev/null   # nothing else reads standard input, and no daemon may hold the caller's
option_g() { # [-g GPUS] -> GIVEN
  GIVEN=""; [[ $# -eq 0 ]] || { [[ $1 == -g && ${2:-} =~ ^[0-9]{1,2}$ && $# -eq 2 ]] || die "expected -g GPUS, not '$*'"; GIVEN=$2; }
}
case $cmd in
start|stop|rm|status|shell|node-*|power-on|power-cycle|gpu-lose|api-*|controller-*|fake-nodes)
  if [[ $cmd != shell ]]; then cluster "${1:-}"; fi
  if [[ $cmd == start ]]; then check_machine; check_folder; mkdir -p "$LAB_ROOT"; ( flock -w 60 7; make_network ) 7<"$LAB_ROOT"; fi
  (( EUID != 0 )) || enter_network "$cmd" "$@"
  [[ $cmd == stop || $cmd == rm ]] || programs;;
esac
case $cmd in
start) shift; parse_start "$@"; start;;
stop|rm) finish "$cmd";;
check) check_machine;;
list) list;;
cgroup) cluster "${1:-}"; cgroup_of "";;
kubeconfig) existing "${1:-}"; echo "$D/admin.kubeconfig";;
status) existing "${1:-}"; status;;
shell) if (( $# )); then exec "$@"; else exec "${SHELL:-bash}"; fi;;
node-start) node_of "$@"; running; shift 2; option_g "$@"; in_node "$I" node_start "$I" "$GIVEN";;
power-status) node_of "$@"; power_status "$I";;
power-on) node_of "$@"; running; in_node "$I" power_on "$I";;
power-off) node_of "$@"; in_node "$I" node_down "$I" off;;
power-cycle|node-reboot) node_of "$@"; running; in_node "$I" power_cycle "$I";;
node-crash) node_of "$@"; in_node "$I" node_down "$I" crashed;;
node-freeze) node_of "$@"; in_node "$I" node_signal "$I" STOP;;
node-thaw) node_of "$@"; in_node "$I" node_signal "$I" CONT;;
kubelet-kill) node_of "$@"; in_node "$I" kubelet_kill "$I";;
kubelet-start) node_of "$@"; in_node "$I" kubelet_start "$I";;
gpu-lose) node_of "$@"; in_node "$I" gpu_lose "$I" "${3:-}";;
check-fail) node_of "$@"; if [[ ${3:-ok} == ok ]]; then rm -f "$D/health/check-fail-$N"; else printf '%s\n' "$3" >"$D/health/check-fail-$N"; fi;;
fake-nodes) existing "${1:-}"; running; count=${2:-0}; shift $(( $# < 2 ? $# : 2 )); option_g "$@"; fake_nodes "$count" "${GIVEN:-$GPUS}";;
api-kill) existing "${1:-}"; api_kill;;
api-start) existing "${1:-}"; running; api_start;;
api-freeze) existing "${1:-}"; api_steady; api_signal STOP;;
api-thaw) existing "${1:-}"; api_steady; api_signal CONT;;
api-slow) existing "${1:-}"; api_slow "${2:-}";;
controller-kill) existing "${1:-}"; check_controllers "${2:-}"; check_installed; controllers_kill "${CONTROLLERS[@]}";;
controller-start) existing "${1:-}"; running; check_controllers "${2:-}"; exclusive controllers controllers_up "${CONTROLLERS[@]}";;
_slow) existing "$1"; slow_loop "$2";;
_node) existing "$1"; node_main "$2";;
help|-h|--help) usage 0;;
*) usage 2 >&2;;
esac
