#!/usr/bin/env bash
# Formats every source file, or with --check only says which are not formatted (and fails).
set -euo pipefail
cd "$(dirname "$0")/.."
mapfile -t files < <(git ls-files -co --exclude-standard '*.h' '*.cpp' '*.cu' '*.cuh')
if [[ ${1:-} == --check ]]; then
    clang-format --dry-run --Werror "${files[@]}"
    echo "format: ${#files[@]} files are formatted"
else
    clang-format -i "${files[@]}"
fi
