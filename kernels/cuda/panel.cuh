/*
 * panel.cuh - the fast kernel: tensor cores off the diagonal, exact one-sided exponentials on it.
 *
 * Mapping. A block has an item (a panel of 64 rows and a value head), all of its columns: so db is complete
 * in it. The 64 rows are four row tiles of 16; a warp has a slab of 16 columns, in all four, and shares
 * nothing with other warps but dA: between the barrier behind the loading and the one before db is summed,
 * warps run free, so that the loads of some meet the arithmetic of others. Two blocks of eight warps share an
 * SM of sm_90 (128 registers a thread, 113 KB of shared memory each).
 *
 * Off the diagonal, of row tile I and column tile J < I, E[r,s] = Erow[r] * D[J+1] * ... * D[I-1] * Ecol[s]:
 *     Ecol[s] = exp2(g[last row of J] - g[s])
 *     D[t]    = exp2(g[last row of t] - g[last row of t - 1]), what g falls over a whole tile
 *     Erow[r] = exp2(g[r] - g[last row before I])
 * All are <= 1 where g falls. Sums over tiles chain like Horner's rule: dqi of tile 3, before its Erow, is
 * ((dA(3,0) X0) D1 + dA(3,1) X1) D2 + dA(3,2) X2 with X_J = k * Ecol. The products are m16n8k8 in TF32, each
 * operand in two parts: hi * hi + hi * lo + lo * hi, which is fp32 but for 2 ** -22. The hardware ignores the
 * low 13 bits of an operand, so hi is the number as it is, and lo = x - (x without them).
 *   rows:    dqi, dkw [r, d]: A = dA (shared memory), B = k * Ecol (made in registers)
 *   columns: dkt [d, s]:      A = q * Erow, beta * k * Erow (made in registers), B = dA
 *
 * dA off the diagonal lies in blocks of 2 x 2, {(r,s), (r+1,s), (r,s+1), (r+1,s+1)}: an LDS.128 of a block is
 * the A operand of the one product, and two B operands of the other.
 *
 * On the diagonal ("the walk") lane (c, t) has columns 2c and 2c+1 of row tile t, and goes through rows
 * 15 ... 0: descending, so dqi, dkw and dkt of a row are final together, and its outputs are written at once.
 * s = r is left out of the sums that dg uses.
 *
 * Rising g. A factor above 2 may meet one that has become 0, while E is neither 0 nor inf. So a pair with a
 * factor of 2 or more is dropped from the products (its factor set to 0) and added on its own; a warp that
 * sees none, which is every warp where g falls, has one vote to pay. The choice depends on the pair's own
 * rows and those between them, never on later ones (law 5).
 *
 * Rows of a panel behind its end: q, k, beta, dA are 0 and g is that of the last row, so all terms are 0.
 */
#pragma once

#include "common.cuh"

