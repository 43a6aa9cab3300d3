"""The functions that a model calls, in a form common to C and C++: `NAME(x)` is the name x of the interface."""

# The strides also serve single samples: [F] is the same in both layouts.
STATUS = """\
/* Return how far a value of input i lies outside the range of the training data, in standard deviations; 0 inside. If
   the input was constant there, values within 0.001 standard deviations count as inside. NaN is found by its bits,
   because comparisons with NaN may trap. */
static INLINE real NAME(excess_of)(real value, int i) {
    bits_of_real bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits_of_real)(bits << 1) > (bits_of_real)((bits_of_real)(2 * EXPONENT_BIAS + 1) << (MANTISSA_BITS + 1)))
        return (real)HUGE_VALF;
    const real above = value - NAME(inputs)[i].maximum, below = NAME(inputs)[i].minimum - value;
    const real excess = (above > below ? above : below) / NAME(inputs)[i].std;
    const int is_constant = !(NAME(inputs)[i].maximum > NAME(inputs)[i].minimum);
    return excess > (is_constant ? (real)0.001 : (real)0) ? excess : (real)0;
}

static INLINE void NAME(note_outside)(size_t num_samples, size_t value_stride, size_t sample_stride, const real *x,
                                      unsigned char *is_outside, NAME(status) *status) {
    if (!status) return;
    real largest = (real)0;
    status->num_outside = 0;
    status->first_sample = 0;
    status->first_input = status->worst_input = -1;
    for (size_t s = 0; s < num_samples; ++s) {
        int outside = -1;
        for (int i = INPUTS - 1; i >= 0; --i) {
            const real excess = NAME(excess_of)(x[(size_t)i * value_stride + s * sample_stride], i);
            if (excess > (real)0) outside = i;
            if (excess > largest) {
                largest = excess;
                status->worst_input = i;
            }
        }
        if (is_outside) is_outside[s] = outside >= 0;
        if (outside < 0) continue;
        if (status->num_outside == 0) {
            status->first_sample = s;
            status->first_input = outside;
        }
        status->num_outside += 1;
    }
}

static INLINE size_t NAME(sample_stride)(NAME(layout) layout, size_t num_values) {
    return layout == ROW_MAJOR ? num_values : 1;
}

static INLINE size_t NAME(value_stride)(NAME(layout) layout, size_t num_samples) {
    return layout == ROW_MAJOR ? 1 : num_samples;
}
"""

ONE = """\
API void NAME(forward)(const real *x, real *y, SPREAD(real *spread, )NAME(status) *status) {
    NAME(note_outside)(1, 1, INPUTS, x, NULL, status);
    all_forward_one(members, x, y SPREAD(, spread));
}

API void NAME(tangent_linear)(const real *x, const real *dx, real *dy) { all_tangent_linear_one(members, x, dx, dy); }

API void NAME(adjoint)(const real *x, const real *dy, real *dx) { all_adjoint_one(members, x, dy, dx); }

API void NAME(jacobian)(const real *x, real *y, real *jacobian SPREAD(, real *spread)) {
    all_jacobian_one(members, x, y, jacobian SPREAD(, spread));
}
"""

_BATCH = """\
API void NAME({name}_batch)(size_t num_samples, NAME(layout) layout, {arguments}) {{
{before}    for (size_t first = 0; first < num_samples; first += TILE) {{
        const size_t count = num_samples - first < TILE ? num_samples - first : (size_t)TILE;
{body}
    }}
}}
"""


def batch_functions(is_ensemble: bool) -> str:
    """Return the four functions of batches."""
    status = "    NAME(note_outside)(num_samples, NAME(value_stride)(layout, num_samples),\n" + (
        "                       NAME(sample_stride)(layout, INPUTS), x, NULL, status);\n"
    )
    spread = ["spread"] if is_ensemble else []
    forward = _batch("forward", ["x"], ["y", *spread], ", NAME(status) *status", status)
    tangent = _batch("tangent_linear", ["x", "dx"], ["dy"])
    adjoint = _batch("adjoint", ["x", "dy"], ["dx"])
    jacobian = _batch("jacobian", ["x"], ["y", "jacobian", *(["spread"] if is_ensemble else [])])
    return "\n".join([forward, tangent, adjoint, jacobian])


def _size(name: str, function: str) -> str:
    if name == "jacobian" or (name == "spread" and function == "jacobian"):
        return "OUTPUTS * INPUTS"
    return "INPUTS" if name in ("x", "dx") else "OUTPUTS"


