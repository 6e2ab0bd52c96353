#!/bin/bash
# Any number of machines, without a scheduler: run this on each of them, with the same first two words.
#
#   ./torchrun.sh MACHINES FIRST_MACHINE NUMBER TEXT OUTPUT_DIR      NUMBER: 0 on FIRST_MACHINE, then 1, 2, ...
set -euo pipefail
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 machines=$1 first=$2 number=$3
exec torchrun --nnodes="$machines" --nproc-per-node=gpu --max-restarts=3 --rdzv-backend=c10d --rdzv-id=kunren --rdzv-endpoint="$first:29400" --rdzv-conf="is_host=$([ "$number" = 0 ] && echo true || echo false)" train.py "${@:4}"
