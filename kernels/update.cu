// The backward with a fused optimizer: gradients summed once per distinct row, then SGD or exact row-wise AdaGrad; or
// the sums alone.
//
// The order of additions is fixed by the data alone: gradients of a row in the order of their look-ups, in chunks of
// `chunk`; the sums of chunks in order. A hot row's chunks are summed by many warps, and the result has the same bits.
#include "common.cuh"

constexpr int AHEAD = 4;  // gradients a lane loads before it adds the first

struct Gradients {
  const float* values;      // [samples, stride]; of sequences [ids, dim]
  i64 stride;
  const Feature* features;  // column of each feature
  const int* bag_of;        // bag of each look-up; null: gradients are those of the look-ups themselves
  const i64* offsets;       // of bags
  const float* weights;     // of look-ups, or null
  i64 bags;                 // of each feature
  int mean;
};

DEVICE i64 gradient_at(const Gradients& gradients, i64 look_up) {
  if (!gradients.bag_of) return look_up * gradients.stride;
  const i64 bag = gradients.bag_of[look_up];
  return bag % gradients.bags * gradients.stride + gradients.features[bag / gradients.bags].column;
}

DEVICE float divisor_of(const Gradients& gradients, i64 look_up) {
  if (!gradients.mean) return 1.0f;
  const i64 bag = gradients.bag_of[look_up];
  return static_cast<float>(gradients.offsets[bag + 1] - gradients.offsets[bag]);
}

// Adds V columns of the gradients of look-ups order[begin .. end), one after the other.
template <int V>
DEVICE void sum_gradients(const Group& group, const Gradients& gradients, const i64* order, i64 begin, i64 end,
                          int column, bool active, float (&sum)[V]) {
  for (i64 base = begin; base < end; base += group.lanes) {
    const int count = static_cast<int>(end - base < group.lanes ? end - base : group.lanes);
    i64 own_at = 0;
    float own_divisor = 1.0f, own_weight = 1.0f;
    if (group.lane < count) {
      const i64 look_up = order[base + group.lane];
      own_at = gradient_at(gradients, look_up);
      own_divisor = divisor_of(gradients, look_up);
      if (gradients.weights) own_weight = gradients.weights[look_up];
    }
    for (int first = 0; first < count; first += AHEAD) {
      Vector<float, V> value[AHEAD] = {};
#pragma unroll
      for (int k = 0; k < AHEAD; ++k) {
        const i64 at = group.broadcast(own_at, first + k < count ? first + k : 0);
        if (active && first + k < count) value[k] = load_vector<V>(gradients.values + at + column);
      }
#pragma unroll
      for (int k = 0; k < AHEAD; ++k) {
        const int from = first + k < count ? first + k : 0;
        const float divisor = group.broadcast(own_divisor, from), weight = group.broadcast(own_weight, from);
        if (first + k < count) {
#pragma unroll
          for (int i = 0; i < V; ++i) {
            float gradient = value[k].at[i];
            if (gradients.mean) gradient /= divisor;
            if (gradients.weights) gradient *= weight;
            sum[i] += gradient;
          }
        }
      }
    }
  }
}

// Segments longer than `chunk` reserve a slot for each of their chunks; which slots does not matter to the sums.
KERNEL reserve_chunks(const i64* starts, const i64* segments, i64 chunk, i64* first_slot, i64* slot_begin,
                      i64* slot_end, i64* slot_key, const i64* keys, u64* slots) {
  for (i64 segment = global_thread(); segment < *segments; segment += all_threads()) {
    const i64 begin = starts[segment], end = starts[segment + 1];
    if (end - begin <= chunk) continue;
    const i64 pieces = (end - begin + chunk - 1) / chunk;
    const i64 first = static_cast<i64>(atomicAdd(slots, static_cast<u64>(pieces)));
    first_slot[segment] = first;
    for (i64 piece = 0; piece < pieces; ++piece) {
      const i64 from = begin + piece * chunk;
      slot_begin[first + piece] = from;
      slot_end[first + piece] = end < from + chunk ? end : from + chunk;
      slot_key[first + piece] = keys[segment];
    }
  }
}

