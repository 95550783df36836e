"""What a user reads first of a Java stack trace."""

from __future__ import annotations

from flink_agents.cluster.causes import root_cause

PLAIN = """org.apache.flink.runtime.JobException: Recovery is suppressed by NoRestartBackoffTimeStrategy
\tat org.apache.flink.runtime.Handler.handle(Handler.java:213)
\tat java.base/java.lang.Thread.run(Unknown Source)
Caused by: java.lang.reflect.InvocationTargetException
\tat java.base/java.lang.reflect.Method.invoke(Unknown Source)
\t... 12 more
Caused by: pemja.core.PythonException: <class 'ValueError'>: planned
in two lines
\tat /job/tools.inner(tools.py:8)
\tat /job/tools.process_element(tools.py:20)
\tat /venv/site-packages/pyflink/fn_execution/operations.process(operations.py:105)
\tat pemja.core.object.PyIterator.next(Native Method)
\t... 20 more
"""

TRACED = """java.lang.RuntimeException: wrapped
\tat a.B.c(B.java:1)
Caused by: pemja.core.PythonException: <class 'flink_agents.errors.FrameworkFault'>: the task failed
Traceback (most recent call last):
  File "/job/tools.py", line 3, in f
    raise KeyError("x")
KeyError: 'x'
\tat /venv/flink_agents/runtime/operator.on_timer(operator.py:70)
"""

JAVA = """org.apache.flink.runtime.JobException: Recovery is suppressed
\tat a.B.c(B.java:1)
Caused by: org.apache.flink.util.SerializedThrowable: java.io.IOException: No space left on device
\tat java.base/sun.nio.ch.FileDispatcherImpl.write0(Native Method)
Caused by: java.util.concurrent.CompletionException
\t... 3 more
"""


def test_a_python_exception_reads_like_a_python_traceback() -> None:
    cause = root_cause(PLAIN)
    assert cause.python
    assert cause.summary == "ValueError: planned"
    assert cause.text.splitlines() == [
        "Traceback (most recent call last):",
        '  File "/job/tools.py", line 20, in process_element',
        '  File "/job/tools.py", line 8, in inner',
        "ValueError: planned",
        "in two lines",
    ]


def test_a_traceback_in_the_message_is_kept_whole() -> None:
    cause = root_cause(TRACED)
    assert cause.summary == "KeyError: 'x'"
    assert cause.text.splitlines()[0] == "the task failed"
    assert cause.text.splitlines()[-1] == "KeyError: 'x'"
    assert "operator.py" not in cause.text


def test_without_python_the_innermost_java_sentence_stands() -> None:
    cause = root_cause(JAVA)
    assert not cause.python
    assert cause.text == "java.io.IOException: No space left on device"


def test_no_stack_trace_at_all() -> None:
    assert root_cause("").text == "no cause was reported"
    assert root_cause("just words").summary == "just words"
