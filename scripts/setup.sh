#!/usr/bin/env bash
# Installs what building, testing and measuring need and what is missing, from Debian's packages.
#
#   scripts/setup.sh            compiler, CMake, libraries
#   scripts/setup.sh --python   also .venv with torch, for the tests that compare against it
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(g++ cmake ninja-build pkg-config git ca-certificates
          libhwy-dev libtbb-dev libaio1 liburing-dev libhwloc-dev libxxhash-dev libfmt-dev libcli11-dev
          nlohmann-json3-dev libopenblas-dev catch2 ccache clang-format python3)
[[ ${1:-} == --python ]] && packages+=(python3-venv python3-dev)

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

if [[ ${1:-} == --python ]] && ! .venv/bin/python -c 'import torch, safetensors, transformers, accelerate, peft, lightning' 2>/dev/null; then
    echo "setup: making .venv with torch (some minutes, 3 GB)"
    python3 -m venv .venv
    .venv/bin/pip install --quiet torch numpy safetensors transformers accelerate peft lightning
fi
echo "setup: ready"
