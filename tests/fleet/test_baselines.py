"""What a node or a GPU measured before, beside the fleet."""

from fleet.baselines import baselines
from fleet.strikes import Sample


def sample(value: float, at: float, node: str = "a1", gpu: str | None = None, measure: str = "hbm_gb_s") -> Sample:
    return Sample(measure=measure, value=value, cluster="alpha", node=node, gpu=gpu, at=at, source=f"{node}{gpu}{at}")


def test_a_figure_stands_beside_its_own_past_and_the_others() -> None:
    told = [sample(v, at) for at, v in enumerate((100.0, 98.0, 102.0, 90.0))]
    told += [sample(v, 0, node=node) for node, v in (("a2", 110.0), ("a3", 112.0), ("a4", 300.0))]
    own = baselines(reversed(told))[0]
    assert (own.node, own.count, own.last, own.last_at) == ("a1", 4, 90.0, 3.0)
    assert (own.own, own.fleet) == (99.0, 112.0)
    assert own.low
    assert [b.low for b in baselines(told)[1:]] == [False, False, False]


def test_without_others_it_is_compared_with_itself() -> None:
    (steady,) = baselines([sample(100.0, 0), sample(96.0, 1)])
    (fallen,) = baselines([sample(100.0, 0), sample(100.0, 1), sample(94.0, 2)])
    assert (steady.fleet, steady.low, fallen.low) == (None, False, True)


def test_a_gpus_figures_follow_it_to_another_node() -> None:
    (moved,) = baselines([sample(100.0, 0, gpu="GPU-1"), sample(90.0, 5, node="a7", gpu="GPU-1")])
    assert (moved.gpu, moved.node, moved.count, moved.low) == ("GPU-1", "a7", 2, True)


def test_nodes_gpus_and_measures_are_not_mixed() -> None:
    told = [sample(100.0, 0), sample(10.0, 0, gpu="GPU-1"), sample(1.0, 0, node="a2", measure="nccl_gb_s")]
    assert [(b.measure, b.gpu, b.fleet) for b in baselines(told)] == [
        ("hbm_gb_s", "GPU-1", None),
        ("hbm_gb_s", None, None),
        ("nccl_gb_s", None, None),
    ]
