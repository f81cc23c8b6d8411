# Certificates, tokens and configuration of a cluster of k8s_lab.sh, which sources this file. D is the cluster's folder.
# shellcheck shell=bash disable=SC2154  # the variables are of k8s_lab.sh

write_pki() { # one self-signed certificate is the apiserver's and the CA; kubelets know the apiserver by one that it signed
  [[ ! -f $D/pki/kubelet-client.crt ]] || return 0
  local p=$D/pki
  {
    openssl genrsa -out "$p/sa.key" 2048
    openssl rsa -in "$p/sa.key" -pubout -out "$p/sa.pub"
    openssl req -x509 -newkey rsa:2048 -nodes -keyout "$p/apiserver.key" -out "$p/apiserver.crt" -days 365 -subj "/CN=$NAME" \
      -addext "subjectAltName=IP:127.0.0.1,DNS:localhost,DNS:kubernetes.default.svc"
    openssl req -newkey rsa:2048 -nodes -keyout "$p/kubelet-client.key" -out "$p/kubelet-client.csr" -subj "/O=system:masters/CN=kube-apiserver"
    openssl x509 -req -in "$p/kubelet-client.csr" -CA "$p/apiserver.crt" -CAkey "$p/apiserver.key" -CAcreateserial -days 365 -out "$p/kubelet-client.crt"
  } >"$D/log/openssl.log" 2>&1 || die "openssl failed: $(tail -n 3 "$D/log/openssl.log")"
}
write_tokens() {
  local i
  [[ ! -f $D/pki/tokens.csv ]] || return 0
  ( umask 077; : >"$D/pki/tokens.csv" )
  account admin admin '"system:masters"'
  account system:kube-controller-manager controller-manager ''
  account system:kube-scheduler scheduler ''
  for (( i = 1; i <= MOST_NODES; i++ )); do account "system:node:$NAME-n$i" "node$i" '"system:nodes"'; done
}
account() { # USER FILE GROUPS -> a token, and FILE.kubeconfig that holds it
  local token; token=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
  echo "$token,$1,$2,$3" >>"$D/pki/tokens.csv"
  ( umask 077; cat >"$D/$2.kubeconfig" ) <<E2
apiVersion: v1
kind: Config
clusters: [{name: $NAME, cluster: {server: "https://127.0.0.1:$PORT", certificate-authority: $D/pki/apiserver.crt}}]
users: [{name: $NAME-$2, user: {token: $token}}]
contexts: [{name: $NAME, context: {cluster: $NAME, user: $NAME-$2}}]
current-context: $NAME
E2
}
write_node() { # I -> what containerd, CNI and kubelet of node I read
  local i=$1 nd=$D/nodes/$1
  mkdir -p "$nd"/{containerd,kubelet,cni,podlogs}
  [[ -f $nd/machine-id ]] || tr -d - </proc/sys/kernel/random/uuid >"$nd/machine-id"
  cat >"$nd/containerd.toml" <<E2
version = 2
root = "$nd/containerd"
state = "$nd/cstate"
[grpc]
  address = "$nd/c.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "$nd/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "lab/pause:1"
  disable_apparmor = true
  restrict_oom_score_adj = true
  enable_unprivileged_ports = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "$CNI_BIN"
    conf_dir = "$nd/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "${SNAPSHOTTER:-overlayfs}"
E2
  cat >"$nd/cni/10-lab.conflist" <<E2
{"cniVersion": "0.4.0", "name": "lab", "plugins": [{"type": "bridge", "bridge": "$(bridge_of "$i")", "isGateway": true, "ipMasq": false,
 "ipam": {"type": "host-local", "dataDir": "$nd/ipam", "ranges": [[{"subnet": "$(subnet_of "$i").0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
E2
  cat >"$nd/kubelet.yaml" <<E2
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: $(subnet_of "$i").1
port: $(( PORT + 10 + 2 * i ))
healthzPort: $(( PORT + 11 + 2 * i ))
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $D/pki/apiserver.crt}}
authorization: {mode: Webhook}
cgroupDriver: cgroupfs
cgroupsPerQOS: true
cgroupRoot: /$(cgroup_of "$i")
enforceNodeAllocatable: []
failSwapOn: false
containerRuntimeEndpoint: unix://$nd/c.sock
evictionHard: {memory.available: "0%", nodefs.available: "0%", imagefs.available: "0%", nodefs.inodesFree: "0%"}
imageGCHighThresholdPercent: 100
nodeStatusUpdateFrequency: 2s
nodeLeaseDurationSeconds: 8
syncFrequency: 10s
staticPodPath: ""
podLogsDir: $nd/podlogs
volumePluginDir: $nd/kubelet/plugins-exec
makeIPTablesUtilChains: false
localStorageCapacityIsolation: false
maxPods: 50
clusterDNS: []
serverTLSBootstrap: false
E2
}
write_check() { # the pod that the adapter runs on an isolated node; {node} and {gpus} are filled in there
  cat >"$D/check.yaml" <<E2
apiVersion: v1
kind: Pod
metadata: {namespace: default}
spec:
  containers:
    - name: check
      image: lab/train:1
      imagePullPolicy: Never
      command: [/usr/bin/python3, /training/check_gpus.py, --expect, "{gpus}", --cluster-folder, $D]
      env: [{name: SLURMD_NODENAME, value: "{node}"}]
      volumeMounts:
        - {name: usr, mountPath: /usr, readOnly: true}
        - {name: lib, mountPath: /lib, readOnly: true}
        - {name: lib64, mountPath: /lib64, readOnly: true}
        - {name: mark, mountPath: $D/lab.env, readOnly: true}
        - {name: gpus, mountPath: $D/dev, readOnly: true}
        - {name: health, mountPath: $D/health, readOnly: true}
  volumes:
    - {name: usr, hostPath: {path: /usr}}
    - {name: lib, hostPath: {path: /lib}}
    - {name: lib64, hostPath: {path: /lib64}}
    - {name: mark, hostPath: {path: $D/lab.env}}
    - {name: gpus, hostPath: {path: $D/dev}}
    - {name: health, hostPath: {path: $D/health}}
E2
}
write_audit() { # what the accounts of deploy/kubernetes/rbac.yaml do goes to log/audit.log, without any body; nobody else's
  cat >"$D/audit.yaml" <<E2
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - {level: None, nonResourceURLs: ["*"]}
  - {level: Metadata, userGroups: ["system:serviceaccounts:gpu-runbooks"]}
  - {level: None}
E2
}
apiserver_words() { # one word a line
  local p=$D/pki
  cat <<E2
--etcd-servers=http://127.0.0.1:$(( PORT + 1 ))
--bind-address=127.0.0.1
--secure-port=$PORT
--advertise-address=127.0.0.1
--endpoint-reconciler-type=none
--tls-cert-file=$p/apiserver.crt
--tls-private-key-file=$p/apiserver.key
--cert-dir=$p
--service-account-key-file=$p/sa.pub
--service-account-signing-key-file=$p/sa.key
--service-account-issuer=https://kubernetes.default.svc
--token-auth-file=$p/tokens.csv
--authorization-mode=Node,RBAC
--enable-admission-plugins=NodeRestriction
--service-cluster-ip-range=10.96.0.0/16
--allow-privileged=true
--anonymous-auth=false
--profiling=false
--audit-policy-file=$D/audit.yaml
--audit-log-path=$D/log/audit.log
--kubelet-client-certificate=$p/kubelet-client.crt
--kubelet-client-key=$p/kubelet-client.key
--kubelet-preferred-address-types=InternalIP
--v=1
E2
}
