/*
 * text.h - sizes and times as people read them.
 */
#ifndef CLIENT_KDACTL_TEXT_H
#define CLIENT_KDACTL_TEXT_H

#include <stdint.h>

enum { TEXT_MAX = 32 };

/* Each writes to text and returns it. */
const char *text_of_bytes(char text[TEXT_MAX], uint64_t bytes);
const char *text_of_ns(char text[TEXT_MAX], uint64_t ns);

/* "-" for a negative one. */
const char *text_of_share(char text[TEXT_MAX], double share);

#endif
