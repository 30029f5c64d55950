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

// Races, for the search of races.cpp. The sum without the barrier that it needs is right for some orders only.
KERNEL racing_sum(const int* values, int* out) {
  DYNAMIC_SHARED(int, shared);
  shared[threadIdx.x] = values[threadIdx.x];
  if (threadIdx.x == 0) {
    unsigned sum = 0;  // unsigned, since rubbish may overflow
    for (unsigned i = 0; i < blockDim.x; ++i) sum += static_cast<unsigned>(shared[i]);
    out[0] = static_cast<int>(sum);
  }
}

KERNEL shuffle_for_a_barrier(int* out) {
  DYNAMIC_SHARED(int, shared);
  const unsigned i = threadIdx.x;
  shared[i] = __shfl_sync(0xFFFFFFFFu, static_cast<int>(i), 0);
  __ballot_sync(0xFFFFFFFFu, 1);  // orders no memory
  out[i] = shared[(i + 1) % 32];
}

KERNEL barrier_of_the_warp(int* out) {
  DYNAMIC_SHARED(int, shared);
  const unsigned i = threadIdx.x;
  shared[i] = static_cast<int>(i);
  __syncwarp();
  out[i] = shared[(i + 1) % 32];
}

KERNEL barrier_of_half_the_warp(int* out) {
  DYNAMIC_SHARED(int, shared);
  const unsigned i = threadIdx.x;
  shared[i] = static_cast<int>(i);
  __syncwarp(i < 16 ? 0xFFFFu : 0xFFFF0000u);
  out[i] = shared[(i + 1) % 32];
}

KERNEL counts_without_atomics(int* out) { out[0] += 1; }

KERNEL counts_with_atomics(int* out) { atomicAdd(out, 1); }

KERNEL blocks_pass_a_value(int* out) {
  if (blockIdx.x == 0) out[0] = 1;
  __syncthreads();
  if (blockIdx.x == 1) out[1] = out[0];
}

KERNEL neighbours_in_a_word(unsigned char* out) { out[threadIdx.x] = 1; }

KERNEL all_store_the_same(int* out) { *static_cast<volatile int*>(out) = 5; }

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
