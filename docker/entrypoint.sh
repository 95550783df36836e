#!/bin/bash
# Starts what the first word names, as Flink's own image does: jobmanager, taskmanager, standalone-job, or any command.
# FLINK_PROPERTIES holds options for the first three, one "name: value" a line.
set -euo pipefail

with_properties() {
  [ -n "${FLINK_PROPERTIES:-}" ] || return 0
  local conf line name
  # The image's own folder may be read-only, or a mounted ConfigMap.
  conf=$(mktemp -d)
  cp -L "$FLINK_CONF_DIR"/* "$conf"
  while IFS= read -r line; do
    name=${line%%:*}
    name=${name//[[:space:]]/}
    [ -n "$name" ] || continue
    # A name that stands twice is an error of the file.
    sed -i "/^${name//./\\.}[[:space:]]*:/d" "$conf/config.yaml"
    printf '%s\n' "$line" >>"$conf/config.yaml"
  done <<<"$FLINK_PROPERTIES"
  export FLINK_CONF_DIR=$conf
}

case "${1:-}" in
  jobmanager | taskmanager | standalone-job)
    role=$1
    shift
    with_properties
    # A task that reaches for PyFlink's client would start a JVM of its own, unseen; with this it fails instead.
    [ "$role" != taskmanager ] || export PYFLINK_GATEWAY_DISABLED=true
    exec "$FLINK_HOME/bin/$role.sh" start-foreground "$@"
    ;;
  *)
    exec "$@"
    ;;
esac