template <int V>
DEVICE void sum_chunk(const Group& group, const Gradients& gradients, const i64* order, i64 begin, i64 end, int dim,
                      float* target) {
  for (int first = 0; first < dim; first += group.lanes * V) {
    const int column = first + group.lane * V;
    float sum[V] = {};
    sum_gradients<V>(group, gradients, order, begin, end, column, column < dim, sum);
    if (column < dim) store_floats<V>(target + column, sum);
  }
}

KERNEL sum_chunks(const Table* tables, const i64* first_row, int num_tables, const float* values, i64 stride,
                  const Feature* features, const int* bag_of, const i64* offsets, const float* weights, i64 bags,
                  int mean, const i64* order, const i64* slot_begin, const i64* slot_end, const i64* slot_key,
                  const u64* slots, int vector, int lanes, int max_dim, float* partial) {
  const Gradients gradients = {values, stride, features, bag_of, offsets, weights, bags, mean};
  const Group group(lanes);
  for (i64 slot = group.index(); slot < static_cast<i64>(*slots); slot += group.count()) {
    const int dim = tables[find_span(first_row, num_tables, slot_key[slot])].dim;
    float* target = partial + slot * max_dim;
    if (vector == 4) sum_chunk<4>(group, gradients, order, slot_begin[slot], slot_end[slot], dim, target);
    else sum_chunk<1>(group, gradients, order, slot_begin[slot], slot_end[slot], dim, target);
  }
}

struct Segment {
  const i64* order;
  i64 begin, end;
  const float* partial;  // sums of this segment's chunks, or null for a short one
  i64 pieces;
  int max_dim;
};

DEVICE Segment segment_at(i64 s, const i64* order, const i64* starts, i64 chunk, const i64* first_slot,
                          const float* partial, int max_dim) {
  const i64 begin = starts[s], end = starts[s + 1];
  const float* own = end - begin > chunk ? partial + first_slot[s] * max_dim : nullptr;
  return {order, begin, end, own, (end - begin + chunk - 1) / chunk, max_dim};
}

template <int V>
DEVICE void sum_segment(const Group& group, const Gradients& gradients, const Segment& segment, int column, bool active,
                        float (&sum)[V]) {
  if (!segment.partial) {
    sum_gradients<V>(group, gradients, segment.order, segment.begin, segment.end, column, active, sum);
  } else if (active) {
#pragma unroll 4
    for (i64 piece = 0; piece < segment.pieces; ++piece) {
      const Vector<float, V> value = load_vector<V>(segment.partial + piece * segment.max_dim + column);
#pragma unroll
      for (int i = 0; i < V; ++i) sum[i] += value.at[i];
    }
  }
}

// The sums alone, [segments, max_dim]: for replicas that exchange them before anybody steps.
template <int V>
DEVICE void store_segment(const Group& group, const Gradients& gradients, const Segment& segment, int dim,
                          float* target) {
  for (int first = 0; first < dim; first += group.lanes * V) {
    const int column = first + group.lane * V;
    float sum[V] = {};
    sum_segment<V>(group, gradients, segment, column, column < dim, sum);
    if (column < dim) store_floats<V>(target + column, sum);
  }
}

KERNEL sum_rows(const Table* tables, const i64* first_row, int num_tables, const float* values, i64 stride,
                const Feature* features, const int* bag_of, const i64* offsets, const float* weights, i64 bags,
                int mean, const i64* order, const i64* keys, const i64* starts, const i64* segments, i64 chunk,
                const i64* first_slot, const float* partial, int vector, int lanes, int max_dim, float* sums) {
  const Gradients gradients = {values, stride, features, bag_of, offsets, weights, bags, mean};
  const Group group(lanes);
  for (i64 s = group.index(); s < *segments; s += group.count()) {
    const Segment segment = segment_at(s, order, starts, chunk, first_slot, partial, max_dim);
    const int dim = tables[find_span(first_row, num_tables, keys[s])].dim;
    if (vector == 4) store_segment<4>(group, gradients, segment, dim, sums + s * max_dim);
    else store_segment<1>(group, gradients, segment, dim, sums + s * max_dim);
  }
}

struct Optimizer {
  int adaptive;  // row-wise AdaGrad, else SGD
  float learning_rate;
  float eps;
  float replicas;
};

