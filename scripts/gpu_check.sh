#!/usr/bin/env bash
# Checks and measures the CUDA device on a machine with a GPU, in at most ten minutes and without a network, and writes
# one JSON: what the machine has, the kernels' tests on the device (the optimizers' against the processor's bits, the
# trainer's against the double-precision reference), the link's rates, a short training run, and a step of a model whose
# layers are those of a 7B model under a cap on device memory.
#
#   scripts/gpu_check.sh [--device cuda:N] [--out FILE] [--work FOLDER]
#
#     --device   cuda:0 if not given
#     --out      build/gpu_check.json if not given
#     --work     a folder on the drive to use; build if not given. All goes to FOLDER/spillway-gpu-check, replaced
#     --rehearse LIBRARY   all of it in little, on a library that looks like the CUDA driver; builds nothing
#
# Exits 0 if every part passed, 1 if one failed (the JSON says which and why), 77 if there is nothing to check.
set -euo pipefail
device=cuda:0 out= folder= rehearse=
while (($#)); do
    case $1 in
        --device) device=$2 ;;
        --out) out=$2 ;;
        --work) folder=$2 ;;
        --rehearse) rehearse=$2 ;;
        *) sed -n '2,16s/^# \{0,1\}//p' "$0"; [[ $1 == -h || $1 == --help ]] && exit 0; exit 2 ;;
    esac
    shift 2
done
[[ -z $folder ]] || folder=$(realpath "$folder")
[[ -z $out ]] || out=$(realpath "$out")
[[ -z $rehearse ]] || rehearse=$(realpath "$rehearse")
cd "$(dirname "$0")/.."
: "${out:=$PWD/build/gpu_check.json}" "${folder:=$PWD/build}" "${SPILLWAY_BUILD:=$PWD/build/release}"
work=$folder/spillway-gpu-check
began=$SECONDS
rm -rf "$work"
mkdir -p "$work/parts" "$work/drive"

longest_s=590
if [[ -z $rehearse ]]; then
    tests='[gpu]'
    link=(--size 1GiB)
    short=(--model gpt2:6x384x6 --context 256 --batch 16 --seq 256 --lr 2e-3 --warmup 20 --budget 45s)
    step=(--model gpt2:4x4096x32 --vocab 32000 --context 1024 --batch 4 --seq 1024 --device-mem 8GiB --steps 3)
else
    mkdir "$work/lib"
    ln -s "$rehearse" "$work/lib/libcuda.so.1"
    export LD_LIBRARY_PATH=$work/lib
    tests='[gpu][quick]'
    link=(--size 1MiB --block 64KiB --passes 2)
    short=(--model gpt2:1x16x2 --context 8 --batch 2 --seq 8 --lr 2e-3 --warmup 1 --steps 2)
    step=(--model gpt2:1x32x2 --context 8 --batch 2 --seq 8 --device-mem 16MiB --steps 1)
fi

# part NAME SECONDS COMMAND...: the command's output goes to NAME.log, how it ended to NAME.end. What takes longer than
# its seconds, or than is left of the whole, has failed.
part() {
    local name=$1 limit=$2 left=$((longest_s - (SECONDS - began))) from=$SECONDS code=0
    shift 2
    ((limit < left)) || limit=$((left > 1 ? left : 1))
    printf '== %s\n' "$name"
    timeout --kill-after=10 "$limit" "$@" >"$work/parts/$name.log" 2>&1 || code=$?
    printf '%d %d\n' "$code" "$((SECONDS - from))" >"$work/parts/$name.end"
    ((code == 0)) || { echo "   failed with $code:"; tail -n 15 "$work/parts/$name.log" | sed 's/^/   /'; }
}
json_of() { printf '%s/parts/%s.json' "$work" "$1"; }

if [[ -z $rehearse ]]; then
    # Without a network nothing can be installed; what is there may be enough.
    part setup 60 bash -c 'scripts/setup.sh --cuda || true'
    part build 300 bash -c 'cmake --preset release &&
        cmake --build build/release --parallel "$(nproc)" --target spillway cuda_tests cuda_trainer_tests'
    [[ $(<"$work/parts/build.end") == "0 "* ]] || exit 1
fi
spillway=$SPILLWAY_BUILD/spillway
"$spillway" info --json "$(json_of info)" >/dev/null 2>&1
refusal=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["cuda"]["refusal"] or "")' "$(json_of info)")
[[ -z $refusal ]] || { echo "gpu_check: nothing to check: $refusal" >&2; exit 77; }

export SPILLWAY_TEST_DEVICE=$device
part optimizer_kernels 120 "$SPILLWAY_BUILD/cuda_tests" "$tests" --warn NoTests
part trainer_kernels 120 "$SPILLWAY_BUILD/cuda_trainer_tests" "$tests" --warn NoTests
part link 60 "$spillway" bench link --device "$device" "${link[@]}" --json "$(json_of link)"
both=(--data "$PWD/engine/data/kjv.txt" --device "$device" --profile "$work/profile.json")
part train 110 "$spillway" train "${short[@]}" "${both[@]}" --nvme "$work/drive" --out "$work/run" --json "$(json_of train)"
rm -rf "$work/run"
part step_7b 150 "$spillway" train "${step[@]}" "${both[@]}" --durable off --out "$work/step" --json "$(json_of step_7b)"
rm -rf "$work/step" "$work/drive"

python3 scripts/gpu_check_report.py "$work/parts" "$device" "$((SECONDS - began))" "$out"
