#!/usr/bin/env bash
# Two hosts on one machine: network namespaces with addresses and host names of their own, which reach
# each other over a pair of virtual interfaces and nothing else. Needs root and iproute2.
#
#   two-hosts.sh up              makes them
#   two-hosts.sh run COMMAND...  runs a command on the first; this script is a remote shell between them:
#   two-hosts.sh [OPTION...] ADDRESS COMMAND...  runs a command on the host with this address
#   two-hosts.sh bytes           bytes that the first host has sent to the second
#   two-hosts.sh down            removes them
set -euo pipefail

first=partita-a
second=partita-b
first_address=10.213.77.1
second_address=10.213.77.2
# On both hosts; the test tells it to libraries that would take the loopback.
device=partita-v

on() { # namespace, command...
    local namespace=$1
    shift
    # The host name is what ranks tell each other, so it differs as the addresses do.
    exec ip netns exec "$namespace" unshare --uts sh -c \
        'hostname "$0" 2> /dev/null; exec "$@"' "$namespace" "$@"
}

up() {
    down
    ip netns add "$first"
    ip netns add "$second"
    ip link add "$device" netns "$first" type veth peer name "$device" netns "$second"
    ip -n "$first" address add "$first_address/24" dev "$device"
    ip -n "$second" address add "$second_address/24" dev "$device"
    for namespace in "$first" "$second"; do
        ip -n "$namespace" link set lo up
        ip -n "$namespace" link set "$device" up
    done
    for namespace in "$first" "$second"; do
        for _ in {1..50}; do
            [ "$(ip netns exec "$namespace" cat "/sys/class/net/$device/operstate")" = up ] && break
            sleep 0.1
        done
    done
}

down() {
    for namespace in "$first" "$second"; do
        ip netns delete "$namespace" 2> /dev/null || true
    done
}

case "${1:-}" in
    up) up ;;
    down) down ;;
    bytes) ip netns exec "$first" cat "/sys/class/net/$device/statistics/tx_bytes" ;;
    run)
        shift
        on "$first" "$@"
        ;;
    *)
        # Launchers put options of ssh before the host.
        while [[ ${1:-} == -* ]]; do shift; done
        address=$1
        shift
        case "$address" in
            "$first_address") on "$first" sh -c "$*" ;;
            "$second_address") on "$second" sh -c "$*" ;;
            *)
                echo "two-hosts.sh: no host $address" >&2
                exit 1
                ;;
        esac
        ;;
esac
