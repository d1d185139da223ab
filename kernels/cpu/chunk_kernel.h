/*
 * chunk_kernel.h - the source of the chunk kernel; one C file for each instruction set includes it.
 *
 * A chunk of n <= C rows is worked on in three passes:
 *
 *   load      row by row, as memory has it: q, k, g and beta become float. The lower triangles of dAqk and
 * dAkk are copied, so that the products below walk through packed memory. compute   panel by panel, a panel
 * being PANEL columns of q, k and g of all rows, which lie together. Its rows and sums stay in the
 * first-level cache. Then what is to be added to dq, dk, dg replaces q, k, g. store     row by row: outputs =
 * incoming + what is to be added.
 *
 * Each column d of a panel needs, over all pairs s < r, with E = exp2(g[r] - g[s]):
 *
 *   dqi[r] += dAqk[r,s] k[s] E
 *   dkw[r] += dAkk[r,s] k[s] E
 *   dkt[s] += (dAqk[r,s] q[r] + dAkk[r,s] beta[r] k[r]) E
 *
 * The lower triangle of a chunk of 64 rows is cut into these blocks (one of 128, once more):
 *
 *   D          D: diagonal, 16 x 16. Each pair and column has its own exponential, of the one-sided
 * difference. 1 D           s = r is left to `finish`, where E is 1. 2 2 D      1, 2: off the diagonal, 16 x
 * 16 and 32 x 32, factored through their first row m: 2 2 1 D       E = exp2(g[r] - g[m]) exp2(g[m] - g[s])
 *
 * As s < m <= r and g falls, both factors are <= 1: nothing overflows, and where one becomes 0, so has E. The
 * sums are then plain matrix products with k, q and beta k that were scaled in advance, and their results are
 * scaled once more.
 *
 * Where g rises instead, one factor can be 0 and the other huge while E is neither: the product would be
 * finite and wrong. So a factor above 2 ** RISE_LIMIT is replaced by 0 in the products, and its pairs are
 * added one by one, as on the diagonal. Each column decides this alone: for a row r by rows m and r, for a
 * row s by s and m.
 *
 * What holds in it, by the numerics law of the operation:
 *
 * - A row's dqi and dkw are computed from rows s <= r and m <= r, in an order that follows from r and C. So a
 *   change in a later row changes no bit of them.
 * - Columns meet in db alone, a sum of dkw k over them. Columns that pad the last panel are 0 in q, k and g:
 * they add 0 to db, or NaN where dAkk[r,s] is not finite, and then the true columns make db so too.
 * - Entries above the diagonal of dAqk and dAkk are copied at most, within diagonal blocks, and never used.
 * - Nothing is written outside the n x K elements of the outputs, or read outside those of the inputs.
 * Fetching ahead may name addresses beyond; that is no access.
 */
#include "kernels/cpu/chunk.h"
#include "kernels/cpu/vec.h"

/* For loops over arrays of vectors, which stay in registers only if every index is a constant. */
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif
#define ALWAYS_INLINE static inline __attribute__((always_inline))

enum {
    MAX_PANELS = (PROBLEM_MAX_K + PANEL - 1) / PANEL,
    PART = PANEL * (int)sizeof(float), /* bytes of a panel's columns in a row of floats */
    LINE = 64,                         /* bytes of memory that come at once */
};

/* A factor's exponent above which its pairs are not factored. With it, where the other factor becomes 0, E is
 * below 2 ** -124. Above 0, since a prefix sum of falling gates can rise by a rounding. */
#define RISE_LIMIT 1.0F

/* A row of a panel. `finish` replaces q, k and g with what is to be added to dq, dk and dg. */
struct row {
    float q[PANEL], k[PANEL], g[PANEL];
};

/* The sums of a row of a panel over s < r (dqi, dkw) and over r > s (dkt). */
struct sums {
    float bk[PANEL]; /* beta k */
    float dqi[PANEL], dkw[PANEL], dkt[PANEL];
};

