"""The keyed operator: ``turn`` and ``subtask`` decide without Flink, the other modules connect them to it."""
