#include "client/kdactl/json.h"

#include <inttypes.h>
#include <stdio.h>

void json_add_number(cJSON *object, const char *key, uint64_t number) {
    char text[24];
    snprintf(text, sizeof text, "%" PRIu64, number);
    cJSON_AddRawToObject(object, key, text);
}

enum exit_code json_print(const cJSON *object) {
    char *text = cJSON_Print(object);
    if (!text) {
        complain("out of memory");
        return EXIT_NO;
    }
    puts(text);
    cJSON_free(text);
    return EXIT_DONE;
}
