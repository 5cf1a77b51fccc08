#!/usr/bin/env bash
# Builds the wheel of the Python package as `pip install .` does, installs it into a clean virtual environment
# and runs the example of its documentation there. The wheel stays in build/python/.
#
#   scripts/python_package.sh           the above
#   scripts/python_package.sh --tests   also installs the wheel into .venv, where the tests find it
set -euo pipefail
cd "$(dirname "$0")/.."
python=.venv/bin/python
[[ -x $python ]] || python=python3

rm -rf build/python/wheel
began=$SECONDS
# The compiler that CMake takes by itself, so that a compiler cache knows what the program's build has compiled.
export CC=${CC:-cc} CXX=${CXX:-c++}
"$python" -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir build/python/wheel \
    --config-settings=build-dir=build/python/cmake \
    --config-settings=cmake.define.SPILLWAY_WARNINGS_AS_ERRORS=ON .
wheels=(build/python/wheel/spillway-*.whl)
echo "python package: built ${wheels[0]} ($(stat -c %s "${wheels[0]}") bytes) in $((SECONDS - began)) s"

"$python" - "${wheels[0]}" <<'PY'
import sys
import zipfile

names = zipfile.ZipFile(sys.argv[1]).namelist()
strange = [name for name in names if not name.startswith("spillway") or name.endswith((".h", ".a", ".cpp", ".pyc"))]
needed = {"spillway/__init__.py", "spillway/py.typed", "spillway/_core.pyi"} - set(names)
native = [name for name in names if name.startswith("spillway/_core.") and name.endswith(".so")]
if strange or needed or len(native) != 1:
    sys.exit(f"the wheel has {strange}, lacks {sorted(needed)}, native modules {native}")
PY

"$python" -m venv --clear build/python/clean
build/python/clean/bin/pip install --quiet --disable-pip-version-check "${wheels[0]}"
(cd build/python && clean/bin/python -c '
import doctest, sys, spillway
tried = doctest.testmod(spillway)
print(f"python package: spillway {spillway.__version__}, example: {tried.attempted} lines ran, {tried.failed} failed")
sys.exit(bool(tried.failed or not tried.attempted))')

if [[ ${1:-} == --tests ]]; then
    .venv/bin/pip install --quiet --disable-pip-version-check --no-deps --force-reinstall "${wheels[0]}"
    echo "python package: installed into .venv"
fi
