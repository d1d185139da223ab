/*
 * kernel_bench.cu - times of the kernels, each beside a copy of the same bytes in the same run.
 *
 *     kernel_bench IMAGE [ROUNDS [SHAPE]]
 *
 * Kernel and copy alternate; figures are medians. Small shapes go through several sets of tensors, so that
 * what one launch reads is not in L2 from the one before. The bytes are problem_traffic's: each input and
 * output once, of dA the tiles of the triangle.
 */
#include <algorithm>

#include "kernel_job.cuh"

struct timed {
    const char *name;
    shape s;
    int sequences; /* 0: fixed length */
    dtype type;
    int sets;
};

static double median(std::vector<float> x) {
    std::sort(x.begin(), x.end());
    return x[x.size() / 2];
}

int main(int argc, char **argv) {
    if (argc < 2) {
        printf("kernel_bench IMAGE [ROUNDS [SHAPE]]\n");
        return 2;
    }
    const int rounds = argc > 2 ? atoi(argv[2]) : 9, only = argc > 3 ? atoi(argv[3]) : -1;
    gpu g = open_gpu(argv[1]);
    const timed list[] = {
        {"[8, 8192, 32, 32, 128]", {8, 8192, 32, 32, 128, 64}, 0, DTYPE_BF16, 1},
        {"[4, 8192, 16, 32, 128]", {4, 8192, 16, 32, 128, 64}, 0, DTYPE_BF16, 1},
        {"[1, 8192, 32, 32, 128]", {1, 8192, 32, 32, 128, 64}, 0, DTYPE_BF16, 4},
        {"[1, 4096, 16, 16, 128]", {1, 4096, 16, 16, 128, 64}, 0, DTYPE_BF16, 8},
        {"[1, 1024, 8, 8, 128]", {1, 1024, 8, 8, 128, 64}, 0, DTYPE_BF16, 40},
        {"varlen 64 sequences, 65536", {1, 65536, 32, 32, 128, 64}, 64, DTYPE_BF16, 1},
        {"[8, 8192, 32, 32, 64]", {8, 8192, 32, 32, 64, 64}, 0, DTYPE_BF16, 1},
        {"[4, 8192, 32, 32, 256]", {4, 8192, 32, 32, 256, 64}, 0, DTYPE_BF16, 1},
        {"float16", {4, 8192, 32, 32, 128, 64}, 0, DTYPE_F16, 1},
        {"float32", {4, 8192, 32, 32, 128, 64}, 0, DTYPE_F32, 1},
        {"chunk 16", {4, 8192, 32, 32, 128, 16}, 0, DTYPE_BF16, 1},
        {"chunk 32", {4, 8192, 32, 32, 128, 32}, 0, DTYPE_BF16, 1},
        {"K = 100", {4, 8192, 32, 32, 100, 64}, 0, DTYPE_BF16, 1},
    };
    cudaEvent_t a, b, c;
    RT(cudaEventCreate(&a));
    RT(cudaEventCreate(&b));
    RT(cudaEventCreate(&c));
    for (int i = 0; i < (int)(sizeof list / sizeof *list); i++) {
        const timed &t = list[i];
        if (only >= 0 && i != only)
            continue;
        options opt;
        opt.qk = t.type;
        if (t.sequences) {
            srand(7);
            opt.cu = {0, t.s.T};
            for (int n = 1; n < t.sequences; n++)
                opt.cu.push_back(rand() % t.s.T);
            std::sort(opt.cu.begin(), opt.cu.end());
        }
        std::vector<job> jobs;
        std::vector<cuda_plan> plans;
        bool here = true;
        for (int n = 0; n < t.sets; n++) {
            jobs.push_back(job_make(t.s, opt));
            opt.seed++;
            job_fill(&jobs.back(), opt);
            cuda_plan plan;
            here = here &&
                   cuda_plan_make(&plan, &jobs.back().problem, jobs.back().addresses, &jobs.back().words,
                                  &g.device) &&
                   has_kernel(g, plan);
            plans.push_back(plan);
        }
        if (here) {
            const size_t half = problem_traffic(&jobs[0].problem) / 2;
            char *from, *to;
            RT(cudaMalloc(&from, half * (size_t)t.sets));
            RT(cudaMalloc(&to, half * (size_t)t.sets));
            RT(cudaMemset(from, 1, half * (size_t)t.sets));
            std::vector<float> kernel, copy;
            for (int r = -2; r < rounds; r++) {
                float x, y;
                RT(cudaEventRecord(a));
                for (int n = 0; n < t.sets; n++)
                    launch(g, &plans[n]);
                RT(cudaEventRecord(b));
                for (int n = 0; n < t.sets; n++)
                    RT(cudaMemcpyAsync(to + n * half, from + n * half, half, cudaMemcpyDeviceToDevice));
                RT(cudaEventRecord(c));
                RT(cudaEventSynchronize(c));
                RT(cudaEventElapsedTime(&x, a, b));
                RT(cudaEventElapsedTime(&y, b, c));
                if (r >= 0) {
                    kernel.push_back(x / t.sets);
                    copy.push_back(y / t.sets);
                }
            }
            const double k = median(kernel), y = median(copy);
            printf("%-28s %-20s %8.4f ms (min %.4f)  copy %.4f  ratio %.3f  %.2f TB/s\n", t.name,
                   cuda_kernel_name(plans[0].launch[plans[0].launches - 1].kernel), k,
                   *std::min_element(kernel.begin(), kernel.end()), y, y / k, 2e-9 * half / k);
            RT(cudaFree(from));
            RT(cudaFree(to));
        }
        for (job &j : jobs)
            job_free(&j);
    }
    return 0;
}
