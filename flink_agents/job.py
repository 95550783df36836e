"""From a checked job YAML to a Flink job: source, operator and sinks on an environment, and Flink's options.

Also the entry point for Flink's own command, ``flink run -pym flink_agents.job JOB.yaml``.
"""

from __future__ import annotations

import argparse
import re
import secrets
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flink_agents.cluster.journals import register_run
from flink_agents.cluster.quiet import quiet_imports
from flink_agents.cluster.resume import settings
from flink_agents.cluster.runs import Run, create_run, digest, run_of_state
from flink_agents.cluster.shipping import pack
from flink_agents.config.build import PreparedJob, prepare
from flink_agents.config.schema import JobConfig, JsonlSink, Sink
from flink_agents.connectors.jsonl_sink import write_jsonl, write_jsonl_each_checkpoint
from flink_agents.connectors.jsonl_source import read_jsonl
from flink_agents.connectors.print_sink import write_print
from flink_agents.errors import InvalidInput
from flink_agents.faults import Fault, no_fault
from flink_agents.runtime.deployment import SHIPPED, installed_version
from flink_agents.runtime.job_parameters import RUN_FOLDER_PARAMETER, RUN_ID_PARAMETER, VERSION_PARAMETER

__all__ = ["EXPIRES", "FIXED_JOB_ID", "TOLERABLE", "build", "flink_options", "main", "refused_option", "ship"]

FIXED_JOB_ID = "$internal.pipeline.job-id"
"""Flink's own option for the id that a job is to get, in hexadecimal."""

RESTORED_FROM = "execution.state-recovery.path"
"""Flink's option for the checkpoint or savepoint that a job goes on from."""

EXPIRES = "execution.checkpointing.timeout"
TOLERABLE = "execution.checkpointing.tolerable-failed-checkpoints"


def build(env: Any, prepared: PreparedJob, run: Run, *, marked_prints: bool = False, fault: Fault = no_fault) -> None:
    """Put the job's topology on ``env``, a ``StreamExecutionEnvironment`` made with :func:`flink_options`.

    Nothing runs before ``env.execute_async(prepared.config.name)``. Responses, rejects and the run's statistics each
    go to a sink of their own; the statistics to the run's folder. ``marked_prints`` is for a reader of the JVM's
    output, see :func:`flink_agents.connectors.print_sink.printed_record`.
    """
    with quiet_imports():
        from flink_agents.datastream import attach

    config = prepared.config
    parameters = {
        RUN_ID_PARAMETER: run.run_id,
        RUN_FOLDER_PARAMETER: str(run.folder),
        VERSION_PARAMETER: installed_version(),
    }
    env.get_config().set_global_job_parameters(parameters)
    requests = read_jsonl(env, config.source.path, follow=config.source.follow)
    options = replace(prepared.options, statistics=True)
    streams = attach(requests, options, prepared.tools, fault, journal=prepared.journal, agent=prepared.config.agent)
    _write(streams.responses, config.sink, "responses", marked_prints)
    _write(streams.rejects, config.rejects, "rejects", marked_prints)
    write_jsonl_each_checkpoint(streams.statistics, run.statistics, name="statistics")


_UNREADABLE = re.compile(
    r"^(?:the embedded Flink cluster did not start|Flink refused the job): (?:[\w.]+: )?"
    r"Could not parse value '(?P<value>.*)' for key '(?P<key>[^']+)'",
    re.DOTALL,
)


def refused_option(config: JobConfig, failure: str) -> InvalidInput | None:
    """Return the error of a value in ``flink.options`` that Flink could not read; None for any other failure.

    ``failure`` is why the cluster did not start or the job was refused: nothing of the job has run.
    """
    found = _UNREADABLE.match(failure)
    if found is None or found["key"] not in config.flink.options:
        return None
    place = config.place("flink.options", found["key"])
    return InvalidInput(f"{place}: flink.options.{found['key']}: Flink cannot read {found['value']!r}")


