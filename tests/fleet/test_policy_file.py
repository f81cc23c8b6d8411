# ruff: noqa: E501 - a row of the tables is one line
"""What is wrong in `fleet.yaml` is told with file, line and what is allowed; what is right is read as it is meant."""

import textwrap

import pytest

from fleet.errors import InvalidInputError
from fleet.faults.evidence import FaultClass
from fleet.policy import Policy, PowerHook, SimCluster, SlurmCluster, Step, StepMode, Transport
from fleet.policy_file import MAX_CHARACTERS, parse_policy
from fleet.policy_overrides import FirstRung
from tests.fleet.make import POLICY_HEAD, public_key

KEY = public_key()

FULL = f"""\
version: 1
clusters:
  alpha:
    kind: slurm
    conf: /etc/slurm/slurm.conf
    bin_dir: /opt/slurm/bin/
    transport: cli
    power:
      off: [/usr/local/bin/power, off, "{{node}}"]
      on: [/usr/local/bin/power, on, "{{node}}"]
      status: [/usr/local/bin/power, status, "{{node}}"]
    check: [/usr/local/bin/check, "--node={{node}}", "{{gpus}}"]
    checkpoint_roots: [/shared/ckpt]
  beta: {{kind: sim, path: fleet.sqlite}}
limits:
  nodes_out: 2
  nodes_out_percent: "5%"
  in_place_delays: [10s, 1m]
  checkpoint_grace: 90s
  run_timeout: 1d
modes:
  isolate: auto
  return: approve
approvers:
  - {{name: ada, key: "{KEY} ada@desk"}}
notify: {{url: "https://pager.example/hook", secret_env: PAGER_SECRET}}
store: sqlite:///history.sqlite
overrides:
  - {{xid: 63, class: transient, first_rung: none, why: "our boards remap often"}}
"""


def told(text: str) -> list[str]:
    with pytest.raises(InvalidInputError) as caught:
        parse_policy(textwrap.dedent(text), "fleet.yaml")
    return str(caught.value).splitlines()


def changed(old: str, new: str) -> str:
    assert old in FULL
    return FULL.replace(old, new)


# -- what is right


def test_a_full_file_is_read_as_it_is_meant() -> None:
    policy = parse_policy(FULL, "fleet.yaml")

    alpha = policy.cluster("alpha")
    assert alpha == SlurmCluster(
        kind="slurm",
        conf="/etc/slurm/slurm.conf",
        bin_dir="/opt/slurm/bin",
        transport=Transport.CLI,
        power=PowerHook(
            off=("/usr/local/bin/power", "off", "{node}"),
            on=("/usr/local/bin/power", "on", "{node}"),
            status=("/usr/local/bin/power", "status", "{node}"),
        ),
        check=("/usr/local/bin/check", "--node={node}", "{gpus}"),
        checkpoint_roots=("/shared/ckpt",),
    )
    assert policy.cluster("beta") == SimCluster(kind="sim", path="fleet.sqlite")
    assert policy.limits.in_place_delays == (10.0, 60.0)
    assert (policy.limits.checkpoint_grace, policy.limits.run_timeout) == (90.0, 86400.0)
    assert policy.limits.nodes_out_percent == 5.0
    assert policy.modes == {Step.ISOLATE: StepMode.AUTO, Step.RETURN: StepMode.APPROVE}
    assert policy.notify is not None
    assert policy.notify.secret_env == "PAGER_SECRET"  # noqa: S105 - a variable's name
    assert policy.store == "sqlite:///history.sqlite"
    row = policy.overrides[0]
    assert (row.xid, row.fault, row.first_rung) == (63, FaultClass.TRANSIENT, FirstRung.NONE)


def test_what_was_read_can_be_written_and_read_again() -> None:
    policy = parse_policy(FULL, "fleet.yaml")

    assert Policy.model_validate_json(policy.model_dump_json()) == policy
    assert parse_policy(policy.model_dump_json(), "again.yaml") == policy, "JSON is YAML"


