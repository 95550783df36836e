"""How the task thread learns that something is due: by mail through reflection, or by polling where that fails.

PyFlink offers neither. What is used here of Flink's private parts is in this module only, is tried when an operator
opens, and has a fallback.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Callable
from typing import Any, Protocol

from flink_agents.clock import monotonic_ms, now_ms
from flink_agents.errors import FrameworkFault, Interrupted
from flink_agents.runtime.attempt_watch import WakeSignal, process_watch
from flink_agents.runtime.flink_state import KeyContext, java_class
from flink_agents.runtime.job_parameters import job_parameter
from flink_agents.scheduler.attempt import Attempt

__all__ = ["MODE_PARAMETER", "MODE_VARIABLE", "MailWakeups", "PollWakeups", "Wakeups", "open_wakeups"]

_log = logging.getLogger(__name__)

MODE_VARIABLE = "FLINK_AGENTS_WAKEUP"
"""Environment of the TaskManager: ``poll`` turns the mailbox off, for clusters where it misbehaves."""

MODE_PARAMETER = "flink-agents.wakeup"
"""Global job parameter with the same meaning, for one job."""

_WAKE_TIMESTAMP = 1
_ABOUT_MS = 4.0
_POLL_MIN_MS = 1
_POLL_MAX_MS = 100
_POLL_WAIT_S = 0.02


class Wakeups(Protocol):
    """How an operator is called back. Task thread only, except ``notify``."""

    mode: str
    notify: Callable[[], None]
    """Wakes the task thread; any thread, holds no Java object."""

    def again(self) -> None:
        """Be called back soon: a turn left work for later."""

    def after_turn(
        self, *, has_work: bool, alarm_ms: int | None, flush_ms: float | None, hold_ms: float | None = None
    ) -> None:
        """Arrange the next call: at ``alarm_ms`` (wall time), ``flush_ms`` (monotonic) or by ``notify``.

        ``hold_ms`` (monotonic) says that the task thread comes by itself before then, so ``notify`` need not wake it.
        """

    def put_off(self, ms: float) -> None:
        """Say that the task thread is at work, for ``ms`` milliseconds or less: it need not be called meanwhile."""

    def wait(self, timeout_ms: float | None) -> None:
        """Block until something may be due, or the time is over. Raises what fails in the meantime."""

    def wait_here(self, timeout_ms: float, enough: int) -> None:
        """Block until workers handed ``enough`` back, or the time is over; nothing else of the task runs meanwhile."""

    def rearm_drain(self, timestamp: int) -> bool:
        """At the end of input: whether the drain goes on in another call, because waiting in this one finds nothing."""

    def fail(self, failure: BaseException) -> None:
        """Remember what failed a call back, so that Flink shows it and not the crossing between the languages."""


class _MailTarget:
    """What the Java runnable calls. Java never lets go of it, so it lets go of everything else at the end."""

    def __init__(self) -> None:
        self.run: Callable[[], None] | None = None
        self.calls = 0

    def get_value(self) -> int:
        self.calls += 1
        if self.run is not None:
            self.run()
        return 0


class _Task:
    """The task that contains the operator, found through a private field. Task thread and attempt watch."""

    def __init__(self, runtime_context: Any) -> None:
        java_context = runtime_context.get_keyed_state_backend()._function_context._j_context
        outer = java_context.getClass().getDeclaredField("this$0")
        outer.setAccessible(True)
        self.operator: Any = outer.get(java_context)
        self.task: Any = self.operator.getContainingTask()
        self._was_running = False
        if self.is_dead():
            msg = "the containing task says that it is over while it opens"
            raise FrameworkFault(msg)

    def is_dead(self) -> bool:
        """Whether the task was cancelled, failed or ended. A task that still opens is alive."""
        task = self.task
        if task is None or task.isCanceled() or task.isFailing():
            return True
        running = bool(task.isRunning())
        self._was_running = self._was_running or running
        return self._was_running and not running

    def fail(self, cause: Any) -> None:
        """Fail the task with a Java throwable."""
        task = self.task
        if task is not None and not self.is_dead():
            task.getEnvironment().failExternally(cause)

    def release(self) -> None:
        """Let go of Java."""
        self.operator = self.task = None


class MailWakeups:
    """Wake-up through the task's mailbox: a mail runs between two records or barriers, like a timer.

    Also the port through which the attempt watch posts and looks at the task. Everything of Java is fetched here, in
    ``open()`` on the task thread; a failure of any step makes the constructor raise and the operator poll instead.
    """

    mode = "mailbox"

    def __init__(self, runtime_context: Any, keys: KeyContext, attempt: Attempt) -> None:
        self._attempt = attempt
        self._task = _Task(runtime_context)
        mailbox = self._task.task.getMailboxExecutorFactory().createExecutor(0)
        self._execute: Any = mailbox.execute
        self._yield: Any = getattr(mailbox, "yield")
        self._fire: Any = self._task.operator.onProcessingTime
        timer_class = java_class("org.apache.flink.streaming.api.operators.TimerHeapInternalTimer")
        self._timer: Any = timer_class(_WAKE_TIMESTAMP, keys.java_key("!"), keys.namespace)
        self._target = _MailTarget()
        self._runnable: Any = _runnable(self._target)
        self._failure: BaseException | None = None
        self._failed_at: Any = None
        self._holds = False
        self._self_test()
        watch = process_watch()
        self._signal: WakeSignal = watch.signal()
        self.notify: Callable[[], None] = self._signal
        self._target.run = self._on_mail
        watch.register(attempt, self, self._signal)

    def _self_test(self) -> None:
        self._runnable.run()
        if self._target.calls != 1:
            msg = "the Java runnable does not reach Python"
            raise FrameworkFault(msg)

    def again(self) -> None:
        """Put a mail behind those that wait."""
        self._signal.pending = True
        self._signal.posted_ms = monotonic_ms()
        self.post()

    def after_turn(
        self, *, has_work: bool, alarm_ms: int | None, flush_ms: float | None, hold_ms: float | None = None
    ) -> None:
        """Set the watch's alarm; without one it posts when ``notify`` is called, unless that is held back."""
        ring = float("inf") if flush_ms is None else flush_ms
        if alarm_ms is not None:
            ring = min(ring, monotonic_ms() + max(0, alarm_ms - now_ms()))
        if hold_ms is not None:
            # What is pending is not posted again; the alarm is what ends that if no further record comes.
            self._signal.pending = self._holds = True
            if ring > hold_ms and hold_ms <= self._signal.alarm_ms <= hold_ms + _ABOUT_MS:
                # Near enough. To move it with each record would keep the watch awake.
                return
            ring = min(ring, hold_ms + _ABOUT_MS / 2)
        elif self._holds:
            self._signal.pending = self._holds = False
            # Also what leaves no completion: a worker that came free, a failure of the attempt, ends already in hand.
            if self._signal.given:
                self._signal()
        if ring != self._signal.alarm_ms:
            self._signal.ring_at(ring)

    def put_off(self, ms: float) -> None:
        """Move the alarm of a hold; the turn's end sets the next one. Called before the look at what is due."""
        self._signal.given = False
        if self._holds:
            self._signal.alarm_ms = max(self._signal.alarm_ms, monotonic_ms() + ms)

    def wait(self, timeout_ms: float | None) -> None:
        """Run one mail, waiting for it; the watch posts one when the time is over.

        Raises:
            BaseException: what failed in that mail; ``Interrupted`` when the attempt is over.
        """
        if timeout_ms is not None:
            self._signal.ring_at(min(self._signal.alarm_ms, monotonic_ms() + timeout_ms))
        run_one = self._yield
        if run_one is None:
            raise Interrupted(f"attempt {self._attempt.id} is over")
        try:
            run_one()
        except Exception as crossing:
            self._raise_cause(crossing)

    def wait_here(self, timeout_ms: float, enough: int) -> None:
        """Wait without a mail, which would cost as much as the turn that follows."""
        self._holds = True
        completions = self._attempt.completions
        self._signal.wait(lambda: len(completions) >= enough, timeout_ms)

    def rearm_drain(self, timestamp: int) -> bool:
        """Mails run inside the drain, so one call lasts until everything is answered."""
        return False

    def fail(self, failure: BaseException) -> None:
        """Keep the failure with its traceback, which is lost on the way through Java."""
        if self._failure is None:
            # Java shows type, message and frames; the chain of causes is in the log only.
            _log.error("attempt %s fails its task", self._attempt.id, exc_info=failure)
            self._failure, self._failed_at = failure, failure.__traceback__

    def post(self) -> None:
        """Put a mail into the mailbox. Attempt watch or task thread; raises when the mailbox is closed."""
        execute, runnable = self._execute, self._runnable
        if execute is None:
            raise Interrupted(f"attempt {self._attempt.id} is over")
        execute(runnable, "flink-agents wake-up")

    def is_dead(self) -> bool:
        """Whether the task was cancelled, failed or ended."""
        return self._task.is_dead()

    def release(self) -> None:
        """Let go of Java and, for the sake of what Java keeps, of the operator."""
        self._target.run = None
        self._task.release()
        self._execute = self._yield = self._fire = self._timer = self._runnable = None
        self._failure = self._failed_at = None

    def _on_mail(self) -> None:
        fire, timer = self._fire, self._timer
        # During a hold nothing is posted: the turn's end decides how to be called next.
        self._signal.pending = self._holds
        if fire is None:
            return
        try:
            # The normal way into on_timer, so state, outputs and side outputs are as in any timer.
            fire(timer)
        except Exception as crossing:
            self._raise_cause(crossing)

    def _raise_cause(self, crossing: Exception) -> None:
        failure = self._failure
        if failure is not None:
            raise failure.with_traceback(self._failed_at) from failure.__cause__
        cause = _java_cause(crossing)
        if cause is None:
            raise crossing
        # What failed is Java (a sink, say): Flink must show that throwable, not that Python met it.
        self._task.fail(cause)
        raise FrameworkFault(f"the task failed outside Python: {cause.toString()}") from None


