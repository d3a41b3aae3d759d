#!/bin/sh
# Shard I of {{ shards }}, all variants of its seeds, on this machine: sh {{ folder }}/shard.sh I
# Machines must share the folder from which this is called. The same call goes on after a kill.
case "${1:-}" in
'' | *[!0-9]*)
    echo "usage: sh {{ folder }}/shard.sh I, with I from 1 to {{ shards }}" >&2
    exit 2
    ;;
esac
exec {{ command }} --shard "$1/{{ shards }}"
