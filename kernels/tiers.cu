// Tiered memory: a set-associative least-recently-used cache of rows (one warp a set, one lane a way) and row copies
// between device and pinned host memory.
#include "common.cuh"

// slots[i] = set x 32 + way of ids[i], or -1 where it misses; ways that hit are stamped with `step`.
KERNEL query_cache(const i64* tags, i64* stamps, u32 sets, const i64* ids, i64 count, i64 step, i64* slots) {
  const Group warp(WARP);
  for (i64 i = warp.index(); i < count; i += warp.count()) {
    const i64 id = ids[i];
    const i64 slot = static_cast<i64>(hash_part(id, sets)) * WARP + warp.lane;
    const bool hit = tags[slot] == id;
    const u32 hits = __ballot_sync(FULL_WARP, hit);
    if (hit) {
      *static_cast<volatile i64*>(stamps + slot) = step;  // warps of equal ids store the same here at once
      slots[i] = slot;
    }
    if (!hits && warp.lane == 0) slots[i] = -1;
  }
}

struct Way {
  i64 stamp;
  int lane;
};

// The way used longest ago, the lowest of equals: known to every lane.
DEVICE Way oldest_way(const Group& warp, i64 stamp) {
  Way way = {stamp, warp.lane};
#pragma unroll
  for (int distance = WARP / 2; distance > 0; distance /= 2) {
    const i64 other = __shfl_xor_sync(FULL_WARP, way.stamp, distance, WARP);
    const int lane = __shfl_xor_sync(FULL_WARP, way.lane, distance, WARP);
    if (other < way.stamp || (other == way.stamp && lane < way.lane)) way = {other, lane};
  }
  return way;
}

// Ids sorted by set: segment s is the set set_of[s] and holds ids[order[starts[s] .. starts[s + 1])], served in order.
KERNEL insert_into_cache(i64* tags, i64* stamps, const i64* ids, const i64* order, const i64* set_of, const i64* starts,
                         const i64* segments, i64 step, i64 keep_from, i64* slots, i64* evicted) {
  const Group warp(WARP);
  for (i64 s = warp.index(); s < *segments; s += warp.count()) {
    const i64 first = set_of[s] * WARP, own = first + warp.lane;
    i64 tag = tags[own], stamp = stamps[own];
    for (i64 i = starts[s]; i < starts[s + 1]; ++i) {
      const i64 position = order[i];
      const Way way = oldest_way(warp, stamp);
      const bool taken = way.stamp < keep_from;  // the same for all lanes
      if (warp.lane == way.lane) {
        slots[position] = taken ? own : -1;
        evicted[position] = taken ? tag : -1;
      }
      if (taken && warp.lane == way.lane) {
        tag = ids[position];
        stamp = step;
      }
    }
    tags[own] = tag;
    stamps[own] = stamp;
  }
}

template <int BYTES>
DEVICE void copy_row(const Group& group, u8* target, const u8* source, i64 row_bytes) {
  for (i64 byte = static_cast<i64>(group.lane) * BYTES; byte < row_bytes; byte += static_cast<i64>(group.lanes) * BYTES)
    store_vector<BYTES>(target + byte, load_vector<BYTES>(source + byte));
}

// Row source_rows[i] to row target_rows[i], as bytes; null stands for i itself, and a negative row skips the pair.
KERNEL copy_rows(u8* target, const i64* target_rows, const u8* source, const i64* source_rows, i64 count, i64 row_bytes,
                 int vector, int lanes) {
  const Group group(lanes);
  for (i64 i = group.index(); i < count; i += group.count()) {
    const i64 to = target_rows ? target_rows[i] : i, from = source_rows ? source_rows[i] : i;
    if (to < 0 || from < 0) continue;
    u8* const out = target + to * row_bytes;
    const u8* const in = source + from * row_bytes;
    if (vector == 16) copy_row<16>(group, out, in, row_bytes);
    else if (vector == 4) copy_row<4>(group, out, in, row_bytes);
    else copy_row<1>(group, out, in, row_bytes);
  }
}
