/*
 * problem.c - what makes a job legal.
 *
 * All sizes are checked for overflow in one place, operand_layout; whatever comes after may add and multiply.
 * Overlap is decided exactly for strided views, not by their extents: gradients that lie interleaved in one
 * allocation are legal. Layouts so entangled that a bounded search cannot tell them apart are refused.
 */
#include "kernels/problem.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define EXTENT_MAX (UINT64_C(1) << 60) /* bytes; sums of a few of them fit in int64_t */
#define SIZE_MAX_DIM (INT64_C(1) << 48)
#define SEARCH_STEPS 4096

/* Dimensions by letter: B, T, H, V (value heads), K, C, N (N + 1). */
static const struct {
    const char *name;
    const char *dims;
} operands[OPERAND_COUNT] = {
    [OPERAND_Q] = {"q", "BTHK"},
    [OPERAND_K] = {"k", "BTHK"},
    [OPERAND_G] = {"g", "BTVK"},
    [OPERAND_BETA] = {"beta", "BTV"},
    [OPERAND_DAQK] = {"dAqk", "BTVC"},
    [OPERAND_DAKK] = {"dAkk", "BTVC"},
    [OPERAND_DQ] = {"dq", "BTVK"},
    [OPERAND_DK] = {"dk", "BTVK"},
    [OPERAND_DB] = {"db", "BTV"},
    [OPERAND_DG] = {"dg", "BTVK"},
    [OPERAND_DQ_OUT] = {"dq_out", "BTVK"},
    [OPERAND_DK_OUT] = {"dk_out", "BTVK"},
    [OPERAND_DB_OUT] = {"db_out", "BTV"},
    [OPERAND_DG_OUT] = {"dg_out", "BTVK"},
    [OPERAND_CU_SEQLENS] = {"cu_seqlens", "N"},
};

static const char *const dim_names[] = {
    ['B'] = "B", ['T'] = "T", ['H'] = "H", ['V'] = "HV", ['K'] = "K", ['C'] = "chunk_size", ['N'] = "N + 1",
};

__attribute__((format(printf, 2, 3))) static bool refuse(char why[PROBLEM_WHY], const char *format, ...) {
    va_list list;
    va_start(list, format);
    vsnprintf(why, PROBLEM_WHY, format, list);
    va_end(list);
    return false;
}

static enum operand incoming_of(enum operand output) {
    return output - (OPERAND_DQ_OUT - OPERAND_DQ);
}

const char *operand_name(enum operand o) {
    return operands[o].name;
}

const char *dtype_name(enum dtype d) {
    switch (d) {
    case DTYPE_BF16:
        return "bfloat16";
    case DTYPE_F16:
        return "float16";
    case DTYPE_F32:
        return "float32";
    case DTYPE_I32:
        return "int32";
    case DTYPE_I64:
        return "int64";
    }
    return "unknown";
}

static inline int64_t dim_size(const struct problem *p, char letter) {
    switch (letter) {
    case 'B':
        return p->B;
    case 'T':
        return p->T;
    case 'H':
        return p->H;
    case 'V':
        return p->HV;
    case 'K':
        return p->K;
    case 'C':
        return p->C;
    default:
        return problem_ends(p);
    }
}

/* An operand's bytes: runs of `run` contiguous bytes, one for each index of up to three strided dimensions.
 */
struct layout {
    int dims;
    int64_t stride[3]; /* bytes; dimensions of size 1 are left out */
    int64_t last[3];   /* size - 1 */
    int64_t run;       /* bytes; 0 if the operand has no element */
    int64_t extent;    /* bytes from the first to behind the last */
};

