"""The ``flink-agents`` command: one module for each command, loaded when it is called."""
