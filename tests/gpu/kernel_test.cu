/*
 * kernel_test.cu - the CUDA kernels against float64, on a GPU, through the driver API as the daemon uses
 * them.
 *
 *     kernel_test IMAGE DATA_DIR [quick]
 *
 * Every case of DATA_DIR; random shapes, types, strides and sequences with guards around every tensor; the
 * laws of the numerics; bad cu_seqlens; a tensor of more than 2^31 elements. Exit status 0 if all pass, 77
 * without a GPU.
 */
#include <dirent.h>

#include <algorithm>
#include <map>

#include "kernel_job.cuh"

static int failures, checks;

static void verdict(bool ok, const char *what) {
    checks++;
    if (!ok) {
        failures++;
        printf("FAIL %s\n", what);
    }
}

/* --- running and comparing ----------------------------------------------------------------------------- */

struct result {
    double error[4];
    unsigned long long bad[4], inexact[4];
};

static double error_of(const error_sums &s) {
    const double excess = sqrt(s.error) - 6e-8 * sqrt(s.reference);
    if (s.added == 0)
        return s.inexact ? INFINITY : 0;
    return excess > 0 ? excess / sqrt(s.added) : 0;
}

/* The oracle's results; incoming gradients are not part of them. */
struct reference {
    double *at[4]; /* dq, dk, db, dg */
};

static reference reference_make(job *j) {
    const struct problem &p = j->problem;
    reference r;
    const size_t rows = (size_t)(p.B * p.T * p.HV);
    for (int i = 0; i < 4; i++)
        RT(cudaMalloc(&r.at[i], (i == 2 ? rows : rows * (size_t)p.K) * sizeof(double)));
    oracle_args a = {};
    memcpy(a.x, j->x, sizeof a.x);
    a.chunks = j->device_chunks;
    a.dq = r.at[0], a.dk = r.at[1], a.db = r.at[2], a.dg = r.at[3];
    a.rows = p.B * p.T, a.HV = p.HV, a.group = p.HV / p.H, a.K = p.K;
    oracle<<<(unsigned)std::min<size_t>(rows, 1 << 20), 128>>>(a);
    RT(cudaGetLastError());
    RT(cudaDeviceSynchronize());
    return r;
}

static void reference_free(reference *r) {
    for (int i = 0; i < 4; i++)
        RT(cudaFree(r->at[i]));
}

static result job_compare(job *j, const reference &r, const view *incoming) {
    result x = {};
    error_sums *sums, host[4];
    RT(cudaMalloc(&sums, sizeof host));
    RT(cudaMemset(sums, 0, sizeof host));
    for (int i = 0; i < 4; i++)
        compare<<<256, 256>>>(j->x[OPERAND_DQ_OUT + i], incoming[i], r.at[i], sums + i);
    RT(cudaMemcpy(host, sums, sizeof host, cudaMemcpyDeviceToHost));
    RT(cudaFree(sums));
    for (int i = 0; i < 4; i++) {
        x.error[i] = error_of(host[i]);
        x.bad[i] = host[i].bad;
        x.inexact[i] = host[i].inexact;
    }
    return x;
}

/* Bytes of a tensor's memory that are no elements of its own must be as they were: 0xA5. */
static bool guards_hold(const job &j) {
    for (int o = OPERAND_DQ_OUT; o <= OPERAND_DG_OUT; o++) {
        if (!j.memory[o] || j.bytes[o] > (64 << 20))
            continue;
        std::vector<unsigned char> bytes(j.bytes[o] + 2 * GUARD);
        RT(cudaMemcpy(bytes.data(), j.memory[o], bytes.size(), cudaMemcpyDeviceToHost));
        const view &v = j.x[o];
        const size_t first = (size_t)(j.addresses[o] - (uint64_t)j.memory[o]);
        for (int64_t b = 0; b < v.shape[0]; b++)
            for (int64_t t = 0; t < v.shape[1]; t++)
                for (int64_t h = 0; h < v.shape[2]; h++)
                    memset(&bytes[first + 4 * (size_t)(b * v.stride[0] + t * v.stride[1] + h * v.stride[2])],
                           0xA5, (size_t)v.shape[3] * 4);
        for (unsigned char c : bytes)
            if (c != 0xA5)
                return false;
    }
    return true;
}

