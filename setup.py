"""What pyproject.toml cannot say: with FLINK_AGENTS_COMPILE=1 the engine's inner modules become C extensions.

mypyc makes them of the same Python source, so there is one engine, and what is not compiled works with it as before.
That takes a C compiler, Python's headers and a minute.
"""

import os
import sys

from setuptools import setup

COMPILER = "mypy>=2,<3"

# What runs for every call. Not: coroutines that are closed half-way (actions), classes that users derive from or that
# add to their ``__dict__`` (handles, tools, events), and what runs once.
COMPILED = [
    "flink_agents/codec/canonical.py",
    "flink_agents/codec/json_text.py",
    "flink_agents/codec/shape.py",
    "flink_agents/codec/values.py",
    "flink_agents/durable/head.py",
    "flink_agents/durable/identity.py",
    "flink_agents/durable/journal/operations.py",
    "flink_agents/durable/journal/rows.py",
    "flink_agents/durable/outcome.py",
    "flink_agents/durable/slot_log.py",
    "flink_agents/durable/slots.py",
    "flink_agents/durable/store.py",
    "flink_agents/records.py",
    "flink_agents/runtime/inline.py",
    "flink_agents/runtime/side_by_side.py",
    "flink_agents/runtime/subtask.py",
    "flink_agents/runtime/turn.py",
    "flink_agents/scheduler/admission.py",
    "flink_agents/scheduler/call.py",
    "flink_agents/scheduler/call_journal.py",
    "flink_agents/scheduler/prepared.py",
    "flink_agents/scheduler/workers.py",
]


def compile_and_set_up() -> None:
    """Build with extensions; without the compiler, ask the build tool for it."""
    try:
        from mypyc.build import mypycify
    except ImportError:
        # Raises where a build tool only asks what it has to install.
        setup(setup_requires=[COMPILER])
        sys.exit(f"FLINK_AGENTS_COMPILE=1 needs {COMPILER} where the package is built without isolation")
    # Types are checked elsewhere; here neither the packages behind them nor the strict settings need to be there.
    options = ["--config-file=", "--ignore-missing-imports", "--follow-imports=silent"]
    setup(ext_modules=mypycify([*options, *COMPILED], opt_level="3", debug_level="0"), setup_requires=[COMPILER])


if os.environ.get("FLINK_AGENTS_COMPILE") == "1":
    compile_and_set_up()
else:
    setup()
