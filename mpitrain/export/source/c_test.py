"""The self-test, valid as C99 and C++17: expected bits, dot-product test, Taylor test, range, layout."""

from __future__ import annotations

from collections.abc import Sequence

from mpitrain.export.source.emulator import Emulator

_HEAD = """\
/* Self-test: the bits of mpitrain predict for samples of the training data; tangent linear, adjoint and layouts. */
{include}

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef NAME(real) number;
enum {{ F = NAME_NUM_INPUTS, O = NAME_NUM_OUTPUTS, K = {num_samples}, N = 3 * K + 5 }};
static int num_failed = 0;

"""

_BODY = """
static void check(const char *what, int holds) {
    printf("%s  %s\\n", holds ? "ok    " : "FAILED", what);
    if (!holds) num_failed += 1;
}

static void check_one_by_one(void) {
    int same_y = 1, same_j = 1, same_t = 1, same_a = 1;
    for (int k = 0; k < K; ++k) {
        number y[O], rows[O * F], dy[O], dx[F]SPREAD_ARRAYS;
        const number *x = expected_inputs + k * F;
        NAME(forward)(x, y, SPREAD_Y NULL);
        same_y = same_y && memcmp(y, expected_outputs + k * O, sizeof y) == 0 SAME_SPREAD_Y;
        NAME(jacobian)(x, y, rows SPREAD_J);
        same_j = same_j && memcmp(rows, expected_jacobian + k * O * F, sizeof rows) == 0 SAME_SPREAD_J;
        NAME(tangent_linear)(x, expected_perturbations + k * F, dy);
        same_t = same_t && memcmp(dy, expected_tangent + k * O, sizeof dy) == 0;
        NAME(adjoint)(x, expected_sensitivities + k * O, dx);
        same_a = same_a && memcmp(dx, expected_adjoint + k * F, sizeof dx) == 0;
    }
    check("forward: the bits of mpitrain predict", same_y);
    check("jacobian: the bits of mpitrain predict", same_j);
    check("tangent_linear: the expected bits", same_t);
    check("adjoint: the expected bits", same_a);
    check("check_arithmetic", NAME(check_arithmetic)());
}

/* Return the position of value v of sample s, of n samples, in a layout. */
static size_t place(NAME(layout) layout, size_t s, size_t v, size_t n, size_t num_values) {
    return layout == ROW_MAJOR ? s * num_values + v : v * n + s;
}

static int batch_is(NAME(layout) layout, const number *batch, const number *expected, size_t num_values) {
    for (size_t s = 0; s < N; ++s)
        for (size_t v = 0; v < num_values; ++v)
            if (memcmp(batch + place(layout, s, v, N, num_values), expected + (s % K) * num_values + v, sizeof *batch))
                return 0;
    return 1;
}

static void spread_samples(NAME(layout) layout, const number *samples, size_t num_values, number *batch) {
    for (size_t s = 0; s < N; ++s)
        for (size_t v = 0; v < num_values; ++v)
            batch[place(layout, s, v, N, num_values)] = samples[(s % K) * num_values + v];
}

static void check_batches(NAME(layout) layout, const char *what) {
    static number x[N * F], dx[N * F], adjoint_dx[N * F], y[N * O], dy[N * O], given_dy[N * O], rows[N * O * F];
    spread_samples(layout, expected_inputs, F, x);
    spread_samples(layout, expected_perturbations, F, dx);
    spread_samples(layout, expected_sensitivities, O, given_dy);
    NAME(forward_batch)(N, layout, x, y, SPREAD_NULL NULL);
    int same = batch_is(layout, y, expected_outputs, O);
    NAME(jacobian_batch)(N, layout, x, y, rows SPREAD_LAST_NULL);
    same = same && batch_is(layout, y, expected_outputs, O) && batch_is(layout, rows, expected_jacobian, O * F);
    NAME(tangent_linear_batch)(N, layout, x, dx, dy);
    same = same && batch_is(layout, dy, expected_tangent, O);
    NAME(adjoint_batch)(N, layout, x, given_dy, adjoint_dx);
    check(what, same && batch_is(layout, adjoint_dx, expected_adjoint, F));
}

/* Every third sample is masked: the result is 0 there, and has the expected bits elsewhere. */
static int masked_is(NAME(layout) layout, const number *batch, const number *expected, size_t num_values) {
    for (size_t s = 0; s < N; ++s)
        for (size_t v = 0; v < num_values; ++v) {
            const number zero = 0, *wanted = s % 3 ? expected + (s % K) * num_values + v : &zero;
            if (batch[place(layout, s, v, N, num_values)] != *wanted) return 0;
        }
    return 1;
}

/* Entries of one column (K times a unit vector) are close to those of the rows (K^T times unit vectors). */
static int column_is_near(NAME(layout) layout, const number *column) {
    for (size_t s = 0; s < N; ++s)
        for (size_t o = 0; o < O; ++o) {
            const number *row = expected_jacobian + ((s % K) * O + o) * F, wanted = s % 3 ? row[0] : 0;
            double largest = 0;
            for (size_t i = 0; i < F; ++i) largest = fmax(largest, fabs((double)row[i]));
            if (!(fabs((double)column[place(layout, s, o, N, O)] - (double)wanted) <= 1e-5 * largest)) return 0;
        }
    return 1;
}

static void check_masked(NAME(layout) layout, const char *what) {
    static number x[N * F], dx[N * F], dy[N * O], mask[N], result[N * (O > F ? O : F)], expected[K * F];
    static int lines[O > F ? O : F], entries[O > F ? O : F];
    spread_samples(layout, expected_inputs, F, x);
    spread_samples(layout, expected_perturbations, F, dx);
    spread_samples(layout, expected_sensitivities, O, dy);
    for (size_t s = 0; s < N; ++s) mask[s] = s % 3 ? (number)1 : (number)0;
    for (int k = 0; k < (O > F ? O : F); ++k) {
        lines[k] = 0;
        entries[k] = k;
    }
    NAME(tangent_linear_masked)(N, layout, mask, x, dx, result);
    int holds = masked_is(layout, result, expected_tangent, O);
    NAME(adjoint_masked)(N, layout, mask, x, dy, result);
    holds = holds && masked_is(layout, result, expected_adjoint, F);
    for (int k = 0; k < K * F; ++k) expected[k] = expected_jacobian[(k / F) * O * F + k % F];
    NAME(jac_pairs)(N, layout, mask, x, F, lines, entries, result);
    holds = holds && masked_is(layout, result, expected, F);
    NAME(jac_pairs)(N, layout, mask, x, O, entries, lines, result);
    check(what, holds && column_is_near(layout, result));
}

/* <K dx, dy> = <dx, K^T dy>, relative to |K dx| |dy|, over all samples. */
static void check_dot_product(void) {
    double left = 0, right = 0, size_y = 0, size_dy = 0;
    for (int k = 0; k < K; ++k) {
        number tangent[O], adjoint_dx[F];
        const number *x = expected_inputs + k * F, *dx = expected_perturbations + k * F;
        const number *dy = expected_sensitivities + k * O;
        NAME(tangent_linear)(x, dx, tangent);
        NAME(adjoint)(x, dy, adjoint_dx);
        for (int o = 0; o < O; ++o) {
            left += (double)tangent[o] * (double)dy[o];
            size_y += (double)tangent[o] * (double)tangent[o];
            size_dy += (double)dy[o] * (double)dy[o];
        }
        for (int i = 0; i < F; ++i) right += (double)dx[i] * (double)adjoint_dx[i];
    }
    const double difference = fabs(left - right) / (sqrt(size_y) * sqrt(size_dy) + 1e-300);
    printf("        <K dx, dy> - <dx, K^T dy> is %.1e of |K dx| |dy|\\n", difference);
    check("dot-product test", difference <= DOT_LIMIT);
}

/* |f(x + h dx) - f(x) - h K dx| over all samples. */
static double remainder_of(double h) {
    double sum = 0;
    for (int k = 0; k < K; ++k) {
        number y[O], moved[O], tangent[O], there[F];
        const number *x = expected_inputs + k * F, *dx = expected_perturbations + k * F;
        for (int i = 0; i < F; ++i) there[i] = x[i] + (number)h * dx[i];
        NAME(forward)(x, y, SPREAD_NULL NULL);
        NAME(forward)(there, moved, SPREAD_NULL NULL);
        NAME(tangent_linear)(x, dx, tangent);
        for (int o = 0; o < O; ++o) {
            const double rest = (double)moved[o] - (double)y[o] - h * (double)tangent[o];
            sum += rest * rest;
        }
    }
    return sqrt(sum);
}

static double size_of_tangents(void) {
    double sum = 0;
    for (int k = 0; k < K; ++k)
        for (int o = 0; o < O; ++o) sum += (double)expected_tangent[k * O + o] * (double)expected_tangent[k * O + o];
    return sqrt(sum);
}

static void check_taylor(void) {
    const double size = size_of_tangents();
TAYLOR
}

static void check_status(void) {
    NAME(status) status;
    number x[2 * F], y[2 * O];
    for (int k = 0; k < 2 * F; ++k) x[k] = NAME(probe)[k % F];
    for (int i = 0; i < F; ++i)
        if (!(x[i] >= NAME(inputs)[i].minimum && x[i] <= NAME(inputs)[i].maximum))
            x[i] = x[F + i] = (number)0.5 * (NAME(inputs)[i].minimum + NAME(inputs)[i].maximum);
    NAME(forward)(x, y, SPREAD_NULL &status);
    unsigned char is_outside[2];
    int holds = status.num_outside == 0 && status.first_input == -1 && status.worst_input == -1;
    x[2 * F - 1] = NAME(inputs)[F - 1].maximum + NAME(inputs)[F - 1].std;
    NAME(forward_batch)(2, ROW_MAJOR, x, y, SPREAD_NULL &status);
    holds = holds && status.num_outside == 1 && status.first_sample == 1 && status.first_input == F - 1;
    NAME(find_outside)(2, ROW_MAJOR, x, is_outside, &status);
    holds = holds && is_outside[0] == 0 && is_outside[1] == 1 && status.worst_input == F - 1;
    x[0] = (number)NAN;
    NAME(forward)(x, y, SPREAD_NULL &status);
    check("inputs outside the range of the training data are reported", holds && status.num_outside == 1);
}

static void check_layouts(void) {
    number by_rows[3 * F], by_columns[3 * F];
    int input = 0;
    for (int s = 0; s < 3; ++s)
        for (int i = 0; i < F; ++i) by_rows[s * F + i] = by_columns[i * 3 + s] = NAME(probe)[i];
    int holds = NAME(check_layout)(1, by_rows, &input) == IS_EITHER && input == -1;
    if (UNLIKE_FIRST > 0) {
        holds = holds && NAME(check_layout)(3, by_rows, &input) == IS_ROW_MAJOR;
        holds = holds && NAME(check_layout)(3, by_columns, &input) == IS_COLUMN_MAJOR;
        by_rows[0] = NAME(probe)[UNLIKE_FIRST];
        holds = holds && NAME(check_layout)(1, by_rows, &input) == IS_OTHER_ORDER && input == 0;
    }
    by_rows[0] = NAME(probe)[0] + (number)273.15;
    holds = holds && NAME(check_layout)(1, by_rows, &input) == IS_OTHER_UNITS && input == 0;
    check("check_layout recognises layouts, orders and units", holds);
}

int main(void) {
    const int count = NAME_NUM_MEMBERS;
    printf("NAME_ITSELF: %d samples, %d inputs, %d outputs, %d member(s)\\n", (int)K, (int)F, (int)O, count);
    check_one_by_one();
    check_batches(ROW_MAJOR, "row-major batches: the bits of single samples");
    check_batches(COLUMN_MAJOR, "column-major batches: the bits of single samples");
    check_masked(ROW_MAJOR, "row-major masks and Jacobian entries: same as without mask");
    check_masked(COLUMN_MAJOR, "column-major masks and Jacobian entries: same as without mask");
    check_dot_product();
    check_taylor();
    check_status();
    check_layouts();
    printf(num_failed ? "FAILED: %d checks\\n" : "passed\\n", num_failed);
    return num_failed != 0;
}
"""

