// What all kernels share: integer names, row formats, vector loads, groups of lanes.
//
// The sources include no header: NVRTC compiles them on a machine without a CUDA toolkit, and the tests compile the
// same text as C++ (FORESHARD_SHIM) and run it on a CPU. fp32 arithmetic is the same there, bit for bit, because
// contraction into fused multiply-adds is switched off (--fmad=false) and division and square root round correctly;
// only values below 1.2e-38 differ, for CuPy has them flushed to zero.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define DEVICE [[maybe_unused]] static __device__ __forceinline__
// Blocks of up to 128 threads, at least four on a multiprocessor: without the second bound ptxas spills registers to
// reach an occupancy that these kernels do not need, since each lane has several loads in flight.
#define KERNEL extern "C" __global__ void __launch_bounds__(128, 4)

#ifndef FORESHARD_SHIM
#define DYNAMIC_SHARED(type, name)                   \
  extern __shared__ __align__(16) u8 name##_bytes[]; \
  type* const name = reinterpret_cast<type*>(name##_bytes)

DEVICE float half_to_float(u16 bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

DEVICE u16 float_to_half(float value) {
  u16 bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
#endif

// -- row formats: Raw is what memory holds, MAX_VECTOR elements are 16 bytes ---------------------------------------

struct Fp32 {
  typedef float Raw;
  static constexpr int MAX_VECTOR = 4;
  static __device__ __forceinline__ float load(Raw raw) { return raw; }
  static __device__ __forceinline__ Raw store(float value) { return value; }
};

struct Fp16 {
  typedef u16 Raw;
  static constexpr int MAX_VECTOR = 8;
  static __device__ __forceinline__ float load(Raw raw) { return half_to_float(raw); }
  static __device__ __forceinline__ Raw store(float value) { return float_to_half(value); }
};

struct Bf16 {
  typedef u16 Raw;
  static constexpr int MAX_VECTOR = 8;
  static __device__ __forceinline__ float load(Raw raw) { return __uint_as_float(static_cast<u32>(raw) << 16); }
  // Nearest, ties to even; NaN stays a (quiet) NaN.
  static __device__ __forceinline__ Raw store(float value) {
    const u32 bits = __float_as_uint(value);
    if (value != value) return static_cast<Raw>((bits | 0x00400000u) >> 16);
    return static_cast<Raw>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
  }
};

// -- descriptors, written by tables.py (TABLE, FEATURE) ------------------------------------------------------------

struct Table {
  u64 weights;   // address of the rows [rows, dim]
  u64 momentum;  // address of the accumulators [rows], 0 where the optimizer keeps none
  i64 rows;
  int dim;
  int vector;  // elements a lane loads at once, 8, 4 or 1: divides dim, and rows are aligned to it
  int lanes;   // lanes that share a row: a power of two up to 32
  int chunks;  // turns of lanes x vector columns that a row takes
};

struct Feature {
  i64 column;  // first column of the feature's vector in the pooled output
  int table;
  int padding;
};

// -- vectors of N elements, loaded and stored at once where they are aligned ----------------------------------------

template <class T, int N>
struct alignas(sizeof(T) * N) Vector {
  T at[N];
};

template <int N, class T>
DEVICE Vector<T, N> load_vector(const T* source) {
  return *reinterpret_cast<const Vector<T, N>*>(source);
}

template <int N, class T>
DEVICE void store_vector(T* target, const Vector<T, N>& value) {
  *reinterpret_cast<Vector<T, N>*>(target) = value;
}

// Stores N floats, 16 bytes at once where the target is aligned to them.
template <int N>
DEVICE void store_floats(float* target, const float (&value)[N]) {
  if constexpr (N >= 4) {
    if (reinterpret_cast<u64>(target) % 16 == 0) {
#pragma unroll
      for (int i = 0; i < N; i += 4)
        store_vector<4>(target + i, Vector<float, 4>{{value[i], value[i + 1], value[i + 2], value[i + 3]}});
      return;
    }
  }
#pragma unroll
  for (int i = 0; i < N; ++i) target[i] = value[i];
}

// The next narrower width that kernels are made for.
template <int V>
constexpr int NARROWER = V == 8 ? 4 : 1;

// -- threads ------------------------------------------------------------------------------------------------------

constexpr int WARP = 32;
constexpr u32 FULL_WARP = 0xFFFFFFFFu;

DEVICE i64 global_thread() { return static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x; }
DEVICE i64 all_threads() { return static_cast<i64>(gridDim.x) * blockDim.x; }

// A power of two of neighbouring lanes that work on one row together.
struct Group {
  int lanes;
  int lane;  // this thread's place in the group
  int turn;  // the group's place in its warp
  u32 mask;

  __device__ __forceinline__ explicit Group(int size) : lanes(size) {
    const int in_warp = static_cast<int>(threadIdx.x) % WARP;
    lane = in_warp & (size - 1);
    turn = in_warp / size;
    mask = (size == WARP ? FULL_WARP : (1u << size) - 1u) << (in_warp - lane);
  }
  __device__ __forceinline__ i64 index() const { return global_thread() / lanes; }  // among all groups of the launch
  __device__ __forceinline__ i64 count() const { return all_threads() / lanes; }
  template <class T>
  __device__ __forceinline__ T broadcast(T value, int from) const {
    return __shfl_sync(mask, value, from, lanes);
  }
};

// The largest i with starts[i] <= value; starts is ascending, starts[0] <= value, and value < starts[count].
DEVICE int find_span(const i64* starts, int count, i64 value) {
  int low = 0, high = count;
  while (high - low > 1) {
    const int middle = low + (high - low) / 2;
    if (starts[middle] <= value) low = middle;
    else high = middle;
  }
  return low;
}

// The owner hash of the simulator: SplitMix64 (Steele, Lea, Flood 2014), Stafford's variant 13; reference_routing.py.
DEVICE u64 mix64(u64 bits) {
  bits += 0x9E3779B97F4A7C15ull;
  bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9ull;
  bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBull;
  return bits ^ (bits >> 31);
}

DEVICE int hash_part(i64 id, u32 parts) {
  return static_cast<int>(((mix64(static_cast<u64>(id)) >> 32) * parts) >> 32);
}
