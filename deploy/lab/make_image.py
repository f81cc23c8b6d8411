#!/usr/bin/env python3
"""A container image without any registry: one layer that holds Debian's static busybox, and files of yours.

    make_image.py lab/base:1 base.tar /bin/sh
    make_image.py --add train.py=training/train.py lab/train:1 train.tar /bin/sh

Import it with ``ctr -n k8s.io images import base.tar``. The folders ``usr``, ``lib`` and ``lib64`` are empty: a pod
that mounts the machine's own there by hostPath has the machine's Python.
"""

import argparse
import hashlib
import io
import json
import platform
import tarfile
from pathlib import Path

FOLDERS = ("bin", "proc", "sys", "dev", "tmp", "etc", "usr", "lib", "lib64", "root", "work", "var", "run")
APPLETS = ("sh", "sleep", "cat", "echo", "ls", "kill", "mkdir", "date", "env", "ps", "touch", "true", "false")
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def add_file(archive: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), mode
    archive.addfile(member, io.BytesIO(content))


def make_layer(busybox: Path, files: dict[str, Path]) -> bytes:
    """The one layer, the same bytes for the same files. `files`: place in the image -> file."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as layer:
        for folder in FOLDERS:
            member = tarfile.TarInfo(folder)
            member.type, member.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            layer.addfile(member)
        add_file(layer, "bin/busybox", busybox.read_bytes(), 0o755)
        for applet in APPLETS:
            member = tarfile.TarInfo(f"bin/{applet}")
            member.type, member.linkname = tarfile.SYMTYPE, "busybox"
            layer.addfile(member)
        for place, file in files.items():
            add_file(layer, place, file.read_bytes(), 0o755)
    return buffer.getvalue()


def write_image(name: str, out: Path, command: list[str], layer: bytes) -> None:
    """An archive in the form of `docker save`, in place by one rename."""
    machine = platform.machine()
    config = {
        "architecture": ARCHITECTURES.get(machine, machine),
        "os": "linux",
        "config": {"Cmd": command, "Env": ["PATH=/bin:/usr/bin:/usr/local/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    text = json.dumps(config).encode()
    config_name = f"{hashlib.sha256(text).hexdigest()}.json"
    manifest = json.dumps([{"Config": config_name, "RepoTags": [name], "Layers": ["layer.tar"]}]).encode()
    half = out.with_name(f".{out.name}.half")
    with tarfile.open(half, "w") as image:
        for member, content in ((config_name, text), ("layer.tar", layer), ("manifest.json", manifest)):
            add_file(image, member, content)
    half.rename(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("name", help="name and tag, e.g. lab/base:1")
    parser.add_argument("out", type=Path, help="archive to write")
    parser.add_argument("command", nargs="+", help="what a container runs unless told otherwise")
    parser.add_argument(
        "--busybox", type=Path, default=Path("/bin/busybox"), help="a static one; default %(default)s"
    )
    parser.add_argument("--add", action="append", default=[], metavar="FILE=PLACE", help="a file, without leading /")
    given = parser.parse_args()
    files = {place: Path(file) for file, _, place in (word.partition("=") for word in given.add)}
    write_image(given.name, given.out, given.command, make_layer(given.busybox, files))


if __name__ == "__main__":
    main()