/* Runs a job with each kernel that takes it (kernel >= 0: with that one alone). */
static void check_job(const gpu &g, const char *name, job *j, const options &opt, double limit, bool exact) {
    static const char *const output[] = {"dq", "dk", "db", "dg"};
    const reference ref = reference_make(j);
    view incoming[4];
    std::vector<void *> copies;
    for (int i = 0; i < 4; i++) {
        incoming[i] = j->x[OPERAND_DQ + i];
        if (opt.in_place) { /* keep what comes in */
            const size_t n = j->bytes[OPERAND_DQ + i] + 2 * GUARD;
            char *copy;
            RT(cudaMalloc(&copy, n));
            RT(cudaMemcpy(copy, j->memory[OPERAND_DQ + i], n, cudaMemcpyDeviceToDevice));
            incoming[i].at = copy + (j->addresses[OPERAND_DQ + i] - (uint64_t)j->memory[OPERAND_DQ + i]);
            copies.push_back(copy);
        }
    }
    for (int k = CUDA_KERNEL_PANEL_BF16; k < CUDA_KERNEL_COUNT; k++) {
        cuda_plan plan;
        if (!cuda_plan_make_with(&plan, (cuda_kernel)k, &j->problem, j->addresses, &j->words, &g.device) ||
            !has_kernel(g, plan))
            continue;
        for (int i = 0; i < 4; i++) {
            if (opt.in_place) {
                const size_t n = j->bytes[OPERAND_DQ + i] + 2 * GUARD;
                RT(cudaMemcpy(j->memory[OPERAND_DQ + i], copies[i], n, cudaMemcpyDeviceToDevice));
            } else {
                RT(cudaMemset(j->memory[OPERAND_DQ_OUT + i], 0xA5, j->bytes[OPERAND_DQ_OUT + i] + 2 * GUARD));
            }
        }
        launch(g, &plan);
        RT(cudaDeviceSynchronize());
        const result r = job_compare(j, ref, incoming);
        char what[512];
        bool ok = true;
        double worst = 0;
        for (int i = 0; i < 4; i++) {
            ok = ok && r.error[i] <= limit && r.bad[i] == 0 && !(exact && r.inexact[i]);
            worst = std::max(worst, r.error[i]);
        }
        if (!opt.in_place)
            ok = guards_hold(*j) && ok;
        int32_t told[2] = {0, -1};
        if (j->problem.N >= 0)
            RT(cudaMemcpy(told, j->told, 8, cudaMemcpyDeviceToHost));
        ok = ok && told[0] == CUDA_VERDICT_OK && told[1] == -1; /* as job_make left it */
        int n = snprintf(what, sizeof what, "%s, %s:", name, cuda_kernel_name((cuda_kernel)k));
        for (int i = 0; i < 4; i++)
            n += snprintf(what + n, sizeof what - n, " %s %.1e%s", output[i], r.error[i],
                          r.bad[i] ? " (not finite, or wrongly finite)" : "");
        verdict(ok, what);
        if (ok)
            printf("ok   %-60s %-20s %.1e\n", name, cuda_kernel_name((cuda_kernel)k), worst);
    }
    for (void *copy : copies)
        RT(cudaFree(copy));
    reference ref2 = ref;
    reference_free(&ref2);
}

/* --- the cases of tests/data --------------------------------------------------------------------------- */

/* A reader for our own files' headers: {"name":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}, ...}. */
struct stored {
    std::string dtype;
    std::vector<int64_t> shape;
    size_t begin, end;
};

static bool read_case(const std::string &path, std::map<std::string, stored> *tensors, std::string *meta,
                      std::vector<char> *data) {
    FILE *f = fopen(path.c_str(), "rb");
    if (!f)
        return false;
    uint64_t n;
    if (fread(&n, 8, 1, f) != 1)
        return false;
    std::string h(n, 0);
    if (fread(&h[0], 1, n, f) != n)
        return false;
    char buffer[65536];
    for (size_t got; (got = fread(buffer, 1, sizeof buffer, f)) > 0;)
        data->insert(data->end(), buffer, buffer + got);
    fclose(f);
    *meta = h;
    for (size_t at = 0; (at = h.find("\"dtype\"", at)) != std::string::npos; at++) {
        stored s;
        const size_t open = h.rfind('{', at), close = h.find('}', at);
        const size_t name_end = h.rfind('"', open), name = h.rfind('"', name_end - 1);
        const std::string body = h.substr(open, close - open);
        const size_t d = body.find('"', body.find(':', body.find("dtype")));
        s.dtype = body.substr(d + 1, body.find('"', d + 1) - d - 1);
        const char *c = body.c_str() + body.find('[', body.find("shape"));
        while (*c != ']') {
            c++;
            char *e;
            const long long v = strtoll(c, &e, 10);
            if (e != c)
                s.shape.push_back(v);
            c = e;
            while (*c == ' ')
                c++;
        }
        c = body.c_str() + body.find('[', body.find("data_offsets"));
        char *e;
        s.begin = strtoull(c + 1, &e, 10);
        while (*e == ',' || *e == ' ')
            e++;
        s.end = strtoull(e, NULL, 10);
        (*tensors)[h.substr(name + 1, name_end - name - 1)] = s;
    }
    return !tensors->empty();
}

