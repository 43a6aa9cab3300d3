"""C functions of a network: forward, tangent linear, adjoint and Jacobian, for one sample and for a tile."""

from __future__ import annotations

from collections.abc import Sequence

from mpitrain.inference.portable.network import DenseLayer, PortableNetwork

_ENDS = """\
static INLINE void normalise(int samples, const network_numbers *n, const real *RESTRICT x, real *RESTRICT h) {
    for (int i = 0; i < INPUTS; ++i)
        for (int k = i * samples; k < (i + 1) * samples; ++k) {
            const real difference = without_tiny(x[k], SUM_LIMIT) - n->input_mean[i];
            const real quotient = difference / n->input_std[i];
            h[k] = without_tiny(quotient, VALUE_LIMIT);
        }
}

static INLINE void divide_by_std(int samples, const network_numbers *n, real least, const real *RESTRICT values,
                                 real limit, real *RESTRICT quotients) {
    for (int i = 0; i < INPUTS; ++i)
        for (int k = i * samples; k < (i + 1) * samples; ++k) {
            const real quotient = without_tiny(values[k], least) / n->input_std[i];
            quotients[k] = without_tiny(quotient, limit);
        }
}
"""
_OUTPUTS = """
static INLINE void to_physical(int samples, const network_numbers *n, const real *RESTRICT h, real *RESTRICT y) {
    for (int o = 0; o < OUTPUTS; ++o)
        for (int k = o * samples; k < (o + 1) * samples; ++k) {
            const real product = h[k] * n->output_std[o];
            y[k] = without_tiny(product, SUM_LIMIT) + n->output_mean[o];
        }
}

static INLINE void times_std(int samples, const network_numbers *n, real least, const real *RESTRICT values,
                             real limit, real *RESTRICT products) {
    for (int o = 0; o < OUTPUTS; ++o)
        for (int k = o * samples; k < (o + 1) * samples; ++k) {
            const real product = without_tiny(values[k], least) * n->output_std[o];
            products[k] = without_tiny(product, limit);
        }
}
"""
_PLAIN_OUTPUTS = """
static INLINE void to_physical(int samples, const network_numbers *n, const real *RESTRICT h, real *RESTRICT y) {
    (void)n;
    for (int k = 0; k < OUTPUTS * samples; ++k) y[k] = h[k];
}

static INLINE void times_std(int samples, const network_numbers *n, real least, const real *RESTRICT values,
                             real limit, real *RESTRICT products) {
    (void)n;
    for (int k = 0; k < OUTPUTS * samples; ++k) products[k] = without_tiny(without_tiny(values[k], least), limit);
}
"""
# For one network, and below for an ensemble; {S} is `one` or `tile`, {n} its number of samples.
_OF_ONE_MEMBER = """\
static INLINE void all_forward_{S}(const network_numbers *members, const real *RESTRICT x, real *RESTRICT y) {{
    forward_{S}(members, x, y, NULL);
}}

static INLINE void all_tangent_linear_{S}(const network_numbers *members, const real *RESTRICT x,
                                          const real *RESTRICT dx, real *RESTRICT dy) {{
    slopes_of_layers slopes;
    real y[OUTPUTS * {n}];
    forward_{S}(members, x, y, &slopes);
    tangent_{S}(members, &slopes, dx, dy);
}}

static INLINE void all_adjoint_{S}(const network_numbers *members, const real *RESTRICT x, const real *RESTRICT dy,
                                   real *RESTRICT dx) {{
    slopes_of_layers slopes;
    real y[OUTPUTS * {n}];
    forward_{S}(members, x, y, &slopes);
    adjoint_{S}(members, &slopes, dy, dx);
}}

/* Outputs y [OUTPUTS][S], and jacobian [OUTPUTS][INPUTS][S]: row o is the adjoint of the unit vector o. */
static INLINE void all_jacobian_{S}(const network_numbers *members, const real *RESTRICT x, real *RESTRICT y,
                                    real *RESTRICT jacobian) {{
    slopes_of_layers slopes;
    forward_{S}(members, x, y, &slopes);
    for (int o = 0; o < OUTPUTS; ++o) {{
        real unit[OUTPUTS * {n}];
        for (int k = 0; k < OUTPUTS * {n}; ++k) unit[k] = (real)(k / {n} == o);
        adjoint_{S}(members, &slopes, unit, jacobian + o * INPUTS * {n});
    }}
}}
"""
_OF_MEMBERS = """\
static INLINE void all_forward_{S}(const network_numbers *members, const real *RESTRICT x, real *RESTRICT y,
                                   real *RESTRICT spread) {{
    real values[MEMBERS * OUTPUTS * {n}];
    for (int m = 0; m < MEMBERS; ++m) forward_{S}(&members[m], x, values + m * OUTPUTS * {n}, NULL);
    over_members(OUTPUTS * {n}, values, y, spread);
}}

static INLINE void all_tangent_linear_{S}(const network_numbers *members, const real *RESTRICT x,
                                          const real *RESTRICT dx, real *RESTRICT dy) {{
    real y[OUTPUTS * {n}], values[MEMBERS * OUTPUTS * {n}];
    for (int m = 0; m < MEMBERS; ++m) {{
        slopes_of_layers slopes;
        forward_{S}(&members[m], x, y, &slopes);
        tangent_{S}(&members[m], &slopes, dx, values + m * OUTPUTS * {n});
    }}
    over_members(OUTPUTS * {n}, values, dy, NULL);
}}

static INLINE void all_adjoint_{S}(const network_numbers *members, const real *RESTRICT x, const real *RESTRICT dy,
                                   real *RESTRICT dx) {{
    real y[OUTPUTS * {n}], values[MEMBERS * INPUTS * {n}];
    for (int m = 0; m < MEMBERS; ++m) {{
        slopes_of_layers slopes;
        forward_{S}(&members[m], x, y, &slopes);
        adjoint_{S}(&members[m], &slopes, dy, values + m * INPUTS * {n});
    }}
    over_members(INPUTS * {n}, values, dx, NULL);
}}

/* Outputs y [OUTPUTS][S], and jacobian and its spread [OUTPUTS][INPUTS][S]: row o is the adjoint of unit vector o. */
static INLINE void all_jacobian_{S}(const network_numbers *members, const real *RESTRICT x, real *RESTRICT y,
                                    real *RESTRICT jacobian, real *RESTRICT spread) {{
    real outputs[MEMBERS * OUTPUTS * {n}], values[MEMBERS * INPUTS * {n}];
    slopes_of_layers slopes[MEMBERS];
    for (int m = 0; m < MEMBERS; ++m) forward_{S}(&members[m], x, outputs + m * OUTPUTS * {n}, &slopes[m]);
    over_members(OUTPUTS * {n}, outputs, y, NULL);
    for (int o = 0; o < OUTPUTS; ++o) {{
        const int row = o * INPUTS * {n};
        real unit[OUTPUTS * {n}];
        for (int k = 0; k < OUTPUTS * {n}; ++k) unit[k] = (real)(k / {n} == o);
        for (int m = 0; m < MEMBERS; ++m) adjoint_{S}(&members[m], &slopes[m], unit, values + m * INPUTS * {n});
        over_members(INPUTS * {n}, values, jacobian + row, spread ? spread + row : NULL);
    }}
}}
"""


