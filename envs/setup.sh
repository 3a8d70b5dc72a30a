#!/usr/bin/env bash
# Install or renew one of the locks beside this script, with uv:
#
#     envs/setup.sh install LOCK FOLDER               add LOCK.txt to the Python environment FOLDER
#     envs/setup.sh compile LOCK FOLDER [--upgrade]   resolve LOCK.in into LOCK.txt
#
# LOCK is cpu, dev, cuda, tools, uv, or that of another version of an engine, such as vllm-0.25.1-cpu. With cpu, cuda
# and tools the command `kvsweep` of this checkout is installed too, unless there is only envs/, as in a container. If
# FOLDER is not an environment yet, it is created with the Python that PYTHON names, with python3.11, or with a Python
# 3.11 that uv downloads. Installing removes nothing, so that dev can be installed on top of cpu. Call it from the
# repository's root.
set -euo pipefail

verb=$1 lock=$2 folder=$3
shift 3

is_python311() { "$1" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; }

# Print the path of a Python 3.11 that is not on PATH: one that uv finds or downloads. If there is no uv, it is
# installed temporarily with any Python 3.
other_python311() (
    if ! uv=$(command -v uv); then
        scratch=$(mktemp -d) && trap 'rm -rf "$scratch"' EXIT &&
            python3 -m venv "$scratch" >&2 &&
            "$scratch/bin/python" -m pip install --quiet --require-hashes --requirement envs/uv.txt >&2 || exit
        uv=$scratch/bin/uv
    fi
    "$uv" python find --system 3.11 2>/dev/null ||
        { UV_PYTHON_INSTALL_BIN=0 "$uv" python install 3.11 >&2 && "$uv" python find --system 3.11; }
)

if [ ! -x "$folder/bin/pip" ]; then
    python=${PYTHON:-python3.11} wrong="'${PYTHON:-}' is not one"
    if [ -z "${PYTHON:-}" ] && ! is_python311 "$python"; then
        echo "envs/setup.sh: no python3.11 here; asking uv for one" >&2
        python=$(other_python311) || wrong="uv found none and could not fetch one"
    fi
    if ! is_python311 "$python"; then
        echo "envs/setup.sh: the locks are for Python 3.11, and $wrong. Install it, name it" \
            "(PYTHON=/path/to/python3.11 make ...), or name a mirror for uv (UV_PYTHON_INSTALL_MIRROR)." >&2
        exit 2
    fi
    "$python" -m venv "$folder"
fi
"$folder/bin/python" -m pip install --quiet --require-hashes --requirement envs/uv.txt

# uv does not read pip's settings: pass on those that say where packages are.
pip_settings=$("$folder/bin/python" -m pip config list)
pip_setting() { sed -nE "/^(:env:|global)\.$1='(.*)'$/{s//\2/p;q}" <<<"$pip_settings"; }
export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$(pip_setting index-url)}
if [[ $lock != *cuda ]]; then # for cuda, a CPU build of torch in that folder would be taken for the CUDA build
    find_links=$(pip_setting find-links)
    export UV_FIND_LINKS=${UV_FIND_LINKS:-${find_links// /,}}
fi

# Only the one package without a wheel is built from source.
options=(--only-binary :all: --no-binary connection-pool)
if grep -qs '^torch==.*+cpu' "envs/$lock.in"; then
    # The default index has no CPU build of torch. Without a folder that holds one, uv takes torch,
    # and nothing else of this lock, from PyTorch's own index.
    if [ -z "$(find /dev/null ${UV_FIND_LINKS//,/ } -name 'torch-*cpu*.whl' 2>/dev/null)" ]; then
        options+=(--torch-backend cpu)
    fi
fi

case $verb in
install)
    # The lock is complete, so dependencies are not resolved again, and excluded packages stay out.
    "$folder/bin/uv" pip install --python "$folder" --no-deps --require-hashes \
        --build-constraints "envs/$lock.txt" --requirement "envs/$lock.txt" "${options[@]}" "$@"
    case $lock in cpu | cuda | tools) # `kvsweep` runs the code of this checkout; the lock's hatchling installs it
        [ ! -e pyproject.toml ] || "$folder/bin/uv" pip install --python "$folder" --quiet --offline --no-deps \
            --no-build-isolation --editable .
        ;;
    esac
    ;;
compile)
    glibc=2_31 excludes=envs/${lock##*-}.excludes.txt
    [[ $lock != sglang-* ]] || glibc=2_34 excludes=envs/sglang-${lock##*-}.excludes.txt # as its wheels need
    [ ! -e "$excludes" ] || options+=(--excludes "$excludes")
    # uv's settings for an old version: versions to replace, and the day up to which packages count.
    [ ! -e "envs/${lock%-*}.toml" ] || options+=(--config-file "envs/${lock%-*}.toml")
    exec "$folder/bin/uv" pip compile "envs/$lock.in" --output-file "envs/$lock.txt" --quiet \
        --python-version 3.11 --python-platform "x86_64-manylinux_$glibc" --generate-hashes \
        --no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock' "${options[@]}" "$@"
    ;;
*)
    echo "envs/setup.sh: install or compile, not '$verb'" >&2
    exit 2
    ;;
esac
