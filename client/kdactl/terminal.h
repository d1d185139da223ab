/*
 * terminal.h - the terminal as a program that draws on all of it uses it: a screen of its own, keys without
 * Enter. What was there before comes back, a signal's end included.
 */
#ifndef CLIENT_KDACTL_TERMINAL_H
#define CLIENT_KDACTL_TERMINAL_H

#include <stdbool.h>

/* Takes over the terminal that standard output is. False if it is none. */
bool terminal_enter(void);

/* Gives it back. May be called twice, or without enter, and in a signal's handler. */
void terminal_leave(void);

/* Rows and columns; 24 and 80 if the terminal does not say. */
void terminal_size(int *rows, int *columns);

/* Draws text from the top left corner, as far as there is room; line reversed (counted from 0; -1: none) in
 * reverse. */
void terminal_draw(const char *text, int reversed);

/* Waits for a key, for at most so long: the key; 0 if none came, the window's size changed, or the program
 * was stopped and goes on. */
int terminal_key(int milliseconds);

#endif