def network_functions(network: PortableNetwork, num_members: int, over_members: str) -> list[str]:
    """Return the C functions of `num_members` networks; `over_members`: that for mean and spread of an ensemble."""
    parts = [_ENDS + (_PLAIN_OUTPUTS if network.output_mean is None else _OUTPUTS)]
    parts += [over_members] if num_members > 1 else []
    for suffix, samples in (("one", "1"), ("tile", "TILE")):
        parts += [_forward(network, suffix, samples), _tangent(network, suffix, samples)]
        parts += [_adjoint(network, suffix, samples)]
        parts += [(_OF_ONE_MEMBER if num_members == 1 else _OF_MEMBERS).format(S=suffix, n=samples)]
    return parts


def _forward(network: PortableNetwork, suffix: str, samples: str) -> str:
    lines = [f"real h0[INPUTS * {samples}];", f"normalise({samples}, n, x, h0);"]
    for number, layer in enumerate(network.layers, 1):
        num_in, num_out = layer.weight.shape
        count = f"{num_out} * {samples}"
        limit = "RESULT_LIMIT" if number == len(network.layers) else "VALUE_LIMIT"
        lines += [
            f"real z{number}[{count}], h{number}[{count}];",
            f"dense_{suffix}({num_in}, {num_out}, n->weight_{number}, n->bias_{number}, h{number - 1}, z{number});",
        ]
        lines += _normalised(layer, number, samples)
        if layer.activation == "none":
            lines.append(f"for (int k = 0; k < {count}; ++k) h{number}[k] = without_tiny(z{number}[k], {limit});")
        else:
            slopes = f"{layer.activation}_slopes({count}, z{number}, h{number}, slopes->layer_{number});"
            values = f"values({count}" if suffix == "one" else f"of_tile({num_out}"
            lines += [f"{layer.activation}_{values}, {limit}, z{number}, h{number});", f"if (slopes) {slopes}"]
        lines += _added(layer, number, samples, f"h{number - 1}", f"h{number}")
    lines += [f"to_physical({samples}, n, h{len(network.layers)}, y);"]
    arguments = "const real *RESTRICT x, real *RESTRICT y, slopes_of_layers *slopes"
    comment = f"y [OUTPUTS][{samples}] of x [INPUTS][{samples}] in physical units, and the slopes unless NULL."
    return _function(network, comment, f"forward_{suffix}", arguments, lines)


