# shellcheck shell=bash
# The configuration of one lab cluster; sourced by slurm_lab.sh, which sets the variables used here:
# NAME, D (the cluster's folder), CONF, NODES, PORT, GPUS, PFX, CRED_EXPIRE (s), REBOOT_SECS (s), OVERRIDES.

write_config() { # everything that a cluster needs on disk before its first daemon starts
  mkdir -p "$D"
  printf '%s=%q\n' NODES "$NODES" PORT "$PORT" GPUS "$GPUS" PFX "$PFX" REBOOT_SECS "$REBOOT_SECS" >"$D/lab.env"   # marks it as ours
  mkdir -p "$D"/{etc,munge,state,spool,log,run,dev,health,hooks}
  chmod 755 "$D" "$D/munge"   # munged wants 0755 on the folder of its socket
  if [[ ! -f $D/munge/munge.key ]]; then
    ( umask 077; head -c 64 /dev/urandom >"$D/munge/munge.key" ); chmod 400 "$D/munge/munge.key"
  fi
  mkfifo -m 600 "$D/run/reboot.fifo"
  slurm_conf >"$CONF"
  local o; for o in "${OVERRIDES[@]}"; do apply_override "$o"; done
  gres_conf >"$D/etc/gres.conf"
  printf 'CgroupPlugin=%s\n' "$(cgroup_plugin)" >"$D/etc/cgroup.conf"
  write_hooks
}

cgroup_plugin() { # "disabled" exists from 23.02 on; older releases make no cgroup with proctrack/linuxproc
  local v; v=$(slurmctld -V); v=${v##* }
  if (( 10#${v%%.*} >= 23 )); then echo disabled; else echo autodetect; fi
}

slurm_conf() {
  local gres=""
  if (( GPUS > 0 )); then gres="Gres=gpu:h100:$GPUS"; fi
  cat <<E
ClusterName=$NAME
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort=$PORT
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=$D/munge/munge.sock,cred_expire=$CRED_EXPIRE
StateSaveLocation=$D/state
SlurmdSpoolDir=$D/spool/%n
SlurmctldPidFile=$D/run/slurmctld.pid
SlurmdPidFile=$D/run/slurmd-%n.pid
SlurmctldLogFile=$D/log/slurmctld.log
SlurmdLogFile=$D/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc=$D/log/jobcomp.txt
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
PriorityType=priority/basic
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2,sched_min_interval=10000,batch_sched_delay=0,requeue_setup_env_fail
SlurmdParameters=config_overrides
ReturnToService=1
JobRequeue=1
KillWait=5
KillOnBadExit=1
MinJobAge=300
SlurmctldTimeout=30
SlurmdTimeout=15
MessageTimeout=5
TCPTimeout=2
BatchStartTimeout=10
UnkillableStepTimeout=30
ResumeTimeout=60
TreeWidth=65533
RebootProgram=$D/hooks/reboot
Prolog=$D/hooks/prolog
Epilog=$D/hooks/epilog
HealthCheckProgram=$D/hooks/health
HealthCheckInterval=5
HealthCheckNodeState=ANY
NodeName=${NAME}[1-$NODES] NodeHostname=localhost NodeAddr=127.0.0.1 Port=$(( PORT + 1 ))-$(( PORT + NODES )) CPUs=8 RealMemory=4000 $gres State=UNKNOWN
PartitionName=gpu Nodes=ALL Default=YES State=UP MaxTime=INFINITE DefaultTime=60 GraceTime=5
E
}

apply_override() { # Key=Value replaces our line of that key; NodeName and PartitionName lines are added
  local key=${1%%=*} rest
  [[ $1 == *=* && $key =~ ^[A-Za-z]+$ ]] || die "-o wants Key=Value, not '$1'"
  if [[ ${key,,} == nodename || ${key,,} == partitionname ]]; then rest=$(<"$CONF"); else rest=$(grep -iv "^$key=" "$CONF"); fi
  printf '%s\n%s\n' "$1" "$rest" >"$CONF"
}

gres_conf() {
  local n
  (( GPUS > 0 )) || return 0
  for n in $(all_nodes); do echo "NodeName=$n Name=gpu Type=h100 File=$D/dev/$n/gpu[0-$(( GPUS - 1 ))]"; done
}

make_gpus() { # device files of one node; each boot brings back those that were lost
  local i
  (( GPUS > 0 )) || return 0
  mkdir -p "$D/dev/$1"
  for (( i = 0; i < GPUS; i++ )); do
    # Slurm logs an error for plain files and is content with any character device
    [[ -e $D/dev/$1/gpu$i ]] || mknod "$D/dev/$1/gpu$i" c 1 3 2>/dev/null || : >"$D/dev/$1/gpu$i"
  done
}

write_hooks() {
  cat >"$D/hooks/prolog" <<E
#!/bin/bash
echo "\$(date +%s.%N) prolog  node=\$SLURMD_NODENAME job=\$SLURM_JOB_ID gpus=\$SLURM_JOB_GPUS restart=\${SLURM_RESTART_COUNT:-}" >>$D/log/hooks.log
[[ -f $D/health/prolog-fail-\$SLURMD_NODENAME ]] && exit 1
exit 0
E
  sed 's/prolog/epilog/g' "$D/hooks/prolog" >"$D/hooks/epilog"
  cat >"$D/hooks/health" <<E
#!/bin/bash
# Run by slurmd. The node's name comes from SLURMD_NODENAME or from the namespace's hostname.
n=\${SLURMD_NODENAME:-\$(hostname)}
[[ -s $D/health/\$n ]] || exit 0
SLURM_CONF=$CONF exec ${PFX:+$PFX/bin/}scontrol update nodename=\$n state=drain reason="healthcheck: \$(cat $D/health/\$n)"
E
  cat >"$D/hooks/reboot" <<E
#!/bin/bash
# RebootProgram must return at once, for slurmd holds its config lock meanwhile; the watcher outside does the rest.
echo "\$(date +%s.%N) reboot  node=\$(hostname) args=\$*" >>$D/log/hooks.log
hostname >$D/run/reboot.fifo &
exit 0
E
  chmod 755 "$D"/hooks/*
}
