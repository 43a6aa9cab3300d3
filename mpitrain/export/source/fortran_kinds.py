"""Procedures derived from others: in double precision, with one argument per field, and callable in GPU kernels."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence

from mpitrain.export.source.emulator import Variable

Fields = list[tuple[str, int]]

_ARGUMENT = re.compile(r"real\(wp\)(, intent\(\w+\)(?:, optional)? :: (?!values\(|mask\())")
_TILES = ("load_tile", "store_tile", "note_outside")
_BATCHES = ("forward_batch", "tangent_linear_batch", "adjoint_batch", "jacobian_batch")
_MOST_LETTERS = 50
# ISO/IEC 1539-1:2010: the keywords of statements in chapters 2 to 12, and the intrinsics of chapter 13.
_KEYWORDS = """
abstract allocatable allocate assignment associate asynchronous backspace bind block call case character class close
codimension common complex concurrent contains contiguous continue critical cycle data deallocate default deferred
dimension do double elemental else elseif elsewhere end endassociate endblock endcritical enddo endenum endfile
endforall endfunction endif endinterface endmodule endprocedure endprogram endselect endsubmodule endsubroutine
endtype endwhere entry enum enumerator equivalence error exit extends external final flush forall format function
generic go goto if implicit import impure in include inout inquire integer intent interface intrinsic is kind len lock
logical module namelist non_intrinsic non_overridable none nopass nullify only open operator optional out parameter
pass pause pointer precision print private procedure program protected public pure read real recursive result return
rewind save select sequence stop submodule subroutine sync target then to type unlock use value volatile wait where
while write"""
_INTRINSICS = """
abs achar acos acosh adjustl adjustr aimag aint all allocated anint any asin asinh associated atan atan2 atanh
atomic_define atomic_ref bessel_j0 bessel_j1 bessel_jn bessel_y0 bessel_y1 bessel_yn bge bgt bit_size ble blt btest
ceiling char cmplx command_argument_count conjg cos cosh count cpu_time cshift date_and_time dble digits dim
dot_product dprod dshiftl dshiftr eoshift epsilon erf erfc erfc_scaled execute_command_line exp exponent
extends_type_of findloc floor fraction gamma get_command get_command_argument get_environment_variable huge hypot
iachar iall iand iany ibclr ibits ibset ichar ieor image_index index int ior iparity is_iostat_end is_iostat_eor ishft
ishftc lbound lcobound leadz len_trim lge lgt lle llt log log10 log_gamma maskl maskr matmul max maxexponent maxloc
maxval merge merge_bits min minexponent minloc minval mod modulo move_alloc mvbits nearest new_line nint norm2 not
null num_images pack parity popcnt poppar present product radix random_number random_seed range repeat reshape
rrspacing same_type_as scale scan selected_char_kind selected_int_kind selected_real_kind set_exponent shape shifta
shiftl shiftr sign sin sinh size spacing spread sqrt storage_size sum system_clock tan tanh this_image tiny trailz
transfer transpose trim ubound ucobound unpack verify"""
RESERVED = frozenset((_KEYWORDS + _INTRINSICS).split())
_CALLED = ("forward_one", "tangent_linear_one", "adjoint_one", "jacobian_one")
_PROCEDURE = re.compile(
    r"^  pure [^\n!]*?(?:subroutine|function) (?P<name>\w+)\(.*?^  end (?:subroutine|function) \w+\n",
    re.DOTALL | re.MULTILINE,
)
_HEAD = re.compile(r"\A(?:[^\n]*&\n)*[^\n]*\n")
_DIRECTIVES = "    !$omp declare target\n    !$acc routine seq\n"
_FORWARD_FIELDS = """\
  ! Batch forward for the model's own arrays, one per variable; levels are in the dimension that layout names first.
  pure subroutine forward_fields_{kind}(layout, {names}, status, outside)
    integer, intent(in) :: layout
{declared}
    integer, intent(out), optional :: status
    logical, intent(out), optional :: outside(:)
    real(wp) :: x_tile(tile, num_inputs), y_tile(tile, num_outputs)
    logical :: is_outside(tile)
    integer :: first, n, b, s, {level}found
    n = -1
    if (layout == inputs_first .or. layout == samples_first) &
      n = size({size})
{checks}
    if (present(outside)) then
      if (size(outside) /= n) n = -1
    end if
    if (present(status)) status = min(n, 0)
    do first = 1, n, tile
      do b = 1, tile
        s = min(first + b - 1, n)
{load}
      end do
      call forward_tile(x_tile, y_tile)
      if (present(status) .or. present(outside)) then
        call note_outside(samples_first, x_tile(:min(tile, n - first + 1), :), found, &
          is_outside(:min(tile, n - first + 1)))
        if (present(status)) status = status + found
        if (present(outside)) outside(first:min(first + tile - 1, n)) = is_outside(:min(tile, n - first + 1))
      end if
      do b = 1, min(tile, n - first + 1)
        s = first + b - 1
{store}
      end do
    end do
  end subroutine forward_fields_{kind}
