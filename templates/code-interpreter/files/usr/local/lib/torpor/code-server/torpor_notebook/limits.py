"""Bounds of the code server. Memory here is taken from the user's own sandbox."""

# Source of one execution.
REQUEST_BYTES_MAX = 16 * 1024 * 1024
# One result with all its representations; a bigger one is replaced by a line that says so.
RESULT_BYTES_MAX = 32 * 1024 * 1024
# Lines of one execution that wait for the client; the kernel waits when they are full.
LINES_WAITING_MAX = 16
# Kernels at once; each is a process of 60 MiB or more.
CONTEXTS_MAX = 32
# Executions that wait for one context.
EXECUTIONS_WAITING_MAX = 256
KEEPALIVE_SECONDS = 5.0
# A kernel may need this long for its start on a busy machine.
KERNEL_START_SECONDS = 60.0
# An execution whose client has left is interrupted this often until its kernel is free.
INTERRUPT_AGAIN_SECONDS = 2.0
# What one stream of a held execution sends before its client is to ask for the next, which says that it has it all.
PART_BYTES = 1024 * 1024
# A client whose stream broke comes back within this time, or its execution is interrupted.
RETURN_SECONDS = 30.0