def flink_options(config: JobConfig, run: Run, restore: Path | None = None) -> dict[str, str]:
    """Return the job's Flink options; what ``flink.options`` says comes last and wins.

    ``restore`` is the folder of the checkpoint or savepoint to go on from. It stays as it is: the job's first own
    checkpoint shares nothing with it.
    """
    flink = config.flink
    restart = flink.restart
    options = {
        "parallelism.default": str(flink.parallelism),
        "execution.checkpointing.interval": f"{flink.checkpoints.interval} ms",
        # Flink wants the scheme written out, and the path as it is: no percent-encoding.
        "execution.checkpointing.dir": f"file://{run.checkpoints}",
        "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
        **_expiry(config),
        # A barrier overtakes the records that wait before it, which are stored with the checkpoint. Waiting for them
        # first takes ten times as long where the source is as fast as it is let in.
        "execution.checkpointing.unaligned.enabled": "true",
        "execution.checkpointing.aligned-checkpoint-timeout": "0 ms",
        "state.backend.type": flink.state_backend,
        # Left unset, Flink would restart for ever.
        "restart-strategy.type": restart.type if restart.attempts else "none",
        "restart-strategy.exponential-delay.initial-backoff": f"{restart.initial} ms",
        "restart-strategy.exponential-delay.max-backoff": f"{restart.max} ms",
        "restart-strategy.exponential-delay.backoff-multiplier": "2.0",
        "restart-strategy.exponential-delay.attempts-before-reset-backoff": str(restart.attempts),
    }
    if restore is not None:
        options |= {
            RESTORED_FROM: f"file://{restore}",
            "execution.state-recovery.claim-mode": "NO_CLAIM",
            "execution.state-recovery.ignore-unclaimed-state": "false",
        }
    return {**options, **flink.options}


def _expiry(config: JobConfig) -> dict[str, str]:
    """Return when a checkpoint expires, and how many in a row may fail before the job does.

    After a TaskManager was killed within a checkpoint, Flink's source coordinator may wait for an event that it held
    back for the dead task and now never sends. The next checkpoint then hangs, and no split is handed out as long. Its
    expiry is the way out: it lets the coordinator go on, and what it waited for is forgotten. Nothing is gained by
    failing the job for it. Much less time than this, and a stop that drains could not wait for slow calls.
    """
    # At the end of the input checkpoints wait for the last calls, for as long as those take: up to a week.
    tolerable = 2 if getattr(config.source, "follow", False) else 7 * 24 * 6
    return {EXPIRES: "10 min", TOLERABLE: str(tolerable)}


def _write(stream: Any, sink: Sink, name: str, marked_prints: bool) -> None:
    if isinstance(sink, JsonlSink):
        write_jsonl(stream, sink.path, roll_ms=sink.roll, name=name)
    else:
        write_print(stream, name=name, marked=marked_prints)


def main(arguments: Sequence[str]) -> None:
    """Submit the job of a YAML from inside Flink's own command, and wait for its end unless that is detached.

    Target, savepoint and everything else that is not in the YAML come from that command (``-m``, ``-s``, ``-d``,
    ``-D``). A savepoint or checkpoint that carries a ``run.json`` goes on under its run id.

    Raises:
        SystemExit: with code 2 for bad input, after the reason was written to standard error.
    """
    parser = argparse.ArgumentParser(prog="flink run -pym flink_agents.job", description=main.__doc__)
    parser.add_argument("job", metavar="JOB.yaml")
    parser.add_argument("--set", metavar="a.b=c", action="append", default=[], help="replace one value of the YAML")
    given = parser.parse_args(arguments)
    try:
        prepared = prepare(given.job, given.set)
        env, run = _environment(prepared)
        with tempfile.TemporaryDirectory() as scratch:
            build(env, ship(env, prepared, Path(scratch)), run)
            env.execute(prepared.config.name)
    except InvalidInput as error:
        sys.stderr.write(f"flink_agents.job: {error}\n")
        raise SystemExit(2) from error


def ship(env: Any, prepared: PreparedJob, scratch: Path) -> PreparedJob:
    """Let a job's modules travel with it, and return it as it finds them there; ``scratch`` stays until it is sent.

    Raises:
        InvalidInput: if there is too much of them, or something cannot be read.
    """
    folder = pack(prepared.config, scratch)
    env.add_python_file(str(folder))
    return replace(prepared, options=replace(prepared.options, module_path=(f"{SHIPPED}{folder.name}",)))


def _environment(prepared: PreparedJob) -> tuple[Any, Run]:
    with quiet_imports():
        from pyflink.common import Configuration
        from pyflink.datastream import StreamExecutionEnvironment

    outer = StreamExecutionEnvironment.get_execution_environment()._j_stream_execution_environment.getConfiguration()
    restored = outer.toMap().get(RESTORED_FROM)
    config = prepared.config
    root = config.flink.checkpoints.directory
    run = run_of_state(root, config.name, restored) if restored else None
    yaml_digest = digest(config.model_dump_json())
    goes_on = run is not None
    if run is None:
        run = create_run(root, config.name, yaml_digest)
    register_run(prepared, run, goes_on=goes_on, is_ours=False)
    options = flink_options(config, run)
    options |= {"python.execution-mode": "thread", FIXED_JOB_ID: secrets.token_hex(16)}
    configuration = Configuration()
    for name, value in options.items():
        configuration.set_string(name, value)
    run.submitted(options[FIXED_JOB_ID], yaml_digest, settings(config))
    return StreamExecutionEnvironment.get_execution_environment(configuration), run


if __name__ == "__main__":
    main(sys.argv[1:])
