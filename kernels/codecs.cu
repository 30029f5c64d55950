// Communication codecs: fp32 rows to what travels, and back. Wire formats: reference_codecs.py.
#include "common.cuh"

// -- fp16 and bf16, element by element; V elements at once where both sides are aligned ------------------------------

template <class Row, int V>
DEVICE void encode_elements(const float* values, i64 count, typename Row::Raw* out) {
  for (i64 i = global_thread() * V; i < count; i += all_threads() * V) {
    const Vector<float, V> value = load_vector<V>(values + i);
    Vector<typename Row::Raw, V> raw;
#pragma unroll
    for (int k = 0; k < V; ++k) raw.at[k] = Row::store(value.at[k]);
    store_vector<V>(out + i, raw);
  }
}

template <class Row, int V>
DEVICE void decode_elements(const typename Row::Raw* encoded, i64 count, float* out) {
  for (i64 i = global_thread() * V; i < count; i += all_threads() * V) {
    const Vector<typename Row::Raw, V> raw = load_vector<V>(encoded + i);
    Vector<float, V> value;
#pragma unroll
    for (int k = 0; k < V; ++k) value.at[k] = Row::load(raw.at[k]);
    store_vector<V>(out + i, value);
  }
}

#define ELEMENT_CODEC(NAME, ROW)                                                        \
  KERNEL encode_##NAME(const float* values, i64 count, int vector, u16* out) {          \
    if (vector == 4) encode_elements<ROW, 4>(values, count, out);                       \
    else encode_elements<ROW, 1>(values, count, out);                                   \
  }                                                                                     \
  KERNEL decode_##NAME(const u16* encoded, i64 count, int vector, float* out) {         \
    if (vector == 4) decode_elements<ROW, 4>(encoded, count, out);                      \
    else decode_elements<ROW, 1>(encoded, count, out);                                  \
  }

ELEMENT_CODEC(fp16, Fp16)
ELEMENT_CODEC(bf16, Bf16)

// -- row-wise formats: a group of lanes per row; OVERHEAD bytes of fp32 scale (and bias) follow the dim bytes --------

DEVICE void store_float_bytes(u8* target, float value) {
  const u32 bits = __float_as_uint(value);
#pragma unroll
  for (int i = 0; i < 4; ++i) target[i] = static_cast<u8>(bits >> (8 * i));
}

DEVICE float load_float_bytes(const u8* source) {
  u32 bits = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) bits |= static_cast<u32>(source[i]) << (8 * i);
  return __uint_as_float(bits);
}

struct Range {
  float low, high;
};

// Smallest and largest element of a row; NaN are passed over. A zero counts as +0, whichever sign was met first.
template <int V>
DEVICE Range row_range(const Group& group, const float* row, int dim) {
  Range range = {__uint_as_float(0x7F800000u), __uint_as_float(0xFF800000u)};  // +inf, -inf
  for (int column = group.lane * V; column < dim; column += group.lanes * V) {
    const Vector<float, V> value = load_vector<V>(row + column);
#pragma unroll
    for (int k = 0; k < V; ++k) range = {fminf(range.low, value.at[k]), fmaxf(range.high, value.at[k])};
  }
  for (int distance = group.lanes / 2; distance > 0; distance /= 2) {
    range.low = fminf(range.low, __shfl_xor_sync(group.mask, range.low, distance, group.lanes));
    range.high = fmaxf(range.high, __shfl_xor_sync(group.mask, range.high, distance, group.lanes));
  }
  return {range.low + 0.0f, range.high + 0.0f};
}

struct Int8 {
  static constexpr int OVERHEAD = 8;
  float scale, bias;

  __device__ __forceinline__ explicit Int8(const Range& range)
      : scale((range.high - range.low) / 255.0f), bias(range.low) {}
  __device__ __forceinline__ explicit Int8(const u8* tail)
      : scale(load_float_bytes(tail)), bias(load_float_bytes(tail + 4)) {}
  __device__ __forceinline__ void write(u8* tail) const {
    store_float_bytes(tail, scale);
    store_float_bytes(tail + 4, bias);
  }
  __device__ __forceinline__ u8 encode(float value) const {
    if (!(scale > 0.0f)) return 0;
    return static_cast<u8>(fmaxf(0.0f, fminf(255.0f, rintf((value - bias) / scale))));
  }
  __device__ __forceinline__ float decode(u8 code) const { return static_cast<float>(code) * scale + bias; }
};

// MANTISSA bits after the point, exponents biased by BIAS, TOP the code of the largest finite value.
template <int MANTISSA, int BIAS, int TOP>
struct Fp8 {
  static constexpr int OVERHEAD = 4;
  float scale;