static void check_case(const gpu &g, const std::string &directory, const std::string &file) {
    static const char *const names[] = {"q", "k", "g", "beta", "dAqk", "dAkk", "dq", "dk", "db", "dg"};
    std::map<std::string, stored> t;
    std::string meta;
    std::vector<char> data;
    if (!read_case(directory + "/" + file, &t, &meta, &data)) {
        verdict(false, file.c_str());
        return;
    }
    const size_t c = meta.find("\"chunk_size\"");
    shape s = {t["q"].shape[0], t["q"].shape[1], t["q"].shape[2],
               t["g"].shape[2], t["q"].shape[3], atoll(meta.c_str() + meta.find('"', meta.find(':', c)) + 1)};
    options opt;
    opt.qk = t["q"].dtype == "BF16" ? DTYPE_BF16 : t["q"].dtype == "F16" ? DTYPE_F16 : DTYPE_F32;
    if (t.count("cu_seqlens")) {
        const stored &cu = t["cu_seqlens"];
        for (int64_t i = 0; i < cu.shape[0]; i++) {
            int64_t v;
            memcpy(&v, &data[cu.begin + 8 * (size_t)i], 8);
            opt.cu.push_back(v);
        }
    }
    job j = job_make(s, opt);
    for (int o = 0; o < 10; o++) {
        const stored &x = t[names[o]];
        RT(cudaMemcpy((void *)j.addresses[o], &data[x.begin], x.end - x.begin, cudaMemcpyHostToDevice));
    }
    check_job(g, file.c_str(), &j, opt, 2e-6, file == "exact.safetensors");
    /* and the stored results must be the oracle's */
    const reference ref = reference_make(&j);
    static const char *const refs[] = {"ref.dq", "ref.dk", "ref.db", "ref.dg"};
    for (int i = 0; i < 4; i++) {
        const stored &x = t[refs[i]];
        const size_t n = (x.end - x.begin) / 8;
        std::vector<double> want(n), got(n);
        std::vector<float> in(n);
        memcpy(want.data(), &data[x.begin], n * 8);
        RT(cudaMemcpy(got.data(), ref.at[i], n * 8, cudaMemcpyDeviceToHost));
        memcpy(in.data(), &data[t[names[6 + i]].begin], n * 4);
        double e = 0, a = 0;
        for (size_t y = 0; y < n; y++) {
            const double d = want[y] - (got[y] + in[y]);
            e += d * d, a += got[y] * got[y];
        }
        verdict(sqrt(e) <= 1e-9 * sqrt(a) + 1e-30, (file + " " + refs[i] + ": the oracle differs").c_str());
    }
    reference ref2 = ref;
    reference_free(&ref2);
    job_free(&j);
}

/* --- random problems ----------------------------------------------------------------------------------- */

static std::vector<int64_t> random_sequences(int64_t T, int n, uint32_t seed, int64_t behind) {
    std::vector<int64_t> cu = {0};
    srand(seed);
    for (int i = 1; i < n; i++)
        cu.push_back(rand() % (T - behind + 1));
    cu.push_back(T - behind);
    std::sort(cu.begin(), cu.end());
    return cu;
}

