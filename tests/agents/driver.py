"""A driver of NVIDIA's that plays faults: the stand-in library, and the file that it is played from."""

import shutil
import subprocess
from importlib.metadata import files
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("nvml_standin.c")
LOST, RESET_REQUIRED, NOT_LOADED, MISMATCH = 15, 16, 9, 18
"""NVML_ERROR_GPU_IS_LOST, ..._RESET_REQUIRED, ..._DRIVER_NOT_LOADED, ..._LIB_RM_VERSION_MISMATCH."""


def built(folder: Path) -> Path:
    """Builds the library there; a signature that differs from NVIDIA's header does not compile."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler: apt-get install gcc libc6-dev")
    header = next(file for file in files("nvidia-nvml-dev") or () if file.name == "nvml.h").locate()
    out = folder / "libnvidia-ml.so.1"
    subprocess.run(
        [
            *(compiler, "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"),
            *(f"-I{Path(str(header)).parent}", "-o", str(out), str(SOURCE)),
        ],
        check=True,
    )
    return folder


def uuid(index: int) -> str:
    """The stand-in's uuid of a GPU."""
    return f"GPU-{index:08x}-0000-0000-0000-000000000000"


def pci(index: int) -> str:
    """Its address as the kernel's log spells it."""
    return f"0000:{0xA0 + index:02x}:00"


class Driver:
    """What the stand-in answers from now on."""

    def __init__(self, path: Path, folder: Path) -> None:
        self.path = path
        self.environment = {"LD_LIBRARY_PATH": str(folder), "STANDIN_CONTROL": str(path)}
        self._lines: list[tuple[str, int]] = []
        self._write()

    def set(self, **values: int) -> None:
        """Values of the whole driver: `gpus`, `init`."""
        for name, value in values.items():
            self._say(name, value)

    def gpu(self, index: int, **values: int) -> None:
        """Values of one GPU: `error`, `recovery_action`, `ecc_dbe`, `pcie_width` ..."""
        for name, value in values.items():
            self._say(f"{index}.{name}", value)

    def hang(self, function: str, *, on: bool = True) -> None:
        """Calls of that function do not return, until it is taken back."""
        self._say(f"hang.{function}", int(on))

    def xid(self, index: int, code: int) -> None:
        """An XID event, once."""
        self._lines.append((f"event.{index}", code))
        self._write()

    def _say(self, key: str, value: int) -> None:
        self._lines = [line for line in self._lines if line[0] != key]
        self._lines.append((key, value))
        self._write()

    def _write(self) -> None:
        """At once or not at all: the library may read at any moment."""
        new = self.path.with_suffix(".new")
        new.write_text("".join(f"{key} {value}\n" for key, value in self._lines))
        new.replace(self.path)
