#!/usr/bin/env bash
# slurm_lab.sh - private, throw-away Slurm clusters on one machine (root, no systemd, no cgroups needed).
#   slurm_lab.sh [--root DIR] VERB ...
#
#   start  NAME [-n NODES] [-p BASEPORT] [-g GPUS] [-r SECONDS] [-k] [-o Key=Value]...
#            -n 6 nodes   -p 17000: slurmctld there, node i on BASEPORT+i   -g 8 GPUs a node
#            -r 5: cred_expire, the requeue delay is one second more (120 = Slurm's own default, 5 = least)
#            -k keeps the controller's saved state; without it the cluster is new
#            -o replaces a line of slurm.conf, or adds one
#   stop   NAME                     end every process of the cluster, keep its folder
#   rm     NAME                     the same, and delete the folder
#   check                           can `start` work here (root, packages)? exit 0, else 1 with the reason
#   list                            one line a cluster: NAME running|stopped
#   env    NAME                     prints `export SLURM_CONF=...` (eval it)
#   status NAME                     daemons, power, processes and Slurm's view of each node
#   power-status|power-on|power-off|power-cycle NAME NODE
#            what a BMC does; status prints on or off alone on a line; the others end with 0 once it is so;
#            a boot takes 1 to 2 s and gives a BootTime newer than the order for it
#   node-crash  NAME NODE           power loss: every process of the node dies at once; slurmd-start or power-on boots it
#   node-freeze|node-thaw NAME NODE a hung node: SIGSTOP / SIGCONT to every process of it
#   slurmd-start NAME NODE [OPTION]... the daemon; boots a crashed node; refuses one that is powered off or frozen
#   slurmd-kill  NAME NODE [SIGNAL] only the daemon (default KILL); slurmstepd and the job go on
#   gpu-lose    NAME NODE INDEX     that GPU's device file is gone until the node's next boot
#   health      NAME NODE [TEXT|ok] what the HealthCheckProgram finds: TEXT drains the node
#   check-fail  NAME NODE [TEXT|ok] what check_gpus.sh finds: TEXT fails the check
#   ctld-start|ctld-stop|ctld-kill|ctld-freeze|ctld-thaw NAME
#   munge-start|munge-stop NAME
#
# SLURM_LAB_ROOT  parent folder of all clusters, as --root  (default: ${TMPDIR:-/tmp}/slurm-lab; keep it short)
# SLURM_PREFIX    another installation's prefix             (default: the distribution's binaries)
# REBOOT_SECS     how long a node is off in a reboot        (default: 3; kept from `start`)
#
# A "node" is one slurmd in its own PID, mount, UTS and (where the kernel has it) time namespace, with the node's
# name as hostname, in the machine's network namespace on 127.0.0.1. The build of Slurm must have MULTIPLE_SLURMD
# (Debian's has). Processes are found by their command lines, which name the cluster's folder, and never by a
# stored pid alone, so that a reused pid is never signalled.
set -euo pipefail
exec </dev/null   # nothing here reads standard input, and no daemon may hold the caller's
umask 022
export LC_ALL=C PATH="${SLURM_PREFIX:+$SLURM_PREFIX/sbin:$SLURM_PREFIX/bin:}$PATH:/usr/sbin:/sbin"

SELF=$(readlink -f "${BASH_SOURCE[0]}")
if [[ ${1:-} == --root ]]; then export SLURM_LAB_ROOT=${2:?--root wants a folder}; shift 2; fi
LAB_ROOT=$(readlink -m "${SLURM_LAB_ROOT:-${TMPDIR:-/tmp}/slurm-lab}")
# shellcheck source-path=SCRIPTDIR source=slurm_lab_config.sh
. "${SELF%/*}/slurm_lab_config.sh"

die() { echo "slurm_lab: $*" >&2; exit 1; }
unknown() { echo "slurm_lab: $*" >&2; exit 64; } # a name that is not there (EX_USAGE)
usage() { sed -n '2,/^set -euo/{/^set/d;s/^# \{0,1\}//;p}' "$SELF"; exit "$1"; }
until_true() { # SECONDS COMMAND...: poll it every 20 ms
  local end=$(( ${EPOCHREALTIME/./} + $1 * 1000000 )); shift
  until "$@"; do (( ${EPOCHREALTIME/./} < end )) || return 1; sleep 0.02; done
}

