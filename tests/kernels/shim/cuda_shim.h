// The CUDA execution model on a CPU, as far as the kernels use it: a one-dimensional grid whose threads are fibers.
//
// Threads of a block run one at a time and change places only where they wait for each other: __syncthreads and the
// warp functions. The order in which they run is drawn from a seed, so an answer that depends on it shows up as a
// wrong answer for some seed. What CUDA leaves undefined is an error here: a barrier that some threads have left or
// never reach, a warp function whose mask lacks the caller or names lanes that exited or do something else, and a
// shuffle from a lane outside the mask, a race and an unaligned address (races.cpp). Dynamic shared memory has exactly
// the size of the launch and starts as rubbish.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

#define __global__
#define __device__
#define __shared__ static
#define __forceinline__ inline
#define __launch_bounds__(...)
#define SHIM_UNWATCHED __attribute__((noinline, no_sanitize_thread))  // not looked at for races
#define DYNAMIC_SHARED(type, name) type* const name = static_cast<type*>(shim::dynamic_shared())

namespace shim {

struct Index {
  unsigned x;
};

enum class WarpFunction { sync, shuffle, ballot, match };

Index thread_index();
Index block_index();
Index block_size();
Index grid_size();
void* dynamic_shared();
void block_barrier();
void atomic_access(const void* memory, std::size_t size);
// Waits for the lanes of `mask`; `from` is the lane that a shuffle reads.
std::uint64_t warp_function(WarpFunction function, unsigned mask, std::uint64_t value, int from);

struct Launch {
  std::uint32_t grid, block, shared_bytes, reserved;
  std::uint64_t seed;  // 0: threads and blocks in their order
};

// Runs every thread of the grid; null, or what went wrong (valid until the next call).
const char* run(const Launch& launch, void (*body)(void*), void* context);

// "i64", "f32", ... of a parameter, "i64*" of an address; "any*" where the kernel gives the memory its type itself.
template <class T>
std::string type_name() {
  if constexpr (std::is_pointer_v<T>) {
    using Target = std::remove_cv_t<std::remove_pointer_t<T>>;
    if constexpr (std::is_arithmetic_v<Target>) return type_name<Target>() + "*";
    else return "any*";
  } else {
    const char* kind = std::is_floating_point_v<T> ? "f" : std::is_signed_v<T> ? "i" : "u";
    return kind + std::to_string(8 * sizeof(T));
  }
}

template <class... Args>
struct Call {
  void (*kernel)(Args...);
  void** args;
};

template <class... Args, std::size_t... I>
void invoke(const Call<Args...>& call, std::index_sequence<I...>) {
  call.kernel(*static_cast<Args*>(call.args[I])...);
}

template <class... Args>
const char* launch(void (*kernel)(Args...), const Launch& config, void** args) {
  Call<Args...> call = {kernel, args};
  const auto body = [](void* context) {
    invoke(*static_cast<Call<Args...>*>(context), std::index_sequence_for<Args...>());
  };
  return run(config, body, &call);
}

template <class... Args>
SHIM_UNWATCHED const char* signature(void (*)(Args...)) {
  static const std::string names = ((type_name<Args>() + " ") + ...);
  return names.c_str();
}

template <class T>
std::uint64_t to_bits(T value) {
  static_assert(sizeof(T) <= 8);
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return bits;
}

template <class T>
T from_bits(std::uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

inline int lane() { return static_cast<int>(thread_index().x % 32); }

}  // namespace shim

#define SHIM_EXPORT(NAME)                                                                             \
  extern "C" const char* shim_signature_##NAME() { return shim::signature(&NAME); }                   \
  extern "C" const char* shim_launch_##NAME(const shim::Launch* config, void** args) {                \
    return shim::launch(&NAME, *config, args);                                                        \
  }

#define threadIdx (shim::thread_index())
#define blockIdx (shim::block_index())
#define blockDim (shim::block_size())
#define gridDim (shim::grid_size())

inline void __syncthreads() { shim::block_barrier(); }
inline void __syncwarp(unsigned mask = 0xFFFFFFFFu) { shim::warp_function(shim::WarpFunction::sync, mask, 0, 0); }

template <class T>
T __shfl_sync(unsigned mask, T value, int from, int width = 32) {
  const int source = (shim::lane() & ~(width - 1)) | (from & (width - 1));
  return shim::from_bits<T>(shim::warp_function(shim::WarpFunction::shuffle, mask, shim::to_bits(value), source));
}

template <class T>
T __shfl_xor_sync(unsigned mask, T value, int distance, int width = 32) {
  const int other = shim::lane() ^ distance;
  const int source = other / width == shim::lane() / width ? other : shim::lane();
  return shim::from_bits<T>(shim::warp_function(shim::WarpFunction::shuffle, mask, shim::to_bits(value), source));
}

inline unsigned __ballot_sync(unsigned mask, int predicate) {
  return static_cast<unsigned>(shim::warp_function(shim::WarpFunction::ballot, mask, predicate != 0, 0));
}

template <class T>
unsigned __match_any_sync(unsigned mask, T value) {
  return static_cast<unsigned>(shim::warp_function(shim::WarpFunction::match, mask, shim::to_bits(value), 0));
}

// Threads do not run at once, so plain reads and writes are atomic.
template <class T>
SHIM_UNWATCHED T atomicAdd(T* address, T value) {
  shim::atomic_access(address, sizeof(T));
  const T old = *address;
  *address = old + value;
  return old;
}

template <class T>
SHIM_UNWATCHED T atomicMin(T* address, T value) {
  shim::atomic_access(address, sizeof(T));
  const T old = *address;
  if (value < old) *address = value;
  return old;
}

inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline unsigned __float_as_uint(float value) { return static_cast<unsigned>(shim::to_bits(value)); }
inline float __uint_as_float(unsigned bits) { return shim::from_bits<float>(bits); }

// IEEE 754 binary16, as cvt.f32.f16 and cvt.rn.f16.f32 convert it.
inline float half_to_float(unsigned short half) {
  const unsigned sign = (half & 0x8000u) << 16, exponent = half >> 10 & 0x1Fu, fraction = half & 0x3FFu;
  if (exponent == 0x1F) return __uint_as_float(sign | 0x7F800000u | fraction << 13);
  if (exponent == 0) {
    const float value = std::ldexp(static_cast<float>(fraction), -24);
    return sign ? -value : value;
  }
  return __uint_as_float(sign | (exponent + 112u) << 23 | fraction << 13);
}

inline unsigned short float_to_half(float value) {
  const unsigned sign = __float_as_uint(value) >> 16 & 0x8000u;
  const float size = std::fabs(value);
  if (std::isnan(value)) return 0x7FFF;
  if (size >= 65520.0f) return static_cast<unsigned short>(sign | 0x7C00u);
  if (size < 0x1p-14f) return static_cast<unsigned short>(sign | static_cast<unsigned>(std::nearbyint(size * 0x1p24f)));
  unsigned bits = __float_as_uint(size);
  bits = (bits + 0xFFFu + (bits >> 13 & 1u)) >> 13;
  return static_cast<unsigned short>(sign | (bits - (112u << 10)));
}