def _tangent(network: PortableNetwork, suffix: str, samples: str) -> str:
    lines = [f"real h0[INPUTS * {samples}];", f"divide_by_std({samples}, n, RESULT_LIMIT, dx, VALUE_LIMIT, h0);"]
    for number, layer in enumerate(network.layers, 1):
        num_in, num_out = layer.weight.shape
        lines += [
            f"real z{number}[{num_out} * {samples}], h{number}[{num_out} * {samples}];",
            f"dense_{suffix}({num_in}, {num_out}, n->weight_{number}, NULL, h{number - 1}, z{number});",
            *reversed(_norm_derivative(layer, number, samples, f"z{number}")),
            f"times_slopes({num_out} * {samples}, z{number}, {_slopes(layer, number)}, h{number});",
            *_added(layer, number, samples, f"h{number - 1}", f"h{number}"),
        ]
    lines += [f"times_std({samples}, n, VALUE_LIMIT, h{len(network.layers)}, RESULT_LIMIT, dy);"]
    arguments = "const slopes_of_layers *slopes, const real *RESTRICT dx, real *RESTRICT dy"
    return _function(network, "dy = K dx at the sample of the slopes.", f"tangent_{suffix}", arguments, lines)


def _adjoint(network: PortableNetwork, suffix: str, samples: str) -> str:
    last = len(network.layers)
    lines = [f"real z{last}[OUTPUTS * {samples}];", f"times_std({samples}, n, RESULT_LIMIT, dy, VALUE_LIMIT, z{last});"]
    for number in range(last, 0, -1):
        layer = network.layers[number - 1]
        num_in, num_out = layer.weight.shape
        lines += [
            f"real h{number}[{num_out} * {samples}], z{number - 1}[{num_in} * {samples}];",
            f"times_slopes({num_out} * {samples}, z{number}, {_slopes(layer, number)}, h{number});",
            *_norm_derivative(layer, number, samples, f"h{number}"),
            f"dense_{suffix}({num_out}, {num_in}, n->transposed_{number}, NULL, h{number}, z{number - 1});",
            *_added(layer, number, samples, f"z{number}", f"z{number - 1}"),
        ]
    lines += [f"divide_by_std({samples}, n, (real)0, z0, RESULT_LIMIT, dx);"]
    arguments = "const slopes_of_layers *slopes, const real *RESTRICT dy, real *RESTRICT dx"
    return _function(network, "dx = K^T dy at the sample of the slopes.", f"adjoint_{suffix}", arguments, lines)


def _normalised(layer: DenseLayer, number: int, samples: str) -> list[str]:
    if layer.norm is None:
        return []
    count, kept = f"{len(layer.bias)} * {samples}", (f"normalised_{number}", f"factor_{number}")
    given = f"n->scale_{number}, n->offset_{number}, z{number}, {', '.join(kept)}"
    return [
        f"real {kept[0]}[{count}], {kept[1]}[{samples}];",
        f"normalise_units({len(layer.bias)}, {samples}, {given});",
        *(f"if (slopes) memcpy(slopes->{name}, {name}, sizeof {name});" for name in kept),
    ]


def _added(layer: DenseLayer, number: int, samples: str, values: str, to: str) -> list[str]:
    return [f"add_values({len(layer.bias)} * {samples}, {values}, {to});"] if layer.is_residual else []


def _norm_derivative(layer: DenseLayer, number: int, samples: str, values: str) -> list[str]:
    """Return the statements of the adjoint; in reverse order they are those of the tangent linear."""
    if layer.norm is None:
        return []
    kept = f"slopes->normalised_{number}, slopes->factor_{number}"
    return [
        f"times_scale({len(layer.bias)}, {samples}, n->scale_{number}, {values});",
        f"through_norm({len(layer.bias)}, {samples}, {kept}, {values});",
    ]


def _slopes(layer: DenseLayer, number: int) -> str:
    return "NULL" if layer.activation == "none" else f"slopes->layer_{number}"


def _function(network: PortableNetwork, comment: str, name: str, arguments: str, lines: Sequence[str]) -> str:
    body = [*lines] if not network.is_linear else [*lines, "(void)slopes;"]
    head = f"static INLINE void {name}(const network_numbers *n, {arguments}) {{"
    return "\n".join([f"/* {comment} */", head, *(f"    {line}" for line in body), "}", ""])