class PollWakeups:
    """The fallback: a chain of processing-time timers per subtask, with back-off; needs nothing private of Flink."""

    mode = "polling"

    def __init__(self, keys: KeyContext) -> None:
        self._keys = keys
        self._event = threading.Event()
        self.notify: Callable[[], None] = self._event.set
        self._delay_ms = _POLL_MIN_MS
        self._armed_ms = 0

    def again(self) -> None:
        """Poll at once."""
        self._event.set()

    def after_turn(
        self, *, has_work: bool, alarm_ms: int | None, flush_ms: float | None, hold_ms: float | None = None
    ) -> None:
        """Set the next timer of the chain, under whatever key is current; work that arrived shortens the delay."""
        if not has_work:
            return
        now = now_ms()
        self._delay_ms = _POLL_MIN_MS if self._event.is_set() else min(self._delay_ms * 2, _POLL_MAX_MS)
        self._event.clear()
        at = now + self._delay_ms
        if alarm_ms is not None:
            at = min(at, max(alarm_ms, now + 1))
        if not now < self._armed_ms <= at:
            self._armed_ms = at
            self._keys.timers.register_processing_time_timer(at)

    def put_off(self, ms: float) -> None:
        """Do nothing: timers are served between turns."""

    def wait(self, timeout_ms: float | None) -> None:
        """Wait for ``notify``, at most 20 ms: a cancel does not reach a thread that waits in Python."""
        timeout_s = _POLL_WAIT_S if timeout_ms is None else min(_POLL_WAIT_S, timeout_ms / 1000)
        self._event.wait(timeout_s)
        self._event.clear()

    def wait_here(self, timeout_ms: float, enough: int) -> None:
        """Wait for ``notify``."""
        self.wait(timeout_ms)

    def rearm_drain(self, timestamp: int) -> bool:
        """Have the drain called again one step later, so that the task's other keys and a cancel get their turn."""
        self._keys.timers.register_event_time_timer(timestamp + 1)
        return True

    def fail(self, failure: BaseException) -> None:
        """Log it; Flink calls the operator directly and shows what it raises."""
        _log.error("a turn fails its task", exc_info=failure)


