// The simulated device's memory, as its parts know it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

namespace simulated {

constexpr size_t kPage = size_t{2} << 20;

enum class Kind { kDevice, kLocked, kReserved, kManaged };
struct Range {
  size_t bytes;
  Kind kind;
  int device = -1;
  int64_t ready_ns = 0;  // when locked memory is, on the virtual clock
  // Of managed memory: the pages that are on the device, and what it was advised.
  std::vector<bool> there = {};
  bool stays_with_host = false, is_open = false, is_anywhere = false;
};

extern std::mutex memory_mutex;  // it guards all that follows
extern std::map<char*, Range> ranges;
using RangeAt = std::map<char*, Range>::iterator;

// The range that `address` is in; ranges.end() if it is ordinary memory.
RangeAt range_of(const void* address);
// The device has so many bytes more in use. False: there are not so many.
bool account(size_t bytes, int device);
void unaccount(size_t bytes, int device);
// Addresses for so many bytes, at the beginning of a page.
char* map_memory(size_t bytes, int protection);

// Managed memory: a kernel of `device` touches it.
void touched(RangeAt range, int device);
size_t pages_on_device(const Range& range);

}  // namespace simulated
