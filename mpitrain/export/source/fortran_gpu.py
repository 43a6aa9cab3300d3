"""Procedures of a Fortran module that kernels on a GPU may call: those of one sample, and all that they call."""

from __future__ import annotations

import re

_CALLED = ("forward_one", "tangent_linear_one", "adjoint_one", "jacobian_one")
_PROCEDURE = re.compile(
    r"^  pure [^\n!]*?(?:subroutine|function) (?P<name>\w+)\(.*?^  end (?:subroutine|function) \w+\n",
    re.DOTALL | re.MULTILINE,
)
_HEAD = re.compile(r"\A(?:[^\n]*&\n)*[^\n]*\n")
_DIRECTIVES = "    !$omp declare target\n    !$acc routine seq\n"


def gpu_callable(procedures: str) -> str:
    """Return the text of procedures with the directives of OpenMP and OpenACC in those that kernels may call."""
    texts = {found["name"]: found[0] for found in _PROCEDURE.finditer(procedures)}
    wanted, seen = list(_CALLED), set[str]()
    while wanted:
        name = wanted.pop()
        if name not in seen:
            seen.add(name)
            wanted += set(re.findall(r"\b(\w+)\(", texts[name])) & set(texts)
    return _PROCEDURE.sub(
        lambda found: _HEAD.sub(rf"\g<0>{_DIRECTIVES}", found[0]) if found["name"] in seen else found[0], procedures
    )
