/*
 * What doctor says for each state of daemon, driver and MPS: one thing is wrong at a time, and that is what
 * it finds.
 */
#include "client/kdactl/diagnosis.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

static struct facts facts;
static struct diagnosis diagnosis;

static void all_well(void) {
    facts = (struct facts){
        .uid = 54321,
        .reach = REACH_SERVED,
        .path = "/run/kdad/kdad.sock",
        .version = "9",
        .daemon_uid = 54321,
        .daemon_pid = 200,
        .daemon_started = 2000,
        .gpus_served = 1,
        .mps_of_daemon = WIRE_MPS_ON,
        .driver = true,
        .cuda_version = 13000,
        .cuda_needed = 13000,
        .nvml_answers = true,
        .nvml = {.driver = "580.1", .count = 1, .device = {{"GPU-1", "Card", NVML_MODE_DEFAULT}}},
        .mps_directory = "/tmp/nvidia-mps",
        .mps_pid = 100,
        .mps_runs = true,
        .mps_uid = 54321,
        .mps_started = 1000,
    };
}

/* That subject alone is missing, with both texts in its sentence, and a remedy. */
static void expect_missing(const char *subject, const char *part, const char *another) {
    int missing = 0;
    diagnose(&facts, &diagnosis);
    ck_assert(!diagnosis_is_well(&diagnosis));
    for (uint32_t i = 0; i < diagnosis.count; i++) {
        const struct finding *f = &diagnosis.finding[i];
        if (f->state != FINDING_MISSING)
            continue;
        missing++;
        ck_assert_str_eq(f->subject, subject);
        ck_assert_msg(strstr(f->sentence, part) && strstr(f->sentence, another), "said: %s", f->sentence);
        ck_assert_msg(f->remedy[0] != '\0', "no remedy: %s", f->sentence);
    }
    ck_assert_int_eq(missing, 1);
}

static void expect_well(void) {
    diagnose(&facts, &diagnosis);
    for (uint32_t i = 0; i < diagnosis.count; i++)
        ck_assert_msg(diagnosis.finding[i].state != FINDING_MISSING, "said: %s",
                      diagnosis.finding[i].sentence);
    ck_assert(diagnosis_is_well(&diagnosis));
}

START_TEST(nothing_is_missing) {
    expect_well();
    ck_assert_uint_eq(diagnosis.count, 6);
    for (uint32_t i = 0; i < diagnosis.count; i++)
        ck_assert_int_eq(diagnosis.finding[i].state, FINDING_WELL);
    facts.mps_uid = 0; /* root's control daemon serves any user */
    expect_well();
    facts.mps_of_daemon = WIRE_MPS_UNKNOWN;
    expect_well();
}
END_TEST

START_TEST(the_daemon) {
    facts.reach = REACH_NO_SOCKET;
    expect_missing("daemon", "there is no socket", facts.path);
    strcpy(facts.elsewhere, "/else/kdad.sock");
    expect_missing("daemon", "there is no socket", facts.path);
    ck_assert(strstr(diagnosis.finding[0].remedy, facts.elsewhere));
    facts.reach = REACH_STALE;
    expect_missing("daemon", "left behind", facts.path);
    facts.reach = REACH_REFUSED;
    expect_missing("daemon", "refused", "54321");
    facts.reach = REACH_SILENT;
    expect_missing("daemon", "does not answer", facts.path);
}
END_TEST

START_TEST(rights_on_the_socket) {
    facts.reach = REACH_FORBIDDEN;
    expect_missing("daemon", "may not use", "54321");
    strcpy(facts.barred, facts.path);
    facts.bar = (struct stat){.st_mode = S_IFSOCK | 0660, .st_uid = 54322, .st_gid = 54323};
    expect_missing("daemon", "socket /run/kdad/kdad.sock belongs to uid 54322 and group 54323", "mode 0660");
    ck_assert(strstr(diagnosis.finding[0].remedy, "usermod -aG 54323"));
    facts.bar.st_mode = S_IFSOCK | 0600;
    expect_missing("daemon", "mode 0600", "54322");
    ck_assert(strstr(diagnosis.finding[0].remedy, "Only uid 54322 and root may"));
    strcpy(facts.barred, "/run/kdad");
    facts.bar.st_mode = S_IFDIR | 0710;
    expect_missing("daemon", "directory /run/kdad belongs", "mode 0710");
    ck_assert(strstr(diagnosis.finding[0].remedy, "usermod -aG 54323"));
}
END_TEST

