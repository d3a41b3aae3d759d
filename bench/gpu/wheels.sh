#!/bin/sh
# Packs this repository and the wheels that a machine with torch, Lightning and transformers lacks, for a GPU without a
# network:  bench/gpu/wheels.sh FOLDER. There: sh FOLDER/install, then python -m bench.gpu in FOLDER/tree.
set -eu
folder=${1:?"usage: bench/gpu/wheels.sh FOLDER"}
[ ! -e "$folder" ] || { echo "error: $folder exists: name a new folder" >&2; exit 2; }
root=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$folder/wheels" "$folder/tree"
python -m pip download -q --no-deps --only-binary :all: --python-version 3.12 --platform manylinux2014_x86_64 \
    --platform manylinux_2_28_x86_64 -d "$folder/wheels" \
    'jsonargparse>=4.53,<5' docstring-parser typeshed-client importlib-resources 'rich>=14,<16' markdown-it-py mdurl pygments \
    'babel>=2.16,<3' 'hatchling>=1.27,<2' pathspec pluggy trove-classifiers 'editables>=0.5,<1'
git -C "$root" archive HEAD zoo recipes bench plugins/zoo-flash plugins/zoo-flex pyproject.toml README.md LICENSE \
    | tar -x -C "$folder/tree"
cat >"$folder/install" <<'INSTALL'
#!/bin/sh
set -eu
cd "$(dirname "$0")"
python -m pip install -q --no-index --no-deps wheels/*.whl
python -m pip install -q --no-index --no-deps --no-build-isolation -e tree -e tree/plugins/zoo-flash -e tree/plugins/zoo-flex
INSTALL
size=$(du -sm "$folder" | cut -f1)
[ "$size" -le 64 ] || { echo "error: $folder has $size MiB, more than 64" >&2; exit 1; }
echo "$folder: $size MiB"
