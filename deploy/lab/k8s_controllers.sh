# Controllers of job kinds, and Kueue, of a cluster of k8s_lab.sh, which sources this file. D is the cluster's folder.
# They are plain processes beside the apiserver and act as its admin; the apiserver calls their webhooks on loopback.
# Programs and manifests are what k8s/build.py made.
# shellcheck shell=bash disable=SC2154,SC2034  # the variables are of k8s_lab.sh

JOB_CONTROLLERS=(jobset kueue training-operator trainer kuberay)

check_controllers() { # NAMES, separated by commas -> CONTROLLERS
  local n
  IFS=, read -ra CONTROLLERS <<<"$1"
  (( ${#CONTROLLERS[@]} > 0 )) || die "name a controller; there are: ${JOB_CONTROLLERS[*]}"
  for n in "${CONTROLLERS[@]}"; do [[ " ${JOB_CONTROLLERS[*]} " == *" $n "* ]] || unknown "no controller '$n'; there are: ${JOB_CONTROLLERS[*]}"; done
}
controller_port() { # NAME -> the first of its three ports: webhooks, health, trainer's status server
  local i; for i in "${!JOB_CONTROLLERS[@]}"; do [[ ${JOB_CONTROLLERS[i]} != "$1" ]] || echo $(( PORT + 30 + 3 * i )); done
}
controller_pid() { find_pids "${1:0:15}" "--kubeconfig=$(DE)/admin\\.kubeconfig"; }
controller_pids() { find_pids 'env|unshare|bash|jobset|kueue|training-operat|trainer|kuberay' "--kubeconfig=$(DE)/admin\\.kubeconfig"; }   # also what becomes one
installed_controllers() { local f; for f in "$D"/controllers/*/objects; do [[ ! -d $f ]] || basename "${f%/objects}"; done; }
check_installed() { # every one of CONTROLLERS runs in this cluster, or did
  local n has; has=$(installed_controllers)
  for n in "${CONTROLLERS[@]}"; do grep -qx "$n" <<<"$has" || unknown "this cluster has no controller '$n'; it has: ${has//$'\n'/, }"; done
}

controllers_up() { # NAMES: what each needs in the apiserver, then the processes, until all are ready
  local n pids=() new=() files=(); local -A bins
  for n in "$@"; do
    [[ -z ${bins[$n]:-}$(controller_pid "$n") ]] || continue
    bins[$n]=$("$HERE/k8s/build.py" --check "$n") || die "$n is not built: run $HERE/k8s/build.py $n first (about 2 minutes, once)"
    new+=("$n")
  done
  (( ${#new[@]} > 0 )) || return 0
  write_controller_certificates
  for n in "${new[@]}"; do write_objects "$n" "${bins[$n]}"; done
  [[ " ${new[*]} " != *" trainer "* || -d $D/controllers/jobset ]] || die "trainer makes JobSets: name jobset too"
  for n in "${new[@]}"; do write_controller_config "$n"; done
  mapfile -t files < <(printf -- "-f=$D/controllers/%s/objects/crds.json\n" "${new[@]}")
  apply "${files[@]}"
  until_true 300 W --for=condition=Established --timeout=120s crd --all || die "$NAME: CRDs of ${new[*]} are not established"   # fails at once on one without conditions
  mapfile -t files < <(find "${new[@]/#/$D/controllers/}" -path '*/objects/webhooks.*' -printf '-f=%p\n' | sort)
  (( ${#files[@]} == 0 )) || apply "${files[@]}"
  for n in "${new[@]}"; do launch "$n" "${bins[$n]}/$n"; pids+=($!); done
  for n in "${!new[@]}"; do
    until_true 60 controller_ready "${new[n]}" "${pids[n]}" || die "$NAME: ${new[n]} is not ready after 60 s; see $D/log/${new[n]}.log"
  done
}
apply() { K --request-timeout=60s apply --server-side --force-conflicts --validate=false "$@" >/dev/null || die "$NAME: the objects of the controllers cannot be created"; }
controller_ready() { # NAME PID
  [[ ! -e $D/run/ending ]] || die "$NAME is being stopped"
  alive "$2" || die "$1 of $NAME ended: $(tail -n 3 "$D/log/$1.log")"
  ( exec 3<>"/dev/tcp/127.0.0.1/$(( $(controller_port "$1") + 1 ))"; printf 'GET /readyz HTTP/1.0\r\n\r\n' >&3; grep -q '^HTTP/1.. 200 ' <&3 ) 2>/dev/null
}
controllers_kill() { local n p; for n in "$@"; do for p in $(controller_pid "$n"); do end_pid "$p"; done; done; }

launch() { # NAME PROGRAM. TMPDIR is where the library of all of them looks for its certificate
  local n=$1 p over=() words=("--kubeconfig=$D/admin.kubeconfig"); p=$(controller_port "$n")
  local env=(TMPDIR="$D/controllers")
  case $n in
  jobset|trainer) words+=("--config=$D/controllers/$n/config.yaml");;
  kueue) # its certificate for metrics has a fixed place, and is read without metrics too
    words+=("--config=$D/controllers/$n/config.yaml" --feature-gates=VisibilityOnDemand=false); over=(/etc kueue/metrics/certs);;
  training-operator) # looks whether its certificate is in this fixed place, and reads it in another; [] is no init container, which would ask DNS
    words+=(--enable-scheme=pytorchjob --webhook-server-port="$p" --health-probe-bind-address="127.0.0.1:$(( p + 1 ))" --metrics-bind-address=0
      --pytorch-init-container-template-file="$D/controllers/$n/config.yaml"); over=(/tmp k8s-webhook-server/serving-certs);;
  kuberay) # injected containers and probes want Ray's own programs in the image; there is no DNS for the dashboard's service
    words+=(--health-probe-bind-address="127.0.0.1:$(( p + 1 ))" --metrics-addr=0 --enable-leader-election=false --use-kubernetes-proxy=true)
    env+=(ENABLE_INIT_CONTAINER_INJECTION=false ENABLE_PROBES_INJECTION=false);;
  esac
  if (( ${#over[@]} == 0 )); then daemon "$n" env "${env[@]}" "$2" "${words[@]}"; return; fi
  # shellcheck disable=SC2016  # expanded inside: the certificate appears in a folder of the machine for this process only
  daemon "$n" env "${env[@]}" unshare --mount --propagation private bash -c '
    set -e; over=$1 under=$2; shift 2
    mount -t tmpfs tmpfs /mnt; mkdir -p "/mnt/up/$under" /mnt/work; cp "$TMPDIR"/k8s-webhook-server/serving-certs/tls.* "/mnt/up/$under"
    mount -t overlay overlay -o "lowerdir=$over,upperdir=/mnt/up,workdir=/mnt/work" "$over"
    exec "$@"' - "${over[@]}" "$2" "${words[@]}"
}
write_controller_certificates() { # one for all. training-operator keeps it only with these names, and reads a CA's key in this old form only
  local c=$D/controllers/k8s-webhook-server/serving-certs
  [[ ! -f $c/tls.crt ]] || return 0
  mkdir -p "$c"; chmod 700 "$D/controllers"
  {
    openssl req -x509 -newkey rsa:2048 -nodes -keyout "$c/ca.key" -out "$c/ca.crt" -days 365 -subj "/CN=$NAME-webhooks" \
      -addext subjectAltName=DNS:training-operator-ca -addext keyUsage=critical,digitalSignature,keyEncipherment,keyCertSign
    openssl rsa -in "$c/ca.key" -traditional -out "$c/ca.key"
    openssl req -newkey rsa:2048 -nodes -keyout "$c/tls.key" -out "$c/tls.csr" -subj "/CN=$NAME-webhooks"
    openssl x509 -req -in "$c/tls.csr" -CA "$c/ca.crt" -CAkey "$c/ca.key" -CAcreateserial -days 365 -out "$c/tls.crt" -extfile <(
      printf '%s\n' subjectAltName=DNS:training-operator.kubeflow.svc,IP:127.0.0.1 extendedKeyUsage=serverAuth basicConstraints=CA:FALSE)
  } >"$D/log/openssl-controllers.log" 2>&1 || die "openssl failed: $(tail -n 3 "$D/log/openssl-controllers.log")"
}
write_objects() { # NAME BUILT: its CRDs and webhook configurations for this cluster
  local to=$D/controllers/$1/objects certs=$D/controllers/k8s-webhook-server/serving-certs f
  mkdir -p "$to"
  for f in "$2"/*.json; do sed "s|@PORT@|$(controller_port "$1")|g; s|@CA@|$(base64 -w0 "$certs/ca.crt")|g" "$f" >"$to/${f##*/}"; done
  [[ $1 == training-operator ]] || return 0
  ( umask 077; cat >"$to/webhooks.yaml" ) <<E2
{apiVersion: v1, kind: Namespace, metadata: {name: kubeflow}}
---
apiVersion: v1
kind: Secret
metadata: {name: training-operator-webhook-cert, namespace: kubeflow}
data: {$(for f in ca.crt ca.key tls.crt tls.key; do printf '%s: %s, ' "$f" "$(base64 -w0 "$certs/$f")"; done)}
E2
}
write_controller_config() { # NAME
  local p api more certs=""; p=$(controller_port "$1")
  case $1 in
  jobset) api=config.jobset.x-k8s.io/v1alpha1 more='internalCertManagement: {enable: false}';;
  kueue) certs=", certDir: $D/controllers/k8s-webhook-server/serving-certs" api=config.kueue.x-k8s.io/v1beta2 more="internalCertManagement: {enable: false}
integrations: {frameworks: [$(kueue_frameworks)]}";;
  trainer) api=config.trainer.kubeflow.org/v1alpha1 more="certManagement: {enable: false}
statusServer: {port: $(( p + 2 ))}";;
  training-operator) echo '[]' >"$D/controllers/$1/config.yaml"; return;;
  *) return;;
  esac
  cat >"$D/controllers/$1/config.yaml" <<E2
apiVersion: $api
kind: Configuration
leaderElection: {leaderElect: false}
webhook: {host: 127.0.0.1, port: $p$certs}
health: {healthProbeBindAddress: "127.0.0.1:$(( p + 1 ))"}
metrics: {bindAddress: "0"}
$more
E2
}
kueue_frameworks() { # of Job, and of the kinds whose controllers this cluster has
  local n; printf batch/job
  for n in $(installed_controllers); do
    case $n in
    jobset) printf ', jobset.x-k8s.io/jobset';;
    training-operator) printf ', kubeflow.org/pytorchjob';;
    trainer) printf ', trainer.kubeflow.org/trainjob';;
    kuberay) printf ', ray.io/rayjob';;
    esac
  done
}
