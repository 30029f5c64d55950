// Kernels that test the shim itself: what it must get right, and what it must refuse.
#define KERNEL extern "C" __global__ void

// out[block] = sum of the block's values, by a tree in shared memory.
KERNEL block_sum(const int* values, int* out) {
  DYNAMIC_SHARED(int, shared);
  const int i = static_cast<int>(threadIdx.x);
  shared[i] = values[blockIdx.x * blockDim.x + threadIdx.x];
  __syncthreads();
  for (int half = static_cast<int>(blockDim.x) / 2; half > 0; half /= 2) {
    if (i < half) shared[i] += shared[i + half];
    __syncthreads();
  }
  if (i == 0) out[blockIdx.x] = shared[0];
}

// The same without the barrier that it needs: right for some orders of threads only.
KERNEL racing_sum(const int* values, int* out) {
  DYNAMIC_SHARED(int, shared);
  shared[threadIdx.x] = values[threadIdx.x];
  if (threadIdx.x == 0) {
    unsigned sum = 0;  // unsigned, since rubbish may overflow
    for (unsigned i = 0; i < blockDim.x; ++i) sum += static_cast<unsigned>(shared[i]);
    out[0] = static_cast<int>(sum);
  }
}

KERNEL warp_functions(int* shuffled, int* crossed, unsigned* balloted, unsigned* matched) {
  const int i = static_cast<int>(threadIdx.x);
  shuffled[i] = __shfl_sync(0xFFFFFFFFu, i, 5, 8);
  crossed[i] = __shfl_xor_sync(0xFFFFFFFFu, i, 1);
  balloted[i] = __ballot_sync(0xFFFFFFFFu, i % 3 == 0);
  matched[i] = __match_any_sync(0xFFFFFFFFu, i / 10);
}

KERNEL barrier_in_a_branch(int* out) {
  if (threadIdx.x < 7) __syncthreads();
  out[threadIdx.x] = 1;
}

KERNEL barrier_against_shuffle(int* out) {
  if (threadIdx.x % 2) __syncthreads();
  else out[threadIdx.x] = __shfl_sync(0xFFFFFFFFu, 1, 0);
}

KERNEL shuffle_after_exit(int* out) {
  if (threadIdx.x == 3) return;
  out[threadIdx.x] = __shfl_sync(0xFFFFFFFFu, 1, 0);
}

KERNEL shuffle_from_outside(int* out) {
  out[threadIdx.x] = __shfl_sync(threadIdx.x < 16 ? 0xFFFFu : 0xFFFF0000u, 1, 20);
}

KERNEL mask_without_caller(int* out) {
  out[threadIdx.x] = __shfl_sync(threadIdx.x < 16 ? 0xFFFF0000u : 0xFFFFu, 1, 20);
}

// One mistake each, for the sanitizers.

KERNEL reads_behind_the_end(const int* in, int* out) { out[threadIdx.x] = in[threadIdx.x + 1]; }

KERNEL loads_unaligned(const int* in, long long* out) { *out = *reinterpret_cast<const long long*>(in); }

KERNEL overruns_shared_memory(int* out) {
  DYNAMIC_SHARED(int, shared);
  shared[threadIdx.x] = 1;
  out[threadIdx.x] = shared[threadIdx.x];
}
