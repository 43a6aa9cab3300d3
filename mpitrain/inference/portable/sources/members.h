/* Mean of values [MEMBERS][count] over the members, added in their order, and standard deviation unless NULL. */
static INLINE void over_members(int count, const real *RESTRICT values, real *RESTRICT mean, real *RESTRICT spread) {
    for (int k = 0; k < count; ++k) {
        real total = without_tiny(values[k], SUM_LIMIT);
        for (int m = 1; m < MEMBERS; ++m) total = total + without_tiny(values[m * count + k], SUM_LIMIT);
        const real quotient = total / (real)MEMBERS;
        mean[k] = without_tiny(quotient, RESULT_LIMIT);
    }
    if (!spread) return;
    for (int k = 0; k < count; ++k) {
        const real center = without_tiny(mean[k], SUM_LIMIT);
        real total = (real)0;
        for (int m = 0; m < MEMBERS; ++m) {
            const real difference = without_tiny(values[m * count + k], SUM_LIMIT) - center;
            const real deviation = without_tiny(difference, DEVIATION_LIMIT);
            const real square = deviation * deviation;
            total = total + square;
        }
        spread[k] = SQUARE_ROOT(total / (real)(MEMBERS - 1));
    }
}
