/*
 * ping.c - kdactl ping: is a daemon there, and how soon does it answer.
 */
#include "client/connection.h"
#include "client/deadline.h"
#include "client/kdactl/kdactl.h"

#include <stdio.h>

enum exit_code command_ping(const struct options *options) {
    struct kdad_connection *connection;
    int64_t start = deadline_now();
    enum exit_code code = open_connection(options, &connection);
    int64_t connected = deadline_now();
    if (code != EXIT_DONE)
        return code;
    struct wire_message request = {.opcode = WIRE_STATUS};
    struct session_reply reply;
    kdad_status status = connection_request(connection, &request, KDAD_DEFAULT_TIMEOUT, &reply);
    int64_t answered = deadline_now();
    if (status == KDAD_OK) {
        const struct wire_status_reply *s = &reply.message.status_reply;
        printf("kdad %.*s, pid %lld, on %s: connected in %.3f ms, answered in %.3f ms\n",
               (int)s->version.size, s->version.data, (long long)s->pid, connection->address.sun_path,
               (double)(connected - start) / 1e6, (double)(answered - connected) / 1e6);
        session_reply_free(&reply);
    } else {
        code = complain_of_library(NULL, status);
    }
    kdad_disconnect(connection);
    return code;
}
