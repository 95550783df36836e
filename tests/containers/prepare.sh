#!/usr/bin/env bash
# Makes what the container tests need, and takes it away again. As root on Debian 12; elsewhere a Docker daemon has to run.
#
#   prepare.sh up DIR      a daemon (Debian's docker.io if none answers), a base image (made by debootstrap if no registry
#                          can be reached), the image of docker/ and one of PostgreSQL. DIR/env then holds the variables
#                          that the tests need. Exit code 3: no daemon can run here, and the last line says why.
#   prepare.sh build TAG   builds the image of docker/ once more, without any cache; with DIR/env in the environment.
#   prepare.sh down DIR    stops the daemon that was started, removes what was made.
set -euo pipefail
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
NO_DAEMON=3
START_S=60

say() { printf '%s\n' "$*" >&2; }
no_daemon() { say "no Docker daemon: $*"; exit "$NO_DAEMON"; }
can_install() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }
install_packages() {
  apt-get update -qq >&2
  DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$@" >/dev/null 2>&1
}

# A client that can mount secrets into a build: newer ones only with the plugin buildx, the one of Debian 12 by itself.
choose_client() {
  local each
  for each in docker /usr/bin/docker; do
    command -v "$each" >/dev/null || continue
    if "$each" buildx version >/dev/null 2>&1 || [[ $("$each" --version) == *" version 20."* ]]; then
      command -v "$each"
      return
    fi
  done
}

start_daemon() {
  can_install || no_daemon "none answers, and only root on Debian can start one"
  if ! command -v dockerd >/dev/null || [ -z "$(choose_client)" ]; then
    install_packages docker.io || no_daemon "docker.io cannot be installed"
  fi
  export DOCKER_HOST=unix://$dir/docker.sock
  cat /proc/sys/net/ipv4/ip_forward >"$dir/ip_forward"
  iptables -S FORWARD 2>/dev/null | head -1 >"$dir/forward" || true
  ip -o link show docker0 >/dev/null 2>&1 || touch "$dir/no-docker0"
  setsid dockerd --data-root "$dir/data" --exec-root "$dir/run" --pidfile "$dir/pid" -H "$DOCKER_HOST" \
    >"$dir/dockerd.log" 2>&1 </dev/null &
  local daemon=$! deadline=$((SECONDS + START_S))
  until "$(choose_client)" info >/dev/null 2>&1; do
    if ! kill -0 "$daemon" 2>/dev/null || [ "$SECONDS" -gt "$deadline" ]; then
      kill "$daemon" 2>/dev/null || true
      tail -n 20 "$dir/dockerd.log" >&2
      no_daemon "dockerd does not start: $(grep -E 'level=(fatal|error)|failed to start' "$dir/dockerd.log" | tail -1)"
    fi
    sleep 0.2
  done
}

