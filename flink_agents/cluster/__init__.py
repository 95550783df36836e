"""Flink clusters seen from a command: an embedded one of its own, and any cluster's REST interface."""