// The factor of the gradient: learning_rate, or of AdaGrad learning_rate / (sqrt(v / replicas) + eps), v updated here.
DEVICE float step_size(const Group& group, const Optimizer& optimizer, const Table& table, i64 row, float squares) {
  if (!optimizer.adaptive) return optimizer.learning_rate;
  for (int distance = group.lanes / 2; distance > 0; distance /= 2)
    squares += __shfl_xor_sync(group.mask, squares, distance, group.lanes);
  float accumulated = 0.0f;
  if (group.lane == 0) {
    float* momentum = reinterpret_cast<float*>(table.momentum) + row;
    accumulated = *momentum + squares / static_cast<float>(table.dim);
    *momentum = accumulated;
  }
  accumulated = group.broadcast(accumulated, 0);
  return optimizer.learning_rate / (sqrtf(accumulated / optimizer.replicas) + optimizer.eps);
}

// `sums` holds the row's gradient between its two passes; a lane reads back only what it wrote itself.
template <class Row, int V>
DEVICE void update_row(const Group& group, const Gradients& gradients, const Segment& segment, const Table& table,
                       i64 row, const Optimizer& optimizer, float* sums) {
  float squares = 0.0f;
  for (int first = 0; first < table.dim; first += group.lanes * V) {
    const int column = first + group.lane * V;
    const bool active = column < table.dim;
    float sum[V] = {};
    sum_segment<V>(group, gradients, segment, column, active, sum);
    if (active) store_floats<V>(sums + column, sum);
#pragma unroll
    for (int i = 0; i < V; ++i) squares += sum[i] * sum[i];
  }
  const float step = step_size(group, optimizer, table, row, squares);
  auto* weights = reinterpret_cast<typename Row::Raw*>(table.weights) + row * table.dim;
  for (int column = group.lane * V; column < table.dim; column += group.lanes * V) {
    Vector<typename Row::Raw, V> value = load_vector<V>(weights + column);
#pragma unroll
    for (int i = 0; i < V; ++i) value.at[i] = Row::store(Row::load(value.at[i]) - step * sums[column + i]);
    store_vector<V>(weights + column, value);
  }
}

template <class Row>
DEVICE void update_rows(const Table* tables, const i64* first_row, int num_tables, const Gradients& gradients,
                        const i64* order, const i64* keys, const i64* starts, const i64* segments, i64 chunk,
                        const i64* first_slot, const float* partial, int vector, int lanes, int max_dim,
                        const Optimizer& optimizer) {
  DYNAMIC_SHARED(float, shared);
  const Group group(lanes);
  float* sums = shared + static_cast<int>(threadIdx.x) / lanes * max_dim;
  for (i64 s = group.index(); s < *segments; s += group.count()) {
    const Segment segment = segment_at(s, order, starts, chunk, first_slot, partial, max_dim);
    const int t = find_span(first_row, num_tables, keys[s]);
    const i64 row = keys[s] - first_row[t];
    if (vector == 4) update_row<Row, 4>(group, gradients, segment, tables[t], row, optimizer, sums);
    else update_row<Row, 1>(group, gradients, segment, tables[t], row, optimizer, sums);
  }
}

#define UPDATE_ROWS(NAME, ROW)                                                                                       \
  KERNEL NAME(const Table* tables, const i64* first_row, int num_tables, const float* values, i64 stride,            \
              const Feature* features, const int* bag_of, const i64* offsets, const float* weights, i64 bags,        \
              int mean, const i64* order, const i64* keys, const i64* starts, const i64* segments, i64 chunk,        \
              const i64* first_slot, const float* partial, int vector, int lanes, int max_dim, int adaptive,         \
              float learning_rate, float eps, float replicas) {                                                      \
    update_rows<ROW>(tables, first_row, num_tables,                                                                  \
                     Gradients{values, stride, features, bag_of, offsets, weights, bags, mean}, order, keys, starts, \
                     segments, chunk, first_slot, partial, vector, lanes, max_dim,                                   \
                     Optimizer{adaptive, learning_rate, eps, replicas});                                             \
  }

UPDATE_ROWS(update_rows_fp32, Fp32)
UPDATE_ROWS(update_rows_fp16, Fp16)
UPDATE_ROWS(update_rows_bf16, Bf16)
