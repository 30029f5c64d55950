// The scheduler of the shim: fibers of one block, resumed in an order drawn from the seed until all have finished.
#include "cuda_shim.h"
#include "races.h"

#include <ucontext.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define ASAN(...) __VA_ARGS__
#else
#define ASAN(...)
#endif

namespace shim {
namespace {

constexpr std::size_t STACK_BYTES = 128 << 10;

enum class State { ready, at_barrier, at_warp_function, finished };

struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  State state;
  Index index;
  WarpFunction function;
  unsigned mask;
  int from;
  std::uint64_t value;
  void* fake_stack = nullptr;
};

struct Machine {
  ucontext_t host;
  std::vector<std::unique_ptr<Fiber>> fibers;  // kept from launch to launch
  Fiber* current = nullptr;
  unsigned threads = 0;
  Index block_index{}, block_size{}, grid_size{};
  std::vector<char> shared;
  void (*body)(void*) = nullptr;
  void* context = nullptr;
  std::string error;
  const void* host_stack = nullptr;
  std::size_t host_stack_bytes = 0;
};

Machine machine;

std::string name(const Fiber& fiber) {
  return "thread " + std::to_string(fiber.index.x) + " of block " + std::to_string(machine.block_index.x);
}

void fail(const std::string& what) {
  if (machine.error.empty()) machine.error = what;
}

// Back to the scheduler; `last` where the fiber will not run again.
void leave(bool last) {
  Fiber& fiber = *machine.current;
  [[maybe_unused]] void** const kept = last ? nullptr : &fiber.fake_stack;
  ASAN(__sanitizer_start_switch_fiber(kept, machine.host_stack, machine.host_stack_bytes);)
  swapcontext(&fiber.context, &machine.host);
  ASAN(__sanitizer_finish_switch_fiber(fiber.fake_stack, nullptr, nullptr);)
}

void enter() {
  ASAN(__sanitizer_finish_switch_fiber(nullptr, &machine.host_stack, &machine.host_stack_bytes);)
  machine.body(machine.context);
  machine.current->state = State::finished;
  leave(true);
}

void resume(Fiber& fiber) {
  machine.current = &fiber;
  const auto stack = reinterpret_cast<std::uintptr_t>(fiber.stack.get());
  races_of({static_cast<int>(fiber.index.x), machine.block_index.x, stack, stack + STACK_BYTES});
  ASAN(void* fake = nullptr; __sanitizer_start_switch_fiber(&fake, fiber.stack.get(), STACK_BYTES);)
  swapcontext(&machine.host, &fiber.context);
  ASAN(__sanitizer_finish_switch_fiber(fake, nullptr, nullptr);)
  races_of({-1, 0, 0, 0});
}

void prepare(Fiber& fiber, unsigned thread) {
  if (!fiber.stack) fiber.stack = std::make_unique<char[]>(STACK_BYTES);
  ASAN(__asan_unpoison_memory_region(fiber.stack.get(), STACK_BYTES);)
  fiber.state = State::ready;
  fiber.index = {thread};
  fiber.fake_stack = nullptr;
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.get();
  fiber.context.uc_stack.ss_size = STACK_BYTES;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, enter, 0);
}

std::vector<unsigned> places(unsigned count) {
  std::vector<unsigned> order(count);
  for (unsigned i = 0; i < count; ++i) order[i] = i;
  return order;
}

// -- what waiting threads wait for ---------------------------------------------------------------------------------

bool release_barrier() {
  unsigned waiting = 0, finished = 0;
  for (unsigned i = 0; i < machine.threads; ++i) {
    waiting += machine.fibers[i]->state == State::at_barrier;
    finished += machine.fibers[i]->state == State::finished;
  }
  if (!waiting || waiting + finished < machine.threads) return false;
  if (finished) {
    fail("__syncthreads: " + std::to_string(finished) + " threads of the block have exited, " +
         std::to_string(waiting) + " wait");
    return false;
  }
  for (unsigned i = 0; i < machine.threads; ++i) machine.fibers[i]->state = State::ready;
  order(places(machine.threads));
  return true;
}

Fiber* lane_of(const Fiber& fiber, int lane) {
  const unsigned thread = fiber.index.x / 32 * 32 + static_cast<unsigned>(lane);
  return thread < machine.threads ? machine.fibers[thread].get() : nullptr;
}

// The value that `fiber` gets once all lanes of its mask are there.
std::uint64_t result_of(const Fiber& fiber) {
  std::uint64_t result = 0;
  switch (fiber.function) {
    case WarpFunction::sync: return 0;
    case WarpFunction::shuffle:
      if (!(fiber.mask >> fiber.from & 1u)) {
        fail(name(fiber) + ": a shuffle reads lane " + std::to_string(fiber.from) + ", which is not in its mask");
        return 0;
      }
      return lane_of(fiber, fiber.from)->value;
    case WarpFunction::ballot:
    case WarpFunction::match:
      for (int lane = 0; lane < 32; ++lane) {
        if (!(fiber.mask >> lane & 1u)) continue;
        const std::uint64_t value = lane_of(fiber, lane)->value;
        const bool set = fiber.function == WarpFunction::ballot ? value != 0 : value == fiber.value;
        result |= static_cast<std::uint64_t>(set) << lane;
      }
  }
  return result;
}