/* A row s above the middle m of a factored block, and a row r from m on. */
struct upper {
    float e[PANEL]; /* exp2(g[m] - g[s]) */
    float k[PANEL]; /* e k */
};
struct lower {
    float e[PANEL];            /* exp2(g[r] - g[m]) */
    float q[PANEL], bk[PANEL]; /* e q, e beta k */
};

/*
 * What memory is needed soon: the chunk's incoming gradients and the next chunk's inputs. Each call of
 * fetch_ahead asks for one of `parts` parts of a row of them. There is a call for each row and panel, and as
 * many parts as panels, so all have been asked for when the last panel is done, and memory was busy all the
 * while.
 */
struct ahead {
    const struct chunk *chunk, *next;
    int row, rows, part, parts;
    int qk_part, dA_part; /* bytes of a part */
};

/* Row r of dAqk lies at dA + r * 2 * size, that of dAkk `size` floats behind it. */
struct scratch {
    float beta[CHUNK_MAX_ROWS];
    float db[CHUNK_MAX_ROWS * VF_LANES]; /* each row's sum of dkw k, a lane for every VF_LANES-th column */
    struct sums sums[CHUNK_MAX_ROWS];
    struct upper upper[CHUNK_MAX_ROWS / 2];
    struct lower lower[CHUNK_MAX_ROWS / 2];
    struct ahead ahead;
    float dA[CHUNK_MAX_ROWS * 2 * CHUNK_MAX_ROWS];
    struct row rows[MAX_PANELS * CHUNK_MAX_ROWS]; /* row r of panel p: p * (rows of the chunk) + r */
};

_Static_assert(sizeof(struct scratch) <= CHUNK_SCRATCH, "CHUNK_SCRATCH is too small");

/* A block of pairs off the diagonal: rows middle ... end - 1 against rows first ... middle - 1. */
struct block {
    int first, middle, end;
};

/* ----------------------------------------------------------------------------------------------- ahead */

static void start_ahead(struct ahead *a, const struct chunk *c, const struct chunk *next, int panels) {
    *a = (struct ahead){
        .chunk = c,
        .next = next,
        .rows = c->rows < CHUNK_BLOCK ? 0 : c->rows, /* a few rows are not worth it */
        .parts = panels,
        .qk_part = c->qk_dtype == DTYPE_F32 ? PART : PART / 2,
        .dA_part = (c->size * (int)sizeof(float) + panels - 1) / panels,
    };
}

static inline void fetch_part(const struct chunk *c, enum operand o, int row, int offset, int size) {
    const char *at = c->at[o] + row * c->step[o] + offset;
    for (int line = 0; line < size; line += LINE)
        __builtin_prefetch(at + line, 0, 2);
}

static inline void fetch_ahead(struct ahead *a) {
    if (a->row >= a->rows)
        return;
    const int row = a->row, part = a->part;
    fetch_part(a->chunk, OPERAND_DQ, row, part * PART, PART);
    fetch_part(a->chunk, OPERAND_DK, row, part * PART, PART);
    fetch_part(a->chunk, OPERAND_DG, row, part * PART, PART);
    if (a->next) {
        fetch_part(a->next, OPERAND_Q, row, part * a->qk_part, a->qk_part);
        fetch_part(a->next, OPERAND_K, row, part * a->qk_part, a->qk_part);
        fetch_part(a->next, OPERAND_G, row, part * PART, PART);
        const int dA = part * a->dA_part;
        if (dA <= row * (int)sizeof(float)) { /* not above the diagonal */
            fetch_part(a->next, OPERAND_DAQK, row, dA, a->dA_part);
            fetch_part(a->next, OPERAND_DAKK, row, dA, a->dA_part);
        }
    }
    if (++a->part == a->parts) {
        a->part = 0;
        a->row++;
    }
}

/* ------------------------------------------------------------------------------------------------ load */