_SLOPE = """\
    const double slope = log2(remainder_of(0x1p-7) / remainder_of(0x1p-8));
    printf("        the Taylor remainder has slope %.3f\\n", slope);
    check("Taylor test: slope 2", size > 0 && slope > 1.9 && slope < 2.1);"""
_DIFFERENCE = """\
    const double rest = remainder_of({h}) / ({h} * size);
    printf("        finite differences differ by %.1e of the tangent linear\\n", rest);
    check("Taylor test: finite differences agree", size > 0 && rest < 0.1);"""


def test_program(emulator: Emulator, include: str, arrays: Sequence[str]) -> str:
    """Return the text of the self-test; `arrays` are the declarations of the expected numbers."""
    is_double, is_ensemble = emulator.network.dtype == "float64", emulator.is_ensemble
    body = _BODY.replace(
        "TAYLOR",
        _SLOPE if is_double and emulator.is_smooth else _DIFFERENCE.format(h="0x1p-16" if is_double else "0x1p-8"),
    )
    same = " && memcmp(spread_{0}, expected_{1}_spread + k * {2}, sizeof spread_{0}) == 0"
    for word, text in (
        ("SAME_SPREAD_Y", same.format("y", "output", "O").replace(" &&", "\n                 &&", 1)),
        ("SAME_SPREAD_J", same.format("j", "jacobian", "O * F").replace(" &&", "\n                 &&", 1)),
        ("SPREAD_ARRAYS", ", spread_y[O], spread_j[O * F]"),
        ("SPREAD_LAST_NULL", ", NULL"),
        ("SPREAD_NULL ", "NULL, "),
        ("SPREAD_Y ", "spread_y, "),
        ("SPREAD_J", ", spread_j"),
    ):
        spaced = f" {word}" if word in ("SAME_SPREAD_Y", "SAME_SPREAD_J", "SPREAD_LAST_NULL", "SPREAD_J") else word
        body = body.replace(spaced, text if is_ensemble else "")
    body = body.replace("DOT_LIMIT", "1e-14" if is_double else "1e-6").replace("NAME_ITSELF", emulator.name)
    body = body.replace("UNLIKE_FIRST", str(emulator.first_distinct_input))
    head = _HEAD.format(include=include, num_samples=len(emulator.expected.inputs))
    return head + "\n".join(arrays) + "\n" + body
