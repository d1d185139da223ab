/*
 * json.h - what commands that print JSON share.
 */
#ifndef CLIENT_KDACTL_JSON_H
#define CLIENT_KDACTL_JSON_H

#include "client/kdactl/kdactl.h"

#include <cjson/cJSON.h>
#include <stdint.h>

/* Written digit by digit: a double would round numbers beyond 2^53. */
void json_add_number(cJSON *object, const char *key, uint64_t number);

/* Prints an object on standard output. */
enum exit_code json_print(const cJSON *object);

#endif