/* The one place where products of sizes are checked. False if the operand spans more than EXTENT_MAX. */
static bool operand_layout(const struct problem *p, enum operand o, struct layout *l) {
    int64_t shape[4];
    int ndim = problem_shape(p, o, shape);
    int64_t size = (int64_t)dtype_size(problem_dtype(p, o));
    l->dims = 0;
    for (int i = 0; i < ndim; i++) {
        if (shape[i] == 0) {
            l->run = l->extent = 0;
            return true;
        }
    }
    if (__builtin_mul_overflow(shape[ndim - 1], size, &l->run))
        return false;
    l->extent = l->run;
    for (int i = 0; i + 1 < ndim; i++) {
        int64_t bytes, span;
        if (shape[i] == 1)
            continue;
        if (__builtin_mul_overflow(p->at[o].stride[i], size, &bytes) ||
            __builtin_mul_overflow(bytes, shape[i] - 1, &span) ||
            __builtin_add_overflow(l->extent, span, &l->extent))
            return false;
        l->stride[l->dims] = bytes;
        l->last[l->dims++] = shape[i] - 1;
    }
    return (uint64_t)l->extent <= EXTENT_MAX;
}

uint64_t problem_extent(const struct problem *p, enum operand o) {
    struct layout l;
    return operand_layout(p, o, &l) ? (uint64_t)l.extent : UINT64_MAX;
}

uint64_t problem_traffic(const struct problem *p) {
    if (problem_is_empty(p))
        return 0;
    uint64_t rows = (uint64_t)p->B * (uint64_t)p->T, heads = (uint64_t)p->HV, K = (uint64_t)p->K;
    uint64_t qk = 2 * rows * (uint64_t)p->H * K * dtype_size(p->qk_dtype);
    uint64_t gates_and_gradients = 7 * rows * heads * K * 4;
    uint64_t tiles = (uint64_t)p->C / 16;
    /* of each matrix, tiles (tiles + 1) / 2 tiles of 16 × 16 a chunk: on average 8 (tiles + 1) entries a row
     */
    uint64_t triangles = 2 * rows * heads * 8 * (tiles + 1) * 4;
    uint64_t beta_and_db = rows * heads * (dtype_size(p->beta_dtype) + 8);
    return qk + gates_and_gradients + triangles + beta_and_db;
}

/* --- overlap ------------------------------------------------------------------------------------------- */

/* A sum Σ coefficient · x with 0 ≤ x ≤ last, coefficients falling. rest[i]: the most that terms i … can give.
 */
struct sum {
    int terms;
    int64_t coefficient[6], last[6], rest[7];
    int steps;
};

static void sum_add(struct sum *s, int64_t coefficient, int64_t last) {
    if (coefficient == 0 || last == 0)
        return;
    int at = 0;
    while (at < s->terms && s->coefficient[at] > coefficient)
        at++;
    if (at < s->terms && s->coefficient[at] == coefficient) {
        s->last[at] += last;
        return;
    }
    for (int i = s->terms++; i > at; i--) {
        s->coefficient[i] = s->coefficient[i - 1];
        s->last[i] = s->last[i - 1];
    }
    s->coefficient[at] = coefficient;
    s->last[at] = last;
}

/* Can terms i … of the sum lie in [low, high]? Says yes where the search takes too long. */
static bool sum_reaches(struct sum *s, int i, int64_t low, int64_t high) {
    if (high < 0 || low > s->rest[i])
        return false;
    if (low <= 0 || ++s->steps > SEARCH_STEPS)
        return true;
    if (i == s->terms)
        return false;
    int64_t c = s->coefficient[i];
    int64_t first = low > s->rest[i + 1] ? (low - s->rest[i + 1] + c - 1) / c : 0;
    int64_t last = high / c < s->last[i] ? high / c : s->last[i];
    for (int64_t x = first; x <= last; x++) {
        if (sum_reaches(s, i + 1, low - c * x, high - c * x))
            return true;
    }
    return false;
}

static bool sum_solve(struct sum *s, int64_t low, int64_t high) {
    s->rest[s->terms] = 0;
    for (int i = s->terms - 1; i >= 0; i--)
        s->rest[i] = s->rest[i + 1] + s->coefficient[i] * s->last[i];
    s->steps = 0;
    return sum_reaches(s, 0, low, high);
}