  __device__ __forceinline__ explicit Fp8(const Range& range)
      : scale(fmaxf(fabsf(range.low), fabsf(range.high)) / largest()) {}
  __device__ __forceinline__ explicit Fp8(const u8* tail) : scale(load_float_bytes(tail)) {}
  __device__ __forceinline__ void write(u8* tail) const { store_float_bytes(tail, scale); }

  static __device__ __forceinline__ float power_of_two(int exponent) {
    return __uint_as_float(static_cast<u32>(exponent + 127) << 23);
  }
  static __device__ __forceinline__ float largest() { return magnitude(TOP); }
  static __device__ __forceinline__ float magnitude(u32 code) {
    const u32 exponent = code >> MANTISSA, fraction = code & ((1u << MANTISSA) - 1u);
    if (exponent == 0) return static_cast<float>(fraction) * power_of_two(1 - BIAS - MANTISSA);
    return __uint_as_float(((exponent + 127u - BIAS) << 23) | (fraction << (23 - MANTISSA)));
  }

  // Nearest, ties to even, clipped at the largest: below the normal range a multiple of the smallest value (a carry
  // into the exponent is right there), above it a rounded shift of the bits.
  __device__ __forceinline__ u8 encode(float value) const {
    const float scaled = scale > 0.0f ? value / scale : 0.0f;
    const u8 sign = static_cast<u8>(__float_as_uint(scaled) >> 31 << 7);
    if (scaled != scaled) return static_cast<u8>(sign | 0x7F);
    const float size = fminf(fabsf(scaled), largest());
    if (size < power_of_two(1 - BIAS))
      return static_cast<u8>(sign | static_cast<u8>(rintf(size * power_of_two(BIAS - 1 + MANTISSA))));
    u32 bits = __float_as_uint(size);
    bits = (bits + (1u << (22 - MANTISSA)) - 1u + ((bits >> (23 - MANTISSA)) & 1u)) >> (23 - MANTISSA);
    return static_cast<u8>(sign | (bits - (static_cast<u32>(127 - BIAS) << MANTISSA)));
  }

  __device__ __forceinline__ float decode(u8 code) const {
    const u32 size = code & 0x7Fu;
    float value = magnitude(size);
    if (size > TOP) value = __uint_as_float(MANTISSA == 2 && size == 0x7C ? 0x7F800000u : 0x7FC00000u);
    return (code & 0x80u ? -value : value) * scale;
  }
};

typedef Fp8<3, 7, 0x7E> E4m3;
typedef Fp8<2, 15, 0x7B> E5m2;

template <class Format, int V>
DEVICE void encode_rows(const float* rows, i64 count, int dim, int lanes, u8* out) {
  const Group group(lanes);
  for (i64 i = group.index(); i < count; i += group.count()) {
    const float* row = rows + i * dim;
    u8* target = out + i * (dim + Format::OVERHEAD);
    const Format format(row_range<V>(group, row, dim));
    for (int column = group.lane * V; column < dim; column += group.lanes * V) {
      const Vector<float, V> value = load_vector<V>(row + column);
      Vector<u8, V> code;
#pragma unroll
      for (int k = 0; k < V; ++k) code.at[k] = format.encode(value.at[k]);
      store_vector<V>(target + column, code);
    }
    if (group.lane == 0) format.write(target + dim);
  }
}

template <class Format, int V>
DEVICE void decode_rows(const u8* encoded, i64 count, int dim, int lanes, float* out) {
  const Group group(lanes);
  for (i64 i = group.index(); i < count; i += group.count()) {
    const u8* source = encoded + i * (dim + Format::OVERHEAD);
    const Format format(source + dim);
    for (int column = group.lane * V; column < dim; column += group.lanes * V) {
      const Vector<u8, V> code = load_vector<V>(source + column);
      Vector<float, V> value;
#pragma unroll
      for (int k = 0; k < V; ++k) value.at[k] = format.decode(code.at[k]);
      store_vector<V>(out + i * dim + column, value);
    }
  }
}

#define ROW_CODEC(NAME, FORMAT)                                                                      \
  KERNEL encode_##NAME(const float* rows, i64 count, int dim, int vector, int lanes, u8* out) {      \
    if (vector == 4) encode_rows<FORMAT, 4>(rows, count, dim, lanes, out);                           \
    else encode_rows<FORMAT, 1>(rows, count, dim, lanes, out);                                       \
  }                                                                                                  \
  KERNEL decode_##NAME(const u8* encoded, i64 count, int dim, int vector, int lanes, float* out) {   \
    if (vector == 4) decode_rows<FORMAT, 4>(encoded, count, dim, lanes, out);                        \
    else decode_rows<FORMAT, 1>(encoded, count, dim, lanes, out);                                    \
  }

ROW_CODEC(int8, Int8)
ROW_CODEC(fp8_e4m3, E4m3)
ROW_CODEC(fp8_e5m2, E5m2)
