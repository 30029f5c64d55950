// Races of the kernels: accesses of two threads to one address, one of them a write, that nothing orders.
//
// g++ puts a call before every access of memory (-fsanitize=thread, without its own runtime): these calls end here.
// What orders threads is __syncthreads and __syncwarp alone: shuffles, ballots and matches exchange registers, and
// blocks know no order at all. Atomic functions and volatile accesses may meet each other. Per word of 4 bytes the last
// write and the last reads of two threads are kept, so an access to half a word may hide one to the other half.
//
// An address that is no multiple of the size of the access is refused here too, as CUDA refuses it.
#include "races.h"

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <unordered_map>

namespace shim {
namespace {

struct Access {
  std::uint32_t block, clock;
  std::uint16_t thread;
  std::uint8_t bytes;  // of the word, a bit each; none: no access
  bool atomic;
};

struct Word {
  Access write, reads[2];
};

constexpr std::uintptr_t WORD = 4, PAGE_WORDS = 1024, PAGE = PAGE_WORDS * WORD;
typedef std::array<Word, PAGE_WORDS> Page;

struct Shadow {
  std::unordered_map<std::uintptr_t, std::unique_ptr<Page>> pages;
  std::uintptr_t last = 0;
  Page* last_page = nullptr;

  Word& word(std::uintptr_t address) {
    const std::uintptr_t page = address / PAGE;
    if (!last_page || page != last) {
      std::unique_ptr<Page>& found = pages[page];
      if (!found) found = std::make_unique<Page>();
      last = page;
      last_page = found.get();
    }
    return (*last_page)[address % PAGE / WORD];
  }
};

Shadow shadow;
Running now = {-1, 0, 0, 0};
// clocks[t][u]: what thread t knows of u; clocks[t][t] counts the barriers that t has passed, from 1.
std::vector<std::vector<std::uint32_t>> clocks;

bool ordered(const Access& earlier) {
  if (earlier.block != now.block) return false;
  return earlier.thread == now.thread || clocks[now.thread][earlier.thread] >= earlier.clock;
}

void check(const Access& earlier, const Access& access, bool earlier_writes, bool writes) {
  if (!(earlier.bytes & access.bytes) || (earlier.atomic && access.atomic) || ordered(earlier)) return;
  refuse("thread " + std::to_string(now.thread) + " of block " + std::to_string(now.block) +
         (writes ? " writes" : " reads") + " what thread " + std::to_string(earlier.thread) + " of block " +
         std::to_string(earlier.block) + (earlier_writes ? " wrote" : " read") + ", and nothing orders them");
}

bool same_thread(const Access& one, const Access& other) {
  return one.bytes && one.thread == other.thread && one.block == other.block;
}

void access_word(Word& word, const Access& access, bool writes) {
  check(word.write, access, true, writes);
  if (writes) {
    for (const Access& read : word.reads) check(read, access, false, true);
    word.write = access;
    return;
  }
  if (!same_thread(word.reads[1], access)) {
    if (!same_thread(word.reads[0], access)) word.reads[0] = word.reads[1];
    else std::swap(word.reads[0], word.reads[1]);
  }
  word.reads[1] = access;
}

void access(const void* memory, std::uintptr_t size, bool writes, bool atomic, std::uintptr_t alignment = 1) {
  const auto begin = reinterpret_cast<std::uintptr_t>(memory), end = begin + size;
  if (now.thread < 0 || (begin >= now.stack_begin && begin < now.stack_end)) return;
  if (begin % alignment)
    refuse("thread " + std::to_string(now.thread) + " of block " + std::to_string(now.block) +
           (writes ? " writes " : " reads ") + std::to_string(size) +
           " bytes at an address that is no multiple of that");
  const auto thread = static_cast<std::uint16_t>(now.thread);
  for (std::uintptr_t at = begin / WORD * WORD; at < end; at += WORD) {
    unsigned bytes = 0;
    for (std::uintptr_t i = 0; i < WORD; ++i) bytes |= (at + i >= begin && at + i < end) << i;
    access_word(shadow.word(at), {now.block, clocks[thread][thread], thread, static_cast<std::uint8_t>(bytes), atomic},
                writes);
  }
}

}  // namespace

void races_of_launch() { shadow = Shadow(); }

void races_of_block(unsigned threads, const void* shared, std::size_t shared_bytes) {
  clocks.assign(threads, std::vector<std::uint32_t>(threads, 0));
  for (unsigned i = 0; i < threads; ++i) clocks[i][i] = 1;
  const auto begin = reinterpret_cast<std::uintptr_t>(shared);  // memory that this block has for itself
  for (std::uintptr_t at = begin; at < begin + shared_bytes; at += WORD) shadow.word(at) = Word();
}

void races_of(const Running& running) { now = running; }

void order(const std::vector<unsigned>& threads) {
  std::vector<std::uint32_t> known(clocks.size(), 0);
  for (const unsigned thread : threads)
    for (std::size_t i = 0; i < known.size(); ++i) known[i] = std::max(known[i], clocks[thread][i]);
  for (const unsigned thread : threads) {
    clocks[thread] = known;
    ++clocks[thread][thread];
  }
}

void atomic_access(const void* memory, std::size_t size) { access(memory, size, true, true); }

}  // namespace shim

#define ACCESSES(SIZE)                                                                                   \
  void __tsan_read##SIZE(void* memory) { shim::access(memory, SIZE, false, false, SIZE); }               \
  void __tsan_write##SIZE(void* memory) { shim::access(memory, SIZE, true, false, SIZE); }               \
  void __tsan_unaligned_read##SIZE(void* memory) { shim::access(memory, SIZE, false, false); }           \
  void __tsan_unaligned_write##SIZE(void* memory) { shim::access(memory, SIZE, true, false); }           \
  void __tsan_volatile_read##SIZE(void* memory) { shim::access(memory, SIZE, false, true); }             \
  void __tsan_volatile_write##SIZE(void* memory) { shim::access(memory, SIZE, true, true); }

extern "C" {
void __tsan_init() {}
void __tsan_read_range(void* memory, unsigned long size) { shim::access(memory, size, false, false); }
void __tsan_write_range(void* memory, unsigned long size) { shim::access(memory, size, true, false); }
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)
}
