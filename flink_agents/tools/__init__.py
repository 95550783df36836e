"""Tools: what a model may ask for, written as plain typed functions or declared by JSON Schema; the authoring layer."""

from __future__ import annotations

from flink_agents.tools.base import Tool, ToolSpec
from flink_agents.tools.function import FunctionTool, tool
from flink_agents.tools.schema_file import SchemaTool

__all__ = ["FunctionTool", "SchemaTool", "Tool", "ToolSpec", "tool"]
