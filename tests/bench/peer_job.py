# mypy: ignore-errors
"""The job that the published peer runs: by the interpreter of its own environment, which has another ``flink_agents``.

python peer_job.py REQUESTS sync|async THREADS
"""

from __future__ import annotations

import json
import os
import sys
import sysconfig
import time
from pathlib import Path

if __name__ == "__main__":
    # The workers of Flink import the agent by name.
    os.environ["PYTHONPATH"] = os.pathsep.join([sysconfig.get_paths()["purelib"], str(Path(__file__).parent)])

from flink_agents.api.core_options import AgentExecutionOptions
from flink_agents.api.execution_environment import AgentsExecutionEnvironment
from peer_agent import AddingAgent, Key, Request
from pyflink.common import Configuration, Types, WatermarkStrategy
from pyflink.datastream import StreamExecutionEnvironment
from pyflink.datastream.connectors.file_system import FileSource, StreamFormat


def main(requests: str, mode: str, threads: int) -> float:
    """Run the job and return how many seconds it took."""
    from pyflink.java_gateway import get_gateway

    configuration = Configuration()
    configuration.set_string("restart-strategy.type", "disable")
    # Its rate is best with short bundles.
    configuration.set_string("python.fn-execution.bundle.time", "10")
    env = StreamExecutionEnvironment.get_execution_environment(configuration)
    env.set_parallelism(1)
    source = FileSource.for_record_stream_format(StreamFormat.text_line_format(), Path(requests).as_uri()).build()
    lines = env.from_source(source, WatermarkStrategy.no_watermarks(), "requests")
    agents = AgentsExecutionEnvironment.get_execution_environment(env=env)
    agents.get_config().set(AgentExecutionOptions.TOOL_CALL_ASYNC, mode == "async")
    agents.get_config().set(AgentExecutionOptions.NUM_ASYNC_THREADS, threads)
    stream = lines.map(lambda line: Request.model_validate_json(line))
    answers = agents.from_datastream(input=stream, key_selector=Key()).apply(AddingAgent()).to_datastream()
    answers = answers.map(json.dumps, Types.STRING())
    java = get_gateway().jvm.org.apache.flink.streaming.api.functions.sink.v2
    answers._j_data_stream.sinkTo(java.DiscardingSink())
    began = time.monotonic()
    agents.execute()
    return time.monotonic() - began


if __name__ == "__main__":
    sys.stdout.write(f"{main(sys.argv[1], sys.argv[2], int(sys.argv[3])):.3f}\n")