/* Do two views of one allocation share a byte? With y' = last - y: Σ a x + Σ b y' lies in a window. */
static bool views_overlap(const struct layout *a, int64_t a_start, const struct layout *b, int64_t b_start) {
    struct sum s = {0};
    for (int i = 0; i < a->dims; i++)
        sum_add(&s, a->stride[i], a->last[i]);
    for (int i = 0; i < b->dims; i++)
        sum_add(&s, b->stride[i], b->last[i]);
    int64_t distance = b_start + (b->extent - b->run) - a_start;
    return sum_solve(&s, distance - (a->run - 1), distance + (b->run - 1));
}

/* Do two indices of one view share a byte? Their difference d is not 0; take its first dimension i that is
 * not, with d_i ≥ 1 (else swap the two); the later ones range over -last … last. */
static bool view_overlaps_itself(const struct layout *l) {
    for (int i = 0; i < l->dims; i++) {
        struct sum s = {0};
        int64_t shift = -l->stride[i];
        sum_add(&s, l->stride[i], l->last[i] - 1);
        for (int j = i + 1; j < l->dims; j++) {
            sum_add(&s, l->stride[j], 2 * l->last[j]);
            shift += l->stride[j] * l->last[j];
        }
        if (sum_solve(&s, shift - (l->run - 1), shift + (l->run - 1)))
            return true;
    }
    return false;
}

static bool same_view(const struct problem *p, enum operand a, enum operand b) {
    const struct operand_view *x = &p->at[a], *y = &p->at[b];
    int64_t shape[4];
    int ndim = problem_shape(p, a, shape);
    if (x->allocation != y->allocation || x->offset != y->offset)
        return false;
    for (int i = 0; i + 1 < ndim; i++) {
        if (shape[i] > 1 && x->stride[i] != y->stride[i])
            return false;
    }
    return true;
}

static bool check_overlap(const struct problem *p, const struct layout layouts[OPERAND_COUNT],
                          char why[PROBLEM_WHY]) {
    for (enum operand o = OPERAND_DQ_OUT; o <= OPERAND_DG_OUT; o++) {
        if (view_overlaps_itself(&layouts[o]))
            return refuse(why, "%s: overlaps itself, but an output's elements must be distinct",
                          operand_name(o));
        for (enum operand i = 0; i < OPERAND_COUNT; i++) {
            if (i == o || (operand_is_output(i) && i < o) || layouts[i].run == 0)
                continue;
            int64_t out = (int64_t)p->at[o].offset, in = (int64_t)p->at[i].offset;
            if (p->at[i].allocation != p->at[o].allocation || out + layouts[o].extent <= in ||
                in + layouts[i].extent <= out)
                continue;
            if (i == incoming_of(o) && same_view(p, i, o))
                continue;
            if (views_overlap(&layouts[o], out, &layouts[i], in))
                return refuse(why,
                              "%s: overlaps %s, but may share memory only with %s, as the identical view",
                              operand_name(o), operand_name(i), operand_name(incoming_of(o)));
        }
    }
    return true;
}

/* --- checks -------------------------------------------------------------------------------------------- */

static bool check_sizes(const struct problem *p, char why[PROBLEM_WHY]) {
    static const char letters[] = "BTHVK";
    if (p->C != 16 && p->C != 32 && p->C != 64 && p->C != 128)
        return refuse(why, "chunk_size: is %lld, but must be 16, 32, 64 or 128", (long long)p->C);
    for (const char *c = letters; *c; c++) {
        int64_t size = dim_size(p, *c);
        if (size < 0 || size > SIZE_MAX_DIM)
            return refuse(why, "%s: is %lld, but must be 0 to 2^48", dim_names[(int)*c], (long long)size);
    }
    if (p->K < 1 || p->K > PROBLEM_MAX_K)
        return refuse(why, "K: is %lld, but must be 1 to %d", (long long)p->K, PROBLEM_MAX_K);
    if (p->HV > 0 && (p->H == 0 || p->HV % p->H != 0))
        return refuse(why, "HV: is %lld, but must be a multiple of H, which is %lld", (long long)p->HV,
                      (long long)p->H);
    if (p->N < -1 || p->N > SIZE_MAX_DIM)
        return refuse(why, "cu_seqlens: has %lld elements, but must have 1 to 2^48",
                      (long long)problem_ends(p));
    if (p->N >= 0 && p->B != 1)
        return refuse(why, "cu_seqlens: B is %lld, but must be 1 with cu_seqlens", (long long)p->B);
    return true;
}

