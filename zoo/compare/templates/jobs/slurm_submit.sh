#!/bin/sh
# Submits {{ shards }} jobs, and the one that prints the table when they have ended. Relative paths of the command are
# those of the folder from which this is called: sh {{ folder }}/submit.sh
set -e
shards=$(sbatch --parsable {{ folder }}/shards.sbatch)
table=$(sbatch --parsable --dependency=afterany:"${shards%%;*}" {{ folder }}/table.sbatch)
echo "shards: job ${shards%%;*}, {{ folder }}/shard-*.log"
echo "table:  job ${table%%;*}, {{ folder }}/table.log"
