"""Takes secrets out of text before it is stored or logged. Pure.

It knows the common shapes only (environment assignments, options, bearer tokens, private keys, well-known token
prefixes); it is a net under people's habits, no licence to pass secrets around. A reference such as `$HF_TOKEN` or
`$(cat file)` is no secret and stays, so that a script without inline secrets is stored unchanged.
"""

import re
from collections.abc import Mapping, Sequence

REDACTED = "[redacted]"

# Every repetition that may be tried from many places is bounded, so that no text makes a pattern slow.
_VALUE = r"""(?P<value>"(?:[^"\\]|\\.)*"|'[^']*'|\\"[^"\\]*\\"|["'][^\s"']*|[^\s"'\\,;|&)}\]]+)"""
_REFERENCE = re.compile(r"""^\\?["']?(\$\w+|\$\{\w+\}|\$\([^)]*\)?|\$\(.*|)\\?["']?$""")

_ENV_NAME = (
    r"(?:\w*_)?(?:TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|APIKEY|API_KEY|SECRET_KEY|ACCESS_KEY|PRIVATE_KEY|CREDENTIALS)"
    r"|AWS_\w*KEY\w*|(?:\w*_)?SECRET_\w+"
)
_WORD_NAME = (
    r"(?:[a-z0-9]{1,40}[_-]){0,5}(?:password|passwd|passphrase|secret|api[_-]?key|secret[_-]key|access[_-]key|private[_-]key"
    r"|auth[_-]token|access[_-]token|refresh[_-]token|session[_-]token|bearer[_-]token|client[_-]secret)"
)
_SECRET_NAME = re.compile(rf"^(?:{_ENV_NAME}|(?i:{_WORD_NAME})|(?i:authorization|cookie|x-api-key))$")

_PEM = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
_ASSIGNED = re.compile(rf"""(?P<head>\b(?:{_ENV_NAME}|(?i:{_WORD_NAME}))\\?["']?[ \t]*[=:][ \t]*){_VALUE}""")
_OPTION = re.compile(
    rf"(?P<head>--(?i:{_WORD_NAME}|(?:[a-z0-9]{{1,40}}-){{0,5}}token)(?:=|[ \t]+(?:\\\n[ \t]*)?)){_VALUE}"
)
_BEARER = re.compile(r"(?P<head>\b(?i:bearer|authorization:\s*basic)\s+)(?P<value>[A-Za-z0-9._~+/=-]{8,})")
_URL = re.compile(r"(?P<head>\b[a-z][a-z0-9+.-]{0,20}://[^\s/:@]{0,100}:)(?P<value>[^\s/@]{1,300})(?=@)")
_SHAPES = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|AKIA[0-9A-Z]{16}"
    r"|sk-[\w-]{20,}|nvapi-[\w-]{20,}|xox[abprs]-[\w-]{10,}|eyJ[\w-]{8,2000}\.eyJ[\w-]{8,4000}\.[\w-]{8,})"
)


def is_secret_name(name: str) -> bool:
    """True for a name whose value is taken for a secret (`WANDB_API_KEY`, `password`, `--token`)."""
    return _SECRET_NAME.match(name.lstrip("-")) is not None


def redact(text: str) -> str:
    """The text with every secret that we recognise replaced by `[redacted]`; unchanged when there is none."""
    text = _PEM.sub(REDACTED, text)
    for pattern in (_ASSIGNED, _OPTION, _BEARER, _URL):
        text = pattern.sub(_replace, text)
    return _SHAPES.sub(REDACTED, text)


def redact_tree(value: object, name: str = "") -> object:
    """The same for a tree of JSON values: each text is redacted, a text under a secret name as a whole."""
    if isinstance(value, str):
        return REDACTED if value and name and is_secret_name(name) else redact(value)
    if isinstance(value, Mapping):
        return {key: redact_tree(item, str(key)) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [redact_tree(item, name) for item in value]
    return value


def _replace(found: re.Match[str]) -> str:
    if _REFERENCE.match(found["value"]) or found["value"].startswith(REDACTED[:-1]):
        return found[0]
    return found["head"] + REDACTED
