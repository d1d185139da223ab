/* fatbin.S - embeds the compiled kernels. KDAD_CHUNK_FATBIN and KDAD_GUARD_FATBIN are their files, from the build. */
    .section .rodata
    .global kdad_chunk_fatbin, kdad_guard_fatbin
    .hidden kdad_chunk_fatbin, kdad_guard_fatbin
    .balign 64
kdad_chunk_fatbin:
    .incbin KDAD_CHUNK_FATBIN
    .balign 64
kdad_guard_fatbin:
    .incbin KDAD_GUARD_FATBIN
    .byte 0
    .section .note.GNU-stack, "", @progbits
