/*
 * direct.c - the formula in plain C: single precision, each pair of rows and column with its own exp2f, all
 * that does not depend on the innermost loop loaded before it, sums of a row kept at hand. Compiled with full
 * optimization for the processor's vectors; the compiler decides what becomes of it.
 */
#include "tests/bench/direct.h"

#include <math.h>
#include <string.h>

enum { MAX_C = 128 };

static float from_bf16(uint16_t half) {
    const uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

struct rows {
    float q[MAX_C][PROBLEM_MAX_K], k[MAX_C][PROBLEM_MAX_K], g[MAX_C][PROBLEM_MAX_K];
    float dqi[MAX_C][PROBLEM_MAX_K], dkw[MAX_C][PROBLEM_MAX_K], dkt[MAX_C][PROBLEM_MAX_K];
};

static void run_chunk(const struct problem *p, void *const data[OPERAND_COUNT], int64_t b, int64_t hv,
                      int64_t start, int64_t end) {
    static _Thread_local struct rows x;
    const int64_t h = hv / (p->HV / p->H), rows = end - start, K = p->K;
    const float *beta = data[OPERAND_BETA];
    for (int64_t r = 0; r < rows; r++) {
        const size_t head = (size_t)((b * p->T + start + r) * p->HV + hv);
        const size_t qk = (size_t)(((b * p->T + start + r) * p->H + h) * K);
        const uint16_t *q = (const uint16_t *)data[OPERAND_Q] + qk,
                       *k = (const uint16_t *)data[OPERAND_K] + qk;
        const float *g = (const float *)data[OPERAND_G] + head * (size_t)K;
        for (int64_t d = 0; d < K; d++) {
            x.q[r][d] = from_bf16(q[d]);
            x.k[r][d] = from_bf16(k[d]);
            x.g[r][d] = g[d];
            x.dqi[r][d] = x.dkw[r][d] = x.dkt[r][d] = 0;
        }
    }
    for (int64_t r = 0; r < rows; r++) {
        const size_t head = (size_t)((b * p->T + start + r) * p->HV + hv);
        const float *dAqk = (const float *)data[OPERAND_DAQK] + head * (size_t)p->C;
        const float *dAkk = (const float *)data[OPERAND_DAKK] + head * (size_t)p->C;
        for (int64_t s = 0; s <= r; s++) {
            const float aqk = dAqk[s], akk = dAkk[s], akk_beta = akk * beta[head];
            for (int64_t d = 0; d < K; d++) {
                const float e = exp2f(x.g[r][d] - x.g[s][d]);
                x.dqi[r][d] += aqk * x.k[s][d] * e;
                x.dkw[r][d] += akk * x.k[s][d] * e;
                x.dkt[s][d] += (aqk * x.q[r][d] + akk_beta * x.k[r][d]) * e;
            }
        }
    }
    for (int64_t r = 0; r < rows; r++) {
        const size_t head = (size_t)((b * p->T + start + r) * p->HV + hv), at = head * (size_t)K;
        const float beta_r = beta[head];
        float db = 0;
        for (int64_t d = 0; d < K; d++) {
            const float q = x.q[r][d], k = x.k[r][d], dqi = x.dqi[r][d], dkw = x.dkw[r][d], dkt = x.dkt[r][d];
            ((float *)data[OPERAND_DQ_OUT])[at + d] = ((const float *)data[OPERAND_DQ])[at + d] + dqi;
            ((float *)data[OPERAND_DK_OUT])[at + d] =
                ((const float *)data[OPERAND_DK])[at + d] + beta_r * dkw + dkt;
            ((float *)data[OPERAND_DG_OUT])[at + d] =
                ((const float *)data[OPERAND_DG])[at + d] + q * dqi + (beta_r * dkw - dkt) * k;
            db += dkw * k;
        }
        ((float *)data[OPERAND_DB_OUT])[head] = ((const float *)data[OPERAND_DB])[head] + db;
    }
}

void direct_run(const struct problem *p, void *const data[OPERAND_COUNT]) {
    for (int64_t b = 0; b < p->B; b++)
        for (int64_t start = 0; start < p->T; start += p->C)
            for (int64_t hv = 0; hv < p->HV; hv++)
                run_chunk(p, data, b, hv, start, start + p->C < p->T ? start + p->C : p->T);
}
