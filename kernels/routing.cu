// Routing of many features in one launch: owner of every id, ids per owner, the stable permutation that groups them.
#include "common.cuh"

// Descriptor of one feature, written by routing.py (ROUTE).
struct Route {
  i64 bounds;   // index of its first bound in `bounds` (ranges: parts + 1 of them)
  i64 members;  // index of its first part's owner in `members`
  int parts;
  int hashed;
};

// owners[i], and the row on its shard for ranges; hashed ids keep their id (the shard maps them).
template <class Id>
DEVICE void find_owners(const Route* routes, const i64* starts, int features, const i64* bounds, const int* members,
                        const Id* ids, i64 count, int* owners, i64* rows) {
  for (i64 i = global_thread(); i < count; i += all_threads()) {
    const Route route = routes[find_span(starts, features, i)];
    const i64 id = static_cast<i64>(ids[i]);
    int part;
    i64 row = id;
    if (route.hashed) {
      part = hash_part(id, static_cast<u32>(route.parts));
    } else {
      part = find_span(bounds + route.bounds, route.parts, id);
      row -= bounds[route.bounds + part];
    }
    owners[i] = members[route.members + part];
    if (rows) rows[i] = row;
  }
}

#define FIND_OWNERS(NAME, ID)                                                                                      \
  KERNEL NAME(const Route* routes, const i64* starts, int features, const i64* bounds, const int* members,         \
              const ID* ids, i64 count, int* owners, i64* rows) {                                                  \
    find_owners(routes, starts, features, bounds, members, ids, count, owners, rows);                              \
  }

FIND_OWNERS(find_owners_i32, int)
FIND_OWNERS(find_owners_i64, i64)

KERNEL hash_parts(const i64* ids, i64 count, u32 parts, i64* out) {
  for (i64 i = global_thread(); i < count; i += all_threads()) out[i] = hash_part(ids[i], parts);
}

// A stable counting sort. A warp owns a tile of ids and walks it 32 at a time; lanes with the same owner find each
// other by a match, so counters need no atomics and an id's place is its rank among earlier equals. Counters of a
// warp lie in shared memory (step 1), or, where the members are too many for it, in counts itself (step tiles).

struct Counters {
  i64* at;
  i64 step;
};

DEVICE Counters counters_of(i64* shared, i64* counts, i64 members, i64 tile, i64 tiles, int in_shared) {
  if (in_shared) return {shared + static_cast<i64>(threadIdx.x) / WARP * members, 1};
  return {counts + tile, tiles};
}

// counts[member x tiles + tile]
KERNEL count_tiles(const int* owners, i64 count, i64 members, i64 tile_size, i64 tiles, int in_shared, i64* counts) {
  DYNAMIC_SHARED(i64, shared);
  const Group warp(WARP);
  for (i64 tile = warp.index(); tile < tiles; tile += warp.count()) {
    const Counters counters = counters_of(shared, counts, members, tile, tiles, in_shared);
    for (i64 member = warp.lane; member < members; member += WARP) counters.at[member * counters.step] = 0;
    __syncwarp();
    const i64 end = count < (tile + 1) * tile_size ? count : (tile + 1) * tile_size;
    for (i64 base = tile * tile_size; base < end; base += WARP) {
      const int owner = base + warp.lane < end ? owners[base + warp.lane] : -1;
      const u32 equals = __match_any_sync(FULL_WARP, owner);
      const bool leads = warp.lane == __ffs(static_cast<int>(equals)) - 1;
      if (owner >= 0 && leads) counters.at[owner * counters.step] += __popc(equals);
      __syncwarp();
    }
    if (in_shared)
      for (i64 member = warp.lane; member < members; member += WARP)
        counts[member * tiles + tile] = counters.at[member];  // the lane clears them itself for its next tile
  }
}

// `starts` [members x tiles] are the exclusive running sums of counts; used up as counters where in_shared is 0.
KERNEL place_tiles(const int* owners, i64 count, i64 members, i64 tile_size, i64 tiles, int in_shared, i64* starts,
                   i64* permutation, i64* inverse) {
  DYNAMIC_SHARED(i64, shared);
  const Group warp(WARP);
  for (i64 tile = warp.index(); tile < tiles; tile += warp.count()) {
    const Counters counters = counters_of(shared, starts, members, tile, tiles, in_shared);
    if (in_shared)
      for (i64 member = warp.lane; member < members; member += WARP)
        counters.at[member] = starts[member * tiles + tile];
    __syncwarp();
    const i64 end = count < (tile + 1) * tile_size ? count : (tile + 1) * tile_size;
    for (i64 base = tile * tile_size; base < end; base += WARP) {
      const int owner = base + warp.lane < end ? owners[base + warp.lane] : -1;
      const u32 equals = __match_any_sync(FULL_WARP, owner);
      const u32 earlier = equals & ((1u << warp.lane) - 1u);
      i64 place = 0;
      if (owner >= 0) place = counters.at[owner * counters.step] + __popc(earlier);
      __syncwarp();
      if (owner >= 0) {
        if (!earlier) counters.at[owner * counters.step] += __popc(equals);
        permutation[place] = base + warp.lane;
        inverse[base + warp.lane] = place;
      }
      __syncwarp();
    }
  }
}

KERNEL invert(const i64* permutation, i64 count, i64* inverse) {
  for (i64 i = global_thread(); i < count; i += all_threads()) inverse[permutation[i]] = i;
}
