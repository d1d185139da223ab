/*
 * manager.c - the daemon's word to the service manager: ready, stopping, and that it still gets on.
 *
 * The watchdog's timer is the loop's: a loop that hangs is silent by itself. Backends are asked each time, so
 * that a daemon whose loop answers while its threads or its GPU do not is silent too. The service manager
 * ends and restarts what is silent for a whole WATCHDOG_USEC.
 */
#include "daemon/daemon.h"

#ifdef HAVE_LIBSYSTEMD
#include <systemd/sd-daemon.h>

enum { TIMES = 4 }; /* in each WATCHDOG_USEC */

void manager_tell(const char *state) {
    sd_notify(0, state);
}

static bool all_live(struct daemon *daemon, char why[PROBLEM_WHY]) {
    bool live = true;
    for (int i = 0; i < daemon->backend_count; i++)
        live &= daemon->backends[i]->ops->lives(daemon->backends[i], why);
    return live;
}

static void on_watchdog(uv_timer_t *timer) {
    struct daemon *daemon = timer->data;
    char why[PROBLEM_WHY], quoted[2 * PROBLEM_WHY];
    bool live = all_live(daemon, why);
    if (live)
        manager_tell("WATCHDOG=1");
    if (live && daemon->stuck)
        log_event(LOG_WARNING, "goes_on", "why=\"the backends get on again\"");
    if (!live && !daemon->stuck)
        log_event(LOG_ERROR, "stuck", "why=%s", log_quote(quoted, sizeof quoted, why));
    daemon->stuck = !live;
}

void manager_watchdog(struct daemon *daemon) {
    uint64_t period_us;
    if (sd_watchdog_enabled(0, &period_us) <= 0)
        return;
    uint64_t interval_ms = period_us / 1000 / TIMES;
    uv_timer_start(&daemon->watchdog, on_watchdog, interval_ms ? interval_ms : 1,
                   interval_ms ? interval_ms : 1);
}

#else

void manager_tell(const char *state) {
    (void)state;
}

void manager_watchdog(struct daemon *daemon) {
    (void)daemon;
}

#endif
