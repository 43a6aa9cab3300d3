/* outputs += inputs. */
static INLINE void add_values(int count, const real *RESTRICT inputs, real *RESTRICT outputs) {
    for (int k = 0; k < count; ++k) {
        const real sum = outputs[k] + inputs[k];
        outputs[k] = without_tiny(sum, VALUE_LIMIT);
    }
}