cluster() { # sets NAME, D, CONF; an existing cluster's settings too
  NAME=${1:-}
  [[ $NAME =~ ^[a-z][a-z0-9-]{0,19}$ && $NAME != *- ]] || die "a cluster's name is 1 to 20 of a-z 0-9 -, first a letter: not '$NAME'"
  D=$LAB_ROOT/$NAME CONF=$LAB_ROOT/$NAME/etc/slurm.conf
  export SLURM_CONF=$CONF
}
existing() {
  cluster "${1:-}"; [[ -f $D/lab.env ]] || unknown "no cluster $NAME under $LAB_ROOT"
  # shellcheck source=/dev/null
  . "$D/lab.env"
  [[ -z $PFX ]] || export PATH="$PFX/sbin:$PFX/bin:$PATH"
}
node_of() { # CLUSTER NODE -> existing cluster, N = a node of it
  (( EUID == 0 )) || die "needs root"   # who cannot see every process must not take a node for dead
  existing "${1:-}"; N=${2:-}
  if ! [[ $N =~ ^$NAME([1-9][0-9]{0,2})$ ]] || (( BASH_REMATCH[1] > NODES )); then unknown "no node '$N' in $NAME (${NAME}1 to $NAME$NODES)"; fi
}
refuse_foreign() { # never write to or delete a folder that is somebody else's
  [[ ! -e $D || -f $D/lab.env || -z $(ls -A "$D") ]] || die "$D is not a cluster of this lab"
}
all_nodes() { local i; for (( i = 1; i <= NODES; i++ )); do echo "$NAME$i"; done; }

# --- finding processes. Zombies have no command line, so they count as gone.
find_pids() { # COMM PATTERN -> processes whose name and one of whose arguments match (extended regular expressions)
  local f comm
  while read -r f; do
    f=${f%/cmdline}
    if read -r comm 2>/dev/null <"$f/comm" && [[ $comm =~ ^($1)$ && $f != /proc/$$ && $f != /proc/$BASHPID ]]; then echo "${f#/proc/}"; fi
  done < <(grep -lzE -- "^$2$" /proc/[0-9]*/cmdline 2>/dev/null)
}
ctld_pid() { find_pids slurmctld "${CONF//./\\.}"; }
munged_pid() { find_pids munged "--socket=${D//./\\.}/munge/munge\\.sock"; }
watcher_pids() { find_pids bash "slurm-lab-watch:${D//./\\.}"; }
namespace_pids() { find_pids 'bash|unshare|setsid' "slurm-lab-node:${D//./\\.}:${1:-.*}"; }   # PID 1 of nodes and its parent
cluster_runs() { local D=${1%/lab.env} CONF=${1%/lab.env}/etc/slurm.conf; any_process; }   # LAB_ENV_FILE
any_process() { [[ -n $(ctld_pid)$(munged_pid)$(watcher_pids)$(namespace_pids) ]]; }
node_init() { # host pid of the PID 1 of the node's namespace; empty while the node is off
  local p
  for p in $(namespace_pids "$1"); do
    if grep -Eqs '^NSpid:.*[[:space:]]1$' "/proc/$p/status"; then echo "$p"; return; fi
  done
}
node_pids() { # every process in the node's PID namespace
  local i p; i=$(node_init "$1"); [[ -n $i ]] || return 0
  for p in /proc/[0-9]*; do if [[ $p/ns/pid -ef /proc/$i/ns/pid ]]; then echo "${p#/proc/}"; fi; done
}
slurmd_pid() { # the daemon is a child of PID 1; what it has just forked is not
  local i p; i=$(node_init "$1"); [[ -n $i ]] || return 0
  for p in $(find_pids slurmd "${CONF//./\\.}"); do
    if grep -Eqs "^PPid:[[:space:]]*$i$" "/proc/$p/status"; then echo "$p"; return; fi
  done
}
alive() { [[ -n ${1:-} ]] && grep -qs '^State:[[:space:]]*[^ZX[:space:]]' "/proc/$1/status"; }
dead() { ! alive "$1"; }
frozen() { local i; i=$(node_init "$1"); [[ -n $i ]] && grep -q '^State:[[:space:]]*[Tt]' "/proc/$i/status"; }
end_pid() { # PID SIGNAL SECONDS, SIGKILL after that
  alive "$1" || return 0
  kill -"$2" "$1" 2>/dev/null || true
  until_true "$3" dead "$1" || { kill -KILL "$1" 2>/dev/null || true; until_true 10 dead "$1" || die "process $1 does not die"; }
}

