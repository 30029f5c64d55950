"""CUDA kernels for embedding look-ups, their CuPy wrappers, and NumPy references that run anywhere."""
