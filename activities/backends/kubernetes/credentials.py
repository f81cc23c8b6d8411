"""How we log in: a kubeconfig's context, or the account of the pod that the worker runs in; renewed while we run.

Tokens are short-lived on purpose: a pod's lasts an hour and its kubelet writes the next one into the same file, a
kubeconfig may name such a file or a program that gives tokens. So they are read again every minute, as client-go
does, and at once after the apiserver did not take them; a kubeconfig that was written anew is read whole then.
"""

import asyncio
import os
import time

from kubernetes.aio import config as kube_config
from kubernetes.aio.client import Configuration
from kubernetes.aio.config import ConfigException
from kubernetes.aio.config.kube_config import KubeConfigLoader

from activities.backends.kubernetes.settings import KubernetesSettings
from fleet.errors import PermanentError

RENEW = 60.0
"""Seconds after which a token is read again (client-go, rest.CachingTokenSource: one minute)."""
TOGETHER = 1.0
"""Seconds in which many refused calls make one renewal."""


class Credentials:
    """The credentials of one cluster."""

    def __init__(self, cluster: str, settings: KubernetesSettings) -> None:
        self.cluster = cluster
        self.settings = settings
        self._loader: KubeConfigLoader | None = None
        self._read_at = 0.0
        self._refused = False
        self._one = asyncio.Lock()

    async def load(self) -> Configuration:
        """Raises PermanentError for a file or a context that cannot be used."""
        made = Configuration()
        made.retries = None  # 0 would mean without end to its retry client
        where = self.settings.kubeconfig or "the pod's own credentials"
        try:
            await self._read(made)
        except (ConfigException, OSError) as error:
            raise PermanentError(f"{where} of {self.cluster} cannot be used: {error}; correct fleet.yaml") from error
        return made

    async def _read(self, into: Configuration) -> None:
        path = self.settings.kubeconfig
        if path is None:
            kube_config.load_incluster_config(client_configuration=into)
            into.refresh_api_key_hook = None  # ours knows of a refusal, too
        else:
            if not os.access(path, os.R_OK):
                raise PermanentError(f"cannot read {path}; correct `kubeconfig` of {self.cluster} in fleet.yaml")
            self._loader = await kube_config.load_kube_config(
                config_file=path, context=self.settings.context, client_configuration=into, persist_config=False
            )
        self._read_at = time.monotonic()
        self._refused = False

    def refused(self) -> None:
        """The apiserver did not take them: the next call reads them anew."""
        self._refused = True

    async def renew(self, configuration: Configuration) -> None:
        """Before a call: takes a newer token over where it is time. What cannot be read now stays as it was; whether
        it is still good is the apiserver's to say."""
        age = time.monotonic() - self._read_at
        if age < (TOGETHER if self._refused else RENEW):
            return
        async with self._one:
            if time.monotonic() - self._read_at < age:
                return  # another call has done it
            try:
                if self._refused or self._loader is None:
                    await self._read(configuration)
                else:
                    await self._loader.load_and_set(configuration)  # a program is asked only when its token ends
                    self._read_at = time.monotonic()
            except (ConfigException, OSError, PermanentError):
                self._read_at = time.monotonic()