ALWAYS_INLINE vf load_vec(const char *from, enum dtype type) {
    switch (type) {
    case DTYPE_BF16:
        return vf_load_bf16((const uint16_t *)from);
    case DTYPE_F16:
        return vf_load_f16((const uint16_t *)from);
    default:
        return vf_load((const float *)from);
    }
}

/* Writes `width` numbers to the panels from `to` on, which are `panel_step` floats apart, then zeros. */
ALWAYS_INLINE void load_row(float *to, size_t panel_step, const char *from, int width, enum dtype type) {
    const size_t size = type == DTYPE_F32 ? 4 : 2;
    for (; width >= PANEL; width -= PANEL, from += PANEL * size, to += panel_step) {
        for (size_t v = 0; v < PANEL; v += VF_LANES)
            vf_store(to + v, load_vec(from + v * size, type));
    }
    if (width > 0) {
        char padded[PANEL * sizeof(float)] = {0};
        memcpy(padded, from, (size_t)width * size);
        for (size_t v = 0; v < PANEL; v += VF_LANES)
            vf_store(to + v, load_vec(padded + v * size, type));
    }
}

static float load_beta(const char *from, enum dtype type) {
    if (type == DTYPE_F32)
        return *(const float *)from;
    uint16_t half = *(const uint16_t *)from;
    return type == DTYPE_BF16 ? bf16_to_float(half) : f16_to_float(half);
}

static void load_triangle_row(float *to, const char *from, int r) {
    for (int s = 0; s <= r; s += CHUNK_BLOCK) {
        for (int i = 0; i < CHUNK_BLOCK; i += VF_LANES)
            vf_store(to + s + i, vf_load((const float *)from + s + i));
    }
}

ALWAYS_INLINE void load_rows(const struct chunk *c, struct scratch *x, enum dtype type) {
    const size_t panel_step = (size_t)c->rows * sizeof(struct row) / sizeof(float);
    for (int r = 0; r < c->rows; r++) {
        struct row *row = &x->rows[r];
        load_row(row->q, panel_step, c->at[OPERAND_Q] + r * c->step[OPERAND_Q], c->width, type);
        load_row(row->k, panel_step, c->at[OPERAND_K] + r * c->step[OPERAND_K], c->width, type);
        load_row(row->g, panel_step, c->at[OPERAND_G] + r * c->step[OPERAND_G], c->width, DTYPE_F32);
        x->beta[r] = load_beta(c->at[OPERAND_BETA] + r * c->step[OPERAND_BETA], c->beta_dtype);
        float *dA = x->dA + (ptrdiff_t)r * 2 * c->size;
        load_triangle_row(dA, c->at[OPERAND_DAQK] + r * c->step[OPERAND_DAQK], r);
        load_triangle_row(dA + c->size, c->at[OPERAND_DAKK] + r * c->step[OPERAND_DAKK], r);
    }
}

static void load(const struct chunk *c, struct scratch *x) {
    switch (c->qk_dtype) {
    case DTYPE_BF16:
        load_rows(c, x, DTYPE_BF16);
        break;
    case DTYPE_F16:
        load_rows(c, x, DTYPE_F16);
        break;
    default:
        load_rows(c, x, DTYPE_F32);
    }
}

/* --------------------------------------------------------------------------------------------- compute */

