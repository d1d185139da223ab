/* runner.c - which kernel a problem of the tests runs on. */
#include "tests/emulation/runner.h"

#include <stdio.h>
#include <stdlib.h>

#include "tests/emulation/panels.h"
#include "tests/unit/cpu_fixture.h"

static bool any; /* the kernels that read single elements */
static unsigned emulated, others;

static void run_on_cpu(struct fixture *f) {
    struct cpu_job job;
    char why[PROBLEM_WHY] = "";
    ck_assert_msg(cpu_job_begin(&job, &f->p, operands(f), why), "%s", why);
    void *scratch = new_scratch();
    cpu_job_run(&job, 0, job.items, scratch);
    free(scratch);
    cpu_job_end(&job);
}

static void run_emulated(struct fixture *f) {
    void *const *data = operands(f);
    if (panels_run(&f->p, data, any) || (!any && panels_run(&f->p, data, true))) {
        emulated++;
        return;
    }
    ck_assert_int_eq(f->p.C, 128);
    others++;
    run_on_cpu(f);
}

static const char *variant(int number) {
    static const char *const names[] = {"panel", "panel_any"};
    if (number >= 2)
        return NULL;
    any = number == 1;
    return names[number];
}

void runner_use(void) {
    fixture_runner = run_emulated;
    fixture_variant = variant;
}

void runner_print(void) {
    printf("%u problems on the emulated panel kernels; %u with chunks of 128 on the CPU's\n", emulated,
           others);
}
