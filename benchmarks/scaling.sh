#!/usr/bin/env bash
# Data-parallel training on 1, 2, 4 and 8 GPUs, as many as there are: blutrain compiled, ZeRO-1 and eager against torch DDP and DDP
# with torch.compile, TF32 and bf16, 8 x 1024 tokens a GPU, interleaved in one run for each number of GPUs.
#
#     benchmarks/scaling.sh [RESULTS]      # RESULTS.json, .md (the table), .png (the plot) and traces; bench-results/scaling
#
# The largest number of GPUs comes first. No part is begun after BUDGET seconds (380), none runs longer than PART (240) seconds; what is
# known by then is kept.
# COUNTS="2 1" FLAGS="--preset 46M --batch-size 8" DEVICE=cpu PRECISIONS="fp32,bf16" PYTHON=... change what their names say.
set -u
cd "$(dirname "$0")/.." || exit
results=${1:-bench-results/scaling}
python=${PYTHON:-python3}
device=${DEVICE:-cuda}
part=${PART:-240}
flags="--device $device --precisions ${PRECISIONS:-tf32,bf16} ${FLAGS:---preset 144M --batch-size 8}"
subjects=${SUBJECTS:-compiled,sharded,eager,torch,torch.compile}
present=$([ "$device" = cpu ] && nproc || nvidia-smi -L | wc -l)
export NCCL_NVLS_ENABLE=0 # multicast can put a shared host's GPUs out of service

mkdir -p "$(dirname "$results")"
rm -f "$results.parts"
for count in ${COUNTS:-8 4 2 1}; do
    [ "$count" -gt "$present" ] && continue
    if [ "$SECONDS" -gt "${BUDGET:-380}" ]; then
        echo "left out for time: $count ranks" | tee -a "$results.log"
        continue
    fi
    echo "== ${SECONDS}s: $count ranks"
    timeout "$part" "$python" -m blutrain.distributed.launch --nproc-per-node "$count" benchmarks/ddp.py $flags \
        --subjects "$subjects" --budget "$((part / 2))" --trace "$results-$count.trace.json" --json "$results.parts" \
        >"$results.last" 2>&1 || { echo "failed: $count ranks" && tail -5 "$results.last"; } | tee -a "$results.log"
done
"$python" benchmarks/scaling_report.py "$results.parts" --json "$results.json" --table "$results.md" --plot "$results.png"
