#!/bin/bash
# Any number of machines, without a scheduler: run this on each of them, with the same first two words.
#
#   ./torchrun.sh MACHINES FIRST_MACHINE NUMBER TEXT OUTPUT_DIR      NUMBER: 0 on FIRST_MACHINE, then 1, 2, ...
#
# From any folder: train.py is the one beside it. TEXT is any file, OUTPUT_DIR a folder; all machines see both.
# On each machine there is a process for each GPU, two where there is none, or as many as PROCESSES says.
set -euo pipefail
if [ $# -lt 5 ]; then
    echo "usage: $0 MACHINES FIRST_MACHINE NUMBER TEXT OUTPUT_DIR [--name value ...], as in $0 1 localhost 0 text.txt out" >&2
    exit 2
fi
if [ -z "${PROCESSES:-}" ]; then
    PROCESSES=2
    if nvidia-smi --list-gpus 2>/dev/null | grep -q '^GPU'; then PROCESSES=gpu; fi
fi
train=$(cd "$(dirname "$0")" && pwd)/train.py
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 machines=$1 first=$2 number=$3
exec torchrun --nnodes="$machines" --nproc-per-node="$PROCESSES" --max-restarts=3 --rdzv-backend=c10d --rdzv-id=kunren --rdzv-endpoint="$first:29400" --rdzv-conf="is_host=$([ "$number" = 0 ] && echo true || echo false)" "$train" "${@:4}"