def test_defaults_need_two_lines() -> None:
    policy = parse_policy(POLICY_HEAD, "fleet.yaml")

    limits = policy.limits
    assert (limits.nodes_out, limits.nodes_out_percent) == (1, 10.0)
    assert (limits.wave_from, limits.nodes_isolated, limits.nodes_isolated_percent) == (10, 10, 10.0)
    assert (limits.in_place_tries, limits.in_place_delays) == (2, (30.0, 120.0))
    assert (limits.in_cluster_tries, limits.across_tries, limits.budget_resets_per_day) == (2, 1, 4)
    assert (limits.early_failure, limits.checkpoint_grace) == (600.0, 120.0)
    assert (limits.step_timeout, limits.run_timeout) == (1800.0, 86400.0)
    assert (limits.drain_deadline, limits.question_expiry) == (7200.0, 14400.0)
    assert (limits.settle, limits.stall_after) == (15.0, 1800.0)
    assert (policy.approvers, policy.notify, policy.store, policy.overrides) == ((), None, None, ())
    day = 86400.0
    assert (policy.keep.evidence, policy.keep.record) == (90 * day, 90 * day)
    assert (policy.keep.reports, policy.keep.specs, limits.lemon_quantile) == (365 * day, 365 * day, 99.0)


def test_aliases_are_followed() -> None:
    text = """\
        version: 1
        clusters:
          alpha: {kind: slurm, conf: /etc/a.conf, check: &quick [/usr/bin/check]}
          beta: {kind: slurm, conf: /etc/b.conf, check: *quick}
        """

    policy = parse_policy(textwrap.dedent(text), "fleet.yaml")

    beta = policy.cluster("beta")
    assert isinstance(beta, SlurmCluster)
    assert beta.check == ("/usr/bin/check",)


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/x", "http://[::1]/x", "http://localhost/x", "https://a.example"])
def test_http_goes_to_this_machine_only(url: str) -> None:
    policy = parse_policy(POLICY_HEAD + f"notify: {{url: '{url}', secret_env: S}}", "fleet.yaml")

    assert policy.notify is not None
    assert policy.notify.url == url


# -- what is wrong: one thing, its line, its words