/* The diagonal block of rows first ... end - 1 without its diagonal. Sets the rows' sums. */
static void diagonal_block(struct ahead *ahead, const struct row *rows, struct sums *sums, const float *dA,
                           int size, int first, int end) {
    for (int v = 0; v < PANEL; v += VF_LANES) {
        for (int r = first; r < end; r++) {
            if (v == 0)
                fetch_ahead(ahead);
            const float *dAqk = dA + (ptrdiff_t)r * 2 * size;
            const float *dAkk = dAqk + size;
            const vf q = vf_load(rows[r].q + v), bk = vf_load(sums[r].bk + v), g = vf_load(rows[r].g + v);
            vf dqi = vf_set(0), dkw = vf_set(0);
            for (int s = first; s < r; s++) {
                const vf aqk = vf_set(dAqk[s]), akk = vf_set(dAkk[s]);
                const vf e = vf_exp2(g - vf_load(rows[s].g + v));
                const vf ke = vf_load(rows[s].k + v) * e;
                dqi = vf_fma(aqk, ke, dqi);
                dkw = vf_fma(akk, ke, dkw);
                const vf later = vf_fma(akk, bk, aqk * q);
                vf_store(sums[s].dkt + v, vf_fma(later, e, vf_load(sums[s].dkt + v)));
            }
            vf_store(sums[r].dqi + v, dqi);
            vf_store(sums[r].dkw + v, dkw);
            vf_store(sums[r].dkt + v, vf_set(0));
        }
    }
}

/* Sets the factors of a block. Returns true if g rises in it, so that some were replaced by 0. */
static bool factor_block(const struct row *rows, const struct sums *sums, struct block b, struct scratch *x,
                         bool drop_risen) {
    const vf limit = vf_set(RISE_LIMIT);
    bool any = false;
    for (int v = 0; v < PANEL; v += VF_LANES) {
        const vf middle = vf_load(rows[b.middle].g + v);
        vf highest = vf_set(0);
        for (int s = b.first; s < b.middle; s++) {
            const vf rise = middle - vf_load(rows[s].g + v);
            vf e = vf_exp2(rise);
            highest = vf_greater(rise, highest);
            if (drop_risen)
                e = vf_where_greater(rise, limit, vf_set(0), e);
            struct upper *upper = &x->upper[s - b.first];
            vf_store(upper->e + v, e);
            vf_store(upper->k + v, vf_load(rows[s].k + v) * e);
        }
        for (int r = b.middle; r < b.end; r++) {
            const vf rise = vf_load(rows[r].g + v) - middle;
            vf e = vf_exp2(rise);
            highest = vf_greater(rise, highest);
            if (drop_risen)
                e = vf_where_greater(rise, limit, vf_set(0), e);
            struct lower *lower = &x->lower[r - b.middle];
            vf_store(lower->e + v, e);
            vf_store(lower->q + v, vf_load(rows[r].q + v) * e);
            vf_store(lower->bk + v, vf_load(sums[r].bk + v) * e);
        }
        any |= vf_any_greater(highest, limit);
    }
    return any;
}

/* Adds to dqi and dkw of `count` rows their products with all of a block's upper rows. */
ALWAYS_INLINE void add_to_rows(struct sums *sums, const struct lower *lower, const struct upper *upper,
                               int uppers, const float *dA, int size, int count) {
    vf dqi[ROW_TILE][PANEL_VECS], dkw[ROW_TILE][PANEL_VECS];
    UNROLL
    for (int i = 0; i < count; i++) {
        UNROLL
        for (int v = 0; v < PANEL_VECS; v++)
            dqi[i][v] = dkw[i][v] = vf_set(0);
    }
    for (int s = 0; s < uppers; s++) {
        vf k[PANEL_VECS];
        UNROLL
        for (int v = 0; v < PANEL_VECS; v++)
            k[v] = vf_load(upper[s].k + (ptrdiff_t)v * VF_LANES);
        UNROLL
        for (int i = 0; i < count; i++) {
            const vf aqk = vf_set(dA[(ptrdiff_t)i * 2 * size + s]);
            const vf akk = vf_set(dA[(ptrdiff_t)i * 2 * size + size + s]);
            UNROLL
            for (int v = 0; v < PANEL_VECS; v++) {
                dqi[i][v] = vf_fma(aqk, k[v], dqi[i][v]);
                dkw[i][v] = vf_fma(akk, k[v], dkw[i][v]);
            }
        }
    }
    UNROLL
    for (int i = 0; i < count; i++) {
        UNROLL
        for (int v = 0; v < PANEL_VECS; v++) {
            const int at = v * VF_LANES;
            const vf e = vf_load(lower[i].e + at);
            vf_store(sums[i].dqi + at, vf_fma(dqi[i][v], e, vf_load(sums[i].dqi + at)));
            vf_store(sums[i].dkw + at, vf_fma(dkw[i][v], e, vf_load(sums[i].dkw + at)));
        }
    }
}

