"""Values between processes: pickles, buffers, shared memory, source code and files."""
