"""Signs an answer with the person's own SSH key, by `ssh-keygen -Y sign`. We never read the key ourselves."""

import shutil
import subprocess
from pathlib import Path

from fleet.errors import InvalidInputError, PermanentError
from fleet.model import MARK
from fleet.people import Answer

SIGN_LIMIT = 120.0
"""Seconds: a person may have to type a passphrase or touch a security key."""
_ARMOR = "-----BEGIN SSH SIGNATURE-----"


def sign(answer: Answer, key_path: str | Path, limit: float = SIGN_LIMIT) -> Answer:
    """The answer with an SSH signature over its statement. Blocks; may ask for a passphrase on the terminal.

    `key_path` is a private key file, or a public one whose private half the SSH agent holds. Raises InvalidInputError
    for a key that cannot be used, PermanentError without `ssh-keygen`.
    """
    key = Path(key_path).expanduser()
    if not key.is_file():
        raise InvalidInputError(
            f"no key file {key}: give your private key, or the .pub of a key that your agent holds"
        )
    program = shutil.which("ssh-keygen")
    if program is None:
        raise PermanentError("ssh-keygen is missing, so nothing can be signed here: apt-get install openssh-client")
    try:
        ended = subprocess.run(
            [program, "-Y", "sign", "-f", str(key), "-n", MARK],
            input=answer.statement,
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise PermanentError(
            f"ssh-keygen did not sign in {limit:g} s; was a passphrase or a touch of the security key awaited?"
        ) from error
    if ended.returncode != 0 or not ended.stdout.startswith(_ARMOR):
        raise InvalidInputError(f"{key} could not sign{_said(ended.stderr)}; {_remedy(key)}")
    return answer.model_copy(update={"signature": ended.stdout})


def _said(stderr: str) -> str:
    line = " ".join(stderr.split())
    return f": {line[:300]}" if line else ""


def _remedy(key: Path) -> str:
    if key.suffix == ".pub":
        return f"load its private key into your SSH agent (`ssh-add {key.with_suffix('')}`), or give that file"
    return "give the key that is listed for you in fleet.yaml, readable by you only (chmod 600)"
