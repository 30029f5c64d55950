"""What one rank computes on its own device, behind one interface: torch on the CPU, the CUDA kernels on a GPU."""