class _PollPort:
    """What the attempt watch sees of a task that polls."""

    def __init__(self, task: _Task, post: Callable[[], None]) -> None:
        self.post = post
        self.is_dead = task.is_dead
        self.release = task.release


def _poll(runtime_context: Any, keys: KeyContext, attempt: Attempt) -> PollWakeups:
    wakeups = PollWakeups(keys)
    try:
        port = _PollPort(_Task(runtime_context), wakeups.notify)
    except Exception as failure:  # reflection, see above
        _log.warning("a dead attempt will be fenced, but not interrupted: no containing task: %s", describe(failure))
    else:
        watch = process_watch()
        watch.register(attempt, port, watch.signal())
    return wakeups


def open_wakeups(runtime_context: Any, keys: KeyContext, attempt: Attempt) -> Wakeups:
    """Return the best way that works here, and log which. Task thread, in ``open()``."""
    wakeups: Wakeups
    asked = job_parameter(runtime_context, MODE_PARAMETER) or os.environ.get(MODE_VARIABLE, "")
    if asked.lower() == "poll":
        wakeups = _poll(runtime_context, keys, attempt)
        _log.info("wake-up by polling, as the job or its environment asks")
    else:
        try:
            wakeups = MailWakeups(runtime_context, keys, attempt)
            _log.info("wake-up through the task's mailbox")
        except Exception as failure:  # reflection fails in many ways, and none of them may fail the job
            _log.warning("wake-up by polling: the task's mailbox cannot be reached: %s", describe(failure))
            wakeups = _poll(runtime_context, keys, attempt)
    attempt.notify = wakeups.notify
    return wakeups


