/*
 * plan.c - which panel kernel takes a problem, and with how large a grid.
 */
#include "kernels/cuda/plan.h"

#include <string.h>

enum {
    SLAB = 16,           /* columns of a warp of the panel kernels */
    PANEL_WARPS = 4,     /* of a block: three of them share an SM of sm_90 ... */
    PANEL_WARPS_FEW = 8, /* ... where there are more blocks than SMs: else the block has an SM for itself */
};

static const char *const names[CUDA_KERNEL_COUNT] = {
    [CUDA_KERNEL_SEQUENCES] = "kda_sequences",           [CUDA_KERNEL_PANEL_BF16] = "kda_panel_bf16",
    [CUDA_KERNEL_PANEL_F16] = "kda_panel_f16",           [CUDA_KERNEL_PANEL_F32] = "kda_panel_f32",
    [CUDA_KERNEL_PANEL_BF16_ANY] = "kda_panel_bf16_any", [CUDA_KERNEL_PANEL_F16_ANY] = "kda_panel_f16_any",
    [CUDA_KERNEL_PANEL_F32_ANY] = "kda_panel_f32_any",
};

const char *cuda_kernel_name(enum cuda_kernel kernel) {
    return names[kernel];
}

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static bool is_vector(enum cuda_kernel kernel) {
    return kernel >= CUDA_KERNEL_PANEL_BF16 && kernel <= CUDA_KERNEL_PANEL_F32;
}

static enum dtype qk_dtype_of(enum cuda_kernel kernel) {
    return DTYPE_BF16 + (kernel - CUDA_KERNEL_PANEL_BF16) % 3;
}

static unsigned panel_shared(enum cuda_kernel kernel, int slabs, int warps) {
    int words = qk_dtype_of(kernel) == DTYPE_F32 ? PANEL_FLOAT_WORDS : PANEL_HALF_WORDS;
    return 4 * (unsigned)(PANEL_FIXED_WORDS + slabs * PANEL_ROWS + warps * words);
}

/* Warps of a block: with fewer than slabs, a warp takes several, one after the other. 0: not even one fits.
 */
static int panel_warps(enum cuda_kernel kernel, int slabs, const struct cuda_plan_device *device, bool few) {
    int warps = (int)smaller(slabs, few ? PANEL_WARPS_FEW : PANEL_WARPS);
    while (warps > 0 && panel_shared(kernel, slabs, warps) > device->shared)
        warps /= 2;
    return warps;
}

unsigned cuda_kernel_shared(enum cuda_kernel kernel, const struct cuda_plan_device *device) {
    unsigned most = 0;
    if (kernel == CUDA_KERNEL_SEQUENCES)
        return 0;
    for (int slabs = 1; slabs <= PROBLEM_MAX_K / SLAB; slabs++) {
        for (int few = 0; few < 2; few++) {
            int warps = panel_warps(kernel, slabs, device, few);
            unsigned bytes = panel_shared(kernel, slabs, warps);
            if (warps > 0 && bytes > most)
                most = bytes;
        }
    }
    return most;
}

static int64_t panels_of(int64_t rows) {
    return (rows + PANEL_ROWS - 1) / PANEL_ROWS;
}

/* Entries of the list of panels: a sequence has at most one that is not full; so have the rows behind them.
 */
static int64_t list_size(const struct problem *p) {
    return p->T / PANEL_ROWS + p->N + 1;
}

/* Bytes of the three parts of scratch memory: snapshot, first, list, each in whole 16 bytes. */
static void scratch_parts(const struct problem *p, size_t part[3]) {
    part[0] = part[1] = ((size_t)p->N + 2) / 2 * 2 * sizeof(int64_t);
    part[2] = (size_t)list_size(p) * sizeof(struct kda_panel);
}

size_t cuda_plan_scratch(const struct problem *p) {
    size_t part[3];
    if (p->N < 0 || problem_is_empty(p))
        return 0;
    scratch_parts(p, part);
    return part[0] + part[1] + part[2] + 15; /* the list is aligned to 16 */
}

static struct kda_divisor divisor(int64_t d) {
    struct kda_divisor x = {0, 0};
    if (d <= 1 || d > INT32_MAX)
        return x;
    while ((INT64_C(1) << x.shift) < d)
        x.shift++;
    /* ceil(2^(31 + shift) / d) fits in 32 bits, and its error is below 2^-31 of a quotient's step */
    x.multiplier = (uint32_t)(((UINT64_C(1) << (31 + x.shift)) + (uint64_t)d - 1) / (uint64_t)d);
    x.shift--;
    return x;
}

/* The stride of a dimension of size 1 may be anything: it is taken as 0, so that row numbers may be clamped.
 */
static struct kda_tensor tensor(const struct problem *p, enum operand o, const uint64_t addresses[]) {
    int64_t heads = o <= OPERAND_K ? p->H : p->HV;
    const int64_t *stride = p->at[o].stride;
    struct kda_tensor x = {addresses[o], p->B > 1 ? stride[0] : 0, p->T > 1 ? stride[1] : 0,
                           heads > 1 ? (operand_rank(o) == 3 ? 1 : stride[2]) : 0};
    return x;
}

/* Can rows be read and written 16 (q, k, g, dA) and 8 (gradients) bytes at a time, with 32-bit row strides?
 */
