/*
 * fuzz_replay.c - runs a fuzzer's target over files: its corpus, in builds without libFuzzer.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerInitialize(int *argc, char ***argv) __attribute__((weak));
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t room);

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t room) {
    (void)data;
    (void)room;
    return size;
}

static int replay(const char *path) {
    static uint8_t data[1 << 20];
    FILE *f = fopen(path, "rb");
    if (!f) {
        perror(path);
        return 0;
    }
    size_t size = fread(data, 1, sizeof data, f);
    fclose(f);
    uint8_t *exact = malloc(size + 1); /* a sanitizer sees what lies behind */
    if (!exact)
        return 0;
    memcpy(exact, data, size);
    LLVMFuzzerTestOneInput(exact, size);
    free(exact);
    return 1;
}

int main(int argc, char **argv) {
    char path[4096];
    int count = 0;
    if (LLVMFuzzerInitialize)
        LLVMFuzzerInitialize(&argc, &argv);
    for (int i = 1; i < argc; i++) {
        DIR *directory = opendir(argv[i]);
        if (!directory) {
            perror(argv[i]);
            return 1;
        }
        for (struct dirent *entry; (entry = readdir(directory));) {
            if (entry->d_name[0] == '.')
                continue;
            snprintf(path, sizeof path, "%s/%s", argv[i], entry->d_name);
            count += replay(path);
        }
        closedir(directory);
    }
    printf("%d inputs\n", count);
    return count > 0 ? 0 : 1;
}