START_TEST(driver_and_gpus) {
    facts.cuda_version = 12080;
    expect_missing("driver", "580.1", "CUDA 12.8, kdad needs 13.0");
    facts.cuda_version = 0; /* not known */
    expect_well();
    facts.nvml_answers = false;
    facts.nvml.count = 0;
    strcpy(facts.no_nvml, "the NVIDIA driver does not answer");
    expect_missing("gpu", "does not answer", "");
    facts.nvml_answers = true;
    expect_missing("gpu", "no GPU", "");
    facts.driver = false;
    strcpy(facts.no_driver, "libcuda.so.1: cannot open");
    expect_missing("driver", "libcuda.so.1", "no NVIDIA driver");
    all_well();
    facts.gpus_served = 0;
    expect_missing("gpu", "The daemon has no GPU", "Card");
}
END_TEST

START_TEST(compute_mode) {
    facts.nvml.device[0].mode = NVML_MODE_PROHIBITED;
    expect_missing("compute mode", "Prohibited", "GPU-1");
    facts.nvml.device[0].mode = NVML_MODE_EXCLUSIVE; /* under MPS that is as it should be */
    expect_well();
    facts.mps_runs = false;
    diagnose(&facts, &diagnosis);
    ck_assert(strstr(diagnosis.finding[diagnosis.count - 2].sentence, "Exclusive_Process"));
    ck_assert(strstr(diagnosis.finding[diagnosis.count - 1].sentence, "MPS is off"));
}
END_TEST

START_TEST(users) {
    facts.uid = 54399;
    facts.mps_uid = 0;
    expect_missing("user", "54321", "54399");
    facts.uid = 0; /* who looks for others */
    expect_well();
    facts.uid = 54399;
    facts.gpus_served = 0;
    facts.nvml.count = 0;
    expect_missing("gpu", "no GPU", "");
}
END_TEST

START_TEST(mps) {
    facts.mps_runs = false;
    expect_missing("mps", "process 100, does not run any more", facts.mps_directory);
    facts.mps_pid = 0;
    expect_missing("mps", "MPS is off", facts.mps_directory);
    all_well();
    facts.mps_uid = 54322;
    expect_missing("mps", "runs as uid 54322, kdad as uid 54321", facts.mps_directory);
    facts.daemon_uid = -1;
    expect_missing("mps", "runs as uid 54322, this is uid 54321", facts.mps_directory);
    all_well();
    facts.mps_of_daemon = WIRE_MPS_OFF;
    expect_missing("mps", "kdad does not use it", facts.mps_directory);
    facts.mps_started = 3000;
    expect_missing("mps", "started before MPS", "");
}
END_TEST

START_TEST(all_that_can_be_said_has_room) {
    facts.reach = REACH_NO_SOCKET;
    facts.nvml.count = NVML_DEVICES;
    facts.mps_runs = false;
    for (int i = 0; i < NVML_DEVICES; i++)
        facts.nvml.device[i].mode = NVML_MODE_EXCLUSIVE;
    diagnose(&facts, &diagnosis);
    ck_assert_uint_eq(diagnosis.count, NVML_DEVICES + 4);
    ck_assert_uint_lt(diagnosis.count, DIAGNOSIS_FINDINGS);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("diagnosis");
    TCase *c = tcase_create("diagnosis");
    tcase_add_checked_fixture(c, all_well, NULL);
    tcase_add_test(c, nothing_is_missing);
    tcase_add_test(c, the_daemon);
    tcase_add_test(c, rights_on_the_socket);
    tcase_add_test(c, driver_and_gpus);
    tcase_add_test(c, compute_mode);
    tcase_add_test(c, users);
    tcase_add_test(c, mps);
    tcase_add_test(c, all_that_can_be_said_has_room);
    suite_add_tcase(suite, c);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
