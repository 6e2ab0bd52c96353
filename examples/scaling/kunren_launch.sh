#!/bin/bash
# Any number of machines, without a scheduler: run this on each of them, with the same first two words.
#
#   ./kunren_launch.sh MACHINES FIRST_MACHINE NUMBER TEXT OUTPUT_DIR      NUMBER: 0 on FIRST_MACHINE, then 1, 2, ...
#
# From any folder: train.py is the one beside it. TEXT is any file, OUTPUT_DIR a folder; all machines see both.
set -euo pipefail
if [ $# -lt 5 ]; then
    echo "usage: $0 MACHINES FIRST_MACHINE NUMBER TEXT OUTPUT_DIR [--name value ...], as in $0 1 localhost 0 text.txt out" >&2
    exit 2
fi
train=$(cd "$(dirname "$0")" && pwd)/train.py
exec kunren launch --nodes "$1" --rendezvous "$2" --node-rank "$3" --max-restarts 3 "$train" "${@:4}"
