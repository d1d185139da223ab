/* One job through kdad: 128 rows in chunks of 64, two heads of 64 columns. Outputs are in place. */
#include <kdad.h>

#include <err.h>
#include <stdio.h>

enum { B = 1, T = 128, H = 2, K = 64, C = 64 };

/* Memory that the daemon works on where it lies. */
static float *filled(struct kdad_connection *connection, size_t count, float value) {
    float *memory = kdad_alloc(connection, count * sizeof *memory);
    if (!memory)
        errx(1, "%s", kdad_error());
    for (size_t i = 0; i < count; i++)
        memory[i] = value;
    return memory;
}

int main(void) {
    struct kdad_connection *c;
    struct kdad_stream *s;
    kdad_ticket ticket;
    if (kdad_connect(NULL, KDAD_DEFAULT_TIMEOUT, &c) || kdad_stream_open(c, NULL, &s))
        errx(1, "%s", kdad_error());

    const size_t narrow = (size_t)B * T * H, wide = narrow * K, square = narrow * C;
    struct kdad_chunk_kda_bwd_intra_args args = {
        .q = kdad_tensor_4d(filled(c, wide, 0.5F), KDAD_F32, B, T, H, K),
        .k = kdad_tensor_4d(filled(c, wide, 0.25F), KDAD_F32, B, T, H, K),
        .g = kdad_tensor_4d(filled(c, wide, 0), KDAD_F32, B, T, H, K), /* no decay */
        .beta = kdad_tensor_3d(filled(c, narrow, 1), KDAD_F32, B, T, H),
        .dAqk = kdad_tensor_4d(filled(c, square, 1), KDAD_F32, B, T, H, C),
        .dAkk = kdad_tensor_4d(filled(c, square, 0), KDAD_F32, B, T, H, C),
        .dq = kdad_tensor_4d(filled(c, wide, 0), KDAD_F32, B, T, H, K),
        .dk = kdad_tensor_4d(filled(c, wide, 0), KDAD_F32, B, T, H, K),
        .db = kdad_tensor_3d(filled(c, narrow, 0), KDAD_F32, B, T, H),
        .dg = kdad_tensor_4d(filled(c, wide, 0), KDAD_F32, B, T, H, K),
        .chunk_size = C,
    };
    if (kdad_chunk_kda_bwd_intra(s, &args, &ticket) || kdad_wait(s, ticket, KDAD_DEFAULT_TIMEOUT))
        errx(1, "%s", kdad_error());

    const float *dq = args.dq.data, *dk = args.dk.data;
    printf("first row: dq %g, dk %g; last row: dq %g, dk %g\n", dq[0], dk[0], dq[wide - 1], dk[wide - 1]);
    kdad_disconnect(c); /* with its streams and its memory */
    return 0;
}