namespace kda {

/* --- shared memory, in 4-byte words -------------------------------------------------------------------- */

constexpr int SLAB = 16; /* columns of a warp */
constexpr int TILES = 4;
constexpr int OFF_TILES = 6;   /* below the diagonal: tile (I, J) at I (I - 1) / 2 + J */
constexpr int TILE = 264;      /* 16 rows of 16 words, and 8: tiles of a slab begin in different banks */
constexpr int HALF_TILE = 136; /* the same of 16-bit elements */
constexpr int DIAGONAL = 276;  /* 16 rows of 16 words, 16 of beta, 4 */

constexpr int AT_HI = 0;                                         /* [2][OFF_TILES][256] */
constexpr int AT_LO = AT_HI + 2 * OFF_TILES * 256;               /* the same */
constexpr int AT_DIAGONAL = AT_LO + 2 * OFF_TILES * 256;         /* [2][TILES][DIAGONAL] */
constexpr int BETA_IN_TILE = 256;                                /* of the tiles of dAqk */
constexpr int AT_ZERO = AT_DIAGONAL + 2 * TILES * DIAGONAL + 24; /* [256], bank 24 */
constexpr int AT_DB = AT_ZERO + 256 + 8;                         /* [slabs][64], then the warps' own */
static_assert(AT_ZERO % 32 == 24 && AT_DB % 32 == 0, "banks");

template <typename T> struct slab_layout {
    static constexpr bool wide = sizeof(T) == 4;
    static constexpr int k_tile = wide ? TILE : HALF_TILE;
    /* dkt, then dqi on their way from the products to the walk overwrite k; dkw overwrites g */
    static constexpr int at_k = 0;
    static constexpr int k_words = 4 * k_tile > 3 * TILE ? 4 * k_tile : 3 * TILE;
    static constexpr int at_g = (k_words + 31) / 32 * 32;
    static constexpr int at_q = at_g + 4 * TILE;
    static constexpr int words = (at_q + 4 * k_tile + 31) / 32 * 32;
};

static_assert(AT_DB == PANEL_FIXED_WORDS && slab_layout<bf16>::words == PANEL_HALF_WORDS &&
                  slab_layout<float>::words == PANEL_FLOAT_WORDS,
              "params.h");

/* Word of columns 2c, 2c + 1 of a row of a tile of 32-bit elements, such that the lanes of a quarter of a
 * warp are in different banks both where they have rows 4p + i of one tile and where they have tiles t. */
__device__ __forceinline__ int pair_word(int row, int c) {
    return ((row & 3) * 4 + (row >> 2)) * 16 + ((2 * c) ^ (8 * (row >> 3)));
}

/* The same where lanes have rows 2R, 2R + 1 and four columns each. */
__device__ __forceinline__ int row_word(int row) {
    return ((row >> 1) + (row & 1) * 8) * 16;
}

/* --- elements of q and k ------------------------------------------------------------------------------- */

/* Word of an element pair of q or k in its tile. */
template <typename T> __device__ __forceinline__ int pair_place(int row, int c) {
    return sizeof(T) == 4 ? pair_word(row, c) : ((row & 3) * 4 + (row >> 2)) * 8 + c;
}

template <typename T> __device__ __forceinline__ packed<T> load_pair(const float *tile, int row, int c) {
    if constexpr (sizeof(T) == 4)
        return {*(const float2 *)(tile + pair_word(row, c))};
    else
        return {*(const uint32_t *)(tile + ((row & 3) * 4 + (row >> 2)) * 8 + c)};
}

/* --- loads and stores ---------------------------------------------------------------------------------- */

template <typename T> __device__ __forceinline__ T zero_element() {
    return T(0.0f);
}

/* Asks the slab's incoming gradients into L2: rows 8 half ... 8 half + 7 of each tile. */
__device__ __forceinline__ void ask_gradients(const kda_params &p, const item &it, int slab, int half) {
    const int lane = threadIdx.x & 31, row = min((lane >> 3) * 16 + 8 * half + (lane & 7), it.rows - 1);
    const int64_t at = (offset_of(p.g, it, it.hv, 0) + slab * SLAB) * 4;
#pragma unroll
    for (int x = 0; x < 4; x++)
        if (x != 2)
            ask(row_at(p.in[x].at + at, row, (int)p.g.row * 4));
}

/* The slab's columns of g, k and q into the warp's shared memory. */
template <typename T, bool VECTOR>
__device__ __forceinline__ void load_slab(const kda_params &p, const item &it, int slab, float *own) {
    using L = slab_layout<T>;
    const int lane = threadIdx.x & 31, column0 = slab * SLAB, last = it.rows - 1;
    if constexpr (VECTOR) {
        {
            const int part = lane & 3, row0 = lane >> 2, stride = (int)p.g.row * 4;
            const uint64_t g = p.g.at + (offset_of(p.g, it, it.hv, 0) + column0 + part * 4) * 4;
            const bool inside = column0 + part * 4 < p.K;
#pragma unroll
            for (int j = 0; j < 8; j++) {
                float *to = own + L::at_g + (j >> 1) * TILE + pair_word((j & 1) * 8 + row0, 2 * part);
                copy16(to, row_at(g, min(j * 8 + row0, last), stride), inside);
            }
        }
        constexpr int wide = L::wide ? 2 : 1; /* two lanes a row, or four */
        const int part = lane & (2 * wide - 1), row0 = lane / (2 * wide), in_part = 8 / wide;
        const int k_stride = (int)p.k.row * (int)sizeof(T), q_stride = (int)p.q.row * (int)sizeof(T);
        const uint64_t k = p.k.at + (offset_of(p.k, it, it.h, 0) + column0 + part * in_part) * (int)sizeof(T);
        const uint64_t q = p.q.at + (offset_of(p.q, it, it.h, 0) + column0 + part * in_part) * (int)sizeof(T);
        const bool inside = column0 + part * in_part < p.K;
#pragma unroll
        for (int j = 0; j < 4 * wide; j++) {
            const int row = j * (16 / wide) + row0, in_tile = row & 15, from = min(row, last);
            const bool wanted = row <= last && inside;
            const int word = (row >> 4) * L::k_tile + pair_place<T>(in_tile, part * (in_part / 2));
            copy16(own + L::at_k + word, row_at(k, from, k_stride), wanted);
            copy16(own + L::at_q + word, row_at(q, from, q_stride), wanted);
        }
    } else {
        const float *g = (const float *)p.g.at + offset_of(p.g, it, it.hv, 0) + column0;
        const T *k = (const T *)p.k.at + offset_of(p.k, it, it.h, 0) + column0;
        const T *q = (const T *)p.q.at + offset_of(p.q, it, it.h, 0) + column0;
        const int column = lane & 15;
        const bool inside = column0 + column < p.K;
#pragma unroll 4
        for (int row = lane >> 4; row < PANEL_ROWS; row += 2) {
            const int in_tile = row & 15, tile = row >> 4, from = min(row, last);
            const bool wanted = row <= last && inside;
            own[L::at_g + tile * TILE + pair_word(in_tile, column >> 1) + (column & 1)] =
                inside ? g[from * p.g.row + column] : 0.0f;
            const T zero = zero_element<T>();
            const T kx = wanted ? k[row * p.k.row + column] : zero,
                    qx = wanted ? q[row * p.q.row + column] : zero;
            int word;
            if constexpr (L::wide)
                word = tile * TILE + pair_word(in_tile, column >> 1) + (column & 1);
            else
                word = (tile * HALF_TILE + ((in_tile & 3) * 4 + (in_tile >> 2)) * 8) * 2 + column;
            ((T *)(own + L::at_k))[word] = kx;
            ((T *)(own + L::at_q))[word] = qx;
        }
    }
}

/* Four elements of a row of dA; those of a row that is not there are 0. */
template <bool VECTOR>
__device__ __forceinline__ float4 load_dA(const kda_tensor &x, int64_t base, int row, int column, int rows) {
    const float *at = (const float *)x.at + base;
    if (row >= rows)
        return make_float4(0, 0, 0, 0);
    if constexpr (VECTOR) {
        return load4(row_at((uint64_t)(at + column), row, (int)x.row * 4));
    } else {
        at += row * x.row + column;
        return make_float4(at[0], at[1], at[2], at[3]);
    }
}

/* The tiles of dAqk and dAkk and beta into the block's shared memory: from memory to registers, then on. */
template <bool VECTOR> struct dA_loader {
    static constexpr int MOST = 2; /* tiles below the diagonal a warp takes at a time */

    __device__ static __forceinline__ void tile_of(int index, int C, int &I, int &J) {
        /* with C = 32 there are two, (1, 0) and (3, 2) */
        if (C == 32)
            index = index ? 5 : 0;
        I = index == 0 ? 1 : index < 3 ? 2 : 3;
        J = index - I * (I - 1) / 2;
    }

    __device__ static __forceinline__ void run(const kda_params &p, const item &it, float *shared) {
        const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, warps = blockDim.x >> 5;
        const int64_t a0 = offset_of(p.dAqk, it, it.hv, 0), b0 = offset_of(p.dAkk, it, it.hv, 0);
        const int off_tiles = p.C == 64 ? 6 : p.C == 32 ? 2 : 0;
#pragma unroll 1
        for (int first = warp; first < 2 * off_tiles; first += MOST * warps) {
            float4 x[MOST][2];
            const int R = lane >> 2, part = lane & 3;
#pragma unroll
            for (int j = 0; j < MOST; j++) {
                const int task = first + j * warps;
                if (task < 2 * off_tiles) {
                    const bool kk = task >= off_tiles;
                    int I, J;
                    tile_of(kk ? task - off_tiles : task, p.C, I, J);
                    const int column = ((16 * J) & (p.C - 1)) + part * 4;
#pragma unroll
                    for (int e = 0; e < 2; e++)
                        x[j][e] = load_dA<VECTOR>(kk ? p.dAkk : p.dAqk, kk ? b0 : a0, 16 * I + 2 * R + e,
                                                  column, it.rows);
                }
            }
#pragma unroll
            for (int j = 0; j < MOST; j++) {
                const int task = first + j * warps;
                if (task < 2 * off_tiles) {
                    const bool kk = task >= off_tiles;
                    int I, J;
                    tile_of(kk ? task - off_tiles : task, p.C, I, J);
                    const int tile = ((kk ? OFF_TILES : 0) + I * (I - 1) / 2 + J) * 256;
                    const float4 u = x[j][0], v = x[j][1];
                    const float4 blocks[2] = {make_float4(u.x, v.x, u.y, v.y),
                                              make_float4(u.z, v.z, u.w, v.w)};
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        const int at = tile + (R * 8 + ((2 * part + e) ^ R)) * 4;
                        const float4 h = blocks[e];
                        auto low = [&](float f) {
                            return f - __uint_as_float(__float_as_uint(f) & p.tf32_mask);
                        };
                        *(float4 *)(shared + AT_HI + at) = h;
                        *(float4 *)(shared + AT_LO + at) =
                            make_float4(low(h.x), low(h.y), low(h.z), low(h.w));
                    }
                }
            }
        }
#pragma unroll 2
        for (int e = tid; e < 2 * PANEL_ROWS * 4; e += blockDim.x) {
            const bool kk = e >= PANEL_ROWS * 4;
            const int row = (e >> 2) & (PANEL_ROWS - 1), part = e & 3, tile = row >> 4;
            const int column = ((16 * tile) & (p.C - 1)) + part * 4;
            *(float4 *)(shared + AT_DIAGONAL + ((kk ? TILES : 0) + tile) * DIAGONAL + (row & 15) * 16 +
                        part * 4) = load_dA<VECTOR>(kk ? p.dAkk : p.dAqk, kk ? b0 : a0, row, column, it.rows);
        }
#pragma unroll 1
        for (int row = tid; row < PANEL_ROWS; row += blockDim.x)
            shared[AT_DIAGONAL + (row >> 4) * DIAGONAL + BETA_IN_TILE + (row & 15)] =
                row < it.rows ? load_float(p.beta.at, offset_of(p.beta, it, it.hv, row), p.beta_dtype) : 0.0f;
    }
};

