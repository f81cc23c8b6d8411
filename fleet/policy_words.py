"""What single words of `fleet.yaml` may look like. Each gives the word back or raises ValueError with the fix.

No message repeats a key, a URL or a secret: what is wrong is said without quoting it.
"""

import base64
import binascii
import ipaddress
import re
from urllib.parse import urlsplit

from fleet.copying.places import parse_place
from fleet.errors import InvalidInputError

LEAST_KEPT = 28 * 86400.0
"""Seconds. Lemons are judged by four weeks; less kept would forget what is counted."""

_PLACEHOLDER = re.compile(r"\{[A-Za-z_]+\}")
_DNS_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_PERSON = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,99}", re.ASCII)
_ENVIRONMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)
_KEY_TYPES = (
    "ssh-ed25519",
    "sk-ssh-ed25519@openssh.com",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "sk-ecdsa-sha2-nistp256@openssh.com",
    "ssh-rsa",
)
"""Key types that `ssh-keygen -Y verify` takes (ssh-keygen(1), OpenSSH 9.2)."""


def argv(arguments: tuple[str, ...]) -> tuple[str, ...]:
    """A program, by absolute path or by name, and its arguments."""
    if not arguments or not arguments[0]:
        raise ValueError("is empty; write a program and its arguments as a list")
    if arguments[0].split() != [arguments[0]]:
        raise ValueError("starts with a word that holds a space; no shell splits it: write each argument by itself")
    if arguments[0].startswith("-") or "{" in arguments[0]:
        raise ValueError("must start with a program, by absolute path or by name")
    if "/" in arguments[0] and not arguments[0].startswith("/"):
        raise ValueError("must start with an absolute path or a bare program name")
    return arguments


def power_argv(arguments: tuple[str, ...]) -> tuple[str, ...]:
    """A power program; without `{node}` it would switch the same machine whatever the node."""
    _placeholders(argv(arguments), {"{node}"})
    if not any("{node}" in a for a in arguments):
        raise ValueError("needs {node} in one of its arguments, else it acts on no particular node")
    return arguments


def check_argv(arguments: tuple[str, ...]) -> tuple[str, ...]:
    """A check program, with `{node}` and `{gpus}` where it wants them."""
    _placeholders(argv(arguments), {"{node}", "{gpus}"})
    return arguments


def _placeholders(arguments: tuple[str, ...], allowed: set[str]) -> None:
    for word in (w for a in arguments for w in _PLACEHOLDER.findall(a)):
        if word not in allowed:
            raise ValueError(f"knows no {word}; allowed: {', '.join(sorted(allowed))}")


def absolute_path(text: str) -> str:
    """A path from the root, without `..`; a trailing slash goes."""
    file_path(text)
    if not text.startswith("/"):
        raise ValueError("must be an absolute path, starting with /")
    if text.strip("/") == "":
        raise ValueError("must not be the whole file system")
    return text.rstrip("/")


def file_path(text: str) -> str:
    """A path without `..` and without line breaks."""
    if not text.strip():
        raise ValueError("is empty; write a path")
    if "\n" in text or "\t" in text:
        raise ValueError("holds a line break or a tab")
    if ".." in text.split("/"):
        raise ValueError("must not hold ..; write the path it means")
    return text


def dns_label(text: str) -> str:
    """A namespace's name (RFC 1123 label)."""
    if not _DNS_LABEL.fullmatch(text):
        raise ValueError("must be a namespace's name: a-z, 0-9 and -, at most 63")
    return text


def person(text: str) -> str:
    """A name as it stands in an SSH signers file: no space, comma or wildcard."""
    if not _PERSON.fullmatch(text):
        raise ValueError("may hold letters, digits and ._@- only, and starts with a letter or a digit")
    return text


def public_key(text: str) -> str:
    """One OpenSSH public key line, its base64 naming the same type as its first word."""
    if "PRIVATE" in text:
        raise ValueError("is a private key. Take it out and replace that key pair; write the line of the .pub file")
    kind, _, rest = text.strip().partition(" ")
    if "\n" in text.strip() or kind not in _KEY_TYPES:
        raise ValueError(f"is no OpenSSH public key line; it starts with one of {', '.join(_KEY_TYPES)}")
    body = rest.split()[0] if rest.split() else ""
    try:
        blob = base64.b64decode(body, validate=True)
    except binascii.Error:
        blob = b""
    if not blob.startswith(len(kind).to_bytes(4, "big") + kind.encode()) or len(blob) < len(kind) + 36:
        raise ValueError("is cut short or damaged; copy the whole line of the .pub file")
    return text.strip()


def https_url(text: str) -> str:
    """An https URL; http only to this machine. No user or password in it."""
    try:
        url = urlsplit(text)
        host = url.hostname or ""
        _ = url.port
    except ValueError:
        raise ValueError("is no URL; write https://HOST/PATH") from None
    if url.scheme not in {"https", "http"} or not host or any(c.isspace() for c in text):
        raise ValueError("is no URL; write https://HOST/PATH")
    if url.scheme == "http" and not _is_loopback(host):
        raise ValueError("must be https: a question names nodes and people (http goes to this machine only)")
    if url.username is not None or url.password is not None:
        raise ValueError("holds a user or a password; secrets go into the environment, see secret_env")
    return text


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def environment_name(text: str) -> str:
    """The name of an environment variable; a secret pasted here by mistake rarely looks like one."""
    if not _ENVIRONMENT.fullmatch(text):
        raise ValueError("is no name of an environment variable; write the name, never the secret itself")
    return text


def place(text: str) -> str:
    """`/FOLDER` or `REMOTE:FOLDER`, without settings of the remote."""
    try:
        return str(parse_place(text))
    except InvalidInputError as error:
        raise ValueError(str(error)) from None


def store_url(text: str) -> str:
    """`sqlite:///FILE` or `postgresql://USER@HOST/DATABASE`, without a password."""
    if text.startswith("postgres"):
        return _postgresql_url(text)
    if not text.startswith("sqlite:///") or not text.removeprefix("sqlite:///").strip("/"):
        raise ValueError("must be sqlite:///FILE or postgresql://USER@HOST/DATABASE")
    file_path(text.removeprefix("sqlite:///"))
    return text


def _postgresql_url(text: str) -> str:
    try:
        url = urlsplit(text)
        _ = url.port
    except ValueError:
        raise ValueError("is no URL; write postgresql://USER@HOST/DATABASE") from None
    if url.scheme != "postgresql" or not url.path.strip("/") or any(c.isspace() for c in text):
        raise ValueError("must be postgresql://USER@HOST/DATABASE")
    options = {option.partition("=")[0].lower() for option in url.query.split("&")}
    if url.password is not None or options & {"password", "sslpassword"}:
        raise ValueError("holds a password; it goes into a password file (PGPASSFILE) of the worker's user")
    return text
