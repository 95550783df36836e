"""What the providers that start processes share: the keeper, permits, working folders, refusals of what is missing."""

from __future__ import annotations

import copy
import itertools
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from flink_agents.errors import Interrupted, InvalidInput
from flink_agents.scheduler.attempt import CancellationToken
from flink_agents.tools.execute.home import KeyFolders
from flink_agents.tools.execute.keeper import Keeper, ProviderBroken, find_python
from flink_agents.tools.execute.options import ProcessOptions
from flink_agents.tools.execute.protocol import ExecuteProvider
from flink_agents.tools.execute.supervision.linux import MARKER
from flink_agents.tools.execute.waiting import CANCELLED, Permits

__all__ = ["Opened", "SupervisedProvider", "find_program"]


_LIVE = ("_opened", "_closed", "_lock")


def find_program(runtime: str, *names: str) -> str:
    """Return the first of ``names`` that is on the PATH.

    Raises:
        InvalidInput: if none is.
    """
    for name in names:
        found = shutil.which(name)
        if found is not None:
            return str(Path(found).absolute())
    msg = f"execute: runtime {runtime!r} needs {' or '.join(names)} on the PATH of this machine"
    raise InvalidInput(msg)


class _Closeable(Protocol):
    """What a kind of provider has beside the rest."""

    def close(self) -> None:
        """Release it."""


class Opened:
    """What exists between ``open`` and ``close``. ``beside`` is what a kind of provider adds."""

    def __init__(self, options: ProcessOptions) -> None:
        self.keeper = Keeper(options.folder)
        self.permits = Permits(options.permits)
        self.folders = KeyFolders(self.keeper.home.path, options.idle_ms / 1000)
        self.numbers = itertools.count(1)
        self.beside: _Closeable | None = None

    def close(self) -> None:
        """End and remove all of it."""
        if self.beside is not None:
            self.beside.close()
        self.keeper.close()


class SupervisedProvider(ExecuteProvider):
    """A provider whose code runs in processes below a supervisor.

    Args:
        options: the bounds of executions.
    """

    def __init__(self, options: ProcessOptions | None = None) -> None:
        self.options = options or ProcessOptions()
        self._opened: Opened | None = None
        self._closed = False
        self._lock = threading.Lock()

    def open(self) -> None:
        """Start the keeper, and sweep what a killed predecessor left on this machine. Task thread.

        Raises:
            InvalidInput: if a runtime is missing here, or the system does not allow what the options ask for.
        """
        with self._lock:
            self._closed = False
            self._open()

    def _open(self) -> Opened:
        if self._opened is None:
            self._check_system()
            self.check_runtimes()
            opened = Opened(self.options)
            try:
                self._check_network(opened)
            except BaseException:
                opened.keeper.close()
                raise
            self._opened = opened
        return self._opened

    def close(self) -> None:
        """Kill what runs and remove the working folders. Any thread; also twice."""
        with self._lock:
            opened, self._opened, self._closed = self._opened, None, True
        if opened is not None:
            opened.close()

    def check_machine(self) -> None:
        """Look whether everything that the options ask for is possible here, and leave nothing behind.

        Raises:
            InvalidInput: says what is not.
        """
        looked = copy.copy(self)
        try:
            looked.open()
        finally:
            looked.close()

    def check_runtimes(self) -> None:
        """Look whether the programs that the runtimes need are here.

        Raises:
            InvalidInput: names the first that is missing.
        """

    @contextmanager
    def begun(self, token: CancellationToken) -> Iterator[Opened]:
        """Have what an execution needs, opened at the first call if nobody did before.

        A provider that was closed stays so: a left-over execution of a dead attempt must not open it again.
        What breaks once the token is set counts as the cancellation.
        """
        if token.cancelled:
            raise Interrupted(CANCELLED)
        try:
            with self._lock:
                if self._closed:
                    raise ProviderBroken("the provider is closed")
                opened = self._open()
            yield opened
        except ProviderBroken as error:
            if token.cancelled:
                raise Interrupted(CANCELLED) from error
            raise

    def environment(self, opened: Opened, folder: Path) -> dict[str, str]:
        """Return the environment of code whose working folder is ``folder``."""
        return self.options.visible_environment(opened.keeper.home.name, str(folder), MARKER)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in _LIVE}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _opened=None, _closed=False, _lock=threading.Lock())

    @staticmethod
    def _check_system() -> None:
        if sys.platform != "linux":
            msg = f"execute: processes can be supervised on Linux only, and this is {sys.platform}"
            raise InvalidInput(msg)
        find_python()

    def _check_network(self, opened: Opened) -> None:
        if self.options.network:
            return
        link = opened.keeper.begin()
        link.send({"kind": "probe"})
        try:
            link.answer(CancellationToken(), 0)
        except ProviderBroken as error:
            msg = (
                f"execute: network: false is not possible here: {error}. It needs a user namespace or root; allow "
                "unprivileged user namespaces, or run where there is no network"
            )
            raise InvalidInput(msg) from error
        finally:
            link.close()