static bool is_aligned(const struct problem *p, const uint64_t addresses[]) {
    for (int o = 0; o < OPERAND_CU_SEQLENS; o++) {
        if (operand_rank(o) != 4)
            continue;
        size_t size = dtype_size(problem_dtype(p, o)), bytes = o >= OPERAND_DQ ? 8 : 16;
        if (addresses[o] % bytes)
            return false;
        int64_t unit = size ? (int64_t)(bytes / size) : 1; /* elements of an access */
        int64_t count[3] = {p->B, p->T, o <= OPERAND_K ? p->H : p->HV};
        for (int i = 0; i < 3; i++) {
            if (count[i] > 1 && p->at[o].stride[i] % unit != 0)
                return false;
        }
        if (p->T > 1 && p->at[o].stride[1] > INT32_MAX / 4 / 64)
            return false;
        /* one offset serves g and all gradients */
        for (int i = 0; o >= OPERAND_DQ && i < 3; i++) {
            if (count[i] > 1 && p->at[o].stride[i] != p->at[OPERAND_G].stride[i])
                return false;
        }
    }
    return p->K % (p->qk_dtype == DTYPE_F32 ? 4 : 8) == 0;
}

/* Are there fewer than 2^31 items? Sizes may be up to 2^48 each; that of db, their product, is checked. */
static bool is_few_items(const struct problem *p) {
    int64_t panels = p->N < 0 ? panels_of(p->T) : list_size(p), items;
    if (__builtin_mul_overflow(p->N < 0 ? p->B : 1, panels, &items) ||
        __builtin_mul_overflow(items, p->HV, &items))
        return false;
    return items < INT32_MAX;
}

bool cuda_plan_make_with(struct cuda_plan *plan, enum cuda_kernel kernel, const struct problem *p,
                         const uint64_t addresses[OPERAND_COUNT], const struct cuda_plan_memory *memory,
                         const struct cuda_plan_device *device) {
    struct kda_params *params = &plan->params;
    memset(plan, 0, sizeof *plan);
    if (problem_is_empty(p))
        return true;
    if (qk_dtype_of(kernel) != p->qk_dtype || p->C > PANEL_ROWS || !is_few_items(p) ||
        (is_vector(kernel) && !is_aligned(p, addresses)))
        return false;

    params->q = tensor(p, OPERAND_Q, addresses);
    params->k = tensor(p, OPERAND_K, addresses);
    params->g = tensor(p, OPERAND_G, addresses);
    params->beta = tensor(p, OPERAND_BETA, addresses);
    params->dAqk = tensor(p, OPERAND_DAQK, addresses);
    params->dAkk = tensor(p, OPERAND_DAKK, addresses);
    for (int x = 0; x < 4; x++) {
        params->in[x] = tensor(p, OPERAND_DQ + x, addresses);
        params->out[x] = tensor(p, OPERAND_DQ_OUT + x, addresses);
    }
    params->T = p->T;
    params->N = p->N;
    params->panels = p->N < 0 ? panels_of(p->T) : list_size(p);
    params->items = (p->N < 0 ? p->B : 1) * params->panels * p->HV;
    params->HV = p->HV;
    params->group = p->HV / p->H;
    params->K = (int32_t)p->K;
    params->C = (int32_t)p->C;
    params->qk_dtype = p->qk_dtype;
    params->beta_dtype = p->beta_dtype;
    params->by_HV = divisor(params->HV);
    params->by_group = divisor(params->group);
    params->by_panels = divisor(params->panels);
    params->tf32_mask = 0xffffe000;

    bool few = params->items <= device->sm_count;
    int slabs = (int)((p->K + SLAB - 1) / SLAB), warps = panel_warps(kernel, slabs, device, few);
    if (warps == 0)
        return false;
    if (p->N >= 0) {
        size_t part[3];
        scratch_parts(p, part);
        params->cu = addresses[OPERAND_CU_SEQLENS];
        params->cu_dtype = p->cu_dtype;
        params->snapshot = memory->scratch;
        params->first = memory->scratch + part[0];
        params->list = (memory->scratch + part[0] + part[1] + 15) & ~UINT64_C(15);
        params->verdict = memory->verdict;
        params->status = memory->status;
        params->bad_status = memory->bad_status;
        plan->launch[plan->launches++] = (struct cuda_plan_launch){CUDA_KERNEL_SEQUENCES, 1, 1024, 0};
    }
    plan->launch[plan->launches++] = (struct cuda_plan_launch){
        kernel, (unsigned)params->items, 32 * (unsigned)warps, panel_shared(kernel, slabs, warps)};
    return true;
}

bool cuda_plan_make(struct cuda_plan *plan, const struct problem *p, const uint64_t addresses[OPERAND_COUNT],
                    const struct cuda_plan_memory *memory, const struct cuda_plan_device *device) {
    enum cuda_kernel of_type = p->qk_dtype - DTYPE_BF16;
    return cuda_plan_make_with(plan, CUDA_KERNEL_PANEL_BF16 + of_type, p, addresses, memory, device) ||
           cuda_plan_make_with(plan, CUDA_KERNEL_PANEL_BF16_ANY + of_type, p, addresses, memory, device);
}
