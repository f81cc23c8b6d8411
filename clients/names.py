"""Words of a person -> names that are safe in ids, queues and visibility queries. Pure."""

import getpass
import os
import re

from clients.errors import usage
from fleet.identity import job_workflow_id, node_workflow_id
from fleet.model import NAME_PATTERN, NodeRef

_ID = re.compile(
    r"(job|node|watch|guard|lease|preflight)(/[A-Za-z0-9][A-Za-z0-9_.:-]{0,199}){1,6}"
    r"|(lemons|preflight|replicas)-[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]{8,18}Z(/ask/[0-9]{1,9})?"
)
_NAME = re.compile(NAME_PATTERN.removesuffix("$") + r"\Z")
AS_VARIABLE = "GPU_RUNBOOKS_AS"


def name(text: str, what: str) -> str:
    """A cluster's, node's or job's name. Raises CliError (usage) that says what is allowed."""
    if not is_name(text):
        raise usage(f"{text!r} is no name of a {what}: letters, digits and `_.:-`, at most 200, no slash, no space")
    return text


def is_name(text: str) -> bool:
    """What `name` takes."""
    return _NAME.match(text) is not None


def node_ref(text: str) -> NodeRef:
    """`CLUSTER/NODE`. Raises CliError (usage)."""
    cluster, slash, node = text.partition("/")
    if not slash:
        raise usage(f"{text!r} is not CLUSTER/NODE; write e.g. alpha/alpha2")
    return NodeRef(cluster=name(cluster, "cluster"), node=name(node, "node"))


def is_workflow_id(text: str) -> bool:
    """A whole workflow id: `job/x`, `node/alpha/a1`, `job/x/ask/2` ... `node/a1` is none, it is CLUSTER/NODE."""
    return _ID.fullmatch(text) is not None and not (text.startswith("node/") and text.count("/") == 1)


def workflow_id(text: str) -> str:
    """The workflow id that a person means by SUBJECT: a job, CLUSTER/NODE, or a whole id. Raises CliError (usage)."""
    if is_workflow_id(text):
        return text
    if "/" not in text:
        return job_workflow_id(name(text, "job"))
    ref = node_ref(text)
    return node_workflow_id(ref.cluster, ref.node)


def subject_of(identity: str) -> tuple[str | None, NodeRef | None]:
    """The job or the node that a workflow id is about; both None for a guard or a watch."""
    parts = identity.split("/")
    if parts[0] == "job":
        return parts[1], None
    if parts[0] == "node" and len(parts) >= 3:
        return None, NodeRef(cluster=parts[1], node=parts[2])
    return None, None


def literal(text: str) -> str:
    """A string of a visibility query: quoted, with what could end it escaped."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def caller(given: str | None = None) -> str:
    """Who acts: `--as`, else $GPU_RUNBOOKS_AS, else the person behind sudo, else the login name."""
    found = given or os.environ.get(AS_VARIABLE) or os.environ.get("SUDO_USER") or _login()
    if not re.fullmatch(r"[A-Za-z0-9._@-]{1,100}", found):
        raise usage(f"{found!r} is no name of a person: letters, digits and `._@-`; give --as NAME")
    return found


def _login() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user id without an entry
        return f"uid-{os.getuid()}"
