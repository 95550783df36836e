"""Fail when a test that should have run was skipped, or when no test on a mini-cluster ran at all."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

# Reasons to skip in CI: the test is about a newer Python, or about permissions, which the superuser does not have.
ALLOWED = re.compile(r"root |.*came with Python 3\.1\d$")


def main(report: Path) -> int:
    """Read a JUnit report; return the exit code."""
    cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    skipped = [
        (f"{case.get('classname')}::{case.get('name')}", str(skip.get("message")))
        for case in cases
        for skip in case.iter("skipped")
        if skip.get("type") != "pytest.xfail" and not ALLOWED.match(str(skip.get("message")))
    ]
    on_flink = [case for case in cases if case.find("./properties/property[@name='flink']") is not None]
    for name, reason in skipped:
        sys.stderr.write(f"skipped, but CI has what it needs: {name}: {reason}\n")
    if not on_flink:
        sys.stderr.write("no test with the marker flink ran\n")
    sys.stdout.write(f"{len(cases)} tests, {len(on_flink)} of them on a mini-cluster\n")
    return 1 if skipped or not on_flink else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
