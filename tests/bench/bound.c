/* bound.c - as many exponentials or multiply-adds as asked for, some vectors at a time to hide their
 * latencies. */
#include "tests/bench/bound.h"

#include "kernels/cpu/vec.h"

enum { CHAINS = 4 };

/* Read when the program runs, so that the compiler computes nothing beforehand. */
static volatile float start = -20, step = 0x1p-18F, half = 0.5F;

float bound_exp2(int64_t count) {
    vf sum[CHAINS], x = vf_set(start);
    const vf steps = vf_set(step);
    for (int i = 0; i < CHAINS; i++)
        sum[i] = vf_set(0);
    for (int64_t done = 0; done < count; done += (int64_t)CHAINS * VF_LANES) {
        for (int i = 0; i < CHAINS; i++) {
            sum[i] = sum[i] + vf_exp2(x);
            x = x + steps;
        }
    }
    float all = 0;
    for (int i = 0; i < CHAINS; i++)
        all += vf_sum(sum[i]);
    return all;
}

float bound_multiply_add(int64_t count) {
    vf sum[CHAINS];
    const vf a = vf_set(half), b = vf_set(step);
    for (int i = 0; i < CHAINS; i++)
        sum[i] = vf_set((float)i);
    for (int64_t done = 0; done < count; done += (int64_t)CHAINS * VF_LANES)
        for (int i = 0; i < CHAINS; i++)
            sum[i] = vf_fma(sum[i], a, b);
    float all = 0;
    for (int i = 0; i < CHAINS; i++)
        all += vf_sum(sum[i]);
    return all;
}