/* --- the products -------------------------------------------------------------------------------------- */

__device__ __forceinline__ void load_block(float (&x)[4], const float *at) {
    const float4 v = *(const float4 *)at;
    x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
}

/* A slab's rows of one tile, as a lane has them: rows 4p + i, columns 2c and 2c + 1. */
struct fragment {
    float x[4][2];
};

__device__ __forceinline__ fragment low_part(const fragment &f, uint32_t mask) {
    fragment low;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int e = 0; e < 2; e++)
            low.x[i][e] = f.x[i][e] - __uint_as_float(__float_as_uint(f.x[i][e]) & mask);
    return low;
}

/* A factor of 2 or more has bit 30 set. */
template <bool DROP> __device__ __forceinline__ float factor(float rise, uint32_t &risen) {
    float e = exp2_fast(rise);
    if (DROP)
        return __float_as_uint(e) & 0x40000000u ? (e == e ? 0.0f : e) : e;
    risen |= __float_as_uint(e);
    return e;
}

template <typename T> struct products {
    float dkt[3][2][4];     /* of column tile J: [d, s] */
    float rows[3][2][2][4]; /* of row tile I + 1; dqi and dkw: [r, d] */

    /* Returns bits of which bit 30 is set if a factor is 2 or more. */
    template <bool DROP>
    __device__ __forceinline__ uint32_t run(const float *shared, const float *own, int C, uint32_t mask) {
        using L = slab_layout<T>;
        const int lane = threadIdx.x & 31, c = lane >> 2, part = lane & 3;
        const float *g = own + L::at_g;
        uint32_t risen = 0;
        /* of k step i: the block (R, S) = (c, 2 part + i) for rows, (2 part + i, c) for columns */
        int at_row[2], at_column[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            at_row[i] = (c * 8 + ((2 * part + i) ^ c)) * 4;
            at_column[i] = ((2 * part + i) * 8 + (c ^ (2 * part + i))) * 4;
        }
#pragma unroll
        for (int I = 0; I < 3; I++)
#pragma unroll
            for (int x = 0; x < 2; x++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    dkt[I][x][e] = rows[I][0][x][e] = rows[I][1][x][e] = 0;

        auto gate = [&](int tile, int row) { return *(const float2 *)(g + tile * TILE + pair_word(row, c)); };

        /* columns: dkt */
#pragma unroll
        for (int I = 3; I >= 1; I--) {
            if (C == 64 || I != 2) {
                const float2 before = gate(I - 1, 15);
                const float4 beta4 =
                    *(const float4 *)(shared + AT_DIAGONAL + I * DIAGONAL + BETA_IN_TILE + 4 * part);
                const float beta[4] = {beta4.x, beta4.y, beta4.z, beta4.w};
                fragment x[2];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const float2 gr =
                        *(const float2 *)(g + I * TILE + (i * 4 + part) * 16 + ((2 * c) ^ (8 * (part >> 1))));
                    const float2 q = unpack(load_pair<T>(own + L::at_q + I * L::k_tile, 4 * part + i, c));
                    const float2 k = unpack(load_pair<T>(own + L::at_k + I * L::k_tile, 4 * part + i, c));
                    const float ex = factor<DROP>(gr.x - before.x, risen),
                                ey = factor<DROP>(gr.y - before.y, risen);
                    x[0].x[i][0] = q.x * ex;
                    x[0].x[i][1] = q.y * ey;
                    x[1].x[i][0] = (beta[i] * k.x) * ex;
                    x[1].x[i][1] = (beta[i] * k.y) * ey;
                }
#pragma unroll
                for (int m = 0; m < 2; m++) {
                    const fragment low = low_part(x[m], mask);
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        const float ah[4] = {x[m].x[2 * i][0], x[m].x[2 * i][1], x[m].x[2 * i + 1][0],
                                             x[m].x[2 * i + 1][1]};
                        const float al[4] = {low.x[2 * i][0], low.x[2 * i][1], low.x[2 * i + 1][0],
                                             low.x[2 * i + 1][1]};
                        float bh[3][4], bl[3][4];
#pragma unroll
                        for (int J = 0; J < I; J++) {
                            if (C == 32 && J != I - 1)
                                continue;
                            const float *tile = shared + (m * OFF_TILES + I * (I - 1) / 2 + J) * 256;
                            load_block(bh[J], tile + AT_HI + at_column[i]);
                            load_block(bl[J], tile + AT_LO + at_column[i]);
                        }
                        /* one product of all sums, then the next: they wait for each other's results */
#pragma unroll
                        for (int part = 0; part < 3; part++)
#pragma unroll
                            for (int J = 0; J < I; J++) {
                                if (C == 32 && J != I - 1)
                                    continue;
#pragma unroll
                                for (int n = 0; n < 2; n++) {
                                    const float(&b)[4] = part == 1 ? bl[J] : bh[J];
                                    mma(dkt[J][n], part == 0 ? al : ah, b[2 * n], b[2 * n + 1]);
                                }
                            }
                    }
                }
            }
            /* on to the tile above: what lies left of it goes over its fall */
            if (I > 1 && C == 64) {
                const float2 end = gate(I - 1, 15), begin = gate(I - 2, 15);
                const float dx = factor<DROP>(end.x - begin.x, risen),
                            dy = factor<DROP>(end.y - begin.y, risen);
#pragma unroll
                for (int J = 0; J < I - 1; J++)
#pragma unroll
                    for (int n = 0; n < 2; n++) {
                        dkt[J][n][0] *= dx;
                        dkt[J][n][1] *= dx;
                        dkt[J][n][2] *= dy;
                        dkt[J][n][3] *= dy;
                    }
            }
        }

        /* rows: dqi and dkw */
#pragma unroll
        for (int J = 0; J < 3; J++) {
            if (C == 64 || J != 1) {
                const float2 end = gate(J, 15);
                fragment x;
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const float2 gs =
                        *(const float2 *)(g + J * TILE + (i * 4 + part) * 16 + ((2 * c) ^ (8 * (part >> 1))));
                    const float2 k = unpack(load_pair<T>(own + L::at_k + J * L::k_tile, 4 * part + i, c));
                    const float ex = factor<DROP>(end.x - gs.x, risen),
                                ey = factor<DROP>(end.y - gs.y, risen);
                    x.x[i][0] = k.x * ex;
                    x.x[i][1] = k.y * ey;
                    dkt[J][i & 1][i >> 1] *= ex;
                    dkt[J][i & 1][2 + (i >> 1)] *= ey;
                }
                const fragment low = low_part(x, mask);
#pragma unroll
                for (int I = J + 1; I < 4; I++) {
                    if (C == 32 && I != J + 1)
                        continue;
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        float ah[2][4], al[2][4];
#pragma unroll
                        for (int m = 0; m < 2; m++) {
                            const float *tile = shared + (m * OFF_TILES + I * (I - 1) / 2 + J) * 256;
                            load_block(ah[m], tile + AT_HI + at_row[i]);
                            load_block(al[m], tile + AT_LO + at_row[i]);
                        }
#pragma unroll
                        for (int part = 0; part < 3; part++)
#pragma unroll
                            for (int m = 0; m < 2; m++)
#pragma unroll
                                for (int n = 0; n < 2; n++) {
                                    const fragment &b = part == 1 ? low : x;
                                    mma(rows[I - 1][m][n], part == 0 ? al[m] : ah[m], b.x[2 * i][n],
                                        b.x[2 * i + 1][n]);
                                }
                    }
                }
            }
            if (J < 2 && C == 64) {
                /* what lies below tile J + 1 goes over its fall; a lane has columns 4 part ... + 3 here */
                const float4 begin = *(const float4 *)(g + J * TILE + pair_word(15, 2 * part));
                const float4 end = *(const float4 *)(g + (J + 1) * TILE + pair_word(15, 2 * part));
                const float d[4] = {
                    factor<DROP>(end.x - begin.x, risen), factor<DROP>(end.y - begin.y, risen),
                    factor<DROP>(end.z - begin.z, risen), factor<DROP>(end.w - begin.w, risen)};
#pragma unroll
                for (int I = J + 2; I < 4; I++)
#pragma unroll
                    for (int m = 0; m < 2; m++)
#pragma unroll
                        for (int n = 0; n < 2; n++)
#pragma unroll
                            for (int e = 0; e < 4; e++)
                                rows[I - 1][m][n][e] *= d[2 * (e & 1) + n];
            }
        }
        /* a lane has rows 2c, 2c + 1 and columns 4 part ... + 3 here */
