"""The SQLite journal's tables and statements, format 1."""

from __future__ import annotations

from flink_agents.durable.journal.stored import FORMAT_VERSION

__all__ = [
    "ANSWERED",
    "ANSWERED_ALL",
    "CALLS",
    "CREATE",
    "FINISH",
    "FINISH_FIRST",
    "INSERT_REQUEST",
    "INSERT_REQUESTS",
    "LEASE",
    "MARK_FATAL",
    "PRUNABLE",
    "PRUNE_ATTEMPTS",
    "REQUESTS_FROM",
    "START",
    "START_AGAIN",
    "STORED",
    "STORED_COUNTS",
]

CREATE = f"""
CREATE TABLE journal_format (version INTEGER NOT NULL);
INSERT INTO journal_format VALUES ({FORMAT_VERSION});
CREATE TABLE runs (
    run_id TEXT PRIMARY KEY,
    job TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    lease_owner TEXT,
    lease_until_ms INTEGER
);
CREATE TABLE attempts (
    opened INTEGER PRIMARY KEY AUTOINCREMENT,
    attempt_id TEXT NOT NULL UNIQUE,
    run_id TEXT NOT NULL,
    subtask INTEGER NOT NULL,
    parallelism INTEGER NOT NULL
);
CREATE INDEX attempts_of_run ON attempts (run_id);
CREATE TABLE requests (
    key_hash TEXT NOT NULL,
    intake INTEGER NOT NULL,
    run_id TEXT NOT NULL,
    key TEXT NOT NULL,
    request_id TEXT NOT NULL,
    content_digest TEXT NOT NULL,
    answered_ms INTEGER,
    PRIMARY KEY (key_hash, intake)
);
CREATE INDEX requests_open ON requests (key_hash, intake) WHERE answered_ms IS NULL;
CREATE INDEX requests_answered ON requests (answered_ms) WHERE answered_ms IS NOT NULL;
CREATE TABLE calls (
    key_hash TEXT NOT NULL,
    intake INTEGER NOT NULL,
    idempotency_key TEXT NOT NULL,
    run_id TEXT NOT NULL,
    key TEXT NOT NULL,
    slot INTEGER NOT NULL,
    kind TEXT NOT NULL,
    tool TEXT NOT NULL,
    digest TEXT NOT NULL,
    status TEXT NOT NULL,
    outcome TEXT,
    attempts INTEGER NOT NULL,
    attempt_id TEXT NOT NULL,
    first_attempt_id TEXT NOT NULL,
    fatal TEXT NOT NULL DEFAULT '',
    first_started_ms INTEGER NOT NULL,
    started_ms INTEGER NOT NULL,
    ended_ms INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (key_hash, intake, idempotency_key)
);
"""

LEASE = "SELECT lease_owner, lease_until_ms FROM runs WHERE run_id = ? AND lease_owner IS NOT NULL"

INSERT_REQUESTS = "INSERT INTO requests (key_hash, intake, run_id, key, request_id, content_digest)"

INSERT_REQUEST = f"{INSERT_REQUESTS} VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"

ANSWERED = """
UPDATE requests INDEXED BY requests_open SET answered_ms = ? WHERE key_hash = ? AND intake <= ? AND answered_ms IS NULL
"""

# UPDATE ... FROM would say the same, but older releases of SQLite do not have it.
ANSWERED_ALL = """
WITH mark (key_hash, intake, now_ms) AS (VALUES {})
UPDATE requests SET answered_ms = (
    SELECT min(now_ms) FROM mark WHERE mark.key_hash = requests.key_hash AND mark.intake >= requests.intake)
WHERE rowid IN (
    SELECT open.rowid FROM mark CROSS JOIN requests AS open INDEXED BY requests_open
    ON open.key_hash = mark.key_hash AND open.intake <= mark.intake AND open.answered_ms IS NULL)
"""

REQUESTS_FROM = "SELECT run_id, key, intake, request_id, content_digest FROM requests WHERE key_hash = ? AND key = ?"

FINISH_FIRST = """
INSERT INTO calls (key_hash, intake, idempotency_key, run_id, key, slot, kind, tool, digest,
    status, outcome, attempts, attempt_id, first_attempt_id, fatal, first_started_ms, started_ms, ended_ms)
"""

_INSERT_CALL = f"""{FINISH_FIRST}
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (key_hash, intake, idempotency_key)
"""

# Begun by a later attempt than the one in the second place. One that is not registered any more is over: its successors
# are later than it.
_LATER = """({0} <> '' AND
    coalesce((SELECT theirs.opened FROM attempts AS theirs WHERE theirs.attempt_id = calls.attempt_id), 0) >
    coalesce((SELECT asking.opened FROM attempts AS asking WHERE asking.attempt_id = {0}), -1))
"""

START = f"{_INSERT_CALL} DO NOTHING"

START_AGAIN = f"""{_INSERT_CALL} DO UPDATE SET attempts = max(calls.attempts, excluded.attempts),
    attempt_id = excluded.attempt_id, started_ms = excluded.started_ms
WHERE calls.outcome IS NULL AND NOT {_LATER.format("excluded.attempt_id")}
"""

FINISH = f"""{_INSERT_CALL} DO UPDATE SET status = excluded.status, outcome = excluded.outcome,
    attempts = max(calls.attempts, excluded.attempts), attempt_id = excluded.attempt_id,
    started_ms = excluded.started_ms, ended_ms = excluded.ended_ms
WHERE calls.outcome IS NULL
"""

MARK_FATAL = f"""{_INSERT_CALL} DO UPDATE SET fatal = trim(calls.fatal || ' ' || excluded.fatal)
WHERE calls.outcome IS NULL AND instr(calls.fatal, excluded.fatal) = 0
"""

# The asking attempt comes twice: `?1` is a name to Python 3.12 and later, which a sequence does not have.
STORED = f"""
SELECT status, outcome, attempts, attempt_id, fatal, {_LATER.format("?")}
FROM calls WHERE key_hash = ? AND intake = ? AND idempotency_key = ?
"""

OUTCOME = "SELECT status, outcome FROM calls WHERE key_hash = ? AND intake = ? AND idempotency_key = ?"

STORED_COUNTS = "SELECT attempts, fatal FROM calls WHERE key_hash = ? AND intake = ? AND idempotency_key = ?"

PRUNABLE = """
SELECT key_hash, intake FROM requests WHERE answered_ms IS NOT NULL AND answered_ms <= ? ORDER BY answered_ms LIMIT ?
"""

# What is left of each subtask answers as before whether there was an earlier attempt, also to the last one itself.
PRUNE_ATTEMPTS = """
DELETE FROM attempts WHERE opened IN (SELECT opened FROM (
    SELECT opened, row_number() OVER (PARTITION BY run_id, subtask, parallelism ORDER BY opened DESC) AS age
    FROM attempts) WHERE age > 2)
"""

CALLS = """
SELECT c.run_id, c.key, c.intake, c.slot, c.kind, c.tool, c.digest, c.idempotency_key, r.request_id, c.status,
    c.outcome, c.fatal, c.attempts, c.attempt_id, c.first_attempt_id, c.first_started_ms, c.started_ms, c.ended_ms
FROM calls AS c LEFT JOIN requests AS r ON r.key_hash = c.key_hash AND r.intake = c.intake
"""
