"""`runbook classify`: one text judged here, its shape for programs, its words for people. No server."""

import json
import sys
from pathlib import Path

import pytest

from clients.app import main as run_app
from clients.app import make_app
from tests.faults.making import NOW
from tests.faults.samples import SAMPLES
from tests.fleet.make import POLICY_HEAD

OWN_ROW = 'overrides:\n  - {xid: 79, class: transient, first_rung: none, why: "our risers are loose"}\n'


def main(words: list[str]) -> int:
    return run_app(make_app(), words)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No policy file of this machine is found."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("GPU_RUNBOOKS_FLEET", raising=False)


def written(folder: Path, kind: str, name: str = "text") -> str:
    file = folder / name
    file.write_bytes(SAMPLES[kind])
    return str(file)


@pytest.mark.parametrize("kind", SAMPLES)
def test_every_known_text_is_judged_and_its_kind_is_told(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["classify", written(tmp_path, kind)]) == 0
    out, err = capsys.readouterr()
    assert "Rule " in out
    assert f"read as {kind} (" in err


def test_json_keys_are_the_promise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["classify", written(tmp_path, "kernel_log"), "-o", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert list(said) == [
        "class",
        "culprit",
        "rule",
        "companions",
        "refused",
        "confidence",
        "catalogue",
        "evidence",
    ]
    assert set(said["culprit"]) == {"node", "gpu"}
    assert (said["class"], said["rule"]) == ("hardware", "xid:79")
    assert [(e["kind"], e["used"]) for e in said["evidence"]] == [("xid", True), ("kernel_text", True)]
    assert {"key", "source", "code", "detail", "count"} <= set(said["evidence"][0])


def test_a_context_names_what_the_text_does_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    context = tmp_path / "context.json"
    context.write_text(json.dumps({"cluster": "alpha", "node": "alpha2", "boot": "b2", "now": NOW}))
    assert main(["classify", written(tmp_path, "kernel_log"), "--context", str(context), "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["culprit"]["node"] == "alpha2"


def test_what_is_seen_around_and_facts_of_the_context_are_judged_with_the_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, context = tmp_path / "text", tmp_path / "context.json"

    def judged(line: str, **known: object) -> dict[str, object]:
        text.write_text(line)
        context.write_text(json.dumps({"cluster": "alpha", "now": NOW, **known}))
        assert main(["classify", str(text), "--context", str(context), "-o", "json"]) == 0
        said: dict[str, object] = json.loads(capsys.readouterr().out)
        return said

    hung = "[  900.5] NVRM: Xid (PCI:0000:1b:00): 119, pid=9, name=x, Timeout after 45s of waiting for RPC response"
    one = {"source": "kernel", "kind": "xid", "cluster": "alpha", "code": "119", "seen_at": NOW - 60}
    around = [one | {"node": f"alpha{n}"} for n in range(9)]
    assert judged(hung, node="alpha20")["rule"] == "xid:119"
    assert judged(hung, node="alpha20", around=around)["rule"] == "common_cause:119"
    no_fabric = "0: Traceback (most recent call last):\n0: RuntimeError: Error 802: system not yet initialized\n"
    booted = {"source": "person", "kind": "fact", "cluster": "alpha", "code": "booted", "node": "alpha1"}
    facts = [booted | {"seen_at": NOW, "happened_at": NOW - 40}]
    known = {"job": "train", "nodes": ["alpha1"]}
    assert judged(no_fabric, **known)["class"] == "hardware"
    assert judged(no_fabric, **known, facts=facts)["rule"] == "fabric_starting"


def test_a_fact_that_nobody_knows_is_refused_with_those_that_are_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fact = {"source": "person", "kind": "fact", "cluster": "alpha", "code": "sunny", "seen_at": NOW}
    (tmp_path / "context.json").write_text(json.dumps({"facts": [fact]}))
    assert main(["classify", written(tmp_path, "kernel_log"), "--context", str(tmp_path / "context.json")]) == 2
    assert "booted, gpu_reset, shm_used, known_good" in capsys.readouterr().err


def test_history_of_the_context_counts_repeats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen = {
        "source": "kernel",
        "kind": "xid",
        "cluster": "alpha",
        "node": "alpha2",
        "gpu": "0000:ab:00",
        "code": "31",
    }
    context = tmp_path / "context.json"
    text = tmp_path / "dmesg"
    text.write_text("2026-01-02T03:04:05+00:00 alpha2 kernel: NVRM: Xid (PCI:0000:ab:00): 31, Ch 1\n")
    rules = []
    for history in ([], [seen | {"seen_at": 1767319445.0, "happened_at": 1767319445.0}]):
        context.write_text(json.dumps({"cluster": "alpha", "node": "alpha2", "history": history}))
        assert main(["classify", str(text), "--context", str(context), "-o", "json"]) == 0
        rules.append(json.loads(capsys.readouterr().out)["rule"])
    assert rules == ["xid:31", "repeat:31"]


def test_an_old_log_is_judged_as_of_its_own_day(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "dmesg"
    text.write_text("2020-01-02T03:04:05+00:00 alpha2 kernel: NVRM: Xid (PCI:0000:ab:00): 79, off\n")
    assert main(["classify", str(text), "-o", "name"]) == 0
    assert capsys.readouterr().out.strip() == "hardware"


def test_a_fleets_own_row_decides_and_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(POLICY_HEAD + OWN_ROW)
    assert main(["classify", written(tmp_path, "kernel_log"), "--fleet", str(fleet)]) == 0
    out = capsys.readouterr().out
    assert "transient, restart in place" in out
    assert "our risers are loose" in out


def test_a_flight_recorder_dump_takes_its_rank_from_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["classify", written(tmp_path, "flight_recorder", "nccl_trace_rank_12"), "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["evidence"][0]["rank"] == 12


def test_standard_input_is_read(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    class Given:
        class buffer:  # noqa: N801 - the name that sys.stdin has
            read = staticmethod(lambda: SAMPLES["nvsentinel"])

    monkeypatch.setattr(sys, "stdin", Given)
    assert main(["classify", "-", "-o", "name"]) == 0
    assert capsys.readouterr().out.strip() == "hardware"


def test_what_was_dropped_is_counted_beside_the_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "dmesg"
    text.write_text("[    1.000001] usb 1-1: new device\n" * 3)
    assert main(["classify", str(text)]) == 0
    out, err = capsys.readouterr()
    assert "no valid evidence" in out
    assert "3 dropped: no GPU fault in the line" in err


def test_control_characters_of_a_text_do_not_reach_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text"
    text.write_text(json.dumps({"kind": "xid", "code": "79", "detail": "a\u202e\u001b[31mb"}))
    assert main(["classify", str(text)]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\u202e" not in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nothing-here"], "cannot be read"),
        (["text", "--kind", "dmesg"], "no kind 'dmesg'; known: kernel_log"),
        (["text"], "looks like none that is known"),
        (["text", "--context", "context"], "keys: cluster, node, job, boot, rank, now, nodes, history"),
        (["text", "--context", "nothing-here"], "cannot be read"),
    ],
)
def test_what_is_wrong_is_said_with_what_to_do(
    words: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text").write_text("hello\n")
    (tmp_path / "context").write_text('{"nod": 1}')
    assert main(["classify", *words]) == 2
    assert says in capsys.readouterr().err