#pragma unroll
        for (int I = 1; I < 4; I++) {
            if (C == 32 && I == 2)
                continue;
            const float4 before = *(const float4 *)(g + (I - 1) * TILE + pair_word(15, 2 * part));
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int row = 2 * c + e;
                const float4 gr = *(const float4 *)(g + I * TILE + ((row & 3) * 4 + (row >> 2)) * 16 +
                                                    ((4 * part) ^ (8 * (row >> 3))));
                const float f[4] = {
                    factor<DROP>(gr.x - before.x, risen), factor<DROP>(gr.y - before.y, risen),
                    factor<DROP>(gr.z - before.z, risen), factor<DROP>(gr.w - before.w, risen)};
#pragma unroll
                for (int m = 0; m < 2; m++)
#pragma unroll
                    for (int n = 0; n < 2; n++)
#pragma unroll
                        for (int h = 0; h < 2; h++)
                            rows[I - 1][m][n][2 * e + h] *= f[2 * h + n];
            }
        }
        return risen;
    }
};

/* --- pairs with a factor of 2 or more ------------------------------------------------------------------ */

/* What of E[r,s] in a column was dropped from the products: E if one of its factors is 2 or more, else 0.
 * gate points to the column of the panel's first row. */
__device__ __forceinline__ float dropped(const kda_params &p, const float *gate, int r, int s, int last) {
    auto at = [&](int row) { return gate[min(row, last) * p.g.row]; };
    auto big = [](float rise) { return exp2_fast(rise) >= 2.0f; };
    const int I = r >> 4, J = s >> 4;
    bool any = big(at(r) - at(16 * I - 1)) || big(at(16 * J + 15) - at(s));
    for (int t = J + 1; t < I; t++)
        any = any || big(at(16 * t + 15) - at(16 * t - 1));
    return any ? exp2_fast(at(r) - at(s)) : 0.0f;
}