choose_base() {
  if timeout 60 "$docker" pull -q debian:bookworm-slim >/dev/null 2>&1; then
    echo debian:bookworm-slim
    return
  fi
  command -v debootstrap >/dev/null || install_packages debootstrap
  local mirror
  mirror=$(apt-get indextargets --format '$(RELEASE) $(REPO_URI)' 'Created-By: Packages' \
    | awk '$1 == "bookworm" && $2 ~ /\/debian\/?$/ {print $2; exit}')
  if ! debootstrap --variant=minbase --include=ca-certificates bookworm "$dir/base" $mirror >"$dir/debootstrap.log" 2>&1; then
    tail -n 20 "$dir/debootstrap.log" >&2
    return 1
  fi
  rm -rf "$dir"/base/var/cache/apt/archives/*.deb "$dir"/base/var/lib/apt/lists/*
  tar -C "$dir/base" -c . | "$docker" import - flink-agents-tests/debian:bookworm >/dev/null
  rm -rf "$dir/base"
  echo flink-agents-tests/debian:bookworm
}

# What pip is told on this machine, as far as it means the same inside a container.
pip_settings() {
  local name value python=$repository/.venv/bin/python
  [ -x "$python" ] || python=python3
  echo "[global]"
  if [ -s /etc/ssl/certs/ca-certificates.crt ]; then echo "cert = /run/secrets/ca.pem"; fi
  for name in index-url extra-index-url trusted-host timeout; do
    value=$("$python" -m pip config list 2>/dev/null | sed -n "s/^[^=]*[.]$name='\(.*\)'\$/\1/p" | tail -1) || true
    case "$value" in "" | *file:*) ;; *) echo "$name = $value" ;; esac
  done
}

build_image() {
  local secrets=()
  [ ! -s /etc/ssl/certs/ca-certificates.crt ] || secrets+=(--secret id=ca,src=/etc/ssl/certs/ca-certificates.crt)
  pip_settings >"$dir/pip.conf"
  DOCKER_BUILDKIT=1 "$docker" build -q "${secrets[@]}" --secret id=pip,src="$dir/pip.conf" --build-arg "BASE_IMAGE=$base" \
    -f "$repository/docker/Dockerfile" -t "$1" "${@:2}" "$repository" >/dev/null
}

up() {
  local docker base postgres
  mkdir -p "$dir"
  docker=$(choose_client)
  if [ -z "$docker" ] || ! timeout 20 "$docker" info >/dev/null 2>&1; then
    start_daemon
    docker=$(choose_client)
  fi
  say "Docker $("$docker" version --format '{{.Server.Version}}'), ${SECONDS} s"
  if ! "$docker" compose version >/dev/null 2>&1 && ! command -v docker-compose >/dev/null && can_install; then
    install_packages docker-compose
  fi
  base=$(choose_base)
  say "base $base, ${SECONDS} s"
  build_image flink-agents-tests/flink-agents
  say "image of docker/, ${SECONDS} s"
  if [ "$base" = debian:bookworm-slim ] && timeout 120 "$docker" pull -q postgres:16-bookworm >/dev/null 2>&1; then
    postgres=postgres:16-bookworm
  else
    postgres=flink-agents-tests/postgresql
    DOCKER_BUILDKIT=1 "$docker" build -q --build-arg "BASE_IMAGE=$base" -t "$postgres" \
      "$repository/tests/containers/postgresql" >/dev/null
  fi
  say "PostgreSQL, ${SECONDS} s"
  {
    printf 'export CONTAINERS_DOCKER=%q CONTAINERS_DIR=%q BASE_IMAGE=%q\n' "$docker" "$dir" "$base"
    printf 'export FLINK_AGENTS_IMAGE=%q POSTGRES_IMAGE=%q\n' flink-agents-tests/flink-agents "$postgres"
    # Its image cannot be had without a registry, and the tests end what they start.
    printf 'export TESTCONTAINERS_RYUK_DISABLED=true\n'
    [ -z "${DOCKER_HOST:-}" ] || printf 'export DOCKER_HOST=%q\n' "$DOCKER_HOST"
  } >"$dir/env"
}

down() {
  [ -d "$dir" ] || return 0
  if [ ! -f "$dir/pid" ]; then
    # Somebody else's daemon: only what was made for the tests goes.
    local docker images
    docker=$(choose_client)
    [ -n "$docker" ] || { rm -rf "$dir"; return; }
    images=$("$docker" image ls -q --filter reference='flink-agents-tests/*' 2>/dev/null | sort -u) || true
    [ -z "$images" ] || "$docker" image rm -f $images >/dev/null
    rm -rf "$dir"
    return
  fi
  local daemon each
  daemon=$(cat "$dir/pid")
  kill "$daemon" 2>/dev/null || true
  for _ in $(seq 150); do kill -0 "$daemon" 2>/dev/null || break; sleep 0.2; done
  for each in $(awk -v dir="$dir/" 'index($2, dir) == 1 {print $2}' /proc/mounts | sort -r); do umount -l "$each"; done
  # The daemon leaves its bridge and its rules behind.
  [ ! -f "$dir/no-docker0" ] || ip link delete docker0 2>/dev/null || true
  iptables-save 2>/dev/null | grep -vi docker | iptables-restore 2>/dev/null || true
  [ ! -s "$dir/forward" ] || iptables $(cat "$dir/forward") 2>/dev/null || true
  cat "$dir/ip_forward" >/proc/sys/net/ipv4/ip_forward
  rm -rf "$dir"
}

command=${1:-}
case "$command" in
  up | down)
    dir=$(realpath -m "${2:?DIR}")
    "$command"
    ;;
  build)
    dir=${CONTAINERS_DIR:?} docker=${CONTAINERS_DOCKER:?} base=${BASE_IMAGE:?}
    build_image "${2:?TAG}" --no-cache
    ;;
  *)
    say "prepare.sh up DIR | build TAG | down DIR"
    exit 2
    ;;
esac
