"""Fail when a test that should have run was skipped, or when no test on a mini-cluster or on containers ran at all."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

# Reasons to skip in CI: the test is about a newer Python, or about permissions, which the superuser does not have.
ALLOWED = re.compile(r"root |.*came with Python 3\.1\d$")
# Written by tests/containers/prepare.sh: with a daemon, the reason would be another one.
NO_DAEMON = re.compile(r"no Docker daemon: ")


def main(report: Path) -> int:
    """Read a JUnit report; return the exit code."""
    cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    reasons = {
        case: str(skip.get("message"))
        for case in cases
        for skip in case.iter("skipped")
        if skip.get("type") != "pytest.xfail"
    }
    skipped = {case: reason for case, reason in reasons.items() if not ALLOWED.match(reason)}
    without_daemon = {case for case, reason in skipped.items() if on(case, "containers") and NO_DAEMON.match(reason)}
    on_flink = [case for case in cases if on(case, "flink")]
    on_containers = [case for case in cases if on(case, "containers") and case not in reasons]
    wrong = [
        f"skipped, but CI has what it needs: {case.get('classname')}::{case.get('name')}: {reason}"
        for case, reason in skipped.items()
        if case not in without_daemon
    ]
    wrong += [] if on_flink else ["no test with the marker flink ran"]
    wrong += [] if on_containers or without_daemon else ["no test with the marker containers ran"]
    for line in wrong:
        sys.stderr.write(f"{line}\n")
    if without_daemon:
        sys.stdout.write(f"{len(without_daemon)} tests on containers skipped: {skipped[next(iter(without_daemon))]}\n")
    sys.stdout.write(
        f"{len(cases)} tests, {len(on_flink)} of them on a mini-cluster, {len(on_containers)} on containers\n"
    )
    return 1 if wrong else 0


def on(case: ElementTree.Element, what: str) -> bool:
    """Return whether a test has the marker, which the tests' configuration notes as a property."""
    return case.find(f"./properties/property[@name='{what}']") is not None


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
