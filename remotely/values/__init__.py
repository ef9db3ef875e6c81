"""Values on their way: pickles, buffers, shared memory, source code and files."""
