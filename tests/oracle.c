/* oracle.c - the formula, element by element. Nothing here is fast, and nothing is shared between elements.
 */
#include "tests/oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

uint16_t oracle_to_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (isnan(value))
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

uint16_t oracle_to_f16(float value) {
    const uint16_t sign = signbit(value) ? 0x8000 : 0;
    if (isnan(value))
        return sign | 0x7e00;
    const double magnitude = fabs(value);
    if (magnitude >= 65520)
        return sign | 0x7c00;
    if (magnitude < 0x1p-14) /* a whole number of 2 ** -24; 1024 of them are the smallest normal number */
        return sign | (uint16_t)nearbyint(magnitude * 0x1p24);
    int exponent;
    const double mantissa = frexp(magnitude, &exponent); /* 0.5 <= mantissa < 1 */
    return sign | (uint16_t)(nearbyint(mantissa * 2048) + (exponent + 13) * 1024);
}

double oracle_from_bf16(uint16_t half) {
    const uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

double oracle_from_f16(uint16_t half) {
    const double sign = half & 0x8000 ? -1 : 1;
    const int exponent = half >> 10 & 31, mantissa = half & 1023;
    if (exponent == 31)
        return mantissa ? NAN : sign * INFINITY;
    if (exponent == 0)
        return sign * ldexp(mantissa, -24);
    return sign * ldexp(1024 + mantissa, exponent - 25);
}

static int64_t dimension(const struct problem *p, enum operand o, int i) {
    int64_t shape[4];
    return i < problem_shape(p, o, shape) ? shape[i] : 1;
}

size_t oracle_count(const struct problem *p, enum operand o) {
    size_t count = 1;
    for (int i = 0; i < 4; i++)
        count *= (size_t)dimension(p, o, i);
    return count;
}

static const char *address(const struct problem *p, void *const data[OPERAND_COUNT], enum operand o,
                           int64_t batch, int64_t row, int64_t head, int64_t i) {
    const int64_t *stride = p->at[o].stride;
    const int64_t at = batch * stride[0] + row * stride[1] + head * stride[2] + i;
    return (const char *)data[o] + at * (int64_t)dtype_size(problem_dtype(p, o));
}

/* One element. Heads are counted as the operand counts them; i is 0 for operands of three dimensions. */
static double element(const struct problem *p, void *const data[OPERAND_COUNT], enum operand o, int64_t batch,
                      int64_t row, int64_t head, int64_t i) {
    const char *from = address(p, data, o, batch, row, head, i);
    uint16_t half;
    float value;
    switch (problem_dtype(p, o)) {
    case DTYPE_BF16:
        memcpy(&half, from, sizeof half);
        return oracle_from_bf16(half);
    case DTYPE_F16:
        memcpy(&half, from, sizeof half);
        return oracle_from_f16(half);
    default:
        memcpy(&value, from, sizeof value);
        return value;
    }
}

void oracle_gather(float *to, const struct problem *p, void *const data[OPERAND_COUNT], enum operand o) {
    for (int64_t b = 0; b < p->B; b++)
        for (int64_t t = 0; t < p->T; t++)
            for (int64_t h = 0; h < dimension(p, o, 2); h++)
                for (int64_t i = 0; i < dimension(p, o, 3); i++)
                    memcpy(to++, address(p, data, o, b, t, h, i), sizeof *to);
}

/* Rows start ... end - 1 of one batch and value head: all pairs s <= r of one chunk. */
static void add_chunk(struct oracle *x, const struct problem *p, void *const data[OPERAND_COUNT], int64_t b,
                      int64_t hv, int64_t start, int64_t end) {
    const int64_t h = hv / (p->HV / p->H);
    for (int64_t r = start; r < end; r++) {
        const double beta = element(p, data, OPERAND_BETA, b, r, hv, 0);
        const size_t head_r = (size_t)((b * p->T + r) * p->HV + hv);
        for (int64_t s = start; s <= r; s++) {
            const double dAqk = element(p, data, OPERAND_DAQK, b, r, hv, s - start);
            const double dAkk = element(p, data, OPERAND_DAKK, b, r, hv, s - start);
            const size_t head_s = (size_t)((b * p->T + s) * p->HV + hv);
            for (int64_t d = 0; d < p->K; d++) {
                const double q_r = element(p, data, OPERAND_Q, b, r, h, d);
                const double k_r = element(p, data, OPERAND_K, b, r, h, d);
                const double k_s = element(p, data, OPERAND_K, b, s, h, d);
                const double g_r = element(p, data, OPERAND_G, b, r, hv, d);
                const double g_s = element(p, data, OPERAND_G, b, s, hv, d);
                const double E = s == r ? 1 : exp2(g_r - g_s);
                const double dqi = dAqk * k_s * E;
                const double dkw = dAkk * k_s * E;
                const double dkt = (dAqk * q_r + dAkk * beta * k_r) * E;
                const size_t at_r = head_r * (size_t)p->K + (size_t)d,
                             at_s = head_s * (size_t)p->K + (size_t)d;
                x->dq[at_r] += dqi;
                x->db[head_r] += dkw * k_r;
                x->dk[at_r] += beta * dkw;
                x->dk[at_s] += dkt;
                if (s < r) { /* the terms of s = r cancel */
                    x->dg[at_r] += q_r * dqi + beta * dkw * k_r;
                    x->dg[at_s] -= dkt * k_s;
                }
            }
        }
    }
}

static void add_sequence(struct oracle *x, const struct problem *p, void *const data[OPERAND_COUNT],
                         int64_t b, int64_t start, int64_t end) {
    for (int64_t hv = 0; hv < p->HV; hv++)
        for (int64_t chunk = start; chunk < end; chunk += p->C)
            add_chunk(x, p, data, b, hv, chunk, chunk + p->C < end ? chunk + p->C : end);
}

static int64_t cu_seqlen(const struct problem *p, void *const data[OPERAND_COUNT], int64_t i) {
    const void *cu = data[OPERAND_CU_SEQLENS];
    return p->cu_dtype == DTYPE_I32 ? ((const int32_t *)cu)[i] : ((const int64_t *)cu)[i];
}

/* A contiguous copy of incoming gradients. */
static double *incoming(const struct problem *p, void *const data[OPERAND_COUNT], enum operand o) {
    double *copy = calloc(oracle_count(p, o) + 1, sizeof *copy), *to = copy;
    if (!copy)
        return NULL;
    for (int64_t b = 0; b < p->B; b++)
        for (int64_t t = 0; t < p->T; t++)
            for (int64_t h = 0; h < p->HV; h++)
                for (int64_t i = 0; i < dimension(p, o, 3); i++)
                    *to++ = element(p, data, o, b, t, h, i);
    return copy;
}

bool oracle_run(struct oracle *results, const struct problem *p, void *const data[OPERAND_COUNT]) {
    results->dq = incoming(p, data, OPERAND_DQ);
    results->dk = incoming(p, data, OPERAND_DK);
    results->db = incoming(p, data, OPERAND_DB);
    results->dg = incoming(p, data, OPERAND_DG);
    if (!results->dq || !results->dk || !results->db || !results->dg)
        goto bad;
    if (p->N < 0) {
        for (int64_t b = 0; b < p->B; b++)
            add_sequence(results, p, data, b, 0, p->T);
        return true;
    }
    if (cu_seqlen(p, data, 0) != 0)
        goto bad;
    for (int64_t i = 0; i < p->N; i++) {
        const int64_t start = cu_seqlen(p, data, i), end = cu_seqlen(p, data, i + 1);
        if (end < start || end > p->T)
            goto bad;
        add_sequence(results, p, data, 0, start, end);
    }
    return true;
bad:
    oracle_free(results);
    return false;
}

void oracle_free(struct oracle *results) {
    free(results->dq);
    free(results->dk);
    free(results->db);
    free(results->dg);
    *results = (struct oracle){0};
}

const double *oracle_result(const struct oracle *results, enum operand o) {
    switch (o) {
    case OPERAND_DQ:
    case OPERAND_DQ_OUT:
        return results->dq;
    case OPERAND_DK:
    case OPERAND_DK_OUT:
        return results->dk;
    case OPERAND_DB:
    case OPERAND_DB_OUT:
        return results->db;
    case OPERAND_DG:
    case OPERAND_DG_OUT:
        return results->dg;
    default:
        return NULL;
    }
}

double oracle_error(const float *out, const double *ref, const float *in, size_t n) {
    double wrong = 0, whole = 0, added = 0;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(ref[i]) != !isfinite(out[i]))
            return INFINITY;
        if (!isfinite(ref[i]))
            continue;
        wrong += (out[i] - ref[i]) * (out[i] - ref[i]);
        whole += ref[i] * ref[i];
        added += (ref[i] - in[i]) * (ref[i] - in[i]);
    }
    if (added == 0)
        return memcmp(out, in, n * sizeof *out) == 0 ? 0 : INFINITY;
    const double excess = sqrt(wrong) - 6e-8 * sqrt(whole);
    return excess > 0 ? excess / sqrt(added) : 0;
}