LIMITS = (
    "nodes_out, nodes_out_percent, wave_from, nodes_isolated, nodes_isolated_percent, in_place_tries, "
    "in_place_delays, in_cluster_tries, across_tries, across_size, cluster_lost_after, early_failure, "
    "budget_resets_per_day, checkpoint_grace, step_timeout, run_timeout, place_timeout, preflight_interval, "
    "drain_deadline, "
    "question_expiry, settle, lemon_quantile, stall_after"
)
TOP = "version, clusters, sites, limits, modes, approvers, copies, notify, store, keep, overrides"
STEPS = (
    "isolate, evacuate, fence, reboot, check, return, restart_in_place, failover_in_cluster, "
    "failover_across_clusters, adopt"
)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        # keys
        (
            "nodes_out: 2",
            "nodes_ot: 2",
            f"16: unknown key 'nodes_ot' under limits; allowed: {LIMITS}; did you mean 'nodes_out'?",
        ),
        ("store: sql", "zzz: sql", f"27: unknown key 'zzz'; allowed: {TOP}"),
        (
            "    transport: cli",
            "    transprt: cli",
            "7: unknown key 'transprt' under clusters.alpha; allowed: kind, conf, bin_dir, transport, power, check, "
            "checkpoint_roots, site, twin; did you mean 'transport'?",
        ),
        (
            "kind: sim, path: fleet.sqlite",
            "kind: sim, path: fleet.sqlite, conf: /x",
            "14: unknown key 'conf' under clusters.beta; allowed: kind, path, checkpoint_roots, site",
        ),
        (
            "{name: ada,",
            "{name: ada, role: boss,",
            "25: unknown key 'role' under approvers[0]; allowed: name, key",
        ),
        (
            "secret_env: PAGER_SECRET",
            "secret_env: PAGER_SECRET, token: x",
            "26: unknown key 'token' under notify; allowed: command, url, secret_env",
        ),
        (
            "class: transient",
            "clas: transient",
            "29: unknown key 'clas' under overrides[0]; allowed: xid, sxid, "
            "recovery_action, dcgm_error, gpu_field, exit_code, log_text, kernel_text, job_reason, node_reason, "
            "node_condition, pattern, class, first_rung, why; did you mean 'class'?",
        ),
        (
            "  isolate: auto",
            "  isolat: auto",
            f"22: unknown step 'isolat' under modes; allowed: {STEPS}; did you mean 'isolate'?",
        ),
        ("    conf: /etc/slurm/slurm.conf\n", "", "3: key 'conf' is missing under clusters.alpha"),
        ("version: 1\n", "", "1: key 'version' is missing"),
        ("{kind: sim,", "{", "14: key 'kind' is missing under clusters.beta; allowed values: slurm, sim, kubernetes"),
        (
            "beta: {kind: sim, path: fleet.sqlite}",
            "beta: {kind: kubernetes, kubeconfig: kube.yaml}",
            "14: clusters.beta.kubeconfig: must be an absolute path, starting with /",
        ),
        *(
            (
                "beta: {kind: sim, path: fleet.sqlite}",
                f"beta: {{kind: kubernetes{more}}}",
                "14: clusters.beta: give one of kubeconfig and in_cluster: true (the worker runs in a pod of this cluster)",
            )
            for more in ("", ", in_cluster: false", ", in_cluster: true, kubeconfig: /etc/kube.yaml")
        ),
        (
            "beta: {kind: sim, path: fleet.sqlite}",
            "beta: {kind: kubernetes, in_cluster: true, context: prod}",
            "14: clusters.beta: context belongs to a kubeconfig; name the file too",
        ),
        ("kind: slurm", "kind: slrm", "4: unknown kind 'slrm' under clusters.alpha; allowed: slurm, sim, kubernetes; did you mean 'slurm'?"),
        (
            "  beta:",
            "  be/ta:",
            "14: the name 'be/ta' under clusters is not legal; it starts with a letter or a digit and goes on with "
            "those and . _ : - only, at most 200",
        ),
        ("  nodes_out: 2", "  nodes_out: 2\n  nodes_out: 3", "17: key 'nodes_out' is given twice under limits; the first is on line 16"),
        # units
        ("checkpoint_grace: 90s", "checkpoint_grace: 90", "19: limits.checkpoint_grace: 90 has no unit; say the unit: 90s"),
        ("checkpoint_grace: 90s", 'checkpoint_grace: "90"', "19: limits.checkpoint_grace: 90 has no unit; say the unit: 90s"),
        (
            "checkpoint_grace: 90s",
            "checkpoint_grace: 90sec",
            "19: limits.checkpoint_grace: '90sec' is no duration; write a number and s, m, h or d: 90s, 15m, 2h, 1d",
        ),
        (
            "checkpoint_grace: 90s",
            "checkpoint_grace: -90s",
            "19: limits.checkpoint_grace: '-90s' is no duration; write a number and s, m, h or d: 90s, 15m, 2h, 1d",
        ),
        (
            "checkpoint_grace: 90s",
            "checkpoint_grace: 1:30",
            "19: limits.checkpoint_grace: '1:30' is no duration; write a number and s, m, h or d: 90s, 15m, 2h, 1d",
        ),
        ("run_timeout: 1d", "run_timeout: 9999d", "20: limits.run_timeout: 9999d is more than a year; write a shorter time"),
        ("[10s, 1m]", "[10s, 60]", "18: limits.in_place_delays[1]: 60 has no unit; say the unit: 60s"),
        ('"5%"', "5", '17: limits.nodes_out_percent: 5 has no unit; write it as a percentage: "5%"'),
        ('"5%"', '"5 percent"', "17: limits.nodes_out_percent: '5 percent' is no percentage; write \"10%\""),
        ('"5%"', '"500%"', "17: limits.nodes_out_percent: 500% is more than 100%"),
        ('"5%"', '"0%"', '15: limits: nodes_out_percent "0%" lets no node out; to mean that, set nodes_out: 0 too'),
        # types and ranges
        ("nodes_out: 2", "nodes_out: two", "16: limits.nodes_out: must be a whole number, not 'two'"),
        ("nodes_out: 2", "nodes_out: '2'", "16: limits.nodes_out: must be a whole number, not '2'"),
        ("nodes_out: 2", "nodes_out: 2.5", "16: limits.nodes_out: must be a whole number, not the number 2.5"),
        ("nodes_out: 2", "nodes_out: true", "16: limits.nodes_out: must be a whole number, not true"),
        ("nodes_out: 2", "nodes_out: -1", "16: limits.nodes_out: is the number -1; it must be at least 0"),
        ("nodes_out: 2", "nodes_out:", "16: limits.nodes_out: is empty; give a value or take the key out"),
        ("nodes_out: 2", "in_place_tries: 11", "16: limits.in_place_tries: is the number 11; it must be at most 10"),
        ("[10s, 1m]", "10s", "18: limits.in_place_delays: must be a list, not '10s'"),
        ("conf: /etc/slurm/slurm.conf", "conf: 5", "5: clusters.alpha.conf: must be text, not the number 5"),
        ("  beta: {kind: sim, path: fleet.sqlite}", "  beta: sim", "14: clusters.beta: must be keys and values, not 'sim'"),
        ("version: 1", "version: 2", "1: version: is the number 2; this release reads 1"),
        ("isolate: auto", "isolate: automatic", "22: modes.isolate: cannot be 'automatic'; allowed: observe, propose, approve, auto; did you mean 'auto'?"),
        ("isolate: auto", "isolate: false", "22: modes.isolate: cannot be false; allowed: observe, propose, approve, auto"),
        ("transport: cli", "transport: rest", "7: clusters.alpha.transport: cannot be 'rest'; allowed: auto, cli, pyslurm"),
        (
            "class: transient",
            "class: transiet",
            "29: overrides[0].class: cannot be 'transiet'; allowed: hardware, transient, user, unknown, informational; "
            "did you mean 'transient'?",
        ),
        # words
        ("conf: /etc", "conf: etc", "5: clusters.alpha.conf: must be an absolute path, starting with /"),
        ("[/shared/ckpt]", "[/shared/../etc]", "13: clusters.alpha.checkpoint_roots[0]: must not hold ..; write the path it means"),
        ("[/shared/ckpt]", "[/]", "13: clusters.alpha.checkpoint_roots[0]: must not be the whole file system"),
        (
            '[/usr/local/bin/power, off, "{node}"]',
            "[/usr/local/bin/power, off]",
            "9: clusters.alpha.power.off: needs {node} in one of its arguments, else it acts on no particular node",
        ),
        ('off, "{node}"', 'off, "{nod}"', "9: clusters.alpha.power.off: knows no {nod}; allowed: {node}"),
        (
            'off, "{node}"',
            "off, {node}",
            "9: clusters.alpha.power.off[2]: must be text, not keys and values; write it in quotes: \"{node}\"",
        ),
        ('"{gpus}"', '"{gpu}"', "12: clusters.alpha.check: knows no {gpu}; allowed: {gpus}, {node}"),
        ("check: [/usr/local/bin/check", 'check: ["/usr/bin/check -q"', "12: clusters.alpha.check: starts with a word that holds a space; no shell splits it: write each argument by itself"),
        ('check: [/usr/local/bin/check, "--node={node}", "{gpus}"]', "check: []", "12: clusters.alpha.check: is empty; write a program and its arguments as a list"),
        ("check: [/usr/local/bin/check", "check: [bin/check", "12: clusters.alpha.check: must start with an absolute path or a bare program name"),
        ("check: [/usr/local/bin/check", 'check: ["{node}"', "12: clusters.alpha.check: must start with a program, by absolute path or by name"),
        ("name: ada,", "name: 'ada *',", "25: approvers[0].name: may hold letters, digits and ._@- only, and starts with a letter or a digit"),
        (f"{KEY} ada@desk", KEY[:40], "25: approvers[0].key: is cut short or damaged; copy the whole line of the .pub file"),
        ("https://pager", "http://pager", "26: notify.url: must be https: a question names nodes and people (http goes to this machine only)"),
        ("https://pager", "ftp://pager", "26: notify.url: is no URL; write https://HOST/PATH"),
        ("secret_env: PAGER_SECRET", "secret_env: s3cr3t-value", "26: notify.secret_env: is no name of an environment variable; write the name, never the secret itself"),
        (", secret_env: PAGER_SECRET", "", "26: notify: a url needs secret_env, the environment variable with the signing secret"),
        ("{url:", "{command: [/bin/x], url:", "26: notify: give one of command and url"),
        ('url: "https://pager.example/hook"', "command: [/bin/x]", "26: notify: secret_env belongs to url; a command gets its secrets from its own environment"),
        ("sqlite:///history.sqlite", "history.sqlite", "27: store: must be sqlite:///FILE or postgresql://USER@HOST/DATABASE"),
        ("sqlite:///history.sqlite", "postgres://u@h/d", "27: store: must be postgresql://USER@HOST/DATABASE"),
        ("sqlite:///history.sqlite", "postgresql://u@h", "27: store: must be postgresql://USER@HOST/DATABASE"),
        ("sqlite:///history.sqlite", "postgresql://u@h:port/d", "27: store: is no URL; write postgresql://USER@HOST/DATABASE"),
        ("sqlite:///history.sqlite", "postgresql://u:s3cr3t@h/d", "27: store: holds a password; it goes into a password file (PGPASSFILE) of the worker's user"),
        ("sqlite:///history.sqlite", "postgresql:///d?Password=s3cr3t", "27: store: holds a password; it goes into a password file (PGPASSFILE) of the worker's user"),
        ("overrides:\n", "keep: {record: 27d}\noverrides:\n", "28: keep: record must be at least 28d: lemons are judged by four weeks"),
        ("overrides:\n", "keep: {strikes: 90d}\noverrides:\n", "28: unknown key 'strikes' under keep; allowed: evidence, reports, specs, record"),
        ("xid: 63", "xid: 0", "29: overrides[0].xid: is the number 0; it must be at least 1"),
        ("xid: 63", "sxid: 63, xid: 63", "29: overrides[0]: give exactly one of xid, sxid, recovery_action, dcgm_error, "
         "gpu_field, exit_code, log_text, kernel_text, job_reason, node_reason, node_condition, not 2"),
        ("xid: 63, ", "", "29: overrides[0]: give exactly one of xid, sxid, recovery_action, dcgm_error, gpu_field, "
         "exit_code, log_text, kernel_text, job_reason, node_reason, node_condition"),
        ("xid: 63", "log_text: cuda_ec", "29: overrides[0]: override for log_text cuda_ec: the catalogue has no such "
         "row; a new text needs its pattern; did you mean cuda_ecc, cuda_other, cuda_no_device?"),
        ("xid: 63", "dcgm_error: 999", "29: overrides[0]: override for dcgm_error 999: the catalogue has no such row; "
         "did you mean 99?"),
        ("xid: 63", 'log_text: ours, pattern: "(a+)+b"', "29: overrides[0]: override for log_text ours: pattern "
         "'(a+)+b' may run away: a repeat inside a repeat; write it without"),
        ("xid: 63", 'exit_code: 201, pattern: "x"', "29: overrides[0]: override for exit_code 201: a pattern belongs to "
         "log_text or kernel_text"),
        ('"our boards remap often"', '" "', "29: overrides[0].why: is empty; write a text"),
        ("class: transient, first_rung: none, ", "", "29: overrides[0]: give class or first_rung, else it changes nothing"),
    ],
)  # fmt: skip
def test_one_wrong_thing_is_told_in_one_line(old: str, new: str, message: str) -> None:
    assert told(changed(old, new)) == [f"fleet.yaml:{message}"]


