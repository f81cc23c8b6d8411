"""`make demo BACKEND=kubernetes`: the play on a lab of its own."""

from pathlib import Path

from tests.demos import LIMIT, check_told, processes_of, started
from tests.kubernetes.lab import interfaces, why_not
from tests.require import missing
from workers.demo_slurm import lab_root


def test_the_demo_on_real_kubernetes_ends_well_and_nothing_is_left(
    temporal_binary_found: None, tmp_path: Path
) -> None:
    if (why := why_not()) is not None:
        missing("kubernetes", why)
    before = interfaces()
    with started(tmp_path, "--backend", "kubernetes") as demo:
        out, _ = demo.communicate(timeout=LIMIT + 60)
    assert demo.returncode == 0, out
    told = out.partition("a GPU of ")[2].split()[0]
    check_told(out, "gamma", told, r"gamma-n\d")
    assert "its ranks go on where real ones would hang" in out, "what is not real is said"
    assert "no process, mount, namespace or cgroup is left" in out
    assert processes_of(tmp_path) == []
    root = lab_root(tmp_path / "demo-kubernetes")
    assert processes_of(root) == []
    assert not root.exists()
    assert interfaces() == before
