"""Host names of a job's own pods that are written into its description. Pure.

A job that failed goes on as another object, and its pods' host names are made of that object's name: ranks that were
told the old ones wait for a coordinator that never comes.
"""

import re
from collections.abc import Iterator, Sequence

from activities.backends.kubernetes.api import Raw


def told_hosts(templates: Sequence[Raw], hosts: str) -> tuple[str, ...]:
    """One sentence for each place in these pod templates that names such a host. `hosts`: regular expression. A part
    of a path is no host."""
    own = re.compile(rf"(?<![\w.-])(?<![^/]/)(?:{hosts})(?![\w-])")
    found = ((where, own.search(text)) for template in templates for where, text in _words(template))
    return tuple(dict.fromkeys(f"{where} names the host {match[0]}" for where, match in found if match))


def _words(template: Raw) -> Iterator[tuple[str, str]]:
    """Where a text of a container stands, and the text."""
    spec = template.get("spec", {})
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        of = f"of container {container.get('name')}"
        for variable in container.get("env") or ():
            yield f"{variable.get('name')} in env {of}", str(variable.get("value") or "")
        for field in ("command", "args"):
            yield from ((f"{field} {of}", str(word)) for word in container.get(field) or ())
