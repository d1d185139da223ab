/*
 * vec.h - the few vector operations that the chunk kernel needs, for one instruction set.
 *
 * The kernel is one source, compiled once for each instruction set; this header is all that differs. Which
 * set it gives follows from the compiler's target flags of the file that includes it; VEC_PORTABLE, defined
 * before, asks for the one that needs none. Everything is static, so files of different sets link together.
 *
 *   vf                      VF_LANES floats; + - * work on it, and are never contracted to fused operations
 *                           (the build says -ffp-contract=off): a result follows from the source alone
 *   vf_fma(a, b, c)         a * b + c; fused but in the portable set
 *   vf_greater(a, b)        a > b ? a : b, so b where either is NaN
 *   vf_less(a, b)           a < b ? a : b, so b where either is NaN
 *   vf_where_greater(a, b, x, y)  a > b ? x : y, so y where a or b is NaN
 *   vf_where_equal(a, b, x, y)    a == b ? x : y
 *   vf_any_greater(a, b)    a > b in some lane
 *   vf_exponent(a)          the float whose exponent field is the low bits of a's pattern, and whose sign and
 *                           mantissa are 0: 2 ** (low - 127)
 *   vf_load_bf16, vf_load_f16     VF_LANES halves to floats, exactly
 *   vf_stream(to, a)        stores a past the caches; `to` is aligned to the vector. Other threads are sure
 * to see it after vf_stream_end(), and what synchronizes them Other loads and stores need no alignment beyond
 * that of the element.
 *
 * PANEL_VECS vectors make a panel, the columns that the kernel works on at once. ROW_TILE and COL_TILE are
 * the rows and columns of its products' register blocks: 2 * ROW_TILE * PANEL_VECS or COL_TILE * PANEL_VECS
 * sums must fit the registers, with what feeds them, and be enough to hide the latency of a fused
 * multiply-add.
 */
#ifndef KERNELS_CPU_VEC_H
#define KERNELS_CPU_VEC_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "kernels/cpu/half.h"

#if defined(VEC_PORTABLE)

#define VF_LANES 4
#define PANEL_VECS 2
#define ROW_TILE 2
#define COL_TILE 4

typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));

static inline vf vf_set(float a) {
    return (vf){a, a, a, a};
}
static inline vf vf_load(const float *from) {
    vf a;
    memcpy(&a, from, sizeof a);
    return a;
}
static inline void vf_store(float *to, vf a) {
    memcpy(to, &a, sizeof a);
}
static inline void vf_stream(float *to, vf a) {
    vf_store(to, a);
}
static inline void vf_stream_end(void) {
}
static inline vf vf_fma(vf a, vf b, vf c) {
    return a * b + c;
}
static inline vf vf_choose(vi mask, vf x, vf y) {
    return (vf)(((vi)x & mask) | ((vi)y & ~mask));
}
static inline vf vf_where_greater(vf a, vf b, vf x, vf y) {
    return vf_choose(a > b, x, y);
}
static inline vf vf_where_equal(vf a, vf b, vf x, vf y) {
    return vf_choose(a == b, x, y);
}
static inline vf vf_greater(vf a, vf b) {
    return vf_where_greater(a, b, a, b);
}
static inline vf vf_less(vf a, vf b) {
    return vf_where_greater(b, a, a, b);
}
static inline bool vf_any_greater(vf a, vf b) {
    vi mask = a > b;
    return (mask[0] | mask[1] | mask[2] | mask[3]) != 0;
}
static inline vf vf_exponent(vf a) {
    return (vf)((vi)a << 23);
}
static inline vf vf_load_bf16(const uint16_t *from) {
    return (vf){bf16_to_float(from[0]), bf16_to_float(from[1]), bf16_to_float(from[2]),
                bf16_to_float(from[3])};
}
static inline vf vf_load_f16(const uint16_t *from) {
    return (vf){f16_to_float(from[0]), f16_to_float(from[1]), f16_to_float(from[2]), f16_to_float(from[3])};
}

#elif defined(__AVX512F__)

#include <immintrin.h>

#define VF_LANES 16
#define PANEL_VECS 2
#define ROW_TILE 4
#define COL_TILE 8

typedef __m512 vf;

static inline vf vf_set(float a) {
    return _mm512_set1_ps(a);
}
static inline vf vf_load(const float *from) {
    return _mm512_loadu_ps(from);
}
static inline void vf_store(float *to, vf a) {
    _mm512_storeu_ps(to, a);
}
static inline void vf_stream(float *to, vf a) {
    _mm512_stream_ps(to, a);
}
static inline void vf_stream_end(void) {
    _mm_sfence();
}
static inline vf vf_fma(vf a, vf b, vf c) {
    return _mm512_fmadd_ps(a, b, c);
}
static inline vf vf_greater(vf a, vf b) {
    return _mm512_max_ps(a, b);
}
static inline vf vf_less(vf a, vf b) {
    return _mm512_min_ps(a, b);
}
static inline vf vf_where_greater(vf a, vf b, vf x, vf y) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_GT_OQ), y, x);
}
static inline vf vf_where_equal(vf a, vf b, vf x, vf y) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ), y, x);
}
static inline bool vf_any_greater(vf a, vf b) {
    return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ) != 0;
}
static inline vf vf_exponent(vf a) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(a), 23));
}
static inline vf vf_load_bf16(const uint16_t *from) {
    __m256i halves = _mm256_loadu_si256((const __m256i_u *)from);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}
