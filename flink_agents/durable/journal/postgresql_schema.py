"""The PostgreSQL journal's tables and statements, format 1; one statement does one kind of operation for many rows."""

from __future__ import annotations

from flink_agents.durable.journal.stored import FORMAT_VERSION

__all__ = [
    "ANSWERED",
    "CALLS",
    "CALL_COLUMNS",
    "CREATE",
    "CREATE_SCHEMA",
    "EARLIER_ATTEMPT",
    "FINISH",
    "FORMAT",
    "INSERT_REQUESTS",
    "LEASE",
    "LOCK_SETUP",
    "MARK_FATAL",
    "OPEN_ATTEMPT",
    "PRUNE",
    "PRUNE_ATTEMPTS",
    "REQUESTS",
    "REQUESTS_FROM",
    "REQUEST_COLUMNS",
    "SESSION",
    "START",
    "START_AGAIN",
    "STORED",
]

# A client that is frozen within a transaction would keep its rows locked: the server then ends that session.
SESSION = """
SET statement_timeout = '30s'; SET lock_timeout = '10s'; SET idle_in_transaction_session_timeout = '3s';
SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'
"""

# Any fixed number: two processes that create the tables at the same time wait for each other on it.
LOCK_SETUP = "SELECT pg_advisory_xact_lock(4702111234474983745)"

# Read from the catalog's tables: what to_regclass() says may be older than the lock that was just waited for.
FORMAT = """
SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = 'flink_agents'),
    EXISTS (SELECT 1 FROM pg_catalog.pg_tables WHERE schemaname = 'flink_agents' AND tablename = 'journal_format')
"""

CREATE_SCHEMA = "CREATE SCHEMA flink_agents"

CREATE = f"""
CREATE TABLE flink_agents.journal_format (version integer NOT NULL);
INSERT INTO flink_agents.journal_format VALUES ({FORMAT_VERSION});
CREATE TABLE flink_agents.runs (
    run_id text PRIMARY KEY,
    job text NOT NULL,
    created_ms bigint NOT NULL,
    lease_owner text,
    lease_until_ms bigint
);
CREATE TABLE flink_agents.attempts (
    opened bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    attempt_id text NOT NULL UNIQUE,
    run_id text NOT NULL,
    subtask integer NOT NULL,
    parallelism integer NOT NULL
);
CREATE INDEX attempts_of_run ON flink_agents.attempts (run_id);
CREATE TABLE flink_agents.requests (
    key_hash text NOT NULL,
    intake bigint NOT NULL,
    run_id text NOT NULL,
    key text NOT NULL,
    request_id text NOT NULL,
    content_digest text NOT NULL,
    answered_ms bigint,
    PRIMARY KEY (key_hash, intake)
);
CREATE INDEX requests_open ON flink_agents.requests (key_hash, intake) WHERE answered_ms IS NULL;
CREATE INDEX requests_answered ON flink_agents.requests (answered_ms) WHERE answered_ms IS NOT NULL;
CREATE TABLE flink_agents.calls (
    key_hash text NOT NULL,
    intake bigint NOT NULL,
    idempotency_key text NOT NULL,
    run_id text NOT NULL,
    key text NOT NULL,
    slot bigint NOT NULL,
    kind text NOT NULL,
    tool text NOT NULL,
    digest text NOT NULL,
    status text NOT NULL,
    outcome text,
    attempts bigint NOT NULL,
    attempt_id text NOT NULL,
    first_attempt_id text NOT NULL,
    fatal text NOT NULL DEFAULT '',
    first_started_ms bigint NOT NULL,
    started_ms bigint NOT NULL,
    ended_ms bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (key_hash, intake, idempotency_key)
)
"""

LEASE = "SELECT lease_owner, lease_until_ms FROM flink_agents.runs WHERE run_id = %s AND lease_owner IS NOT NULL"

OPEN_ATTEMPT = """
INSERT INTO flink_agents.attempts (attempt_id, run_id, subtask, parallelism) VALUES (%s, %s, %s, %s)
ON CONFLICT DO NOTHING
"""

EARLIER_ATTEMPT = """
SELECT 1 FROM flink_agents.attempts WHERE run_id = %s AND (subtask = %s OR parallelism <> %s)
AND opened < (SELECT opened FROM flink_agents.attempts WHERE attempt_id = %s) LIMIT 1
"""

# Rows come as one JSON array of objects: the driver writes arrays of texts far slower than the server reads JSON.
REQUEST_COLUMNS = ("key_hash", "intake", "run_id", "key", "request_id", "content_digest")

INSERT_REQUESTS = f"""
INSERT INTO flink_agents.requests ({", ".join(REQUEST_COLUMNS)})
SELECT {", ".join(REQUEST_COLUMNS)} FROM json_populate_recordset(NULL::flink_agents.requests, %s::json)
ON CONFLICT DO NOTHING RETURNING key_hash, intake
"""

REQUESTS = """
SELECT t.n, r.run_id, r.key, r.intake, r.request_id, r.content_digest
FROM json_to_recordset(%s::json) AS t (key_hash text, intake bigint, n bigint)
JOIN flink_agents.requests AS r USING (key_hash, intake)
"""