def test_everything_wrong_is_told_at_once_in_the_order_of_the_file() -> None:
    text = """\
        version: 1
        clusters:
          alpha: {kind: slurm}
        limits:
          settle: 15
          settel: 15s
          settle: 15s
        modes: [auto]
        """

    lines = told(text)

    assert [line.split(":")[1] for line in lines] == ["3", "5", "6", "7", "8"]
    assert lines[0] == "fleet.yaml:3: key 'conf' is missing under clusters.alpha"
    assert lines[4] == "fleet.yaml:8: modes: must be keys and values, not a list"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "1: the file is empty; it needs at least version and clusters"),
        ("# a comment\n\n", "1: the file is empty; it needs at least version and clusters"),
        ("---\n", "1: the file is empty; it needs at least version and clusters"),
        ("- version\n", "1: the file must hold keys and values (version: 1, clusters: ...)"),
        ("just words\n", "1: the file must hold keys and values (version: 1, clusters: ...)"),
        ("version: 1\nclusters: {}\n", "2: clusters: is empty; it needs at least one entry"),
        ("version: 1\na: b: c\n", "2: not readable as YAML: mapping values are not allowed here"),
        (
            "version: 1\n\tclusters: {}\n",
            "2: not readable as YAML: while scanning for the next token found character '\\t' that cannot start any token",
        ),
        (
            POLICY_HEAD + "---\nversion: 1\n",
            "3: not readable as YAML: expected a single document in the stream but found another document",
        ),
        (POLICY_HEAD + "limits: *nobody\n", "3: not readable as YAML: found undefined alias 'nobody'"),
        (POLICY_HEAD + "limits: {<<: {settle: 1s}}\n", "3: merge keys (<<) are not read under limits; write the values out"),
        (
            POLICY_HEAD + "notify: {command: [/bin/page, --node={node}]}\n",
            "3: not readable as YAML: while parsing a flow sequence expected ',' or ']', but got '{'; "
            'write words with braces in quotes: "{node}"',
        ),
        (POLICY_HEAD + "? [a]\n: b\n", "3: a key is a list or a mapping; write a word"),
        (
            POLICY_HEAD + "store: !!python/object/apply:os.system [id]\n",
            "3: the tag tag:yaml.org,2002:python/object/apply:os.system is not allowed; write a plain value",
        ),
        (POLICY_HEAD + 'store: "sqlite:///\\e[31m"\n', "3: a text holds control characters; take them out"),
        (POLICY_HEAD + '"li\\e[31m": 1\n', "3: a key holds control characters; take them out"),
        (POLICY_HEAD + "limits: &a {settle: *a}\n", "3: an alias (*name) leads deeper and deeper; write the values out"),
        ("[" * 5000, "1: nested deeper than 16 levels"),
        ("#" * (MAX_CHARACTERS + 1), f"1: longer than {MAX_CHARACTERS} characters; this is no policy file"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_policy_says_why(text: str, message: str) -> None:
    assert told(text) == [f"fleet.yaml:{message}"]


def test_an_alias_bomb_ends_at_a_bound() -> None:
    """Nine lines that would be 9^9 values."""
    lines = ["a: &a [x,x,x,x,x,x,x,x,x]"]
    for n in range(8):
        lines.append(f"{chr(98 + n)}: &{chr(98 + n)} [{','.join([f'*{chr(97 + n)}'] * 9)}]")

    assert told("\n".join(lines)) == ["fleet.yaml:1: more than 20000 values once aliases are followed"]


@pytest.mark.parametrize(
    "secret", ["-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEA", "hunter2hunter2hunter2"]
)
def test_a_secret_in_the_wrong_place_is_not_repeated(secret: str) -> None:
    quoted = secret.replace("\n", "\\n")
    lines = told(
        POLICY_HEAD
        + f'approvers: [{{name: ada, key: "{quoted}"}}]\n'
        + f'notify: {{url: "https://user:{secret[:8]}@h/x", secret_env: "{quoted} x"}}\n'
    )

    assert [line.split(": ")[1] for line in lines] == ["approvers[0].key", "notify.secret_env", "notify.url"]
    assert not any(part in "\n".join(lines) for part in ("b3BlbnNz", "hunter2", "-----BEG"))


def test_a_private_key_is_named_as_what_it_is() -> None:
    line = told(POLICY_HEAD + 'approvers: [{name: ada, key: "-----BEGIN OPENSSH PRIVATE KEY-----"}]\n')[0]

    assert line == (
        "fleet.yaml:3: approvers[0].key: is a private key. Take it out and replace that key pair; "
        "write the line of the .pub file"
    )


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            f"approvers: [{{name: ada, key: '{KEY}'}}, {{name: ada, key: '{public_key('z')}'}}]",
            "3: approvers: ada is given twice; keep one",
        ),
        (
            f"approvers: [{{name: ada, key: '{KEY}'}}, {{name: bob, key: '{KEY} bob@desk'}}]",
            "3: approvers: ada and bob have the same key; each needs one of their own",
        ),
        (
            "overrides: [{xid: 63, class: user, why: a}, {xid: 63, class: unknown, why: b}]",
            "3: overrides: xid 63 is given twice; keep one",
        ),
    ],
)
def test_one_person_does_not_count_as_two(more: str, message: str) -> None:
    assert told(POLICY_HEAD + more) == [f"fleet.yaml:{message}"]


def test_a_long_word_is_cut_in_the_message() -> None:
    line = told(POLICY_HEAD + f"{'x' * 900}: 1\n")[0]

    assert line == f"fleet.yaml:3: unknown key '{'x' * 37}...'; allowed: {TOP}"
