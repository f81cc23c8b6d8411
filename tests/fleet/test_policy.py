"""What a policy answers, and that every setting says its reason where a reader looks for it."""

import re
from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError

from fleet import policy as policies
from fleet.errors import InvalidInputError, NotFoundError
from fleet.people import Signer
from fleet.policy import Limits, Policy, Step, StepMode
from fleet.policy_file import parse_policy
from fleet.policy_overrides import Override
from fleet.units import duration_text, parse_duration, parse_percent, percent_text, share
from tests.fleet.make import policy, public_key

MODELS: list[type[BaseModel]] = [
    policies.Policy,
    policies.SlurmCluster,
    policies.SimCluster,
    policies.KubernetesCluster,
    policies.PowerHook,
    policies.Keep,
    policies.Limits,
    policies.Approver,
    policies.Notify,
    policies.Site,
    policies.Copies,
    Override,
]
PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_a_step_that_is_not_named_is_proposed() -> None:
    found = policy("modes: {isolate: auto, fence: observe}")

    assert found.mode("isolate") is StepMode.AUTO
    assert found.mode("fence") is StepMode.OBSERVE
    assert found.mode("reboot") is StepMode.PROPOSE
    assert found.mode("a step of a newer release") is StepMode.PROPOSE
    assert all(policy().mode(step) is StepMode.PROPOSE for step in Step)


@pytest.mark.parametrize(
    ("absolute", "percent", "total", "out"),
    [
        (1, "10%", 100, 1),
        (5, "10%", 100, 5),
        (50, "10%", 100, 10),
        (50, "10%", 3, 1),
        (50, "1%", 288, 2),
        (50, "1%", 50, 1),
        (50, "100%", 4, 4),
        (50, "10%", 1, 1),
        (50, "10%", 0, 0),
        (0, "10%", 100, 0),
        (0, "0%", 100, 0),
        (50, "29%", 100, 29),
    ],
)
def test_the_smaller_of_both_limits_holds(absolute: int, percent: str, total: int, out: int) -> None:
    found = policy(f'limits: {{nodes_out: {absolute}, nodes_out_percent: "{percent}"}}')

    assert found.nodes_out(total) == out


def test_a_share_never_exceeds_its_percentage_but_for_the_first_node() -> None:
    for total in range(1, 400):
        for percent in (0.5, 1.0, 7.0, 33.3, 100.0):
            assert 1 <= share(total, percent) <= max(1.0, total * percent / 100 + 1e-6)


def test_an_unknown_cluster_names_the_known_ones() -> None:
    with pytest.raises(NotFoundError, match=r"no cluster 'gamma' in the policy; known: alpha\. Add it or correct"):
        policy().cluster("gamma")


def test_approvers_are_signers() -> None:
    key = public_key()

    assert policy(f"approvers: [{{name: ada, key: '{key}'}}]").signers == (Signer(name="ada", key=key),)


def test_the_digest_is_that_of_the_meaning() -> None:
    one = policy("limits: {settle: 60s, nodes_out: 3}")

    assert re.fullmatch(r"[0-9a-f]{16}", one.digest)
    assert one.digest == policy("# a comment\nlimits:\n  nodes_out: 3\n  settle: 1m\n").digest
    assert one.digest != policy("limits: {settle: 61s, nodes_out: 3}").digest
    assert one.digest != policy("limits: {settle: 60s, nodes_out: 3}\nmodes: {fence: auto}").digest


def test_a_policy_cannot_be_changed() -> None:
    found = policy()

    with pytest.raises(ValidationError, match="frozen"):
        found.limits.nodes_out = 5  # type: ignore[misc]


def test_python_is_held_to_units_too() -> None:
    assert Limits(settle="1m").settle == 60  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="say the unit: 1"):
        Limits(settle=1.0)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0s", 0), ("0.5s", 0.5), ("90s", 90), ("15m", 900), ("1.5h", 5400), ("2h", 7200), ("1d", 86400)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds
    assert parse_duration(duration_text(seconds)) == seconds


@pytest.mark.parametrize(
    "value", ["90", 90, 1.5, "90 s", "s", "", "1w", "1d2h", "１s", "-1s", "1e3s", None, True, ["1s"]]
)
def test_no_durations(value: object) -> None:
    with pytest.raises(ValueError, match=r"unit|no duration"):
        parse_duration(value)


def test_every_duration_is_spelled_so_that_it_reads_back() -> None:
    for seconds in (*range(10_000), 86_399, 86_400, 90_000.25):
        assert parse_duration(duration_text(seconds)) == seconds


@pytest.mark.parametrize(("text", "percent"), [("0%", 0), ("10%", 10), ("2.5%", 2.5), ("100%", 100)])
def test_percentages(text: str, percent: float) -> None:
    assert parse_percent(text) == percent
    assert percent_text(percent) == text


@pytest.mark.parametrize("value", [10, "10", "101%", "-1%", "%", "ten%", None, 0.1])
def test_no_percentages(value: object) -> None:
    with pytest.raises(ValueError, match=r"percentage|100%"):
        parse_percent(value)


# -- every setting explains itself


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.__name__)
def test_every_setting_has_its_docstring_and_its_row_on_the_page(model: type[BaseModel]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name, field in model.model_fields.items():
        key = field.alias or name
        assert field.description, f"{model.__name__}.{name} has no docstring under it"
        assert f"`{key}`" in page, f"docs/configuration.md does not explain {key}"


def test_the_page_states_the_defaults_in_force() -> None:
    page = PAGE.read_text(encoding="utf-8")
    read = Policy.model_validate_json(policy().model_dump_json())
    for name, value in (read.limits.model_dump(mode="json") | read.keep.model_dump(mode="json")).items():
        shown = ", ".join(value) if isinstance(value, list) else str(value)
        row = next(line for line in page.splitlines() if line.startswith(f"| `{name}` |"))
        assert f"| {shown} |" in row, f"{name} is {shown}, the page says: {row}"


def test_the_page_names_every_step_and_mode() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for word in (*Step, *StepMode):
        assert f"`{word}`" in page


def test_the_example_on_the_page_is_a_policy() -> None:
    from fleet.policy_file import parse_policy

    example = PAGE.read_text(encoding="utf-8").split("```yaml\n")[1].split("```")[0]

    assert parse_policy(example.replace("AAAA...", public_key().split()[1]), "docs").clusters


TWINS = """
version: 1
clusters:
  gamma: {kind: kubernetes, in_cluster: true}
  slurm: {kind: slurm, conf: /etc/slurm/slurm.conf, twin: gamma}
  alpha: {kind: slurm, conf: /etc/slurm/alpha.conf}
"""


def test_a_slurm_node_on_a_kubernetes_node_is_owned_by_the_kubernetes_side() -> None:
    found = parse_policy(TWINS, "fleet.yaml")
    assert [found.owner_of(name) for name in ("slurm", "gamma", "alpha", "nobody")] == [
        "gamma",
        "gamma",
        "alpha",
        "nobody",
    ]
    assert [found.slurm_on(name) for name in ("gamma", "slurm", "alpha")] == ["slurm", None, None]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("twin: gamma", "twin: alpha", "slurm has the twin alpha, which is no Kubernetes cluster of this file"),
        ("twin: gamma", "twin: delta", "slurm has the twin delta, which is no Kubernetes cluster of this file"),
        ("alpha.conf", "alpha.conf, twin: gamma", "slurm and alpha have the same twin gamma"),
    ],
)
def test_twins_are_pairs_of_the_file(old: str, new: str, said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        parse_policy(TWINS.replace(old, new), "fleet.yaml")
