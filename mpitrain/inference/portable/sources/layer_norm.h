/* Replaces z [units][samples] by scale (z - mean) / std + offset, with mean and std over the units of each sample.
   Keeps for derivatives `normalised` [units][samples], and `factor` [samples], one over the standard deviation. */
static INLINE void normalise_units(int units, int samples, const real *RESTRICT scale, const real *RESTRICT offset,
                                   real *RESTRICT z, real *RESTRICT normalised, real *RESTRICT factor) {
    real mean[TILE], squares[TILE];
    for (int b = 0; b < samples; ++b) mean[b] = squares[b] = (real)0;
    for (int j = 0; j < units; ++j)
        for (int b = 0; b < samples; ++b) mean[b] = mean[b] + z[j * samples + b];
    for (int b = 0; b < samples; ++b) {
        const real quotient = mean[b] / (real)units;
        mean[b] = without_tiny(quotient, SUM_LIMIT);
    }
    for (int j = 0; j < units; ++j)
        for (int b = 0; b < samples; ++b) {
            const real difference = z[j * samples + b] - mean[b];
            const real deviation = without_tiny(difference, DEVIATION_LIMIT);
            const real square = deviation * deviation;
            normalised[j * samples + b] = deviation;
            squares[b] = squares[b] + square;
        }
    for (int b = 0; b < samples; ++b) {
        const real variance = squares[b] / (real)units;
        const real moved = variance + NORM_EPSILON;
        factor[b] = (real)1 / SQUARE_ROOT(moved);
    }
    for (int j = 0; j < units; ++j)
        for (int b = 0; b < samples; ++b) {
            const real scaled = normalised[j * samples + b] * factor[b];
            const real value = without_tiny(scaled, VALUE_LIMIT);
            const real product = value * scale[j];
            normalised[j * samples + b] = value;
            z[j * samples + b] = without_tiny(product, SUM_LIMIT) + offset[j];
        }
}

/* Replaces derivatives [units][samples] with respect to the normalised values by those with respect to z. The map is
   symmetric, so the tangent linear uses it too. */
static INLINE void through_norm(int units, int samples, const real *RESTRICT normalised, const real *RESTRICT factor,
                                real *RESTRICT values) {
    real mean[TILE], along[TILE];
    for (int b = 0; b < samples; ++b) mean[b] = along[b] = (real)0;
    for (int j = 0; j < units; ++j)
        for (int b = 0; b < samples; ++b) {
            const real value = without_tiny(values[j * samples + b], VALUE_LIMIT);
            const real product = value * normalised[j * samples + b];
            values[j * samples + b] = value;
            mean[b] = mean[b] + value;
            along[b] = along[b] + without_tiny(product, SUM_LIMIT);
        }
    for (int b = 0; b < samples; ++b) {
        const real first = mean[b] / (real)units, second = along[b] / (real)units;
        mean[b] = without_tiny(first, VALUE_LIMIT);
        along[b] = without_tiny(second, VALUE_LIMIT);
    }
    for (int j = 0; j < units; ++j)
        for (int b = 0; b < samples; ++b) {
            const real product = normalised[j * samples + b] * along[b];
            const real difference = values[j * samples + b] - mean[b];
            const real rest = difference - without_tiny(product, SUM_LIMIT);
            const real result = without_tiny(rest, VALUE_LIMIT) * factor[b];
            values[j * samples + b] = without_tiny(result, VALUE_LIMIT);
        }
}

static INLINE void times_scale(int units, int samples, const real *RESTRICT scale, real *RESTRICT values) {
    for (int j = 0; j < units; ++j)
        for (int b = 0; b < samples; ++b) {
            const real product = values[j * samples + b] * scale[j];
            values[j * samples + b] = without_tiny(product, VALUE_LIMIT);
        }
}
