"""How a value travels: pickles, buffers, shared memory, source code and files."""
