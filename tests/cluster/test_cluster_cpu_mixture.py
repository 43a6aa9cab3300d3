"""Ranks on CPUs of several kinds are told apart by what a library chooses its instructions by."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mpitrain.cluster.cpu.identity import CpuIdentity
from mpitrain.cluster.cpu.mixture import describe_mixture

pytestmark = pytest.mark.fast

XEON = CpuIdentity("x86_64", "GenuineIntel", 6, 85, "Xeon Gold 6148 CPU @ 2.40GHz", ("avx2", "avx512f"))
EPYC = CpuIdentity("x86_64", "AuthenticAMD", 25, 1, "EPYC 7763", ("avx2",))


def test_one_kind_is_not_worth_a_word() -> None:
    assert describe_mixture([XEON]) is None
    assert describe_mixture([XEON, replace(XEON, brand="Xeon Gold 6152 CPU @ 2.10GHz"), XEON]) is None


def test_kinds_are_named_with_their_ranks() -> None:
    said = describe_mixture([XEON, XEON, XEON, EPYC, XEON])
    assert said == f"ranks 0-2,4 on {XEON.name}, rank 3 on {EPYC.name}"
    assert describe_mixture([XEON, replace(XEON, instruction_sets=("avx2",))]) is not None
    assert describe_mixture([EPYC, XEON, EPYC]) == f"ranks 0,2 on {EPYC.name}, rank 1 on {XEON.name}"
