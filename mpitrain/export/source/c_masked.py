"""Derivatives at masked samples, and single entries of the Jacobian, in C and C++; fields of a model in C++."""

from __future__ import annotations

_MASKED = """\
/* Load the masks [TILE] of samples first, first + 1, ...; 1 without a mask. */
static INLINE void load_mask(size_t first, size_t count, const real *mask, real *valid) {
    for (size_t b = 0; b < TILE; ++b) valid[b] = mask ? mask[first + (b < count ? b : count - 1)] : (real)1;
}

/* Values at masked samples may be NaN: replace them by mean inputs (and perturbations by 0). */
static INLINE void typical_where_masked(const real *valid, real *x) {
    for (int i = 0; i < INPUTS; ++i)
        for (int b = 0; b < TILE; ++b)
            if (valid[b] == (real)0) x[i * TILE + b] = members[0].input_mean[i];
}

static INLINE void times_mask(int num_values, const real *valid, real *values) {
    for (int v = 0; v < num_values; ++v)
        for (int b = 0; b < TILE; ++b)
            values[v * TILE + b] = valid[b] == (real)0 ? (real)0 : values[v * TILE + b] * valid[b];
}

static INLINE void masked_tangent_linear_tile(const real *valid, real *x, real *dx, real *dy) {
    typical_where_masked(valid, x);
    for (int k = 0; k < INPUTS * TILE; ++k)
        if (valid[k % TILE] == (real)0) dx[k] = (real)0;
    all_tangent_linear_tile(members, x, dx, dy);
    times_mask(OUTPUTS, valid, dy);
}

static INLINE void masked_adjoint_tile(const real *valid, real *x, real *dy, real *dx) {
    typical_where_masked(valid, x);
    times_mask(OUTPUTS, valid, dy);
    all_adjoint_tile(members, x, dy, dx);
}
"""
_BATCH = """
API void NAME({name}_masked)(size_t num_samples, NAME(layout) layout, const real *mask, const real *x,
                             const real *{given}, real *{result}) {{
    for (size_t first = 0; first < num_samples; first += TILE) {{
        const size_t count = num_samples - first < TILE ? num_samples - first : (size_t)TILE;
        real valid[TILE], x_tile[INPUTS * TILE], given_tile[{num_given} * TILE], result_tile[{num_results} * TILE];
        load_mask(first, count, mask, valid);
        load_tile(INPUTS, first, count, NAME(value_stride)(layout, num_samples),
                  NAME(sample_stride)(layout, INPUTS), x, x_tile);
        load_tile({num_given}, first, count, NAME(value_stride)(layout, num_samples),
                  NAME(sample_stride)(layout, {num_given}), {given}, given_tile);
        masked_{name}_tile(valid, x_tile, given_tile, result_tile);
        store_tile({num_results}, first, count, NAME(value_stride)(layout, num_samples),
                   NAME(sample_stride)(layout, {num_results}), result_tile, {result});
    }}
}}
"""
_OF_ONE_MEMBER = """
static INLINE void slopes_at(const real *x, slopes_of_layers *slopes) {
    real y[OUTPUTS * TILE];
    forward_tile(members, x, y, slopes);
}

static INLINE void row_at(const slopes_of_layers *slopes, const real *dy, real *dx) {
    adjoint_tile(members, slopes, dy, dx);
}

static INLINE void column_at(const slopes_of_layers *slopes, const real *dx, real *dy) {
    tangent_tile(members, slopes, dx, dy);
}
"""
_OF_MEMBERS = """
static INLINE void slopes_at(const real *x, slopes_of_layers *slopes) {
    real y[OUTPUTS * TILE];
    for (int m = 0; m < MEMBERS; ++m) forward_tile(&members[m], x, y, &slopes[m]);
}

static INLINE void row_at(const slopes_of_layers *slopes, const real *dy, real *dx) {
    real values[MEMBERS * INPUTS * TILE];
    for (int m = 0; m < MEMBERS; ++m) adjoint_tile(&members[m], &slopes[m], dy, values + m * INPUTS * TILE);
    over_members(INPUTS * TILE, values, dx, NULL);
}

static INLINE void column_at(const slopes_of_layers *slopes, const real *dx, real *dy) {
    real values[MEMBERS * OUTPUTS * TILE];
    for (int m = 0; m < MEMBERS; ++m) tangent_tile(&members[m], &slopes[m], dx, values + m * OUTPUTS * TILE);
    over_members(OUTPUTS * TILE, values, dy, NULL);
}
"""
_PAIRS = """
/* Store the values [..][TILE] of one line (a row or a column) in the pairs that request its entries. */
static INLINE void NAME(store_pairs)(size_t first, size_t count, size_t num_samples, NAME(layout) layout,
                                     size_t num_pairs, const int *lines, const int *entries, int line,
                                     const real *values, real *pairs) {
    for (size_t p = 0; p < num_pairs; ++p)
        if (lines[p] == line)
            store_tile(1, first, count, 1, NAME(sample_stride)(layout, num_pairs), values + (size_t)entries[p] * TILE,
                       pairs + p * NAME(value_stride)(layout, num_samples));
}

API void NAME(jac_pairs)(size_t num_samples, NAME(layout) layout, const real *mask, const real *x, size_t num_pairs,
                         const int *rows, const int *columns, real *pairs) {
    unsigned char has_row[OUTPUTS] = {0}, has_column[INPUTS] = {0};
    int num_rows = 0, num_columns = 0;
    for (size_t p = 0; p < num_pairs; ++p) has_row[rows[p]] = has_column[columns[p]] = 1;
    for (int o = 0; o < OUTPUTS; ++o) num_rows += has_row[o];
    for (int i = 0; i < INPUTS; ++i) num_columns += has_column[i];
    for (size_t first = 0; first < num_samples; first += TILE) {
        const size_t count = num_samples - first < TILE ? num_samples - first : (size_t)TILE;
        real valid[TILE], x_tile[INPUTS * TILE];
        slopes_of_layers slopes[MEMBERS];
        load_mask(first, count, mask, valid);
        load_tile(INPUTS, first, count, NAME(value_stride)(layout, num_samples),
                  NAME(sample_stride)(layout, INPUTS), x, x_tile);
        typical_where_masked(valid, x_tile);
        slopes_at(x_tile, slopes);
        for (int o = 0; o < OUTPUTS; ++o) {
            real unit[OUTPUTS * TILE], row[INPUTS * TILE];
            if (num_rows > num_columns || !has_row[o]) continue;
            for (int k = 0; k < OUTPUTS * TILE; ++k) unit[k] = (real)(k / TILE == o);
            row_at(slopes, unit, row);
            times_mask(INPUTS, valid, row);
            NAME(store_pairs)(first, count, num_samples, layout, num_pairs, rows, columns, o, row, pairs);
        }
        for (int i = 0; i < INPUTS; ++i) {
            real unit[INPUTS * TILE], column[OUTPUTS * TILE];
            if (num_rows <= num_columns || !has_column[i]) continue;
            for (int k = 0; k < INPUTS * TILE; ++k) unit[k] = (real)(k / TILE == i);
            column_at(slopes, unit, column);
            times_mask(OUTPUTS, valid, column);
            NAME(store_pairs)(first, count, num_samples, layout, num_pairs, columns, rows, i, column, pairs);
        }
    }
}
"""
_TYPES = """
/* One variable of a model: its value at a node and a level is values[node * node_stride + level * level_stride]. */
template <class T> struct field {
    T *values;
    std::size_t num_levels, node_stride, level_stride;
};

/* A field as Atlas stores it: [nodes][levels]. */
template <class T> field<T> levels_fastest(T *values, std::size_t num_levels) {
    return {values, num_levels, num_levels, 1};
}

namespace detail {
template <class T> void check_levels(const std::vector<field<T>> &fields, std::size_t expected) {
    std::size_t found = 0;
    for (const field<T> &one : fields) found += one.num_levels;
    if (found != expected) throw std::invalid_argument("the fields have another number of levels than the network");
}

template <class T>
void load_fields(std::size_t first, std::size_t count, const std::vector<field<T>> &fields, real *tile) {
    for (const field<T> &one : fields)
        for (std::size_t level = 0; level < one.num_levels; ++level)
            for (std::size_t b = 0; b < TILE; ++b) {
                const std::size_t node = first + (b < count ? b : count - 1);
                *tile++ = real(one.values[node * one.node_stride + level * one.level_stride]);
            }
}

template <class T>
void add_to_fields(std::size_t first, std::size_t count, const real *tile, const std::vector<field<T>> &fields) {
    for (const field<T> &one : fields)
        for (std::size_t level = 0; level < one.num_levels; ++level, tile += TILE)
            for (std::size_t b = 0; b < count; ++b)
                one.values[(first + b) * one.node_stride + level * one.level_stride] += T(tile[b]);
}
}  // namespace detail
"""
_ADD = """
/* {what} */
template <class T>
void add_{name}(std::size_t num_nodes, const real *mask, const std::vector<field<const T>> &x,
{indent}const std::vector<field<const T>> &{given}, const std::vector<field<T>> &{result}) {{
    check_levels(x, INPUTS);
    check_levels({given}, {num_given});
    check_levels({result}, {num_results});
    for (std::size_t first = 0; first < num_nodes; first += TILE) {{
        const std::size_t count = num_nodes - first < TILE ? num_nodes - first : std::size_t(TILE);
        real valid[TILE], x_tile[INPUTS * TILE], dx_tile[INPUTS * TILE], dy_tile[OUTPUTS * TILE];
        load_mask(first, count, mask, valid);
        load_fields(first, count, x, x_tile);
        load_fields(first, count, {given}, {given}_tile);
        masked_{name}_tile(valid, x_tile, {given}_tile, {result}_tile);
        add_to_fields(first, count, {result}_tile, {result});
    }}
}}
"""
_FUNCTIONS = (
    {"name": "tangent_linear", "given": "dx", "result": "dy", "num_given": "INPUTS", "num_results": "OUTPUTS",
     "what": "dy += K dx, times the mask of each node (NULL: 1), with the network's variables as fields, in its "
     "order."},
    {"name": "adjoint", "given": "dy", "result": "dx", "num_given": "OUTPUTS", "num_results": "INPUTS",
     "what": "dx += K^T dy: the adjoint of add_tangent_linear."},
)  # fmt: skip
FIELDS = _TYPES + "".join(_ADD.format(indent=" " * len(f"void add_{one['name']}("), **one) for one in _FUNCTIONS)


def masked_functions(is_ensemble: bool) -> str:
    """Return tangent linear, adjoint and Jacobian entries of a batch, with a mask."""
    batches = "".join(_BATCH.format(**one) for one in _FUNCTIONS)
    return _MASKED + batches + (_OF_MEMBERS if is_ensemble else _OF_ONE_MEMBER) + _PAIRS
