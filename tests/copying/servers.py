"""Stores of rclone's own servers on loopback, and a wire that damages what passes."""

import asyncio
import os
import re
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from activities.copying.rclone import rclone_program

KEY, SECRET = "LOOPBACKKEY1", "loopback-secret-7Q2"
_STARTED = re.compile(r"Starting s3 server on \[http://([\d.]+:\d+)/\]|SFTP server listening on ([\d.]+:\d+)")


@contextmanager
def serving(kind: str, folder: Path, *words: str) -> Iterator[str]:
    """`rclone serve KIND FOLDER`; gives its address, host:port."""
    log = folder.parent / f"{kind}.log"
    env = {**os.environ, "RCLONE_CONFIG": os.devnull, "XDG_CACHE_HOME": str(folder.parent / "cache")}
    argv = [
        str(rclone_program()),
        "serve",
        kind,
        str(folder),
        "--addr",
        "127.0.0.1:0",
        "--log-file",
        str(log),
        *words,
    ]
    process = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        yield _address(process, log)
    finally:
        process.kill()
        process.wait()


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    pause = threading.Event()
    for _ in range(600):
        said = log.read_text() if log.exists() else ""
        if found := _STARTED.search(said):
            return found[1] or found[2]
        assert process.poll() is None, said
        pause.wait(0.05)
    raise AssertionError(f"it did not start in 30 s: {said}")


@contextmanager
def s3(folder: Path, *words: str) -> Iterator[dict[str, str]]:
    """An S3 store over `folder`, with a bucket `bucket`; gives the environment that makes it the remote `lab:`."""
    (folder / "bucket").mkdir(parents=True)
    with serving("s3", folder, "--auth-key", f"{KEY},{SECRET}", *words) as address:
        yield s3_env(address)


def s3_env(address: str) -> dict[str, str]:
    """The environment that makes an S3 server at `address` the remote `lab:`."""
    return {
        **os.environ,
        "RCLONE_CONFIG": os.devnull,
        "RCLONE_CONFIG_LAB_TYPE": "s3",
        "RCLONE_CONFIG_LAB_PROVIDER": "Rclone",
        "RCLONE_CONFIG_LAB_ENDPOINT": f"http://{address}",
        "RCLONE_CONFIG_LAB_ACCESS_KEY_ID": KEY,
        "RCLONE_CONFIG_LAB_SECRET_ACCESS_KEY": SECRET,
    }


@contextmanager
def sftp(folder: Path) -> Iterator[dict[str, str]]:
    """An SFTP server over `folder`; gives the environment that makes it the remote `lab:`."""
    folder.mkdir()
    obscured = subprocess.run(
        [str(rclone_program()), "obscure", SECRET], check=True, capture_output=True, text=True
    ).stdout.strip()
    with serving("sftp", folder, "--user", "ada", "--pass", SECRET) as address:
        host, _, port = address.partition(":")
        yield {
            **os.environ,
            "RCLONE_CONFIG": os.devnull,
            "RCLONE_CONFIG_LAB_TYPE": "sftp",
            "RCLONE_CONFIG_LAB_HOST": host,
            "RCLONE_CONFIG_LAB_PORT": port,
            "RCLONE_CONFIG_LAB_USER": "ada",
            "RCLONE_CONFIG_LAB_PASS": obscured,
            "RCLONE_CONFIG_LAB_SHELL_TYPE": "none",
        }


class Wire:
    """Passes bytes on to a server. While `bad`, one byte in the middle of each large body is another."""

    def __init__(self) -> None:
        self.bad = True
        self.flipped = 0
        self.address = ""

    @asynccontextmanager
    async def to(self, address: str) -> AsyncIterator[None]:
        """While it is open, `self.address` leads to `address`."""
        host, _, port = address.partition(":")

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there, to_there = await asyncio.open_connection(host, int(port))
            await asyncio.gather(self._pass(reader, to_there, damage=True), self._pass(there, writer, damage=False))

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        self.address = "{}:{}".format(*server.sockets[0].getsockname())
        try:
            yield
        finally:
            server.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, damage: bool) -> None:
        try:
            while data := await reader.read(1 << 16):
                if damage and self.bad and len(data) > 20_000 and b"HTTP/1.1" not in data:
                    middle = len(data) // 2
                    data = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
                    self.flipped += 1
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()
