"""A CPU tells what it is; a compiler is told what it may use. Answers of CPUID are made up here: no CPU is needed."""

from __future__ import annotations

import dataclasses
import json
import struct
import subprocess
import sys

import pytest
from conftest import TIMEOUT_S, launcher_environment

from mpitrain.cluster.cpu import cpuid, identity
from mpitrain.cluster.cpu.compiler_flags import build_identity, fuses_products, instruction_flags
from mpitrain.cluster.cpu.cpuid import CpuidAnswers
from mpitrain.cluster.cpu.identity import CpuIdentity, detect_cpu, identity_from_cpuid, identity_from_hwcap
from mpitrain.errors import ConfigError

V2 = ("sse3", "ssse3", "sse4.1", "sse4.2", "popcnt", "cx16", "sahf")
V3 = (*V2, "movbe", "bmi", "bmi2", "lzcnt", "avx", "f16c", "fma", "avx2")
V4 = (*V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
EVERYTHING = 0xFFFFFFFF
ZEN5_SIGNATURE = 0x00B00F21  # family 0xF + 0xB, model 0x2
SKYLAKE_SIGNATURE = 0x00050654


def played_cpu(
    vendor: bytes, signature: int, xcr0: int, features: int = EVERYTHING, largest_leaf: int = 0x1F
) -> CpuidAnswers:
    """A CPU with all instruction sets, as far as its leaves reach."""
    words = struct.unpack("<3I", vendor)
    brand = struct.unpack("<12I", b"A  Brand of its own  ".ljust(48, b"\0"))

    def ask(leaf: int, subleaf: int) -> tuple[int, int, int, int]:
        assert subleaf == 0
        if leaf in (0, 0x80000000):
            return (largest_leaf if leaf == 0 else 0x80000004, words[0], words[2], words[1])
        if 0x80000002 <= leaf <= 0x80000004:
            first = 4 * (leaf - 0x80000002)
            return brand[first], brand[first + 1], brand[first + 2], brand[first + 3]
        return (signature, features, features, features)

    return CpuidAnswers(ask, xcr0)


def test_an_amd_cpu_with_avx512():
    cpu = identity_from_cpuid(played_cpu(b"AuthenticAMD", ZEN5_SIGNATURE, 0xE7))
    assert (cpu.vendor, cpu.family, cpu.model, cpu.brand) == ("AuthenticAMD", 26, 2, "A Brand of its own")
    assert cpu.instruction_sets == V4
    assert str(cpu) == f"AuthenticAMD family 26 model 2 (A Brand of its own); instruction sets: {' '.join(V4)}"


def test_an_intel_cpu_has_a_long_model_number_and_a_short_family():
    cpu = identity_from_cpuid(played_cpu(b"GenuineIntel", SKYLAKE_SIGNATURE, 0xE7))
    assert (cpu.vendor, cpu.family, cpu.model) == ("GenuineIntel", 6, 85)


@pytest.mark.parametrize(("xcr0", "expected"), [(0xE7, V4), (0x07, V3), (0x01, (*V2, *V3[7:11])), (0x67, V3)])
def test_registers_that_the_system_does_not_save_are_not_there(xcr0, expected):
    assert identity_from_cpuid(played_cpu(b"GenuineIntel", SKYLAKE_SIGNATURE, xcr0)).instruction_sets == expected


def test_a_leaf_that_an_old_cpu_has_not_is_not_believed():
    found = identity_from_cpuid(played_cpu(b"GenuineIntel", SKYLAKE_SIGNATURE, 0xE7, largest_leaf=5)).instruction_sets
    assert found is not None
    assert set(V4) - set(found) == {"bmi", "bmi2", "avx2", *V4[15:]}


def test_a_cpu_without_any():
    assert identity_from_cpuid(played_cpu(b"GenuineIntel", 0x0F4A, 0, features=0)).instruction_sets == ()


def test_flags_spell_out_what_is_there_and_name_no_native_architecture():
    cpu = identity_from_cpuid(played_cpu(b"AuthenticAMD", ZEN5_SIGNATURE, 0x07))
    assert instruction_flags(cpu) == ("-march=x86-64", *(f"-m{name}" for name in V3), "-mtune=native")
    assert instruction_flags(dataclasses.replace(cpu, instruction_sets=())) == ("-march=x86-64", "-mtune=native")


def test_flags_of_aarch64():
    assert instruction_flags(identity_from_hwcap(0b11)) == ("-march=armv8-a", "-mtune=native")
    assert instruction_flags(identity_from_hwcap(1 << 8 | 1 << 22 | 3)) == ("-march=armv8-a+lse+sve", "-mtune=native")


def test_every_difference_is_another_build():
    cpu = identity_from_cpuid(played_cpu(b"AuthenticAMD", ZEN5_SIGNATURE, 0xE7))
    others = [
        dataclasses.replace(cpu, instruction_sets=V3), dataclasses.replace(cpu, model=3),
        dataclasses.replace(cpu, vendor="GenuineIntel"), dataclasses.replace(cpu, instruction_sets=None),
    ]  # fmt: skip
    assert len({build_identity(each) for each in (cpu, *others)}) == 5


def test_a_cpu_that_cannot_be_asked_shares_nothing_with_other_nodes(monkeypatch):
    monkeypatch.setattr(cpuid, "_make_executable", lambda address: False)
    unknown = identity.detect_cpu.__wrapped__()
    assert unknown.instruction_sets is None
    assert instruction_flags(unknown) == ("-march=native",)
    here = build_identity(unknown)
    monkeypatch.setattr("platform.node", lambda: "another-node")
    assert build_identity(unknown) != here


def test_this_cpu_has_what_numpy_finds_in_it():
    """numpy asks CPUID by itself."""
    umath = pytest.importorskip("numpy._core._multiarray_umath")
    found = detect_cpu()
    if found.architecture != "x86_64":
        pytest.skip("an x86-64 CPU's instruction sets")
    assert found.instruction_sets is not None
    names = {"AVX": "avx", "FMA3": "fma", "AVX2": "avx2", "AVX512F": "avx512f", "SSE42": "sse4.2"}
    both = {ours: umath.__cpu_features__[name] for name, ours in names.items() if name in umath.__cpu_features__}
    assert len(both) >= 3
    assert {name: name in found.instruction_sets for name in both} == both


def test_the_module_prints_it_as_json():
    done = subprocess.run(
        [sys.executable, "-m", "mpitrain.cluster.cpu.identity"],
        env=launcher_environment(), capture_output=True, text=True, timeout=TIMEOUT_S, check=True,
    )  # fmt: skip
    answer = json.loads(done.stdout)
    sets = answer.pop("instruction_sets")
    assert CpuIdentity(**answer, instruction_sets=tuple(sets)) == detect_cpu()


def test_a_named_set_is_spelt_out_and_is_the_same_build_on_all_cpus_that_have_it():
    one, other = (
        dataclasses.replace(identity_from_cpuid(played_cpu(b"GenuineIntel", SKYLAKE_SIGNATURE, 0x07)), model=model)
        for model in (60, 61)
    )
    assert instruction_flags(one, "x86-64-v3") == ("-march=x86-64", *(f"-m{name}" for name in V3))
    assert build_identity(one, "x86-64-v3") == build_identity(other, "x86-64-v3")
    assert build_identity(one) != build_identity(other)
    assert instruction_flags(one, "x86-64") == ("-march=x86-64",)


def test_what_the_cpu_lacks_is_refused_by_name():
    cpu = identity_from_cpuid(played_cpu(b"GenuineIntel", SKYLAKE_SIGNATURE, 0x07))
    with pytest.raises(ConfigError, match=r"compute.instruction_set=x86-64-v4: the CPU of .* lacks avx512f avx512bw"):
        instruction_flags(cpu, "x86-64-v4")
    with pytest.raises(ConfigError, match=r"armv8-a: the CPU of .* is x86_64; give one that all nodes"):
        instruction_flags(cpu, "armv8-a")
    with pytest.raises(ConfigError, match=r"x86-64-v2: the CPU of .* is aarch64"):
        instruction_flags(identity_from_hwcap(3), "x86-64-v2")


def test_fused_products_are_looked_for_in_the_flags():
    cpu = identity_from_cpuid(played_cpu(b"GenuineIntel", SKYLAKE_SIGNATURE, 0x07))
    assert fuses_products(cpu)
    assert fuses_products(cpu, "x86-64-v3")
    assert not fuses_products(cpu, "x86-64-v2")
    assert fuses_products(identity_from_hwcap(3))