/* Adds the dropped pairs of row tile `tile`, of columns 2c and 2c + 1: rows = false to dkt in `first`, else
 * to dqi in `first` and dkw in `second`. The stages begin at the lane's tile. */
template <typename T>
__device__ __noinline__ void add_dropped(const kda_params &p, const float *shared, int slab, int tile, int c,
                                         bool rows, float *first, float *second) {
    const item it = find_item(p, block_again());
    const int last = it.rows - 1;
    for (int e = 0; e < 2; e++) {
        const int column = slab * SLAB + 2 * c + e;
        if (column >= p.K)
            continue;
        const float *gate = (const float *)p.g.at + offset_of(p.g, it, it.hv, 0) + column;
        const int64_t k0 = offset_of(p.k, it, it.h, 0) + column, q0 = offset_of(p.q, it, it.h, 0) + column;
        for (int x = 16 * tile; x < 16 * tile + 16 && x <= last; x++) {
            float sum_a = 0, sum_b = 0;
            const int begin = rows ? x & -p.C : 16 * tile + 16;
            const int end = rows ? 16 * tile : min(it.rows, (x & -p.C) + p.C);
            for (int y = begin; y < end; y++) {
                const int r = rows ? x : y, s = rows ? y : x;
                const float E = dropped(p, gate, r, s, last);
                if (E == 0.0f)
                    continue;
                const int I = r >> 4, J = s >> 4, R = (r & 15) >> 1, S = (s & 15) >> 1;
                const int word = (I * (I - 1) / 2 + J) * 256 + (R * 8 + (S ^ R)) * 4 + (r & 1) + 2 * (s & 1);
                const float a = shared[AT_HI + word], b = shared[AT_HI + OFF_TILES * 256 + word];
                if (rows) {
                    const float k = load_float(p.k.at, k0 + s * p.k.row, p.qk_dtype);
                    sum_a += a * (k * E);
                    sum_b += b * (k * E);
                } else {
                    const float k = load_float(p.k.at, k0 + r * p.k.row, p.qk_dtype);
                    const float q = load_float(p.q.at, q0 + r * p.q.row, p.qk_dtype);
                    sum_a +=
                        (a * q + b * (shared[AT_DIAGONAL + I * DIAGONAL + BETA_IN_TILE + (r & 15)] * k)) * E;
                }
            }
            if (rows) {
                first[row_word(x & 15) + 2 * c + e] += sum_a;
                second[row_word(x & 15) + 2 * c + e] += sum_b;
            } else {
                first[pair_word(x & 15, c) + e] += sum_a;
            }
        }
    }
}

