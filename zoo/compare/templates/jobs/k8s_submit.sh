#!/bin/sh
# Creates {{ shards }} pods, waits for them, and creates the one that prints the table: sh {{ folder }}/submit.sh
# The volume of the claim must have what the command names. A waiting that is interrupted goes on when called again.
set -e
kubectl apply -f {{ folder }}/shards.yaml
until kubectl get job {{ names.shards }} -o 'jsonpath={.status.conditions[*].type}' | grep -Eqw 'Complete|Failed'; do
    sleep "${POLL_SECONDS:-20}"
done
kubectl apply -f {{ folder }}/table.yaml
echo "table: kubectl logs --follow job/{{ names.table }}"
