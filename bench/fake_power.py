"""Power hook of nodes that kwok answers for: `fake_power.py off|on|status KUBECONFIG FOLDER NODE`.

There is no machine behind such a node. Off and on are a file; switched on after it was off it has a new boot id, as a
real one would, so that a repair runs through all of its steps.
"""

import http.client
import json
import re
import ssl
import sys
import uuid
from pathlib import Path


def main(verb: str, kubeconfig: str, folder: str, node: str) -> int:
    off = Path(folder) / f"{node}.off"
    if verb == "off":
        off.touch()
    elif verb == "on" and off.exists():
        boot_anew(Path(kubeconfig).read_text(encoding="utf-8"), node)
        off.unlink()
    elif verb == "status":
        print("off" if off.exists() else "on")
    return 0


def boot_anew(kubeconfig: str, node: str) -> None:
    """Raises RuntimeError with the apiserver's words."""
    host, port = re.findall(r"https://([^:\"]+):(\d+)", kubeconfig)[0]
    token = re.findall(r"token: ([0-9a-f]+)", kubeconfig)[0]
    authority = re.findall(r"certificate-authority: ([^}]+)}", kubeconfig)[0]
    tls = ssl.create_default_context(cafile=authority)
    connection = http.client.HTTPSConnection(host, int(port), context=tls, timeout=30)
    patch = json.dumps({"status": {"nodeInfo": {"bootID": str(uuid.uuid4())}}})
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/merge-patch+json"}
    connection.request("PATCH", f"/api/v1/nodes/{node}/status", patch, headers)
    answer = connection.getresponse()
    if answer.status != http.client.OK:
        raise RuntimeError(f"{node}: {answer.status} {answer.read()[:300].decode(errors='replace')}")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