static bool is_float(enum dtype d) {
    return d == DTYPE_F32 || d == DTYPE_BF16 || d == DTYPE_F16;
}

static bool check_types(const struct problem *p, char why[PROBLEM_WHY]) {
    if (!is_float(p->qk_dtype))
        return refuse(why, "q: type is %s, but must be bfloat16, float16 or float32",
                      dtype_name(p->qk_dtype));
    if (!is_float(p->beta_dtype))
        return refuse(why, "beta: type is %s, but must be float32, bfloat16 or float16",
                      dtype_name(p->beta_dtype));
    if (p->N >= 0 && p->cu_dtype != DTYPE_I64 && p->cu_dtype != DTYPE_I32)
        return refuse(why, "cu_seqlens: type is %s, but must be int64 or int32", dtype_name(p->cu_dtype));
    return true;
}

static bool check_view(const struct problem *p, enum operand o, struct layout *l, char why[PROBLEM_WHY]) {
    const struct operand_view *v = &p->at[o];
    const char *name = operands[o].name;
    for (int i = 0; i + 1 < operand_rank(o); i++) {
        if (v->stride[i] < 0)
            return refuse(why, "%s: stride of dimension %d is %lld, but must not be negative", name, i,
                          (long long)v->stride[i]);
    }
    if (!operand_layout(p, o, l))
        return refuse(why, "%s: spans more than 2^60 bytes", name);
    if (l->run == 0)
        return true;
    size_t size = dtype_size(problem_dtype(p, o));
    if (size == 0 || v->offset % size != 0)
        return refuse(why, "%s: address is not a multiple of %zu, the size of its type", name, size);
    if (v->offset > v->allocation_size || (uint64_t)l->extent > v->allocation_size - v->offset ||
        v->offset > INT64_MAX - EXTENT_MAX)
        return refuse(why, "%s: ends at byte %llu of its memory, which has only %llu", name,
                      (unsigned long long)v->offset + (unsigned long long)l->extent,
                      (unsigned long long)v->allocation_size);
    return true;
}

bool problem_equal(const struct problem *a, const struct problem *b) {
    for (enum operand o = 0; o < OPERAND_COUNT; o++) {
        const struct operand_view *x = &a->at[o], *y = &b->at[o];
        if (x->allocation != y->allocation || x->allocation_size != y->allocation_size ||
            x->offset != y->offset || memcmp(x->stride, y->stride, sizeof x->stride) != 0)
            return false;
    }
    return a->B == b->B && a->T == b->T && a->H == b->H && a->HV == b->HV && a->K == b->K && a->C == b->C &&
           a->N == b->N && a->qk_dtype == b->qk_dtype && a->beta_dtype == b->beta_dtype &&
           a->cu_dtype == b->cu_dtype;
}

bool problem_check(const struct problem *p, char why[PROBLEM_WHY]) {
    struct layout layouts[OPERAND_COUNT];
    if (!check_sizes(p, why) || !check_types(p, why))
        return false;
    if (problem_is_empty(p))
        return true;
    for (enum operand o = 0; o < OPERAND_COUNT; o++) {
        layouts[o].run = 0;
        if (problem_has(p, o) && !check_view(p, o, &layouts[o], why))
            return false;
    }
    return check_overlap(p, layouts, why);
}

/* --- from tensors -------------------------------------------------------------------------------------- */

