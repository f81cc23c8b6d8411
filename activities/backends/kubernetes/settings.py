"""What `fleet.yaml` says about one Kubernetes cluster, as the adapter needs it."""

from fleet.model import Value


class DevicePlugin(Value):
    """Where the pods of the GPU device plugin are."""

    namespace: str
    selector: str
    """Label selector."""


class KubernetesSettings(Value):
    """How to reach one cluster, and its hooks."""

    kubeconfig: str | None = None
    """Absolute path of a kubeconfig; None means the credentials of the pod that the worker runs in."""
    context: str | None = None
    """Context in it; None means its current one."""
    namespaces: tuple[str, ...] = ()
    """Namespaces that are looked at; empty means all, which needs cluster-wide rights."""
    power_off: tuple[str, ...] | None = None
    """Argument list with `{node}`; ends with 0 once the order was taken."""
    power_on: tuple[str, ...] | None = None
    power_status: tuple[str, ...] | None = None
    """Argument list with `{node}`; its first word on standard output is `on` or `off`."""
    roots: tuple[str, ...] = ()
    """Absolute folders that this worker may read below, such as a shared file system; logs that jobs name elsewhere
    are not read."""
    check: str | None = None
    """Absolute path of a Pod manifest with `{gpus}` and `{node}`; it prints a JSON line {"ok", "gpus", "detail"}."""
    check_seconds: float = 900.0
    """Longest time that a check may take."""
    device_plugin: DevicePlugin | None = None
    """Restarted on a node that offers fewer GPUs than it has when it is checked; None: never."""
    gpu_resource: str = "nvidia.com/gpu"
    """Resource name that counts as a GPU."""
    node_down_after: float = 50.0
    """Seconds until a silent kubelet's node is called lost: --node-monitor-grace-period of the controller manager,
    which no API tells. 50 s is its default (kube-controller-manager reference, 1.32 and later; 40 s before)."""
    settle: float = 15.0
    """Seconds that a kubelet must answer steadily before its word counts for an end that we did not order."""
    slinky: bool = False
    """Slurm runs in pods on these nodes: those pods hold nothing by themselves, and a cordon says its reason to
    Slinky's operator."""
    read_limit: float = 8.0
    """Seconds that one read may take."""
    write_limit: float = 10.0
    """Seconds that one write may take, after which its outcome is unknown and read back."""
    read_back: float = 6.0
    """Seconds within which a write whose answer was lost must show."""
    alive: float = 1.0
    """Seconds for which a sign of life of the apiserver makes the watched picture count as fresh."""

    @property
    def has_power(self) -> bool:
        return self.power_off is not None and self.power_on is not None and self.power_status is not None