static inline vf vf_load_f16(const uint16_t *from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i_u *)from));
}

#elif defined(__AVX2__)

#include <immintrin.h>

#define VF_LANES 8
#define PANEL_VECS 2
#define ROW_TILE 2
#define COL_TILE 4

typedef __m256 vf;

static inline vf vf_set(float a) {
    return _mm256_set1_ps(a);
}
static inline vf vf_load(const float *from) {
    return _mm256_loadu_ps(from);
}
static inline void vf_store(float *to, vf a) {
    _mm256_storeu_ps(to, a);
}
static inline void vf_stream(float *to, vf a) {
    _mm256_stream_ps(to, a);
}
static inline void vf_stream_end(void) {
    _mm_sfence();
}
static inline vf vf_fma(vf a, vf b, vf c) {
    return _mm256_fmadd_ps(a, b, c);
}
static inline vf vf_greater(vf a, vf b) {
    return _mm256_max_ps(a, b);
}
static inline vf vf_less(vf a, vf b) {
    return _mm256_min_ps(a, b);
}
static inline vf vf_where_greater(vf a, vf b, vf x, vf y) {
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_GT_OQ));
}
static inline vf vf_where_equal(vf a, vf b, vf x, vf y) {
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_EQ_OQ));
}
static inline bool vf_any_greater(vf a, vf b) {
    return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ)) != 0;
}
static inline vf vf_exponent(vf a) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(a), 23));
}
static inline vf vf_load_bf16(const uint16_t *from) {
    __m128i halves = _mm_loadu_si128((const __m128i_u *)from);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}
static inline vf vf_load_f16(const uint16_t *from) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i_u *)from));
}

#elif defined(__aarch64__)

#include <arm_neon.h>

#define VF_LANES 4
#define PANEL_VECS 4
#define ROW_TILE 2
#define COL_TILE 4

typedef float32x4_t vf;

static inline vf vf_set(float a) {
    return vdupq_n_f32(a);
}
static inline vf vf_load(const float *from) {
    return vld1q_f32(from);
}
static inline void vf_store(float *to, vf a) {
    vst1q_f32(to, a);
}
static inline void vf_stream(float *to, vf a) {
    vf_store(to, a);
}
static inline void vf_stream_end(void) {
}
static inline vf vf_fma(vf a, vf b, vf c) {
    return vfmaq_f32(c, a, b);
}
static inline vf vf_where_greater(vf a, vf b, vf x, vf y) {
    return vbslq_f32(vcgtq_f32(a, b), x, y);
}
static inline vf vf_where_equal(vf a, vf b, vf x, vf y) {
    return vbslq_f32(vceqq_f32(a, b), x, y);
}
static inline vf vf_greater(vf a, vf b) {
    return vf_where_greater(a, b, a, b);
}
static inline vf vf_less(vf a, vf b) {
    return vf_where_greater(b, a, a, b);
}
static inline bool vf_any_greater(vf a, vf b) {
    return vmaxvq_u32(vcgtq_f32(a, b)) != 0;
}
static inline vf vf_exponent(vf a) {
    return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(a), 23));
}
static inline vf vf_load_bf16(const uint16_t *from) {
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(from), 16));
}
static inline vf vf_load_f16(const uint16_t *from) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from)));
}

#else
#error "no vectors for this target: define VEC_PORTABLE"
#endif

enum {
    PANEL = PANEL_VECS * VF_LANES /* columns of a panel */
};

/* The sum of a's lanes, always in the same order: halves are added until one lane is left. */
static inline float vf_sum(vf a) {
    float lanes[VF_LANES];
    vf_store(lanes, a);
    for (int width = VF_LANES / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++)
            lanes[i] += lanes[i + width];
    return lanes[0];
}

/*
 * 2 ** x, with an error below 1 unit in the last place. Exact where x is an integer. NaN stays NaN, overflow
 * is inf, -inf gives 0, and so does what lies below 2 ** -125.5: there are no denormal results.
 *
 * x = n + f with n whole and |f| <= 1/2. Adding 1.5 * 2 ** 23 + 126 leaves n + 126 in the sum's low bits,
 * from where it goes to the exponent of 2 ** (n - 1); the polynomial gives 2 * 2 ** f. Split so, n = 128 is
 * still in range, and n = -126 gives the factor 0. The polynomial is the minimax one of degree 6 (relative
 * error 2e-9) of those that are exact at f = 0.
 */
static inline vf vf_exp2(vf x) {
    const vf round = vf_set(0x1.8p23F + 126);
    x = vf_greater(vf_set(-126), x); /* in this order NaN stays NaN */
    x = vf_less(vf_set(128), x);
    vf sum = x + round;
    vf f = x - (sum - round);
    vf p = vf_fma(vf_set(0x1.41fbb4p-12F), f, vf_set(0x1.5f3e58p-9F));
    p = vf_fma(p, f, vf_set(0x1.3b2d4ep-6F));
    p = vf_fma(p, f, vf_set(0x1.c6aee8p-4F));
    p = vf_fma(p, f, vf_set(0x1.ebfbdcp-2F));
    p = vf_fma(p, f, vf_set(0x1.62e43p+0F));
    p = vf_fma(p, f, vf_set(2));
    return p * vf_exponent(sum);
}

#endif
