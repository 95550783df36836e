"""Test your tools without Flink: a harness with a settable clock, checkpoints, crashes and controllable tools."""

from flink_agents.testing.faults import CrashAt, PlannedCrash
from flink_agents.testing.harness import Harness
from flink_agents.testing.requests import tool_request
from flink_agents.testing.store import InMemoryBackend
from flink_agents.testing.tools import ControlledTool, HeldCall
from flink_agents.testing.workers import StepWorkers

__all__ = [
    "ControlledTool",
    "CrashAt",
    "Harness",
    "HeldCall",
    "InMemoryBackend",
    "PlannedCrash",
    "StepWorkers",
    "tool_request",
]
