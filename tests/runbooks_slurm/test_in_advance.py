"""What is done before anything fails, on real clusters: checkpoints copied in advance, targets asked in advance."""

from fleet.model import ReceiptGrade
from fleet.people import Choice
from fleet.runbooks import ReplicateInput, Runbook
from tests.runbooks_slurm.scenario import scenario
from tests.runbooks_slurm.stage import Stage
from tests.runbooks_slurm.test_transfer import MOVE, TWO, on_disk, trains, trains_on_beta
from tests.runbooks_slurm.training import complete_of

IN_ADVANCE = "copies: {replicate_every: 1}"


@scenario(clusters=TWO, sites=True, nodes=2, limits={"cluster_lost_after": "5s"})
async def test_a_cluster_that_is_lost_with_its_storage_is_left_with_what_was_copied_in_advance(stage: Stage) -> None:
    alpha, beta = stage.labs.values()
    text = stage.policy_file.read_text().replace(
        f"at-alpha: {{mount: {alpha.work}}}", f"at-alpha: {{mount: {alpha.work}, replicate_to: [at-beta]}}"
    )
    stage.policy_file.write_text(f"{text}{IN_ADVANCE}\n")
    native_id = await trains(stage)
    copied = await stage.client.execute_workflow(
        Runbook.REPLICATE, ReplicateInput(), id="replicas-1", task_queue="runbooks"
    )
    assert copied["text"] == "1 copied", await stage.stories()
    [replica] = complete_of(beta.work / "ckpt-train", "0.0")
    saved = complete_of(stage.folder_of("train"), "0.0")
    assert replica in saved

    nodes = await stage.nodes_of("train")
    await on_disk(stage, native_id)
    await alpha.lab("ctld-kill", "alpha")
    for node in nodes:
        await alpha.lab("node-crash", "alpha", node)
    root = stage.folder_of("train")
    root.rename(root.with_name("lost"))
    await stage.answer(await stage.question(MOVE), Choice.ATTEST)
    await trains_on_beta(stage)

    view = await stage.view("job/train")
    assert view.ledger is not None
    first, second = view.ledger.attempts
    assert first.receipt is not None
    assert first.receipt.grade() is ReceiptGrade.ATTESTED
    assert second.progress.resumed_from == replica
    assert any("going on from what was replicated" in line for line in (await stage.view(MOVE)).story)


@scenario(clusters=TWO, sites=True, nodes=2)
async def test_what_could_not_receive_the_job_is_said_with_its_reason_before_anything_fails(stage: Stage) -> None:
    beta = stage.labs["beta"]
    native_id = await trains(stage)
    await beta.slurm("scontrol", "update", "NodeName=beta1", "State=DOWN", "Reason=rack works")
    short = await stage.cli("preflight", "train", "--now", "-o", "json")
    assert short.code == 1, short.err
    [job] = short.json
    [target] = job["targets"]
    checks = {check["name"]: check for check in target["checks"]}
    assert {name for name, check in checks.items() if not check["ok"]} == {"environment"}, checks
    assert job["checkpoint"]["step"] in complete_of(stage.folder_of("train"), "0.0")
    said = await stage.cli("describe", "train")
    assert checks["environment"]["why"][:60] in said.out, said.out

    await beta.slurm("scontrol", "update", "NodeName=beta1", "State=RESUME")
    ready = await stage.cli("preflight", "train", "--now", "-o", "json")
    assert ready.code == 0, (ready.out, ready.err)
    later = await stage.cli("describe", "train")
    assert "its trial passes" in later.out, later.out
    assert checks["environment"]["why"][:60] not in later.out, later.out
    assert (await stage.native(native_id)).restarts == 0, "nothing of the job was touched"
    assert await beta.backend.jobs(max_age=0) == ()
    assert not list((beta.work / "ckpt-train").glob("*")), "nothing is left where a copy would go"
