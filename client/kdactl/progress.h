/*
 * progress.h - a bar on standard error, where that is a terminal, while many files are worked on.
 */
#ifndef CLIENT_KDACTL_PROGRESS_H
#define CLIENT_KDACTL_PROGRESS_H

/* Draws the bar: done of total, now at name. */
void progress_show(int done, int total, const char *name);

/* Removes it, so that something else can be printed. */
void progress_clear(void);

#endif
