/* 2^n for the integer n in the lowest bits of `shifted`. */
static INLINE real power_of_two(real shifted) {
    bits_of_real bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits << MANTISSA_BITS) + ((bits_of_real)EXPONENT_BIAS << MANTISSA_BITS);
    memcpy(&shifted, &bits, sizeof bits);
    return shifted;
}