/* Adds to dkt of COL_TILE upper rows their products with all of a block's lower rows. */
ALWAYS_INLINE void add_to_columns(struct sums *sums, const struct upper *upper, const struct lower *lower,
                                  int lowers, const float *dA, int size) {
    vf dkt[COL_TILE][PANEL_VECS];
    UNROLL
    for (int i = 0; i < COL_TILE; i++) {
        UNROLL
        for (int v = 0; v < PANEL_VECS; v++)
            dkt[i][v] = vf_set(0);
    }
    for (int r = 0; r < lowers; r++, dA += (ptrdiff_t)2 * size) {
        vf q[PANEL_VECS], bk[PANEL_VECS];
        UNROLL
        for (int v = 0; v < PANEL_VECS; v++) {
            q[v] = vf_load(lower[r].q + (ptrdiff_t)v * VF_LANES);
            bk[v] = vf_load(lower[r].bk + (ptrdiff_t)v * VF_LANES);
        }
        UNROLL
        for (int i = 0; i < COL_TILE; i++) {
            const vf aqk = vf_set(dA[i]), akk = vf_set(dA[size + i]);
            UNROLL
            for (int v = 0; v < PANEL_VECS; v++)
                dkt[i][v] = vf_fma(akk, bk[v], vf_fma(aqk, q[v], dkt[i][v]));
        }
    }
    UNROLL
    for (int i = 0; i < COL_TILE; i++) {
        UNROLL
        for (int v = 0; v < PANEL_VECS; v++) {
            const int at = v * VF_LANES;
            const vf e = vf_load(upper[i].e + at);
            vf_store(sums[i].dkt + at, vf_fma(dkt[i][v], e, vf_load(sums[i].dkt + at)));
        }
    }
}

/* Adds the pairs of a block one of whose factors was replaced by 0. In columns where none was, E is 0 here.
 */
static void add_risen_pairs(const struct row *rows, struct sums *sums, const float *dA, int size,
                            struct block b) {
    const vf limit = vf_set(RISE_LIMIT), never = vf_set(-__builtin_inff());
    for (int v = 0; v < PANEL; v += VF_LANES) {
        const vf middle = vf_load(rows[b.middle].g + v);
        for (int r = b.middle; r < b.end; r++) {
            const float *dAqk = dA + (ptrdiff_t)r * 2 * size;
            const float *dAkk = dAqk + size;
            const vf g = vf_load(rows[r].g + v), rise = g - middle;
            for (int s = b.first; s < b.middle; s++) {
                const vf g_s = vf_load(rows[s].g + v), highest = vf_greater(middle - g_s, rise);
                if (!vf_any_greater(highest, limit))
                    continue;
                const vf aqk = vf_set(dAqk[s]), akk = vf_set(dAkk[s]);
                const vf e = vf_exp2(vf_where_greater(highest, limit, g - g_s, never));
                const vf ke = vf_load(rows[s].k + v) * e;
                vf_store(sums[r].dqi + v, vf_fma(aqk, ke, vf_load(sums[r].dqi + v)));
                vf_store(sums[r].dkw + v, vf_fma(akk, ke, vf_load(sums[r].dkw + v)));
                const vf later = vf_fma(akk, vf_load(sums[r].bk + v), aqk * vf_load(rows[r].q + v));
                vf_store(sums[s].dkt + v, vf_fma(later, e, vf_load(sums[s].dkt + v)));
            }
        }
    }
}

