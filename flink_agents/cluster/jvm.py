"""What every JVM of ours is started with: Flink's jars, what its start scripts open of Java, log and configuration."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

from flink_agents.cluster.quiet import quiet_imports

__all__ = ["class_path", "flink_version", "jvm_arguments", "last_lines", "write_configuration"]

# What Flink's own start scripts open of java.base.
OPENED = (
    "lang", "net", "io", "nio", "lang.reflect", "text", "time", "util", "util.concurrent", "util.concurrent.atomic",
    "util.concurrent.locks",
)  # fmt: skip


def class_path() -> str:
    """Return Flink's jars with flink-python among them: loaded once per job instead, the second job of a JVM fails."""
    home = _flink_home()
    jars = [*sorted((home / "lib").glob("*.jar")), *sorted((home / "opt").glob("flink-python-*.jar"))]
    return os.pathsep.join(map(str, jars))


def flink_version() -> str:
    """Return the version of the installed Flink, such as ``2.3.0``."""
    (jar,) = (_flink_home() / "lib").glob("flink-dist-*.jar")
    return jar.stem.removeprefix("flink-dist-")


def jvm_arguments(folder: Path, log_file: Path, conf: Path, chosen: Sequence[str] = ()) -> list[str]:
    """Return the arguments of a JVM that logs to ``log_file`` and leaves crash reports in ``folder``.

    ``chosen`` come last and win; ``conf`` is the folder made by :func:`write_configuration`.
    """
    return [
        "-XX:+IgnoreUnrecognizedVMOptions",
        f"-XX:ErrorFile={str(folder).replace('%', '%%')}/hs_err_%p.log",
        "-XX:+DisplayVMOutputToStderr",
        "-XX:-CreateCoredumpOnCrash",
        *(f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in OPENED),
        "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
        "-Dfile.encoding=UTF-8",
        "-Dstdout.encoding=UTF-8",
        f"-Dlog.file={log_file}",
        # In the pattern for rolled files a % of the path itself would start a conversion.
        f"-Dlog.pattern={str(log_file).replace('%', '%%')}",
        f"-Dlog4j.configurationFile={conf / 'log4j.properties'}",
        *chosen,
    ]


def write_configuration(conf: Path, options: Mapping[str, str]) -> None:
    """Make Flink's configuration folder: ``config.yaml`` with the options, and the settings of the log."""
    conf.mkdir(parents=True, exist_ok=True)
    # JSON is YAML; each option by its full name, as text.
    (conf / "config.yaml").write_text(json.dumps(dict(options), indent=2) + "\n", encoding="utf-8")
    log_settings = resources.files("flink_agents.cluster") / "log4j.properties"
    (conf / "log4j.properties").write_text(log_settings.read_text(encoding="utf-8"), encoding="utf-8")


def last_lines(file: Path, count: int) -> str:
    """Return the end of a text file, or an empty text if there is none."""
    try:
        with file.open("rb") as content:
            content.seek(max(0, content.seek(0, os.SEEK_END) - 64 * 1024))
            text = content.read().decode("utf-8", errors="replace")
    except OSError:
        return ""
    return "\n".join(text.rstrip().splitlines()[-count:])


def _flink_home() -> Path:
    with quiet_imports():
        import pyflink
    return Path(pyflink.__file__).parent