_REQUESTS_OF_KEY = """
SELECT run_id, key, intake, request_id, content_digest
FROM flink_agents.requests WHERE key_hash = %(hash)s AND key = %(key)s AND
"""

REQUESTS_FROM = f"""
{_REQUESTS_OF_KEY} intake >= %(intake)s
UNION ALL {_REQUESTS_OF_KEY} intake < %(intake)s AND intake = ANY(%(also)s::bigint[])
ORDER BY intake
"""

ANSWERED = """
UPDATE flink_agents.requests AS r SET answered_ms = t.now_ms
FROM json_to_recordset(%s::json) AS t (key_hash text, intake bigint, now_ms bigint)
WHERE r.key_hash = t.key_hash AND r.intake <= t.intake AND r.answered_ms IS NULL
"""

CALL_COLUMNS = (
    *("key_hash", "intake", "idempotency_key", "run_id", "key", "slot", "kind", "tool", "digest"),
    *("status", "outcome", "attempts", "attempt_id", "first_attempt_id", "fatal"),
    *("first_started_ms", "started_ms", "ended_ms"),
)

_INSERT_CALLS = f"""
INSERT INTO flink_agents.calls AS c ({", ".join(CALL_COLUMNS)})
SELECT {", ".join(CALL_COLUMNS)} FROM json_populate_recordset(NULL::flink_agents.calls, %s::json)
ON CONFLICT (key_hash, intake, idempotency_key)
"""

# Begun by a later attempt than the asking one. One that is not registered any more is over: its successors are later
# than it.
_LATER = """({0} <> '' AND
    coalesce((SELECT theirs.opened FROM flink_agents.attempts AS theirs WHERE theirs.attempt_id = c.attempt_id), 0) >
    coalesce((SELECT asking.opened FROM flink_agents.attempts AS asking WHERE asking.attempt_id = {0}), -1))
"""

START = f"{_INSERT_CALLS} DO NOTHING RETURNING idempotency_key, attempts, fatal"

START_AGAIN = f"""{_INSERT_CALLS} DO UPDATE SET attempts = greatest(c.attempts, excluded.attempts),
    attempt_id = excluded.attempt_id, started_ms = excluded.started_ms
WHERE c.outcome IS NULL AND NOT {_LATER.format("excluded.attempt_id")}
RETURNING idempotency_key, attempts, fatal
"""

FINISH = f"""{_INSERT_CALLS} DO UPDATE SET status = excluded.status, outcome = excluded.outcome,
    attempts = greatest(c.attempts, excluded.attempts), attempt_id = excluded.attempt_id,
    started_ms = excluded.started_ms, ended_ms = excluded.ended_ms
WHERE c.outcome IS NULL
RETURNING idempotency_key, attempts, fatal
"""

MARK_FATAL = f"""{_INSERT_CALLS} DO UPDATE SET fatal = trim(c.fatal || ' ' || excluded.fatal)
WHERE c.outcome IS NULL AND position(excluded.fatal in c.fatal) = 0
RETURNING idempotency_key, attempts, fatal
"""

STORED = f"""
SELECT t.n, c.status, c.outcome, c.attempts, c.attempt_id, c.fatal, {_LATER.format("t.asking")}
FROM json_to_recordset(%s::json) AS t (key_hash text, intake bigint, idempotency_key text, asking text, n bigint)
JOIN flink_agents.calls AS c USING (key_hash, intake, idempotency_key)
"""

PRUNE = """
WITH old AS (
    SELECT key_hash, intake FROM flink_agents.requests WHERE answered_ms IS NOT NULL AND answered_ms <= %s
    ORDER BY answered_ms LIMIT %s FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM flink_agents.calls AS c USING old WHERE c.key_hash = old.key_hash AND c.intake = old.intake
)
DELETE FROM flink_agents.requests AS r USING old WHERE r.key_hash = old.key_hash AND r.intake = old.intake
"""

# What is left of each subtask answers as before whether there was an earlier attempt, also to the last one itself.
PRUNE_ATTEMPTS = """
DELETE FROM flink_agents.attempts WHERE opened IN (SELECT opened FROM (
    SELECT opened, row_number() OVER (PARTITION BY run_id, subtask, parallelism ORDER BY opened DESC) AS age
    FROM flink_agents.attempts) AS numbered WHERE age > 2)
"""

OUTCOME = """
SELECT status, outcome FROM flink_agents.calls WHERE key_hash = %s AND intake = %s AND idempotency_key = %s
"""

CALLS = """
SELECT c.run_id, c.key, c.intake, c.slot, c.kind, c.tool, c.digest, c.idempotency_key, r.request_id, c.status,
    c.outcome, c.fatal, c.attempts, c.attempt_id, c.first_attempt_id, c.first_started_ms, c.started_ms, c.ended_ms
FROM flink_agents.calls AS c LEFT JOIN flink_agents.requests AS r USING (key_hash, intake)
"""
