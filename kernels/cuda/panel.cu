/*
 * panel.cu - the fast kernels' entries. Their names are the C interface: plan.c has the list.
 */
#include "panel.cuh"
#include "sequences.cuh"

/* Registers, not threads, are limited: a block has as many warps as plan.c thinks best. */
#define KERNEL(name, registers) \
    extern "C" __global__ void __maxnreg__(registers) name(const __grid_constant__ kda_params p)

KERNEL(kda_sequences, 64) {
    kda::list_sequences(p);
}
KERNEL(kda_panel_bf16, 168) {
    kda::panel<kda::bf16, true>(p);
}
#ifndef KDA_ONE /* a quick build, for a look at the machine code */
KERNEL(kda_panel_f16, 168) {
    kda::panel<kda::f16, true>(p);
}
KERNEL(kda_panel_f32, 168) {
    kda::panel<float, true>(p);
}
KERNEL(kda_panel_bf16_any, 168) {
    kda::panel<kda::bf16, false>(p);
}
KERNEL(kda_panel_f16_any, 168) {
    kda::panel<kda::f16, false>(p);
}
KERNEL(kda_panel_f32_any, 168) {
    kda::panel<float, false>(p);
}
#endif
