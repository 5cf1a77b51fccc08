#!/usr/bin/env bash
# From a bare Debian 12 machine to a trained model: installs what is missing, builds, and trains a byte-level
# GPT-2 on the text in engine/data/ for three minutes, with a simulated accelerator smaller than the
# weights, a host budget smaller than the optimizer state, and the rest on the drive that holds FOLDER.
#
#   scripts/quickstart.sh [FOLDER]        default: build; all goes to FOLDER/spillway-quickstart, which is replaced
set -euo pipefail
if [[ $# -gt 1 || ${1:-} == -* ]]; then
    sed -n '2,7s/^# \{0,1\}//p' "$0"
    [[ ${1:-} == -h || ${1:-} == --help ]] && exit 0
    exit 2
fi
[[ $# -eq 0 || -d $1 ]] || { echo "quickstart: $1 is no folder: name an existing one on the drive to use" >&2; exit 2; }
folder=$(realpath "${1:-.}")
cd "$(dirname "$0")/.."
[[ $# -eq 1 ]] || folder=$PWD/build
work=$folder/spillway-quickstart

scripts/setup.sh
cmake --preset release -DSPILLWAY_TESTS=OFF -B build/release >/dev/null
cmake --build build/release --parallel "$(nproc)" --target spillway

rm -rf "$work"
mkdir -p "$work/drive"
build/release/spillway train \
    --model gpt2:6x384x6 --context 256 --data "$PWD/engine/data/kjv.txt" \
    --batch 2 --seq 256 --lr 2e-3 --warmup 20 --schedule linear --weight-decay 0.1 \
    --device sim:36MiB@8GB/s --host-mem 80MiB --nvme "$work/drive" \
    --budget 170s --out "$work/run" --json "$work/result.json"

build/release/spillway generate "$work/run" --prompt "And the LORD said" --tokens 300 --temperature 0.8 --seed 1

python3 - "$work/result.json" <<'PY'
import json, sys
result = json.load(open(sys.argv[1]))
loss, attained = result["loss"]["eval"], result["attained"]
print(f"\nquickstart: held-out loss {loss:.3f} nats per byte, attained {attained:.2f} of the bound ({result['bound_by']})")
sys.exit(0 if loss < 2.4 else "quickstart: the loss should be under 2.4")
PY
echo "quickstart: done; the run is in $work/run, the figures in $work/result.json"
