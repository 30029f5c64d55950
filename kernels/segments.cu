// Equal keys grouped: from a sort to distinct keys, where each one's run starts, and the way back. Also the key (row
// counted over all tables) of every look-up, and the check that ids lie inside their tables.
//
// Keys and positions are sorted together where both fit into 63 bits: value = key << bits | position. A plain sort of
// such values is stable by itself and leaves keys and positions side by side, with nothing to gather.
#include "common.cuh"

// Position p of feature f and bag b gets key first_row[table of f] + id, and its bag (feature x bags + b).
template <class Id>
DEVICE void look_up_keys(const Feature* features, const i64* first_row, const i64* offsets, i64 bags, int num_features,
                         const Id* ids, i64 count, int bits, i64* values, int* bag_of) {
  for (i64 p = global_thread(); p < count; p += all_threads()) {
    const int bag = find_span(offsets, static_cast<int>(bags * num_features), p);
    const i64 key = first_row[features[bag / bags].table] + static_cast<i64>(ids[p]);
    values[p] = bits ? key << bits | p : key;
    if (bag_of) bag_of[p] = bag;
  }
}

#define LOOK_UP_KEYS(NAME, ID)                                                                                \
  KERNEL NAME(const Feature* features, const i64* first_row, const i64* offsets, i64 bags, int num_features,  \
              const ID* ids, i64 count, int bits, i64* values, int* bag_of) {                                 \
    look_up_keys(features, first_row, offsets, bags, num_features, ids, count, bits, values, bag_of);         \
  }

LOOK_UP_KEYS(look_up_keys_i32, int)
LOOK_UP_KEYS(look_up_keys_i64, i64)

KERNEL pack_keys(const i64* keys, i64 count, int bits, i64* values) {
  for (i64 p = global_thread(); p < count; p += all_threads()) values[p] = keys[p] << bits | p;
}

// heads[i] = 1 where the i-th key in sorted order differs from the one before.
KERNEL mark_heads(const i64* sorted, int bits, i64 count, int* heads) {
  for (i64 i = global_thread(); i < count; i += all_threads())
    heads[i] = i == 0 || sorted[i] >> bits != sorted[i - 1] >> bits;
}

// `ranks` is the running sum of heads: distinct key s = ranks - 1 starts at its head. `order`, the position of the
// i-th key, is taken from the values where they hold it (bits > 0). `inverse` may be null.
KERNEL place_segments(const i64* sorted, int bits, const i64* ranks, i64 count, i64* order, i64* distinct, i64* starts,
                      i64* inverse) {
  for (i64 i = global_thread(); i < count; i += all_threads()) {
    const i64 segment = ranks[i] - 1;
    if (bits) order[i] = sorted[i] & ((1ll << bits) - 1);
    if (i == 0 || ranks[i - 1] == segment) {
      distinct[segment] = sorted[i] >> bits;
      starts[segment] = i;
    }
    if (i == count - 1) starts[segment + 1] = count;
    if (inverse) inverse[order[i]] = segment;
  }
}

// problems[0] counts ids outside their table, problems[1] is the first position of one (start it at the largest u64).
template <class Id>
DEVICE void check_ids(const Table* tables, const Feature* features, const i64* offsets, i64 bags, int num_features,
                      const Id* ids, i64 count, u64* problems) {
  for (i64 p = global_thread(); p < count; p += all_threads()) {
    const int bag = find_span(offsets, static_cast<int>(bags * num_features), p);
    const i64 id = static_cast<i64>(ids[p]);
    if (id >= 0 && id < tables[features[bag / bags].table].rows) continue;
    atomicAdd(problems, 1ull);
    atomicMin(problems + 1, static_cast<u64>(p));
  }
}

#define CHECK_IDS(NAME, ID)                                                                                       \
  KERNEL NAME(const Table* tables, const Feature* features, const i64* offsets, i64 bags, int num_features,       \
              const ID* ids, i64 count, u64* problems) {                                                          \
    check_ids(tables, features, offsets, bags, num_features, ids, count, problems);                               \
  }

CHECK_IDS(check_ids_i32, int)
CHECK_IDS(check_ids_i64, i64)
