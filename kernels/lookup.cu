// Look-ups of many tables in one launch: pooled bags (sum, mean, weighted) and sequences. Output is fp32.
//
// Work is cut into steps of one warp: 32 / lanes bags (or ids), lanes x vector columns. A feature's row has `chunks`
// such column turns, so a tile of 32 bags of it takes lanes x chunks steps; `steps` [features + 1] adds them up. The
// cut does not depend on the batch, and tables of dim 4 and dim 1024 share a launch without idle warps.
#include "common.cuh"

constexpr int IN_FLIGHT = 4;  // rows a lane loads before it adds the first: hides the latency of random access

struct Step {
  int feature;
  int chunk;
  i64 item;  // bag of the feature, or position among the ids
};

DEVICE Step locate(const i64* steps, int features, i64 task, const Table* tables, const Feature* table_of) {
  const i64 per_tile = steps[features];
  const i64 rest = task % per_tile;
  const int feature = find_span(steps, features, rest);
  const int lanes = tables[table_of[feature].table].lanes;
  const int inside = static_cast<int>(rest - steps[feature]);
  return {feature, inside / lanes, task / per_tile * WARP + inside % lanes * (WARP / lanes)};
}

struct Bags {
  const i64* offsets;    // [features x bags + 1], feature by feature
  const float* weights;  // [ids], or null
  i64 bags;              // of each feature
  int mean;
};

// Sums V columns of one bag, in the order of its ids. Ids are loaded by all lanes at once and handed around.
template <class Row, int V, class Id>
DEVICE void sum_bag(const Group& group, const typename Row::Raw* rows, int dim, bool active, const Id* ids,
                    const float* weights, i64 begin, i64 end, float (&sum)[V]) {
  for (i64 base = begin; base < end; base += group.lanes) {
    const int count = static_cast<int>(end - base < group.lanes ? end - base : group.lanes);
    const bool loads = group.lane < count;
    const i64 own_id = loads ? static_cast<i64>(ids[base + group.lane]) : 0;
    const float own_weight = loads && weights ? weights[base + group.lane] : 1.0f;
    for (int first = 0; first < count; first += IN_FLIGHT) {
      Vector<typename Row::Raw, V> raw[IN_FLIGHT] = {};
#pragma unroll
      for (int k = 0; k < IN_FLIGHT; ++k) {
        const i64 id = group.broadcast(own_id, first + k < count ? first + k : 0);
        if (active && first + k < count) raw[k] = load_vector<V>(rows + id * dim);
      }
#pragma unroll
      for (int k = 0; k < IN_FLIGHT; ++k) {
        const float weight = group.broadcast(own_weight, first + k < count ? first + k : 0);
        if (first + k < count) {
#pragma unroll
          for (int i = 0; i < V; ++i) sum[i] += weights ? Row::load(raw[k].at[i]) * weight : Row::load(raw[k].at[i]);
        }
      }
    }
  }
}

template <class Row, int V, class Id>
DEVICE void pool(const Table& table, const Feature& feature, const Step& step, const Bags& bags, const Id* ids,
                 float* out, i64 stride) {
  const Group group(table.lanes);
  const i64 bag = step.item + group.turn;
  if (bag >= bags.bags) return;  // whole groups leave together
  const int column = (step.chunk * group.lanes + group.lane) * V;
  const bool active = column < table.dim;
  const i64 slot = step.feature * bags.bags + bag;
  const i64 begin = bags.offsets[slot], end = bags.offsets[slot + 1];
  const auto* rows = reinterpret_cast<const typename Row::Raw*>(table.weights) + (active ? column : 0);
  float sum[V] = {};
  sum_bag<Row, V>(group, rows, table.dim, active, ids, bags.weights, begin, end, sum);
  if (!active) return;
  if (bags.mean && end > begin) {
#pragma unroll
    for (int i = 0; i < V; ++i) sum[i] /= static_cast<float>(end - begin);
  }
  store_floats<V>(out + bag * stride + feature.column + column, sum);
}

template <class Row, int V, class Id>
DEVICE void pool_by_width(const Table& table, const Feature& feature, const Step& step, const Bags& bags, const Id* ids,
                          float* out, i64 stride) {
  if constexpr (V > 1) {
    if (table.vector < V) return pool_by_width<Row, NARROWER<V>>(table, feature, step, bags, ids, out, stride);
  }
  pool<Row, V>(table, feature, step, bags, ids, out, stride);
}

template <class Row, class Id>
DEVICE void pooled_lookup(const Table* tables, const Feature* features, const i64* steps, int num_features,
                          const Bags& bags, const Id* ids, float* out, i64 stride) {
  const i64 tasks = (bags.bags + WARP - 1) / WARP * steps[num_features];
  for (i64 task = global_thread() / WARP; task < tasks; task += all_threads() / WARP) {
    const Step step = locate(steps, num_features, task, tables, features);
    const Feature feature = features[step.feature];
    pool_by_width<Row, Row::MAX_VECTOR>(tables[feature.table], feature, step, bags, ids, out, stride);
  }
}