static void check_random(const gpu &g, bool quick) {
    const int64_t widths[] = {128, 64, 256, 100, 1, 16, 17, 40, 200, 8};
    const int64_t chunks[] = {64, 16, 32};
    const dtype types[] = {DTYPE_BF16, DTYPE_F16, DTYPE_F32};
    int n = 0;
    for (int64_t K : widths)
        for (int64_t C : chunks) {
            n++;
            shape s = {1 + n % 2, 150 + 37 * n % 130, 1 + n % 2, 2 + 2 * (n % 2), K, C};
            options opt;
            opt.qk = types[n % 3];
            opt.beta = types[n / 3 % 3];
            opt.layout = n % 4;
            opt.in_place = n % 5 == 0;
            opt.seed = (uint32_t)n;
            opt.strength = n % 3 == 0 ? 20 : n % 3 == 1 ? 1 : 0.01f;
            opt.incoming = n % 2 ? 1 : 0;
            if (n % 3 == 1) {
                s.B = 1;
                opt.cu = random_sequences(s.T, 5, (uint32_t)n, n % 2 * 9);
                opt.cu_type = n % 2 ? DTYPE_I32 : DTYPE_I64;
            }
            char name[200];
            snprintf(name, sizeof name, "K %d C %d T %d %s layout %d%s%s gates %g", (int)K, (int)C, (int)s.T,
                     dtype_name(opt.qk), opt.layout, opt.in_place ? " in place" : "",
                     opt.cu.empty() ? "" : " varlen", opt.strength);
            job j = job_make(s, opt);
            job_fill(&j, opt);
            check_job(g, name, &j, opt, 2e-6, false);
            job_free(&j);
            if (quick && n > 8)
                return;
        }
    for (float strength : {1e-4f, 0.1f, 1.0f, 16.0f, 64.0f, 5000.0f})
        for (dtype type : types) {
            options opt;
            opt.qk = type;
            opt.strength = strength;
            opt.incoming = 0;
            opt.layout = type == DTYPE_F16 ? 3 : 0;
            shape s = {1, 456, 2, 4, 128, 64};
            char name[100];
            snprintf(name, sizeof name, "K 128 C 64 %s gates %g", dtype_name(type), strength);
            job j = job_make(s, opt);
            job_fill(&j, opt);
            check_job(g, name, &j, opt, 2e-6, false);
            job_free(&j);
        }
    for (float strength :
         {0.3f, 1.0f, 3.0f, 4.0f}) { /* gates that rise and fall; differences round more where large */
        for (int64_t C : chunks) {
            options opt;
            opt.rising = true;
            opt.strength = strength;
            opt.incoming = 0;
            shape s = {1, 200, 1, 2, 128, C};
            char name[100];
            snprintf(name, sizeof name, "rising gates %g C %d", strength, (int)C);
            job j = job_make(s, opt);
            job_fill(&j, opt);
            check_job(g, name, &j, opt, 4e-6, false);
            job_free(&j);
        }
    }
}

/* --- laws ---------------------------------------------------------------------------------------------- */

static std::vector<float> fetch_output(const job &j, int i) {
    std::vector<float> x((j.bytes[OPERAND_DQ_OUT + i]) / 4);
    RT(cudaMemcpy(x.data(), (void *)j.addresses[OPERAND_DQ_OUT + i], x.size() * 4, cudaMemcpyDeviceToHost));
    return x;
}

__global__ void poke(view v, int64_t t, int64_t h, int64_t d, float x, bool all_d) {
    for (int64_t e = threadIdx.x; e < v.shape[3]; e += blockDim.x)
        if (all_d || e == d)
            view_set(v, t * v.stride[1] + h * v.stride[2] + e * v.stride[3], x);
}

