"""What a job's YAML becomes for Flink, and what Flink's refusals say of the YAML."""

from __future__ import annotations

from pathlib import Path

import pytest

from flink_agents.config.loader import load
from flink_agents.job import refused_option

JOB = """\
name: refused
source: {type: jsonl, path: requests.jsonl}
key_by: key
tools:
  - function: tools:add
sink: {type: print}
flink:
  options:
    metrics.system-resource: maybe
"""

TOLD = "Could not parse value 'maybe' for key 'metrics.system-resource'."


@pytest.mark.parametrize("java", ["", "java.lang.IllegalArgumentException: "])
@pytest.mark.parametrize("lead", ["the embedded Flink cluster did not start: ", "Flink refused the job: "])
def test_a_value_that_flink_could_not_read_is_named_where_it_was_written(tmp_path: Path, lead: str, java: str) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    error = refused_option(load(tmp_path / "job.yaml"), f"{lead}{java}{TOLD} (log: flink.log)")
    assert str(error) == (
        f"{tmp_path / 'job.yaml'}:9:30: flink.options.metrics.system-resource: Flink cannot read 'maybe'"
    )


@pytest.mark.parametrize(
    "failure",
    [
        TOLD,
        f"Flink refused the job: a tool says: {TOLD}",
        "Flink refused the job: Could not parse value 'x' for key 'parallelism.default'.",
        "Flink refused the job: no free slot",
        "",
    ],
)
def test_any_other_failure_is_the_jobs(tmp_path: Path, failure: str) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    assert refused_option(load(tmp_path / "job.yaml"), failure) is None