def _batch(function: str, given: list[str], results: list[str], more: str = "", before: str = "") -> str:
    """Return one function: it loads tiles of arguments and stores tiles of results; only the spread may be NULL."""
    names = [*given, *results]
    sizes = {name: _size(name, function) for name in names}
    arguments = ", ".join([*(f"const real *{name}" for name in given), *(f"real *{name}" for name in results)]) + more
    stride = "NAME(value_stride)(layout, num_samples), NAME(sample_stride)(layout, {size})"
    tiles = ", ".join(f"{name}_tile[{sizes[name]} * TILE]" for name in names)
    lines = [f"real {tiles};"]
    for name in given:
        strides = stride.format(size=sizes[name])
        lines.append(f"load_tile({sizes[name]}, first, count, {strides}, {name}, {name}_tile);")
    lines.append(f"all_{function}_tile(members, {', '.join(f'{name}_tile' for name in names)});")
    for name in results:
        strides = stride.format(size=sizes[name])
        only = "if (spread) " if name == "spread" else ""
        lines.append(f"{only}store_tile({sizes[name]}, first, count, {strides}, {name}_tile, {name});")
    body = "\n".join(f"        {line}" for line in lines)
    return _BATCH.format(name=function, arguments=arguments, before=before, body=body)


CHECKS = """\
API void NAME(find_outside)(size_t num_samples, NAME(layout) layout, const real *x, unsigned char *is_outside,
                            NAME(status) *found) {
    NAME(status) unused;
    NAME(note_outside)(num_samples, NAME(value_stride)(layout, num_samples), NAME(sample_stride)(layout, INPUTS), x,
                       is_outside, found ? found : &unused);
}

/* Return how many values in this layout differ from the probe's; set the first input that does, and its value. */
static INLINE size_t NAME(mismatches)(NAME(layout) layout, size_t num_samples, const real *x, int *input, real *value) {
    size_t found = 0;
    for (size_t s = 0; s < num_samples; ++s)
        for (int i = 0; i < INPUTS; ++i) {
            const real given = x[(size_t)i * NAME(value_stride)(layout, num_samples) +
                                 s * NAME(sample_stride)(layout, INPUTS)];
            if (ABSOLUTE(given - NAME(probe)[i]) <= probe_tolerance[i]) continue;
            if (found == 0) {
                *input = i;
                *value = given;
            }
            found += 1;
        }
    return found;
}

API NAME(finding) NAME(check_layout)(size_t num_samples, const real *x, int *input) {
    int wrong = -1, of_columns = -1;
    real value = (real)0, value_of_columns = (real)0;
    const size_t by_rows = NAME(mismatches)(ROW_MAJOR, num_samples, x, &wrong, &value);
    const size_t by_columns = NAME(mismatches)(COLUMN_MAJOR, num_samples, x, &of_columns, &value_of_columns);
    if (input) *input = -1;
    if (by_rows == 0 && by_columns == 0) return IS_EITHER;
    if (by_rows == 0) return IS_ROW_MAJOR;
    if (by_columns == 0) return IS_COLUMN_MAJOR;
    if (by_columns < by_rows) {
        wrong = of_columns;
        value = value_of_columns;
    }
    if (input) *input = wrong;
    for (int i = 0; i < INPUTS; ++i)
        if (ABSOLUTE(value - NAME(probe)[i]) <= probe_tolerance[i]) return IS_OTHER_ORDER;
    for (size_t c = 0; c < sizeof conversions / sizeof conversions[0]; ++c) {
        const real converted = NAME(probe)[wrong] * conversions[c][0];
        const real margin = probe_tolerance[wrong] * (ABSOLUTE(conversions[c][0]) + (real)1);
        if (ABSOLUTE(value - (converted + conversions[c][1])) <= margin) return IS_OTHER_UNITS;
    }
    return IS_WRONG;
}

API const char *NAME(describe)(NAME(finding) finding) {
    switch (finding) {
        case IS_ROW_MAJOR: return "row-major: sample after sample";
        case IS_COLUMN_MAJOR: return "column-major: variable after variable";
        case IS_EITHER: return "one sample: both layouts are the same";
        case IS_OTHER_ORDER: return "the inputs are in another order, or are shifted";
        case IS_OTHER_UNITS: return "an input is in other units";
        default: return "an input has another value";
    }
}

API int NAME(check_arithmetic)(void) {
    real y[OUTPUTS], jacobian[OUTPUTS * INPUTS];
    all_jacobian_one(members, NAME(probe), y, jacobian SPREAD(, NULL));
    return memcmp(y, probe_outputs, sizeof y) == 0 && memcmp(jacobian, probe_jacobian, sizeof jacobian) == 0;
}
"""
