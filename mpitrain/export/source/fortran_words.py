"""Names in Fortran for what the data calls by any text: none that the language or the code around them uses."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

_MOST_LETTERS = 50
# ISO/IEC 1539-1:2010, the words of chapters 2 to 12 that begin or end statements, and the intrinsics of chapter 13.
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


def names_in_fortran(texts: Iterable[str], code: str) -> list[str]:
    """Return a name for each text, whose case does not count; none is of the language or is used in `code`.

    Such names, and those that would not begin with a letter, begin with f_; equal ones are numbered.
    """
    used, found = RESERVED | set(re.findall(r"[a-z]\w*", code.lower())), list[str]()
    for text in texts:
        name = re.sub(r"\W", "_", text.lower(), flags=re.ASCII)[:_MOST_LETTERS]
        if name in used or not re.match(r"[a-z]", name):
            name = f"f_{name}"
        numbered = (name if number == 1 else f"{name}_{number}" for number in itertools.count(1))
        found.append(next(one for one in numbered if one not in used and one not in found))
    return found