static void check_laws(const gpu &g) {
    for (int64_t C : {64, 32, 16}) {
        for (int k = CUDA_KERNEL_PANEL_BF16; k <= CUDA_KERNEL_PANEL_BF16_ANY; k++) {
            options opt;
            shape s = {1, 192, 1, 2, 128, C};
            job j = job_make(s, opt);
            job_fill(&j, opt);
            cuda_plan plan;
            if (!cuda_plan_make_with(&plan, (cuda_kernel)k, &j.problem, j.addresses, &j.words, &g.device) ||
                !has_kernel(g, plan)) {
                job_free(&j);
                continue;
            }
            char what[200];
            launch(g, &plan);
            RT(cudaDeviceSynchronize());
            std::vector<float> before[4], after[4];
            for (int i = 0; i < 4; i++)
                before[i] = fetch_output(j, i);
            /* law 6: bit-equal */
            for (int again = 0; again < 3; again++) {
                launch(g, &plan);
                RT(cudaDeviceSynchronize());
                bool same = true;
                for (int i = 0; i < 4; i++) {
                    after[i] = fetch_output(j, i);
                    same = same && memcmp(after[i].data(), before[i].data(), before[i].size() * 4) == 0;
                }
                snprintf(what, sizeof what, "law 6, %s, C %d", cuda_kernel_name((cuda_kernel)k), (int)C);
                verdict(same, what);
            }
            /* law 5: rows after `row` become garbage, NaN, inf, or rise */
            for (int64_t row : {70, 5, 47, 100, 127}) {
                for (int how = 0; how < 4; how++) {
                    job_fill(&j, opt);
                    for (int64_t t = row + 1; t < s.T; t++)
                        for (int o = 0; o <= OPERAND_DAKK; o++) {
                            if (how == 3 && o != OPERAND_G)
                                continue;
                            const float x = how == 0 ? 0.37f : how == 1 ? NAN : how == 2 ? INFINITY : 30.0f;
                            for (int64_t h = 0; h < j.x[o].shape[2]; h++)
                                poke<<<1, 128>>>(j.x[o], t, h, 0, x, true);
                        }
                    launch(g, &plan);
                    RT(cudaDeviceSynchronize());
                    bool same = true;
                    for (int i : {0, 2}) {
                        after[i] = fetch_output(j, i);
                        const size_t n = (size_t)(row + 1) * 2 * (i == 0 ? 128 : 1);
                        same = same && memcmp(after[i].data(), before[i].data(), n * 4) == 0;
                    }
                    snprintf(what, sizeof what, "law 5, %s, C %d, row %d, how %d",
                             cuda_kernel_name((cuda_kernel)k), (int)C, (int)row, how);
                    verdict(same, what);
                }
            }
            /* NaN stays in its chunk, head and column */
            for (int o : {OPERAND_Q, OPERAND_K, OPERAND_G}) {
                job_fill(&j, opt);
                const int64_t row = 64 + 20, column = 37;
                poke<<<1, 128>>>(j.x[o], row, 0, column, NAN, false);
                launch(g, &plan);
                RT(cudaDeviceSynchronize());
                bool same = true;
                const int64_t first = row / C * C, end = first + C;
                for (int i = 0; i < 4; i++) {
                    after[i] = fetch_output(j, i);
                    const int64_t width = i == 2 ? 1 : 128;
                    for (size_t e = 0; e < after[i].size(); e++) {
                        const int64_t d = (int64_t)e % width, h = (int64_t)e / width % 2,
                                      t = (int64_t)e / width / 2;
                        const bool own =
                            t >= first && t < end && (o != OPERAND_G || h == 0) && (i == 2 || d == column);
                        if (!own && memcmp(&after[i][e], &before[i][e], 4) != 0)
                            same = false;
                    }
                }
                snprintf(what, sizeof what, "NaN in operand %d stays in its column, %s, C %d", o,
                         cuda_kernel_name((cuda_kernel)k), (int)C);
                verdict(same, what);
            }
            job_free(&j);
        }
    }
}

static void check_bad_sequences(const gpu &g) {
    const std::vector<int64_t> bad[] = {{1, 100, 200},      {0, 150, 100, 200}, {0, 100, 201},
                                        {0, -5, 200},       {-1, 100, 200},     {0, INT64_MAX / 2, 200},
                                        {0, 100, INT64_MIN}};
    const int wanted[] = {CUDA_VERDICT_START, CUDA_VERDICT_FALLING, CUDA_VERDICT_END,    CUDA_VERDICT_FALLING,
                          CUDA_VERDICT_START, CUDA_VERDICT_FALLING, CUDA_VERDICT_FALLING};
    for (size_t n = 0; n < sizeof bad / sizeof *bad; n++)
        for (int k = CUDA_KERNEL_PANEL_BF16; k <= CUDA_KERNEL_PANEL_BF16_ANY; k++)
            for (int in_place = 0; in_place < 2; in_place++) {
                options opt;
                opt.cu = bad[n];
                opt.in_place = in_place;
                shape s = {1, 200, 1, 2, 128, 64};
                job j = job_make(s, opt);
                opt.cu.clear();
                job_fill(&j, opt);
                cuda_plan plan;
                if (cuda_plan_make_with(&plan, (cuda_kernel)k, &j.problem, j.addresses, &j.words,
                                        &g.device) &&
                    has_kernel(g, plan)) {
                    std::vector<float> before[4];
                    bool same = true;
                    for (int i = 0; i < 4; i++) {
                        before[i].resize((size_t)(200 * 2 * (i == 2 ? 1 : 128)));
                        RT(cudaMemcpy(before[i].data(), (void *)j.addresses[OPERAND_DQ + i],
                                      before[i].size() * 4, cudaMemcpyDeviceToHost));
                    }
                    launch(g, &plan);
                    RT(cudaDeviceSynchronize());
                    for (int i = 0; i < 4; i++) {
                        std::vector<float> after(before[i].size());
                        RT(cudaMemcpy(after.data(), (void *)j.addresses[OPERAND_DQ_OUT + i], after.size() * 4,
                                      cudaMemcpyDeviceToHost));
                        same = same && memcmp(after.data(), before[i].data(), after.size() * 4) == 0;
                    }
                    int32_t told[2];
                    RT(cudaMemcpy(told, j.told, 8, cudaMemcpyDeviceToHost));
                    char what[200];
                    snprintf(what, sizeof what, "bad cu_seqlens %d, %s, in place %d: verdict %d", (int)n,
                             cuda_kernel_name((cuda_kernel)k), in_place, told[0]);
                    verdict(same && told[0] == wanted[n] && told[1] == 77, what);
                }
                job_free(&j);
            }
}

