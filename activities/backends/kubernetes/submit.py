"""Idempotent submit: the object's name is made of key and epoch, so that the apiserver itself lets only one exist."""

import re

import yaml

from activities.backends.kubernetes import marks
from activities.backends.kubernetes.api import KubeApi, Raw
from activities.backends.kubernetes.jobview import JobObject
from activities.backends.kubernetes.kinds.all import KINDS
from activities.backends.kubernetes.kinds.base import LONGEST_NAME, JobKind
from activities.backends.kubernetes.outcomes import Outcome, error_of_read, error_of_write
from activities.backends.kubernetes.view import ClusterView
from fleet.errors import AmbiguousError, InvalidInputError, NotFoundError, RefusedError, TemporaryError
from fleet.identity import TOKEN_PREFIX, op_id
from fleet.model import NAME_PATTERN, NativeJob
from fleet.orders import CHECKPOINT_ENV, EPOCH_ENV, JobSpec, check_env

SUPERVISE = f"{TOKEN_PREFIX}supervise"
KINDS_BY_NAME: dict[tuple[str, str], JobKind] = {(kind.api_version, kind.api_kind): kind for kind in KINDS}


class Submits:
    """`submit` of one cluster."""

    def __init__(self, api: KubeApi, view: ClusterView) -> None:
        self.api = api
        self.view = view

    async def submit(self, spec: JobSpec) -> NativeJob:
        """The one job with the key `spec.job` of that epoch; one that ended already is returned as it is."""
        kind, manifest = manifest_for(spec)
        namespace, name = manifest["metadata"]["namespace"], manifest["metadata"]["name"]
        path, what = kind.path(namespace, name), f"submit {spec.job}"
        found = await self._found(what, path)
        if found is None:
            answer = await self.api.write("POST", kind.path(namespace), manifest)
            if answer.outcome is Outcome.DONE:
                found = answer.body
            elif answer.outcome in {Outcome.EXISTS, Outcome.UNKNOWN}:
                found = await self._read_back(what, path, answer.text)
            else:
                raise error_of_write(what, answer.outcome, answer.text, answer.retry_after)
        made = JobObject(kind, found)
        epoch = marks.tokens_of(made.labels, made.notes).epoch
        if (made.notes.get(marks.KEY), epoch) != (spec.job, spec.epoch):
            raise RefusedError(f"{what}: {namespace}/{name} is another job; give another --job")
        return (await self.view.known_job(made.native_id)).job

    async def try_it(self, spec: JobSpec) -> tuple[str, ...]:
        """A create with `dryRun=All`: namespace, rights, schema and admission, by the apiserver itself. A key that
        has its job already is no refusal."""
        try:
            kind, manifest = manifest_for(spec)
        except InvalidInputError as error:
            return (str(error),)
        path = kind.path(manifest["metadata"]["namespace"])
        answer = await self.api.write("POST", path, manifest, query=[("dryRun", "All")])
        if answer.outcome in {Outcome.DONE, Outcome.EXISTS}:
            return ()
        if answer.outcome in {Outcome.INVALID, Outcome.DENIED, Outcome.NOT_FOUND}:
            return (f"the apiserver refuses it: {answer.text}",)
        raise error_of_read(f"try {spec.job}", answer.outcome, answer.text, answer.retry_after)

    async def _found(self, what: str, path: str) -> Raw | None:
        try:
            return await self.api.get(what, path)
        except NotFoundError:
            return None

    async def _read_back(self, what: str, path: str, text: str) -> Raw:
        try:
            return await self.api.get(what, path)
        except (NotFoundError, TemporaryError) as error:
            raise AmbiguousError(f"{what}: no answer ({text}) and not seen yet ({error}); submit it again") from error


def manifest_for(spec: JobSpec) -> tuple[JobKind, Raw]:
    """The object to create. Raises InvalidInputError for what could never be taken, before anything exists."""
    if not re.match(NAME_PATTERN, spec.job):
        raise InvalidInputError(f"{spec.job!r} is no job name; letters, digits and . _ : - only")
    check_env(spec)
    if spec.options or spec.user:
        raise InvalidInputError("options and a user are a batch scheduler's; write what is meant into the manifest")
    try:
        manifest = yaml.safe_load(spec.script)
    except yaml.YAMLError as error:
        raise InvalidInputError(f"the manifest is no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(manifest, dict):
        raise InvalidInputError("the manifest must be one object, such as a batch/v1 Job")
    kind = KINDS_BY_NAME.get((str(manifest.get("apiVersion")), str(manifest.get("kind"))))
    if kind is None:
        known = ", ".join(f"{version} {name}" for version, name in KINDS_BY_NAME)
        raise InvalidInputError(f"a {manifest.get('apiVersion')} {manifest.get('kind')} is not known; known: {known}")
    if not all(isinstance(part, dict) for part in (manifest.setdefault("metadata", {}), manifest.get("spec"))):
        raise InvalidInputError("the manifest needs metadata and spec")
    try:
        made = kind.fill_in(manifest)
        kind.add_variables(made, {**spec.env, EPOCH_ENV: str(spec.epoch)})
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidInputError(f"the manifest's spec is not that of a {kind.api_kind}: {error!r}") from error
    _mark(made, spec, kind.longest_name(made))
    why = kind.refusal(made)
    if why is not None:
        raise InvalidInputError(f"as it is written it cannot be supervised: {why}")
    return kind, made


def _mark(made: Raw, spec: JobSpec, longest: int) -> None:
    meta = made["metadata"]
    words = {**marks.annotations_of_comment(spec.comment), **(meta.get("annotations") or {})}
    named = words.get(f"{TOKEN_PREFIX}job")
    if named not in {None, spec.job}:
        raise InvalidInputError(f"the manifest names the job {named}, the submit {spec.job}; they must be equal")
    words = {key: value for key, value in words.items() if key not in {SUPERVISE, *marks.OUR_WORDS}}
    labels = {key: value for key, value in (meta.get("labels") or {}).items() if key not in marks.OUR_WORDS}
    meta["labels"] = {**labels, SUPERVISE: "true"}
    meta["annotations"] = {**words, f"{TOKEN_PREFIX}job": spec.job, marks.KEY: spec.job}
    if CHECKPOINT_ENV in spec.env:  # the manifest's own word is of the cluster that it was written for
        meta["annotations"][f"{TOKEN_PREFIX}checkpoint"] = spec.env[CHECKPOINT_ENV]
    if spec.epoch:
        meta["annotations"][marks.EPOCH] = str(spec.epoch)
    meta["namespace"] = meta.get("namespace") or "default"
    meta["name"] = object_name(spec.job, longest, spec.epoch)


def object_name(key: str, longest: int = LONGEST_NAME, epoch: int = 0) -> str:
    """A legal name that only this key has; a later submission's ends in `-eN`."""
    if epoch:
        tail = f"-e{epoch}"
        return object_name(key, longest - len(tail)) + tail
    plain = re.sub(r"[^a-z0-9-]+", "-", key.lower()).strip("-")
    if plain == key and len(plain) <= longest and not plain[0].isdigit():
        return plain
    return f"{('j-' + plain)[: longest - 8].rstrip('-')}-{op_id(key)}"
