/* half.h - the 16-bit floats of tensors as floats. Both conversions are exact. */
#ifndef KERNELS_CPU_HALF_H
#define KERNELS_CPU_HALF_H

#include <stdint.h>
#include <string.h>

static inline float float_of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float bf16_to_float(uint16_t half) {
    return float_of_bits((uint32_t)half << 16);
}

/* The exponent is moved up to a float's as if it were normal; subtracting then puts a denormal right. */
static inline float f16_to_float(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    uint32_t magnitude = (uint32_t)(half & 0x7fff) << 13;
    if (magnitude >= 0x7c00U << 13) /* inf, NaN */
        magnitude += (255U - 31) << 23;
    else if (magnitude >= 0x0400U << 13)
        magnitude += (127U - 15) << 23;
    else { /* 0 or denormal: magnitude's mantissa, times 2 ** -14 */
        float value = float_of_bits(magnitude + ((127U - 14) << 23)) - 0x1p-14F;
        return sign ? -value : value;
    }
    return float_of_bits(sign | magnitude);
}

#endif
