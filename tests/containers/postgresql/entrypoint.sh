#!/bin/bash
# Makes the server's folder and database at the first start, as the official image does, and runs the server.
set -euo pipefail
data=/var/lib/postgresql/data/cluster
: "${POSTGRES_USER:=postgres}" "${POSTGRES_DB:=$POSTGRES_USER}" "${POSTGRES_PASSWORD:?has to be set}"
if [ ! -f "$data/made" ]; then
  rm -rf "$data"
  initdb -D "$data" -U "$POSTGRES_USER" -A scram-sha-256 --pwfile <(printf '%s' "$POSTGRES_PASSWORD") -E UTF8 \
    --locale=C.UTF-8 >/dev/null
  echo 'host all all all scram-sha-256' >>"$data/pg_hba.conf"
  if [ "$POSTGRES_DB" != postgres ]; then
    # Reached by its socket only, so that nobody takes it for the server that is about to start.
    pg_ctl -D "$data" -w -o "-c listen_addresses=" start >/dev/null
    PGPASSWORD=$POSTGRES_PASSWORD createdb -U "$POSTGRES_USER" "$POSTGRES_DB"
    pg_ctl -D "$data" -m fast stop >/dev/null
  fi
  touch "$data/made"
fi
exec postgres -D "$data" -c listen_addresses='*'
