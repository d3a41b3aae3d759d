#!/bin/sh
# All {{ shards }} shards at once on this machine, then the table: sh {{ folder }}/run.sh
# The same call goes on after a kill. Ctrl-C and SIGTERM let runs save their state.
{% if gpus %}
devices=${CUDA_VISIBLE_DEVICES-$(nvidia-smi --query-gpu=index --format=csv,noheader | paste -sd, -)}
number=$(printf '%s' "$devices" | tr ',' '\n' | grep -c .)
if [ "$number" -lt {{ shards * gpus }} ]; then
    echo "{{ shards }} shards need {{ shards * gpus }} GPUs here, and there are $number: run shards elsewhere" \
        "(sh {{ folder }}/shard.sh I), or emit fewer." >&2
    exit 2
fi
{% endif %}
cores=$(nproc)
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$((cores > {{ shards }} ? cores / {{ shards }} : 1))}"
processes=
trap 'kill -TERM $processes 2>/dev/null; wait; exit 143' INT TERM
for shard in $(seq {{ shards }}); do
{% if gpus %}
    share=$(printf '%s\n' "$devices" | cut -d , -f "$(((shard - 1) * {{ gpus }} + 1))-$((shard * {{ gpus }}))")
    CUDA_VISIBLE_DEVICES="$share" sh {{ folder }}/shard.sh "$shard" >>"{{ folder }}/shard-$shard.log" 2>&1 &
{% else %}
    sh {{ folder }}/shard.sh "$shard" >>"{{ folder }}/shard-$shard.log" 2>&1 &
{% endif %}
    processes="$processes $!"
done
for process in $processes; do
    wait "$process" || echo "a shard ended with exit code $?: see {{ folder }}/shard-*.log" >&2
done
{{ command }} &
processes=$!
wait "$processes"