/* More than 2^31 elements in g and the gradients, more than 65,535 blocks; in place, to fit. */
static void check_large(const gpu &g) {
    options opt;
    opt.in_place = true;
    opt.incoming = 0;
    shape s = {1, 65536 + 700, 8, 256, 128, 64};
    job j = job_make(s, opt);
    job_fill(&j, opt);
    cuda_plan plan;
    if (!cuda_plan_make(&plan, &j.problem, j.addresses, &j.words, &g.device) || !has_kernel(g, plan)) {
        job_free(&j);
        return;
    }
    launch(g, &plan);
    RT(cudaDeviceSynchronize());
    /* the last rows, against a job of their own with the same inputs */
    const int64_t rows = 700 % 64 + 64 * 3, from = (s.T - rows) / 64 * 64, n = s.T - from;
    shape small = {1, n, 8, 256, 128, 64};
    options small_opt;
    small_opt.incoming = 0;
    job part = job_make(small, small_opt);
    job_fill(&part, small_opt);
    for (int o = 0; o <= OPERAND_DAKK; o++) {
        const size_t size = dtype_size(problem_dtype(&part.problem, (operand)o));
        RT(cudaMemcpy((void *)part.addresses[o],
                      (char *)j.addresses[o] + (size_t)(from * j.x[o].stride[1]) * size, part.bytes[o],
                      cudaMemcpyDeviceToDevice));
    }
    const reference ref = reference_make(&part);
    view out[4];
    bool ok = true;
    double worst = 0;
    view zero[4];
    for (int i = 0; i < 4; i++) {
        zero[i] = part.x[OPERAND_DQ + i];
        out[i] = part.x[OPERAND_DQ_OUT + i];
        out[i].at = (float *)j.addresses[OPERAND_DQ_OUT + i] + from * j.x[OPERAND_DQ_OUT + i].stride[1];
        part.x[OPERAND_DQ_OUT + i] = out[i];
    }
    const result r = job_compare(&part, ref, zero);
    for (int i = 0; i < 4; i++) {
        ok = ok && r.error[i] <= 2e-6 && !r.bad[i];
        worst = std::max(worst, r.error[i]);
    }
    char what[200];
    snprintf(what, sizeof what, "tensors of %.2f * 2^31 elements: %.1e",
             (double)(s.T * s.HV * s.K) / 2147483648.0, worst);
    verdict(ok, what);
    printf("%s %s\n", ok ? "ok  " : "FAIL", what);
    reference ref2 = ref;
    reference_free(&ref2);
    job_free(&part);
    job_free(&j);
}

int main(int argc, char **argv) {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
        printf("no GPU\n");
        return 77;
    }
    if (argc < 3) {
        printf("kernel_test IMAGE DATA_DIR [quick]\n");
        return 2;
    }
    const bool quick = argc > 3;
    gpu g = open_gpu(argv[1]);
    DIR *dir = opendir(argv[2]);
    std::vector<std::string> files;
    for (dirent *e; dir && (e = readdir(dir));)
        if (strstr(e->d_name, ".safetensors"))
            files.push_back(e->d_name);
    if (dir)
        closedir(dir);
    std::sort(files.begin(), files.end());
    verdict(!files.empty(), "there are cases");
    for (const std::string &f : files)
        check_case(g, argv[2], f);
    check_random(g, quick);
    check_laws(g);
    check_bad_sequences(g);
    if (!quick)
        check_large(g);
    printf("%d checks, %d failed\n", checks, failures);
    return failures ? 1 : 0;
}