"""


def kinds_of(dtype: str) -> tuple[str, ...]:
    """Return the real kinds of arrays that a network accepts: its own, and double precision."""
    return ("wp", "real64") if dtype == "float32" else ("wp",)


def with_real64(procedures: str) -> str:
    """Add batch procedures for double precision to the procedures; values are converted when tiles are copied."""
    added = []
    for name in (*_TILES, *_BATCHES):
        (text,) = re.findall(rf"  pure subroutine {name}\(.*?  end subroutine {name}\n", procedures, flags=re.DOTALL)
        text = _ARGUMENT.sub(r"real(real64)\1", text).replace(f"subroutine {name}", f"subroutine {name}_real64")
        text = re.sub(r"(values\(b, :\)) = (batch.*)", r"\1 = real(\2, wp)", text)
        added.append(re.sub(r"excess_of\((x\([is], [is]\)), i\)", r"excess_of(real(\1, wp), i)", text))
    names = "|".join(_TILES)
    return "\n".join([re.sub(rf"subroutine ({names})\b", r"subroutine \1_wp", procedures), *added])


def gpu_callable(procedures: str, constants: str) -> tuple[str, str]:
    """Return GPU copies of the constant arrays, and the procedures; GPU kernels may call those of one sample.

    These, and all procedures that they call, have OpenMP and OpenACC directives. They use the copies, because OpenACC
    routines cannot use constants.
    """
    texts = {found["name"]: found[0] for found in _PROCEDURE.finditer(procedures)}
    wanted, seen = list(_CALLED), set[str]()
    while wanted:
        name = wanted.pop()
        if name not in seen:
            seen.add(name)
            wanted += set(re.findall(r"\b(\w+)\(", texts[name])) & set(texts)
    shapes = dict(re.findall(r"^  real\(wp\), parameter :: (\w+)(\([^()]+\)) =", constants, re.MULTILINE))
    used = [name for name in shapes if any(re.search(rf"\b{name}\b", texts[one]) for one in seen)]
    copies = "\n".join(
        f"  real(wp), save :: {name}_gpu{shapes[name]} = {name}\n"
        f"  !$omp declare target({name}_gpu)\n  !$acc declare copyin({name}_gpu)"
        for name in used
    )
    named = re.compile(rf"\b({'|'.join(used)})\b")

    def marked(found: re.Match[str]) -> str:
        if found["name"] not in seen:
            return found[0]
        return _HEAD.sub(rf"\g<0>{_DIRECTIVES}", named.sub(r"\1_gpu", found[0]))

    return copies, _PROCEDURE.sub(marked, procedures)


def interfaces(dtype: str) -> Iterator[str]:
    """Yield the generic interfaces over single samples, batches and both real kinds."""
    has_both = len(kinds_of(dtype)) > 1
    for name in ("forward", "tangent_linear", "adjoint", "jacobian"):
        yield _interface(name, [f"{name}_one", f"{name}_batch", *([f"{name}_batch_real64"] if has_both else [])])
    for name in _TILES if has_both else ():
        yield _interface(name, [f"{name}_wp", f"{name}_real64"])
    yield _interface("forward_fields", [f"forward_fields_{kind}" for kind in kinds_of(dtype)])


def _interface(name: str, procedures: Sequence[str]) -> str:
    return f"  interface {name}\n    module procedure {', '.join(procedures)}\n  end interface {name}"


def forward_fields(inputs: Sequence[Variable], outputs: Sequence[Variable], dtype: str) -> Iterator[str]:
    """Yield the procedure with one argument per field, for each real kind."""
    given, results = field_names(inputs, outputs)
    first, size = given[0]
    for kind in kinds_of(dtype):
        yield _FORWARD_FIELDS.format(
            kind=kind,
            names=", &\n      ".join(name for name, _ in (*given, *results)),
            declared="\n".join(_declared(given, "in", kind) + _declared(results, "out", kind)),
            level="level, " if any(count > 1 for _, count in (*given, *results)) else "",
            size=first if size == 1 else f"{first}, 3 - layout",
            checks="\n".join(_checks([*given, *results])),
            load="\n".join(_copies(given, "x_tile", "{tile} = real({field}, wp)")),
            store="\n".join(_copies(results, "y_tile", f"{{field}} = real({{tile}}, {kind})")),
        )


def field_names(inputs: Sequence[Variable], outputs: Sequence[Variable]) -> tuple[Fields, Fields]:
    """Return the Fortran name and the number of levels of each variable, for inputs and outputs."""
    found = [
        [
            (text, len(list(group)))
            for text, group in itertools.groupby((one.whole or one.name).partition("[")[0] for one in variables)
        ]
        for variables in (inputs, outputs)
    ]
    code = f"{_FORWARD_FIELDS} level real64 forward_fields_wp forward_fields_real64"
    names = iter(_names_in_fortran((text for fields in found for text, _ in fields), code))
    given, results = ([(next(names), count) for _, count in fields] for fields in found)
    return given, results


def _names_in_fortran(texts: Iterable[str], code: str) -> list[str]:
    """Return a distinct Fortran name for each text, ignoring case.

    Names that are reserved, occur in `code` or do not begin with a letter get the prefix f_; equal names are numbered.
    """
    used, found = RESERVED | set(re.findall(r"[a-z]\w*", code.lower())), list[str]()
    for text in texts:
        name = re.sub(r"\W", "_", text.lower(), flags=re.ASCII)[:_MOST_LETTERS]
        if name in used or not re.match(r"[a-z]", name):
            name = f"f_{name}"
        numbered = (name if number == 1 else f"{name}_{number}" for number in itertools.count(1))
        found.append(next(one for one in numbered if one not in used and one not in found))
    return found


def _declared(fields: Sequence[tuple[str, int]], intent: str, kind: str) -> list[str]:
    return [
        f"    real({kind}), intent({intent}) :: {name}{'(:)' if count == 1 else '(:, :)'}" for name, count in fields
    ]


def _checks(fields: Sequence[tuple[str, int]]) -> Iterator[str]:
    for name, count in fields:
        if count == 1:
            yield f"    if (size({name}) /= n) n = -1"
        else:
            yield "    if (n >= 0) then"
            yield f"      if (size({name}, 3 - layout) /= n) n = -1"
            yield f"      if (size({name}, layout) /= {count}) n = -1"
            yield "    end if"


def _copies(fields: Sequence[tuple[str, int]], tile: str, assignment: str) -> Iterator[str]:
    place = 1
    for name, count in fields:
        if count == 1:
            yield "        " + assignment.format(tile=f"{tile}(b, {place})", field=f"{name}(s)")
        else:
            of_tile = f"{tile}(b, {place - 1} + level)"
            yield f"        do level = 1, {count}\n          if (layout == inputs_first) then"
            yield "            " + assignment.format(tile=of_tile, field=f"{name}(level, s)")
            yield "          else"
            yield "            " + assignment.format(tile=of_tile, field=f"{name}(s, level)")
            yield "          end if\n        end do"
        place += count
