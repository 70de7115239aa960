#!/usr/bin/env bash
# Data-parallel training on 1, 2, 4 and 8 GPUs, as many as there are: blutrain eager and compiled against torch DDP and DDP with
# torch.compile, TF32 and bf16, 8 x 1024 tokens a GPU; all but eager interleaved in one run.
#
#     benchmarks/scaling.sh [RESULTS]      # RESULTS.json, .md (the table) and .png (the plot); bench-results/scaling
#
# The largest number of GPUs comes first. No part is begun after BUDGET seconds (380), none runs longer than PART (100).
# COUNTS="2 1" FLAGS="--preset 46M --batch-size 8" DEVICE=cpu PRECISIONS="fp32 bf16" PYTHON=... change what their names say.
set -u
cd "$(dirname "$0")/.." || exit
results=${1:-bench-results/scaling}
python=${PYTHON:-python3}
device=${DEVICE:-cuda}
flags="--device $device ${FLAGS:---preset 144M --batch-size 8}"
precisions=${PRECISIONS:-tf32 bf16}
present=$([ "$device" = cpu ] && nproc || nvidia-smi -L | wc -l)
export NCCL_NVLS_ENABLE=0 # multicast can put a shared host's GPUs out of service

mkdir -p "$(dirname "$results")"
rm -f "$results.parts"
part() { # number of GPUs, arguments of benchmarks/ddp.py
    count=$1 && shift
    if [ "$SECONDS" -gt "${BUDGET:-380}" ]; then
        echo "left out for time: $count x $*" | tee -a "$results.log"
        return
    fi
    echo "== ${SECONDS}s: $count x $*"
    timeout "${PART:-100}" "$python" -m blutrain.distributed.launch --nproc-per-node "$count" \
        benchmarks/ddp.py "$@" $flags --json "$results.parts" \
        >"$results.last" 2>&1 || { echo "failed: $count x $*" && tail -5 "$results.last"; } | tee -a "$results.log"
}

for count in ${COUNTS:-8 4 2 1}; do
    [ "$count" -gt "$present" ] && continue
    for precision in $precisions; do
        part "$count" --precision "$precision" --peers
        [ "$precision" = bf16 ] || part "$count" --precision "$precision" --no-compile
    done
done
"$python" benchmarks/scaling_report.py "$results.parts" --json "$results.json" --table "$results.md" --plot "$results.png"