static bool check_rank(enum operand o, const struct operand_tensor *t, char why[PROBLEM_WHY]) {
    int ndim = operand_rank(o);
    if (t->ndim == ndim)
        return true;
    if (t->ndim == 0)
        return refuse(why, "%s: is missing", operand_name(o));
    return refuse(why, "%s: has %d dimensions, but must have %d", operand_name(o), t->ndim, ndim);
}

static bool check_shape(const struct problem *p, enum operand o, const struct operand_tensor *t,
                        char why[PROBLEM_WHY]) {
    int64_t shape[4];
    int ndim = problem_shape(p, o, shape);
    for (int i = 0; i < ndim; i++) {
        if (t->shape[i] == shape[i])
            continue;
        const char *dim = dim_names[(int)operands[o].dims[i]];
        if (i == ndim - 1)
            return refuse(why, "%s: last dimension is %lld, but %s is %lld", operand_name(o),
                          (long long)t->shape[i], dim, (long long)shape[i]);
        return refuse(why, "%s: dimension %d is %lld, but %s is %lld", operand_name(o), i,
                      (long long)t->shape[i], dim, (long long)shape[i]);
    }
    if (t->shape[ndim - 1] > 1 && t->stride[ndim - 1] != 1)
        return refuse(why, "%s: stride of the last dimension is %lld, but must be 1", operand_name(o),
                      (long long)t->stride[ndim - 1]);
    return true;
}

static bool check_type(const struct problem *p, enum operand o, enum dtype dtype, char why[PROBLEM_WHY]) {
    enum dtype expected = problem_dtype(p, o);
    if (dtype == expected)
        return true;
    return refuse(why, "%s: type is %s, but must be %s%s", operand_name(o), dtype_name(dtype),
                  dtype_name(expected), o == OPERAND_K ? ", as q's" : "");
}

static void set_view(struct operand_view *v, const struct operand_tensor *t) {
    v->allocation = t->allocation;
    v->allocation_size = t->allocation_size;
    v->offset = t->offset;
    for (int i = 0; i < 3; i++)
        v->stride[i] = i + 1 < t->ndim ? t->stride[i] : 1;
}

bool problem_from_tensors(struct problem *p, const struct operand_tensor tensors[OPERAND_COUNT],
                          int64_t chunk_size, char why[PROBLEM_WHY]) {
    const struct operand_tensor *q = &tensors[OPERAND_Q], *g = &tensors[OPERAND_G];
    const struct operand_tensor *cu = &tensors[OPERAND_CU_SEQLENS];
    if (!check_rank(OPERAND_Q, q, why) || !check_rank(OPERAND_G, g, why))
        return false;
    *p = (struct problem){
        .B = q->shape[0],
        .T = q->shape[1],
        .H = q->shape[2],
        .HV = g->shape[2],
        .K = q->shape[3],
        .C = chunk_size,
        .N = -1,
        .qk_dtype = q->dtype,
        .beta_dtype = tensors[OPERAND_BETA].dtype,
        .cu_dtype = DTYPE_I64,
    };
    if (cu->ndim != 0) {
        if (!check_rank(OPERAND_CU_SEQLENS, cu, why))
            return false;
        if (cu->shape[0] < 1)
            return refuse(why, "cu_seqlens: has %lld elements, but must have at least 1",
                          (long long)cu->shape[0]);
        p->N = cu->shape[0] - 1;
        p->cu_dtype = cu->dtype;
    }
    if (!check_sizes(p, why))
        return false;
    for (enum operand o = 0; o < OPERAND_COUNT; o++) {
        const struct operand_tensor *t = &tensors[o];
        if (!problem_has(p, o))
            continue;
        if (operand_is_output(o) && t->ndim == 0)
            t = &tensors[incoming_of(o)];
        if (!check_rank(o, t, why) || !check_shape(p, o, t, why))
            return false;
        if (o == OPERAND_Q || o == OPERAND_BETA || o == OPERAND_CU_SEQLENS ? !check_types(p, why)
                                                                           : !check_type(p, o, t->dtype, why))
            return false;
        set_view(&p->at[o], t);
    }
    return true;
}