static void factored_block(const struct row *rows, struct sums *sums, struct scratch *x, int size,
                           struct block b) {
    const bool risen = factor_block(rows, sums, b, x, false);
    if (__builtin_expect(risen, false))
        factor_block(rows, sums, b, x, true);

    const int uppers = b.middle - b.first, lowers = b.end - b.middle;
    const float *dA = x->dA + (ptrdiff_t)b.middle * 2 * size + b.first;
    int i = 0;
    for (; i + ROW_TILE <= lowers; i += ROW_TILE)
        add_to_rows(sums + b.middle + i, x->lower + i, x->upper, uppers, dA + (ptrdiff_t)i * 2 * size, size,
                    ROW_TILE);
    for (; i < lowers; i++)
        add_to_rows(sums + b.middle + i, x->lower + i, x->upper, uppers, dA + (ptrdiff_t)i * 2 * size, size,
                    1);
    for (i = 0; i < uppers; i += COL_TILE)
        add_to_columns(sums + b.first + i, x->upper + i, x->lower, lowers, dA + i, size);

    if (__builtin_expect(risen, false))
        add_risen_pairs(rows, sums, x->dA, size, b);
}

/* Adds what the diagonal does, and replaces q, k, g with what is to be added to dq, dk, dg. Continues db. */
static void finish(struct row *rows, const struct sums *sums, struct scratch *x, int size, int count) {
    for (int r = 0; r < count; r++) {
        const float *dAqk = x->dA + (ptrdiff_t)r * 2 * size + r;
        const vf aqk = vf_set(dAqk[0]), akk = vf_set(dAqk[size]), beta = vf_set(x->beta[r]);
        vf db = vf_load(x->db + (ptrdiff_t)r * VF_LANES);
        for (int v = 0; v < PANEL; v += VF_LANES) {
            const vf q = vf_load(rows[r].q + v), k = vf_load(rows[r].k + v), bk = vf_load(sums[r].bk + v);
            const vf dqi = vf_load(sums[r].dqi + v);
            vf dkw = vf_load(sums[r].dkw + v), dkt = vf_load(sums[r].dkt + v);
            vf_store(rows[r].g + v, vf_fma(q, dqi, (beta * dkw - dkt) * k));
            dkw = vf_fma(akk, k, dkw);
            dkt = vf_fma(aqk, q, vf_fma(akk, bk, dkt));
            vf_store(rows[r].q + v, vf_fma(aqk, k, dqi));
            vf_store(rows[r].k + v, vf_fma(beta, dkw, dkt));
            db = vf_fma(dkw, k, db);
        }
        vf_store(x->db + (ptrdiff_t)r * VF_LANES, db);
    }
}

static void compute_panel(struct row *rows, struct scratch *x, int size, int count) {
    struct sums *sums = x->sums;
    for (int r = 0; r < count; r++)
        for (int v = 0; v < PANEL; v += VF_LANES)
            vf_store(sums[r].bk + v, vf_set(x->beta[r]) * vf_load(rows[r].k + v));
    for (int first = 0; first < count; first += CHUNK_BLOCK)
        diagonal_block(&x->ahead, rows, sums, x->dA, size, first,
                       count < first + CHUNK_BLOCK ? count : first + CHUNK_BLOCK);
    for (int half = CHUNK_BLOCK; half < size; half *= 2) {
        for (int first = 0; first + half < count; first += 2 * half) {
            const int end = first + 2 * half;
            factored_block(rows, sums, x, size,
                           (struct block){first, first + half, count < end ? count : end});
        }
    }
    finish(rows, sums, x, size, count);
}

/* ----------------------------------------------------------------------------------------------- store */

/* in + added; where nothing is added, in as it is, so that -0 and NaN keep their bits. */
ALWAYS_INLINE vf add(vf in, vf added) {
    return vf_where_equal(added, vf_set(0), in, in + added);
}

