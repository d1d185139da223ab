#include "daemon/share.h"

enum { MARGIN_NS = 1000000 };

uint64_t share_now(struct share *share, int64_t now) {
    int64_t halves = now > share->at ? (now - share->at) / SHARE_HALF_NS : 0;
    share->at += halves * SHARE_HALF_NS;
    share->ns = halves < 64 ? share->ns >> halves : 0;
    return share->ns;
}

void share_charge(struct share *share, int64_t now, uint64_t ns) {
    if (share_now(share, now) == 0)
        share->at = now;
    if (__builtin_add_overflow(share->ns, ns, &share->ns))
        share->ns = UINT64_MAX;
}

bool share_is_behind(uint64_t own, uint64_t most) {
    return own < most && most - own > MARGIN_NS + most / 4;
}