// Whether every lane of the mask waits in the same function with the same mask.
bool complete(const Fiber& fiber) {
  for (int lane = 0; lane < 32; ++lane) {
    if (!(fiber.mask >> lane & 1u)) continue;
    const Fiber* other = lane_of(fiber, lane);
    if (!other || other->state == State::finished) {
      fail(name(fiber) + ": the mask of a warp function names lane " + std::to_string(lane) + ", which has exited");
      return false;
    }
    const bool alike = other->mask == fiber.mask && other->function == fiber.function;
    if (other->state != State::at_warp_function || !alike) return false;
  }
  return true;
}

void release_warp(const Fiber& fiber) {
  std::uint64_t results[32] = {};
  for (int lane = 0; lane < 32; ++lane)
    if (fiber.mask >> lane & 1u) results[lane] = result_of(*lane_of(fiber, lane));
  const unsigned mask = fiber.mask;
  std::vector<unsigned> met;
  for (int lane = 0; lane < 32; ++lane) {
    if (!(mask >> lane & 1u)) continue;
    lane_of(fiber, lane)->value = results[lane];
    lane_of(fiber, lane)->state = State::ready;
    met.push_back(lane_of(fiber, lane)->index.x);
  }
  if (fiber.function == WarpFunction::sync) order(met);
}

// -- blocks --------------------------------------------------------------------------------------------------------

// One pass over the threads that can run, in the order given; false where none could.
bool pass(const std::vector<unsigned>& order) {
  bool ran = false;
  for (const unsigned thread : order) {
    Fiber& fiber = *machine.fibers[thread];
    if (fiber.state != State::ready) continue;
    ran = true;
    resume(fiber);
    if (fiber.state == State::at_warp_function && complete(fiber)) release_warp(fiber);
    if (!machine.error.empty()) return false;
  }
  return ran;
}

bool all_finished() {
  for (unsigned i = 0; i < machine.threads; ++i)
    if (machine.fibers[i]->state != State::finished) return false;
  return true;
}

void run_block(std::vector<unsigned>& order, std::mt19937_64& random, bool shuffled) {
  std::fill(machine.shared.begin(), machine.shared.end(), static_cast<char>(0xCD));
  for (unsigned i = 0; i < machine.threads; ++i) prepare(*machine.fibers[i], i);
  races_of_block(machine.threads, machine.shared.data(), machine.shared.size());
  while (machine.error.empty()) {
    if (shuffled) std::shuffle(order.begin(), order.end(), random);
    if (pass(order) || release_barrier()) continue;
    if (!all_finished()) {
      for (unsigned i = 0; i < machine.threads; ++i) {
        const Fiber& fiber = *machine.fibers[i];
        if (fiber.state == State::at_warp_function) complete(fiber);  // names a lane that exited, if one did
        if (fiber.state != State::finished) fail(name(fiber) + " waits for threads that never come");
      }
    }
    return;
  }
}

}  // namespace

void refuse(const std::string& what) { fail(what); }

Index thread_index() { return machine.current->index; }
Index block_index() { return machine.block_index; }
Index block_size() { return machine.block_size; }
Index grid_size() { return machine.grid_size; }
void* dynamic_shared() { return machine.shared.data(); }

void block_barrier() {
  machine.current->state = State::at_barrier;
  leave(false);
}

std::uint64_t warp_function(WarpFunction function, unsigned mask, std::uint64_t value, int from) {
  Fiber& fiber = *machine.current;
  if (!(mask >> lane() & 1u)) fail(name(fiber) + ": the mask of a warp function lacks the calling lane");
  fiber.function = function;
  fiber.mask = mask;
  fiber.value = value;
  fiber.from = from;
  fiber.state = State::at_warp_function;
  leave(false);
  return fiber.value;
}

const char* run(const Launch& launch, void (*body)(void*), void* context) {
  machine.error.clear();
  machine.body = body;
  machine.context = context;
  machine.threads = launch.block;
  machine.block_size = {launch.block};
  machine.grid_size = {launch.grid};
  std::vector<char>(launch.shared_bytes).swap(machine.shared);
  races_of_launch();
  while (machine.fibers.size() < launch.block) machine.fibers.push_back(std::make_unique<Fiber>());
  std::mt19937_64 random(launch.seed);
  std::vector<unsigned> threads = places(launch.block), blocks = places(launch.grid);
  if (launch.seed) std::shuffle(blocks.begin(), blocks.end(), random);
  for (const unsigned block : blocks) {
    machine.block_index = {block};
    run_block(threads, random, launch.seed != 0);
    if (!machine.error.empty()) return machine.error.c_str();
  }
  return nullptr;
}

}  // namespace shim