# --- daemons. Every one gets files as its output, so that a caller's pipe ends with this script.
logged() { # run a command that leaves a daemon behind; show its output only when it fails
  local out=$D/log/start-$1.$BASHPID
  if ! "$@" >"$out" 2>&1 7>&- 8>&-; then cat "$out" >&2; die "$1 of $NAME does not start"; fi
  rm -f "$out"
}
munge_start() {
  [[ -z $(munged_pid) ]] || return 0
  rm -f "$D/munge/munge.sock"*
  logged munged --key-file="$D/munge/munge.key" --socket="$D/munge/munge.sock" --pid-file="$D/run/munged.pid" \
    --log-file="$D/log/munged.log" --seed-file="$D/munge/munged.seed" --num-threads=10
}
munge_stop() { local p; for p in $(munged_pid); do end_pid "$p" TERM 5; done; rm -f "$D/munge/munge.sock"*; }
ctld_start() { [[ -n $(ctld_pid) ]] || logged slurmctld -f "$CONF" "$@"; }
ctld_stop() { # SIGTERM saves the state first; a frozen one has to be woken for it
  local p; for p in $(ctld_pid); do kill -CONT "$p" 2>/dev/null || true; end_pid "$p" TERM 10; done
}
ctld_kill() { local p; for p in $(ctld_pid); do end_pid "$p" KILL 5; done; rm -f "$D/run/slurmctld.pid"; }
ctld_signal() { local p; p=$(ctld_pid); [[ -n $p ]] || die "slurmctld of $NAME does not run"; kill -"$1" "$p"; }

# --- nodes. run/NODE.power says why a node is off: off, crashed, or reboot-<id>; no such file while it is on.
in_node() { # NODE COMMAND...: run it under the node's lock, so that power verbs and reboots exclude one another
  local n=$1; shift
  ( flock -w 60 8 || die "$n is locked by another command"
    [[ ! -e $D/run/ending ]] || die "$NAME is being stopped"
    "$@" ) 8>"$D/run/$n.lock"
}
node_boot() { # make the namespace. Its time namespace makes "up since", and with it Slurm's BootTime, start anew
  local n=$1 up time=() u
  make_gpus "$n"; mkdir -p "$D/spool/$n"; rm -f "$D/run/$n.ready"
  if [[ -e $D/run/$n.booted ]]; then next_second; fi
  read -r up _ </proc/uptime; up=${up%.*}
  # The first boot counts as one of a second ago, see node_up
  if [[ ! -e $D/run/$n.booted ]]; then up=$(( up - 1 )); fi
  if has_time_namespaces; then time=(--time --boottime "-$up"); fi
  # PID 1 is a bash that only reaps orphans; killing it ends the whole node at once
  # shellcheck disable=SC2016  # expanded inside
  setsid unshare --pid --uts --mount-proc --fork --kill-child "${time[@]}" bash -c '
    hostname "$2" && : >"$1"; trap "" TERM INT HUP; while :; do sleep 86400 & wait $!; done' \
    "slurm-lab-node:$D:$n" "$D/run/$n.ready" "$n" >"$D/log/$n.boot.log" 2>&1 7>&- 8>&- &
  u=$!
  until_true 20 node_ready "$n" "$u" || true
  [[ -n $(node_init "$n") ]] || die "no namespace for $n: $(<"$D/log/$n.boot.log")"
  rm -f "$D/run/$n.power"
}
has_time_namespaces() { [[ -e /proc/self/ns/time ]] && unshare --time true 2>/dev/null; }
next_second() { # of the wall clock and then of the uptime clock: BootTime has whole seconds and must be newer than the order to boot
  local t=${ORDERED:-$EPOCHSECONDS} up now
  until (( EPOCHSECONDS > t )); do sleep 0.02; done
  read -r up _ </proc/uptime; now=$up
  until [[ ${now%.*} != "${up%.*}" ]]; do sleep 0.01; read -r now _ </proc/uptime; done
}
node_ready() { [[ -e $D/run/$1.ready ]] || dead "$2"; }
slurmd_run() { # NODE OPTION...
  local n=$1 enter=(-p -m -u) i; shift
  i=$(node_init "$n"); [[ /proc/$i/ns/time -ef /proc/self/ns/time ]] || enter+=(-T)
  logged nsenter -t "$i" "${enter[@]}" "$(command -v slurmd)" -N "$n" -f "$CONF" "$@"
}
node_up() { # boot it if it is off, then its slurmd
  local n=$1 t; shift
  if [[ -z $(node_init "$n") ]]; then
    node_boot "$n"
    if [[ -e $D/run/$n.booted ]]; then
      # Slurm's boot time wavers by a second. Registering later than it lets no registration look like one more reboot
      t=$EPOCHSECONDS; until (( EPOCHSECONDS > t )); do sleep 0.02; done
      # Without a newer boot time slurmctld would never learn that the node's ranks are gone
      has_time_namespaces || [[ " $* " == *" -b "* ]] || set -- "$@" -b
    fi
    : >"$D/run/$n.booted"
  fi
  [[ -n $(slurmd_pid "$n") ]] || slurmd_run "$n" "$@"
}
node_down() { # NODE WHY: SIGKILL to PID 1 takes all of the namespace along, stopped processes too
  local i; i=$(node_init "$1")
  echo "$2" >"$D/run/$1.power"
  end_pid "$i" KILL 10; rm -f "$D/run/slurmd-$1.pid"
}
slurmd_start() {
  ! frozen "$1" || die "$1 is frozen: node-thaw or power-cycle it"
  [[ $(cat "$D/run/$1.power" 2>/dev/null) != off ]] || die "$1 is powered off: power-on boots it"
  node_up "$@"
}
slurmd_kill() {
  local p; p=$(slurmd_pid "$1"); [[ -n $p ]] || return 0
  kill -"$2" "$p"; [[ $2 != KILL && $2 != 9 ]] || until_true 10 dead "$p"
}
power_on() { [[ -n $(node_init "$1") ]] || node_up "$1"; }
power_cycle() { node_down "$1" off; node_up "$1"; }
node_signal() { # STOP or CONT to all; again for those that were forked meanwhile
  local p; [[ -n $(node_init "$1") ]] || die "$1 is off"
  for p in $(node_pids "$1") $(node_pids "$1"); do kill -"$2" "$p" 2>/dev/null || true; done
}
reboot_node() { # what the watcher does for one RebootProgram call; a power verb during the reboot has the last word
  local n=$1 id ORDERED=$EPOCHSECONDS; id="reboot-$BASHPID-${EPOCHREALTIME/./}"
  sleep 0.3; in_node "$n" reboot_off "$n" "$id"
  sleep "$REBOOT_SECS"; in_node "$n" reboot_on "$n" "$id"
}
reboot_off() { [[ -z $(node_init "$1") ]] || node_down "$1" "$2"; }
reboot_on() {
  [[ $(cat "$D/run/$1.power" 2>/dev/null) == "$2" ]] || return 0
  node_up "$1"; echo "${EPOCHREALTIME} lab: $1 is back" >>"$D/log/hooks.log"
}
watch_reboots() {
  local n; exec 3<>"$D/run/reboot.fifo"   # read-write, so that no line is lost between two reads
  while read -r n <&3; do
    [[ " $(all_nodes | tr '\n' ' ') " == *" $n "* ]] || continue
    echo "${EPOCHREALTIME} lab: power-cycling $n" >>"$D/log/hooks.log"
    reboot_node "$n" 3>&- &
  done
}