/* Past the caches if `stream`; the row is then a whole number of lines. */
static void store_row(char *to, const char *in, const float *added, size_t panel_step, int width,
                      bool stream) {
    for (; stream && width >= PANEL; width -= PANEL, added += panel_step) {
        for (int v = 0; v < PANEL; v += VF_LANES)
            vf_stream((float *)to + v, add(vf_load((const float *)in + v), vf_load(added + v)));
        in += sizeof(float[PANEL]);
        to += sizeof(float[PANEL]);
    }
    for (; width >= PANEL; width -= PANEL, added += panel_step) {
        for (int v = 0; v < PANEL; v += VF_LANES)
            vf_store((float *)to + v, add(vf_load((const float *)in + v), vf_load(added + v)));
        in += sizeof(float[PANEL]);
        to += sizeof(float[PANEL]);
    }
    if (width > 0) {
        float padded[PANEL] = {0};
        memcpy(padded, in, (size_t)width * sizeof(float));
        for (int v = 0; v < PANEL; v += VF_LANES)
            vf_store(padded + v, add(vf_load(padded + v), vf_load(added + v)));
        memcpy(to, padded, (size_t)width * sizeof(float));
    }
}

static void store(const struct chunk *c, const struct scratch *x) {
    const size_t panel_step = (size_t)c->rows * sizeof(struct row) / sizeof(float);
    static const enum operand incoming[] = {OPERAND_DQ, OPERAND_DK, OPERAND_DG};
    static const enum operand outgoing[] = {OPERAND_DQ_OUT, OPERAND_DK_OUT, OPERAND_DG_OUT};
    bool stream[3];
    for (int i = 0; i < 3; i++) {
        const uintptr_t places = (uintptr_t)c->at[outgoing[i]] | (uintptr_t)c->step[outgoing[i]] |
                                 (uintptr_t)c->width * sizeof(float);
        stream[i] = c->large && c->at[outgoing[i]] != c->at[incoming[i]] && places % LINE == 0;
    }
    for (int r = 0; r < c->rows; r++) {
        const struct row *row = &x->rows[r];
        const float *const added[] = {row->q, row->k, row->g};
        for (int i = 0; i < 3; i++)
            store_row(c->at[outgoing[i]] + r * c->step[outgoing[i]],
                      c->at[incoming[i]] + r * c->step[incoming[i]], added[i], panel_step, c->width,
                      stream[i]);
        const float *db = (const float *)(c->at[OPERAND_DB] + r * c->step[OPERAND_DB]);
        const float sum = vf_sum(vf_load(x->db + (ptrdiff_t)r * VF_LANES));
        *(float *)(c->at[OPERAND_DB_OUT] + r * c->step[OPERAND_DB_OUT]) = sum == 0 ? *db : *db + sum;
    }
    if (stream[0] || stream[1] || stream[2])
        vf_stream_end();
}

/* ---------------------------------------------------------------------------------------------------- */

static void run(const struct chunk *c, const struct chunk *next, void *scratch) {
    struct scratch *x = scratch;
    load(c, x);
    for (int r = 0; r < c->rows; r++)
        vf_store(x->db + (ptrdiff_t)r * VF_LANES, vf_set(0));
    const int panels = (c->width + PANEL - 1) / PANEL;
    start_ahead(&x->ahead, c, next, panels);
    for (int p = 0; p < panels; p++)
        compute_panel(x->rows + (ptrdiff_t)p * c->rows, x, c->size, c->rows);
    store(c, x);
}

static void exp2_many(float *to, const float *from, size_t count) {
    for (; count >= VF_LANES; count -= VF_LANES, to += VF_LANES, from += VF_LANES)
        vf_store(to, vf_exp2(vf_load(from)));
    float padded[VF_LANES] = {0};
    memcpy(padded, from, count * sizeof(float));
    vf_store(padded, vf_exp2(vf_load(padded)));
    memcpy(to, padded, count * sizeof(float));
}