/* --- a slab of an item --------------------------------------------------------------------------------- */

/* How many rows before its own a row's incoming gradients are asked for, in the walk. */
__host__ __device__ constexpr int distance(int r) {
    return r > 15 ? 0 : r >= 6 ? 1 : 2;
}

template <typename T, bool VECTOR>
__device__ void run_risen_slab(const kda_params &p, float *shared, float *own, int slab,
                                            float *db);

/* RISEN: g rises somewhere in the slab. */
template <typename T, bool VECTOR, bool RISEN>
__device__ __forceinline__ void run_slab(const kda_params &p, const item &it, float *shared, float *own,
                                         int slab, float *db) {
    using L = slab_layout<T>;
    const int lane = threadIdx.x & 31, c = lane >> 2, t = lane & 3;
    float *stage = own + L::at_k, *stage_g = own + L::at_g;
    const float *zero = shared + AT_ZERO;
    packed<T> k[16];
    float2 g[16], dkt[16];
    const int column = slab * SLAB + 2 * c;
    const int rows = it.rows - 16 * t;         /* from the tile's first */
    const int limit = column < p.K ? rows : 0; /* what the lane writes of them */
    /* VECTOR: all gradients have the strides of g, so one offset serves them all */
    const int64_t place = VECTOR ? (offset_of(p.g, it, it.hv, 16 * t) + (column < p.K ? column : 0)) * 4 : 0;
    const int stride = (int)p.g.row * 4;
    auto row_place = [&](int r) { return (int64_t)row_at((uint64_t)place, min(r, rows - 1), stride); };
    auto scalar_place = [&](const kda_tensor &x, int r) {
        return (float *)x.at + (offset_of(x, it, it.hv, 16 * t + r) + column);
    };
    float2 in[16][3];
    auto fetch = [&](int r) {
        /* of a row behind the end, the last row's */
        const int64_t at = VECTOR ? row_place(r) : 0;
#pragma unroll
        for (int x = 0; x < 3; x++) {
            const kda_tensor &tensor = p.in[x == 2 ? 3 : x];
            if constexpr (VECTOR) {
                in[r][x] = load2(tensor.at + at);
            } else if (r < limit) {
                const volatile float *from = scalar_place(tensor, r);
                in[r][x].x = from[0];
                in[r][x].y = from[column + 1 < p.K ? 1 : 0];
            }
        }
    };
    constexpr int FIRST = VECTOR ? 1 : 0; /* rows fetched before the walk */

    if (p.C > 16) {
        if constexpr (VECTOR) {
            ask_gradients(p, it, slab, 1);
            ask_gradients(p, it, slab, 0);
        }
        products<T> x;
        const uint32_t bits = x.template run<RISEN>(shared, own, p.C, p.tf32_mask);
        if (!RISEN && __any_sync(~0u, bits & 0x40000000u)) {
            run_risen_slab<T, VECTOR>(p, shared, own, slab, db);
            return;
        }
#pragma unroll
        for (int r = 15; r > 15 - FIRST; r--)
            fetch(r);
#pragma unroll
        for (int r = 0; r < 16; r++)
            k[r] = load_pair<T>(own + L::at_k + t * L::k_tile, r, c);
        __syncwarp();
#pragma unroll
        for (int J = 0; J < 3; J++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                *(float2 *)(stage + J * TILE + (i * 4 + t) * 16 + ((2 * c) ^ (8 * (t >> 1)))) =
                    make_float2(x.dkt[J][i & 1][i >> 1], x.dkt[J][i & 1][2 + (i >> 1)]);
        __syncwarp();
        if (RISEN && t < 3)
            add_dropped<T>(p, shared, slab, t, c, false, stage + t * TILE, nullptr);
        if (RISEN)
            __syncwarp();
        {
            const float *from = t < 3 ? stage + t * TILE : zero;
#pragma unroll
            for (int r = 0; r < 16; r++)
                dkt[r] = *(const float2 *)(from + pair_word(r, c));
        }
        __syncwarp();
#pragma unroll
        for (int I = 0; I < 3; I++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                *(float4 *)(stage + I * TILE + (c + 8 * e) * 16 + 4 * t) =
                    make_float4(x.rows[I][0][0][2 * e], x.rows[I][0][1][2 * e], x.rows[I][0][0][2 * e + 1],
                                x.rows[I][0][1][2 * e + 1]);
#pragma unroll
        for (int r = 0; r < 16; r++)
            g[r] = *(const float2 *)(own + L::at_g + t * TILE + pair_word(r, c));
        __syncwarp();
#pragma unroll
        for (int I = 0; I < 3; I++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                *(float4 *)(stage_g + I * TILE + (c + 8 * e) * 16 + 4 * t) =
                    make_float4(x.rows[I][1][0][2 * e], x.rows[I][1][1][2 * e], x.rows[I][1][0][2 * e + 1],
                                x.rows[I][1][1][2 * e + 1]);
        __syncwarp();
        if (RISEN && t > 0)
            add_dropped<T>(p, shared, slab, t, c, true, stage + (t - 1) * TILE, stage_g + (t - 1) * TILE);
        if (RISEN)
            __syncwarp();
    } else {
#pragma unroll
        for (int r = 0; r < 16; r++) {
            k[r] = load_pair<T>(own + L::at_k + t * L::k_tile, r, c);
            g[r] = *(const float2 *)(own + L::at_g + t * TILE + pair_word(r, c));
            dkt[r] = make_float2(0, 0);
        }
#pragma unroll
        for (int r = 15; r > 15 - FIRST; r--)
            fetch(r);
    }

    /* the walk */
    const bool below = p.C > 16 && t > 0;
    const float *from_dqi = (below ? stage + (t - 1) * TILE : zero) + 2 * c;
    const float *from_dkw = (below ? stage_g + (t - 1) * TILE : zero) + 2 * c;
    float *tile_q = own + L::at_q + t * L::k_tile;
    const float *diagonal = shared + AT_DIAGONAL + t * DIAGONAL;
#pragma unroll
    for (int r = 15; r >= 0; r--) {
        const bool wanted = r < limit;
        /* rows shrink: the later, the more of them are on their way */
#pragma unroll
        for (int f = r - distance(r + 1); VECTOR && f >= r - distance(r); f--)
            if (f >= 0 && f <= 15 - FIRST)
                fetch(f);
        if (!VECTOR)
            fetch(r);
        const float2 q = unpack(load_pair<T>(tile_q, r, c)), kr = unpack(k[r]);
        const float beta = diagonal[BETA_IN_TILE + r];
        const float2 bk = make_float2(beta * kr.x, beta * kr.y);
        float2 dqi = *(const float2 *)(from_dqi + row_word(r)),
               dkw = *(const float2 *)(from_dkw + row_word(r));
        float a_rr = 0, b_rr = 0;
#pragma unroll
        for (int s4 = 0; s4 <= r / 4; s4++) {
            float a[4], b[4];
            load_block(a, diagonal + r * 16 + s4 * 4);
            load_block(b, diagonal + TILES * DIAGONAL + r * 16 + s4 * 4);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int s = s4 * 4 + j;
                if (s < r) {
                    const float ex = exp2_fast(g[r].x - g[s].x), ey = exp2_fast(g[r].y - g[s].y);
                    const float2 ks = unpack(k[s]);
                    const float ux = ks.x * ex, uy = ks.y * ey;
                    dqi.x += a[j] * ux;
                    dqi.y += a[j] * uy;
                    dkw.x += b[j] * ux;
                    dkw.y += b[j] * uy;
                    dkt[s].x += (a[j] * q.x + b[j] * bk.x) * ex;
                    dkt[s].y += (a[j] * q.y + b[j] * bk.y) * ey;
                } else if (s == r) {
                    a_rr = a[j];
                    b_rr = b[j];
                }
            }
        }
        float2 to[3];
        to[2].x = add(in[r][2].x, q.x * dqi.x + (beta * dkw.x - dkt[r].x) * kr.x);
        to[2].y = add(in[r][2].y, q.y * dqi.y + (beta * dkw.y - dkt[r].y) * kr.y);
        dkw.x += b_rr * kr.x;
        dkw.y += b_rr * kr.y;
        to[0].x = add(in[r][0].x, dqi.x + a_rr * kr.x);
        to[0].y = add(in[r][0].y, dqi.y + a_rr * kr.y);
        to[1].x = add(in[r][1].x, beta * dkw.x + (dkt[r].x + (a_rr * q.x + b_rr * bk.x)));
        to[1].y = add(in[r][1].y, beta * dkw.y + (dkt[r].y + (a_rr * q.y + b_rr * bk.y)));
        const int64_t at = VECTOR ? row_place(r) : 0;
        /* the lane's part of db takes the place of its q */
        tile_q[pair_place<T>(r, c)] = dkw.x * kr.x + dkw.y * kr.y;
#pragma unroll
        for (int x = 0; x < 3; x++) {
            const kda_tensor &tensor = p.out[x == 2 ? 3 : x];
            if constexpr (VECTOR) {
                store2(tensor.at + at, to[x], wanted);
            } else if (wanted) {
                float *there = scalar_place(tensor, r);
                there[0] = to[x].x;
                if (column + 1 < p.K)
                    there[1] = to[x].y;
            }
        }
        finish_memory();
#pragma unroll
        for (int s = 0; s < r; s++)
            finish(dkt[s]);
    }
    __syncwarp();
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const int row = 2 * (lane & 7) + e;
        const float *part = own + L::at_q + (lane >> 3) * L::k_tile;
        float sum = 0;
#pragma unroll
        for (int i = 0; i < 8; i++)
            sum += part[pair_place<T>(row, i)];
        db[16 * (lane >> 3) + row] = sum;
    }
}

template <typename T, bool VECTOR>
__device__ void run_risen_slab(const kda_params &p, float *shared, float *own, int slab, float *db) {
    const item it = find_item(p, block_again());
    run_slab<T, VECTOR, true>(p, it, shared, own, slab, db);
}

template <typename T, bool VECTOR> __device__ __forceinline__ void panel(const kda_params &p) {
    float *shared = block_shared();
    const int tid = threadIdx.x, warp = __shfl_sync(~0u, tid >> 5, 0);
    const int slabs = (p.K + SLAB - 1) / SLAB;
    float *own = shared + AT_DB + slabs * PANEL_ROWS + warp * slab_layout<T>::words;
#pragma unroll 1
    for (int i = tid; i < 256; i += blockDim.x)
        shared[AT_ZERO + i] = 0;

    const int index = blockIdx.x;
    {
        const item it = find_item(p, index);
        if (it.kind != PANEL_COMPUTE) {
            if (it.kind == PANEL_COPY)
                copy_item(p, it);
            return;
        }
        load_slab<T, VECTOR>(p, it, min(warp, slabs - 1), own);
        dA_loader<VECTOR>::run(p, it, shared);
        if constexpr (VECTOR)
            copies_wait();
        __syncthreads();
    }
    /* What is needed next is read and computed anew, not kept in registers over a slab. */
    int slab = thread_again() >> 5;
#pragma unroll 1
    do {
        const item it = find_item(p, block_again());
        float *slab_own = shared + AT_DB + slabs * PANEL_ROWS + (thread_again() >> 5) * slab_layout<T>::words;
        if (slab >= (int)blockDim.x >> 5) {
            __syncwarp();
            load_slab<T, VECTOR>(p, it, slab, slab_own);
            if constexpr (VECTOR)
                copies_wait();
            __syncwarp();
        }
        run_slab<T, VECTOR, false>(p, it, shared, slab_own, slab, shared + AT_DB + slab * PANEL_ROWS);
        slab += blockDim.x >> 5;
    } while (slab < (p.K + SLAB - 1) / SLAB);
    __syncthreads();
    const item it = find_item(p, block_again());
#pragma unroll 1
    for (int row = thread_again(); row < it.rows; row += blockDim.x) {
        float sum = 0;
#pragma unroll 1
        for (int slab = 0; slab < (p.K + SLAB - 1) / SLAB; slab++)
            sum += shared[AT_DB + slab * PANEL_ROWS + row];
        const float in = ((const float *)p.in[2].at)[offset_of(p.in[2], it, it.hv, row)];
        ((float *)p.out[2].at)[offset_of(p.out[2], it, it.hv, row)] = add(in, sum);
    }
}

} // namespace kda