# --- whole clusters
check_machine() {
  local c missing=()
  (( EUID == 0 )) || die "needs root (namespaces, device files, daemons of root)"
  for c in slurmctld slurmd sinfo scontrol munged unshare nsenter flock; do [[ -x $(command -v "$c") ]] || missing+=("$c"); done
  (( ${#missing[@]} == 0 )) ||
    die "missing: ${missing[*]}. Install with: apt-get install --no-install-recommends slurmctld slurmd slurm-client munge util-linux"
}
check_folder() { # unix sockets: munge.socket and slurmstepd's spool/NODE/NODE_<job>.<step>, both numbers up to 10 digits
  local node=$NAME$NODES longest
  [[ $D =~ ^/[A-Za-z0-9_./-]+$ ]] || die "folder $D: only letters, digits and _ . / - can stand in Slurm's configuration"
  longest=$(( ${#D} + ${#node} * 2 + 30 ))
  (( longest < 108 )) ||
    die "folder too deep: $D would give socket paths of $longest characters, 107 is the most; set a shorter SLURM_LAB_ROOT"
  refuse_foreign
}
check_ports() { # neither in use nor taken by a cluster that runs or starts
  local used other p first last
  used=$(awk 'FNR > 1 && $4 == "0A" { sub(/.*:/, "", $2); print $2 }' /proc/net/tcp /proc/net/tcp6 2>/dev/null)
  for (( p = PORT; p <= PORT + NODES; p++ )); do
    if grep -qix "$(printf '%04X' "$p")" <<<"$used"; then die "port $p is in use; choose another block of $(( NODES + 1 )) ports with -p"; fi
  done
  for other in "$LAB_ROOT"/*/lab.env; do
    [[ -f $other && $other != "$D/lab.env" ]] || continue
    first=$(sed -n 's/^PORT=//p' "$other") last=$(sed -n 's/^NODES=//p' "$other"); last=$(( first + last ))
    if (( PORT <= last && first <= PORT + NODES )) && cluster_runs "$other"; then
      other=${other%/lab.env}; die "ports $first to $last belong to cluster ${other##*/}; choose others with -p"
    fi
  done
}
claim() { # under the lock of the root folder: nobody else starts the same name or the same ports
  flock -w 60 7 || die "$LAB_ROOT is locked by another start"
  alive $$ || exit 1   # this start was killed while it waited
  ! any_process || die "$NAME is running already; stop or rm it first"
  check_ports
  rm -rf "$D/run"; [[ $KEEP ]] || rm -rf "${D:?}"/{state,spool,health,dev,log}
  write_config; munge_start
}
parse_start() {
  local f
  NODES=6 PORT=17000 GPUS=8 CRED_EXPIRE=5 KEEP="" OVERRIDES=() PFX=${SLURM_PREFIX:-} REBOOT_SECS=${REBOOT_SECS:-3} OPTIND=1
  while getopts n:p:g:r:o:k f; do
    case $f in
      n) NODES=$OPTARG;; p) PORT=$OPTARG;; g) GPUS=$OPTARG;; r) CRED_EXPIRE=$OPTARG;;
      o) OVERRIDES+=("$OPTARG");; k) KEEP=1;; *) exit 2;;
    esac
  done
  (( OPTIND > $# )) || die "start does not know '${!OPTIND}'"
  [[ $NODES =~ ^[1-9][0-9]{0,2}$ ]] || die "-n wants 1 to 999 nodes, not '$NODES'"
  [[ $GPUS =~ ^[0-9]{1,2}$ ]] || die "-g wants 0 to 99 GPUs, not '$GPUS'"
  if ! [[ $PORT =~ ^[1-9][0-9]{3,4}$ ]] || (( PORT < 1024 || PORT + NODES > 65535 )); then
    die "-p wants a block of $(( NODES + 1 )) ports from 1024 to 65535, not '$PORT'"
  fi
  if ! [[ $CRED_EXPIRE =~ ^[1-9][0-9]{0,4}$ ]] || (( CRED_EXPIRE < 5 )); then die "-r wants 5 seconds or more, not '$CRED_EXPIRE'"; fi
  [[ $REBOOT_SECS =~ ^[0-9]+(\.[0-9]+)?$ ]] || die "REBOOT_SECS wants seconds, not '$REBOOT_SECS'"
}
nodes_ready() { # all idle; with kept state all answering, for some may have been drained or down before
  local good='idle'; [[ -z $KEEP ]] || good='[a-z]*'
  [[ $(sinfo -h -N -o '%N %T' 2>/dev/null | sort -u | grep -v unk | grep -c " $good\$") == "$NODES" ]]
}
undo_start() {
  local rc=$?
  trap - EXIT; end_all KILL || true
  echo "slurm_lab: $NAME did not start; its logs are in $D/log" >&2; exit "$rc"
}
start() {
  local t0=${EPOCHREALTIME/./} n p pids=()
  check_machine; check_folder; mkdir -p "$LAB_ROOT"
  ( claim ) 7<"$LAB_ROOT"
  trap undo_start EXIT; trap 'exit 130' INT TERM HUP
  ctld_start
  for n in $(all_nodes); do in_node "$n" node_up "$n" & pids+=($!); done
  setsid bash "$SELF" _watch "$NAME" "slurm-lab-watch:$D" >>"$D/log/lab.log" 2>&1 7>&- 8>&- & disown
  for p in "${pids[@]}"; do wait "$p" || die "a node of $NAME does not start"; done
  until_true 30 nodes_ready || { sinfo -N -o '%N %T %E' >&2; die "$NAME: not every node is ready after 30 s"; }
  trap - EXIT INT TERM HUP
  echo "$NAME: $NODES nodes ready in $(( (${EPOCHREALTIME/./} - t0) / 1000 )) ms"
  echo "export SLURM_CONF=$CONF"
}
end_all() { # TERM|KILL for slurmctld; everything else is killed. The watcher first: it would boot nodes again
  local p f
  [[ ! -d $D/run ]] || : >"$D/run/ending"
  for p in $(watcher_pids); do kill -KILL -- "-$p" 2>/dev/null || true; end_pid "$p" KILL 5; done   # it leads a group of its own
  if [[ $1 == TERM ]]; then ctld_stop; else ctld_kill; fi
  for f in "$D"/run/*.lock; do [[ ! -e $f ]] || flock -w 30 "$f" true || true; done   # who works on a node ends, nobody begins
  while p=$(namespace_pids) && [[ -n $p ]]; do for p in $p; do end_pid "$p" KILL 10; done; done
  munge_stop
}
finish() { # stop or rm; also what a killed start has left, folder or not
  cluster "${2:-}"; [[ -d $LAB_ROOT ]] || return 0
  refuse_foreign
  ( flock -w 60 7 || die "$LAB_ROOT is locked by a start" ) 7<"$LAB_ROOT"   # a start that is under way gets as far as it can
  if [[ $1 == rm ]]; then end_all KILL; rm -rf "$D"; else end_all TERM; rm -rf "$D/run"; fi
}
list() {
  local e
  for e in "$LAB_ROOT"/*/lab.env; do
    [[ -f $e ]] || continue
    if cluster_runs "$e"; then echo "$(basename "${e%/lab.env}") running"; else echo "$(basename "${e%/lab.env}") stopped"; fi
  done
}
status() {
  local n i
  echo "munged $(munged_pid) slurmctld $(ctld_pid)"
  for n in $(all_nodes); do
    i=$(node_init "$n")
    echo "$n power=$(power_status "$n")$(frozen "$n" && echo ,frozen) init=$i slurmd=$(slurmd_pid "$n") pids=$(node_pids "$n" | wc -l)"
  done
  any_process || return 0
  sinfo -N -o '%N %T %E' || echo "slurmctld does not answer"
}
power_status() { if [[ -n $(node_init "$1") ]]; then echo on; else echo off; fi; }
running() { [[ -n $(watcher_pids) ]] || die "$NAME is stopped; start it first"; }
gpu_lose() {
  if ! [[ $2 =~ ^[0-9]{1,2}$ ]] || (( $2 >= GPUS )); then die "no GPU '$2' in $1 (0 to $(( GPUS - 1 )))"; fi
  rm -f "$D/dev/$1/gpu$2"
}
note() { # FILE TEXT|ok
  if [[ $2 == ok ]]; then rm -f "$1"; else printf '%s\n' "$2" >"$1"; fi; }

cmd=${1:-}; shift || true
case $cmd in
start) cluster "${1:-}"; shift; parse_start "$@"; start;;
_watch) existing "$1"; watch_reboots;;
stop|rm) finish "$cmd" "${1:-}";;
check) check_machine;;
list) list;;
env) existing "${1:-}"; echo "export SLURM_CONF=$CONF"; [[ -z $PFX ]] || echo "export PATH=$PFX/bin:$PFX/sbin:\$PATH";;
status) existing "${1:-}"; status;;
power-status) node_of "$@"; power_status "$N";;
power-on) node_of "$@"; running; in_node "$N" power_on "$N";;
power-off) node_of "$@"; running; in_node "$N" node_down "$N" off;;
power-cycle) node_of "$@"; running; in_node "$N" power_cycle "$N";;
node-crash) node_of "$@"; running; in_node "$N" node_down "$N" crashed;;
node-freeze) node_of "$@"; in_node "$N" node_signal "$N" STOP;;
node-thaw) node_of "$@"; in_node "$N" node_signal "$N" CONT;;
slurmd-start) node_of "$@"; running; shift 2; in_node "$N" slurmd_start "$N" "$@";;
slurmd-kill) node_of "$@"; in_node "$N" slurmd_kill "$N" "${3:-KILL}";;
gpu-lose) node_of "$@"; gpu_lose "$N" "${3:-}";;
health) node_of "$@"; note "$D/health/$N" "${3:-ok}";;
check-fail) node_of "$@"; note "$D/health/check-fail-$N" "${3:-ok}";;
ctld-start) existing "${1:-}"; shift; running; ctld_start "$@";;
ctld-stop) existing "${1:-}"; ctld_stop;;
ctld-kill) existing "${1:-}"; ctld_kill;;
ctld-freeze) existing "${1:-}"; ctld_signal STOP;;
ctld-thaw) existing "${1:-}"; ctld_signal CONT;;
munge-start) existing "${1:-}"; running; munge_start;;
munge-stop) existing "${1:-}"; munge_stop;;
help|-h|--help) usage 0;;
*) usage 2 >&2;;
esac
