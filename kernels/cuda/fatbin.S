/* fatbin.S - embeds the compiled kernels. KDAD_FATBIN is the file's path, from the build. */
    .section .rodata
    .balign 64
    .global kdad_fatbin
    .hidden kdad_fatbin
kdad_fatbin:
    .incbin KDAD_FATBIN
    .byte 0
    .section .note.GNU-stack, "", @progbits