#define POOLED_LOOKUP(NAME, ROW, ID)                                                                                \
  KERNEL NAME(const Table* tables, const Feature* features, const i64* steps, int num_features, const ID* ids,      \
              const i64* offsets, const float* weights, i64 bags, int mean, float* out, i64 stride) {               \
    pooled_lookup<ROW>(tables, features, steps, num_features, Bags{offsets, weights, bags, mean}, ids, out, stride); \
  }

POOLED_LOOKUP(pooled_lookup_fp32_i32, Fp32, int)
POOLED_LOOKUP(pooled_lookup_fp32_i64, Fp32, i64)
POOLED_LOOKUP(pooled_lookup_fp16_i32, Fp16, int)
POOLED_LOOKUP(pooled_lookup_fp16_i64, Fp16, i64)
POOLED_LOOKUP(pooled_lookup_bf16_i32, Bf16, int)
POOLED_LOOKUP(pooled_lookup_bf16_i64, Bf16, i64)

// -- sequences: out[i] is the row of ids[i]; feature f owns the ids from starts[f] to starts[f + 1], all of one dim --

template <class Row, int V>
DEVICE void convert_row(const Group& group, const typename Row::Raw* row, int dim, float* target) {
  for (int column = group.lane * V; column < dim; column += group.lanes * V) {
    const Vector<typename Row::Raw, V> raw = load_vector<V>(row + column);
    float value[V];
#pragma unroll
    for (int i = 0; i < V; ++i) value[i] = Row::load(raw.at[i]);
    store_floats<V>(target + column, value);
  }
}

template <class Row, int V>
DEVICE void convert_row_by_width(int vector, const Group& group, const typename Row::Raw* row, int dim, float* target) {
  if constexpr (V > 1) {
    if (vector < V) return convert_row_by_width<Row, NARROWER<V>>(vector, group, row, dim, target);
  }
  convert_row<Row, V>(group, row, dim, target);
}

template <class Row, class Id>
DEVICE void sequence_lookup(const Table* tables, const Feature* features, const i64* starts, int num_features,
                            const Id* ids, i64 count, int lanes, float* out) {
  const Group group(lanes);
  for (i64 i = group.index(); i < count; i += group.count()) {
    const Table& table = tables[features[find_span(starts, num_features, i)].table];
    const auto* row = reinterpret_cast<const typename Row::Raw*>(table.weights) + static_cast<i64>(ids[i]) * table.dim;
    convert_row_by_width<Row, Row::MAX_VECTOR>(table.vector, group, row, table.dim, out + i * table.dim);
  }
}

#define SEQUENCE_LOOKUP(NAME, ROW, ID)                                                                            \
  KERNEL NAME(const Table* tables, const Feature* features, const i64* starts, int num_features, const ID* ids,   \
              i64 count, int lanes, float* out) {                                                                 \
    sequence_lookup<ROW>(tables, features, starts, num_features, ids, count, lanes, out);                         \
  }

SEQUENCE_LOOKUP(sequence_lookup_fp32_i32, Fp32, int)
SEQUENCE_LOOKUP(sequence_lookup_fp32_i64, Fp32, i64)
SEQUENCE_LOOKUP(sequence_lookup_fp16_i32, Fp16, int)
SEQUENCE_LOOKUP(sequence_lookup_fp16_i64, Fp16, i64)
SEQUENCE_LOOKUP(sequence_lookup_bf16_i32, Bf16, int)
SEQUENCE_LOOKUP(sequence_lookup_bf16_i64, Bf16, i64)

// -- a look-up through a cache: the row of a slot on the device, or by zero-copy from pinned host memory --------------

template <class Row>
DEVICE void tiered_lookup(const void* host, const void* cache, const i64* ids, const i64* slots, i64 count, int dim,
                          int vector, int lanes, float* out) {
  const Group group(lanes);
  for (i64 i = group.index(); i < count; i += group.count()) {
    const i64 slot = slots[i];
    const void* tier = slot < 0 ? host : cache;
    const auto* row = reinterpret_cast<const typename Row::Raw*>(tier) + (slot < 0 ? ids[i] : slot) * dim;
    convert_row_by_width<Row, Row::MAX_VECTOR>(vector, group, row, dim, out + i * dim);
  }
}

#define TIERED_LOOKUP(NAME, ROW)                                                                                 \
  KERNEL NAME(const void* host, const void* cache, const i64* ids, const i64* slots, i64 count, int dim,         \
              int vector, int lanes, float* out) {                                                               \
    tiered_lookup<ROW>(host, cache, ids, slots, count, dim, vector, lanes, out);                                 \
  }

TIERED_LOOKUP(tiered_lookup_fp32, Fp32)
TIERED_LOOKUP(tiered_lookup_fp16, Fp16)
TIERED_LOOKUP(tiered_lookup_bf16, Bf16)
