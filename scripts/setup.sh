#!/usr/bin/env bash
# Installs what building, testing and measuring need and what is missing, from Debian's packages.
#
#   scripts/setup.sh            compiler, CMake, libraries
#   scripts/setup.sh --venv     also .venv, with nothing in it
#   scripts/setup.sh --python   also .venv with torch, for the tests that compare against it
#   scripts/setup.sh --cuda     also .cuda with nvcc, where the machine has none, for the kernels of the CUDA device
#   scripts/setup.sh --peers    also fio, which the storage engine is measured against
set -euo pipefail
cd "$(dirname "$0")/.."

with_venv=false
with_python=false
with_cuda=false
with_peers=false
for argument in "$@"; do
    case $argument in
        --venv) with_venv=true ;;
        --python) with_venv=true with_python=true ;;
        --cuda) with_cuda=true ;;
        --peers) with_peers=true ;;
        *) echo "setup: $argument is no option; there are --venv, --python, --cuda and --peers" >&2; exit 2 ;;
    esac
done

packages=(g++ cmake ninja-build pkg-config git ca-certificates
          libhwy-dev libtbb-dev libaio1 liburing-dev libhwloc-dev libxxhash-dev libfmt-dev libcli11-dev
          nlohmann-json3-dev libopenblas-dev catch2 libbenchmark-dev ccache clang-format python3
          e2fsprogs mount) # the last two make the small disks of the storage tests
$with_venv && packages+=(python3-venv python3-dev)
$with_peers && packages+=(fio)
has_nvcc() { command -v nvcc || [[ -x /usr/local/cuda/bin/nvcc || -x .cuda/nvidia/cu13/bin/nvcc ]]; }
$with_cuda && { has_nvcc >/dev/null && with_cuda=false || packages+=(python3-venv); }

missing=()
for package in "${packages[@]}"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
done

if ((${#missing[@]})); then
    echo "setup: installing ${missing[*]}"
    as_root=()
    ((EUID == 0)) || as_root=(sudo)
    "${as_root[@]}" apt-get update -q >/dev/null
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends \
        "${missing[@]}" >/dev/null
fi

if $with_venv && [[ ! -x .venv/bin/python3 ]]; then
    python3 -m venv .venv
fi
if $with_python && ! .venv/bin/python -c 'import torch, safetensors, transformers, accelerate, peft, lightning' 2>/dev/null; then
    echo "setup: installing torch into .venv (some minutes, 3 GB)"
    .venv/bin/pip install --quiet torch numpy safetensors transformers accelerate peft lightning
fi
if $with_cuda; then
    echo "setup: making .cuda with nvcc (300 MB)"
    python3 -m venv .cuda/pip
    .cuda/pip/bin/pip install --quiet --no-deps --target .cuda \
        nvidia-cuda-nvcc==13.0.* nvidia-nvvm==13.0.* nvidia-cuda-crt==13.0.* nvidia-cuda-runtime==13.0.*
fi
echo "setup: ready"