def describe(failure: BaseException) -> str:
    """Return the text of an exception, of the Java one inside where it crossed the languages."""
    cause = _java_cause(failure)
    return repr(failure) if cause is None else str(cause.toString())


def _java_cause(crossing: BaseException) -> Any:
    """Return the Java throwable that a call into Java ended with, without the wrappers of reflection; None if none."""
    throwable: Any = crossing.args[0] if crossing.args else None
    if not hasattr(throwable, "getCause"):
        return None
    while throwable.getClass().getName().endswith(("InvocationTargetException", "WrappingRuntimeException")):
        inner = throwable.getCause()
        if inner is None:
            break
        throwable = inner
    return throwable


def _runnable(target: _MailTarget) -> Any:
    """Return a Java ``ThrowingRunnable`` that calls ``target.get_value()``, out of classes that Flink ships."""
    gauge = java_class("org.apache.flink.python.metric.embedded.MetricGauge")(target)
    interface, method = _runnable_parts()
    return java_class("java.lang.invoke.MethodHandleProxies").asInterfaceInstance(interface, method.bindTo(gauge))


@functools.cache
def _runnable_parts() -> tuple[Any, Any]:
    """Return the interface, and ``MetricGauge.getValue`` not yet bound to a gauge."""
    gauge = java_class("org.apache.flink.python.metric.embedded.MetricGauge")(_MailTarget()).getClass()
    interface = java_class("java.lang.Class").forName(
        "org.apache.flink.util.function.ThrowingRunnable", True, gauge.getClassLoader()
    )
    # getMethod("getValue") without parameter types fails in the bridge, and there are two: one is synthetic.
    method = next(method for method in gauge.getMethods() if method.getName() == "getValue")
    return interface, java_class("java.lang.invoke.MethodHandles").publicLookup().unreflect(method)
