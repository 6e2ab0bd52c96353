#!/bin/bash
# Any number of machines, without a scheduler: run this on each of them, with the same first two words.
#
#   ./kunren_launch.sh MACHINES FIRST_MACHINE NUMBER TEXT OUTPUT_DIR      NUMBER: 0 on FIRST_MACHINE, then 1, 2, ...
set -euo pipefail
exec kunren launch --nodes "$1" --rendezvous "$2" --node-rank "$3" --max-restarts 3 train.py "${@:4}"
