/*
 * runner.h - the tests of the CPU kernels, on the emulated panel kernels.
 */
#ifndef TESTS_EMULATION_RUNNER_H
#define TESTS_EMULATION_RUNNER_H

/* Makes the fixture run its problems on the panel kernels. Those that none takes (chunks of 128: chunk.cu,
 * which is not emulated) run on the CPU kernels. */
void runner_use(void);

/* How many problems ran where. */
void runner_print(void);

#endif
