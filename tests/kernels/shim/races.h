// What the scheduler tells the search for races (races.cpp): who runs, and what orders threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace shim {

// The thread that runs, -1 for none, and its stack, which is its own.
struct Running {
  int thread;
  std::uint32_t block;
  std::uintptr_t stack_begin, stack_end;
};

void races_of_launch();
void races_of_block(unsigned threads, const void* shared, std::size_t shared_bytes);
void races_of(const Running& running);

// These threads have met in a barrier: each sees what the others did before.
void order(const std::vector<unsigned>& threads);

// Called with what is wrong.
void refuse(const std::string& what);

}  // namespace shim
