// The arena's memory on a GPU: a range of addresses, and pages of the driver's that are put behind it as they are needed.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "../device.h"

namespace memfit::cuda {

// What the driver gives and takes back at a time, at an offset of the arena (bytes): its own pages first, and many at a
// time where an arena is so large that it would be asked for tens of thousands.
size_t page_bytes(int device, size_t offset);
// What the owner of the addresses does for the rest of the device's memory.
struct Neighbours {
  std::function<void(size_t mapped, size_t most)> make_way;  // so many bytes of `most` are about to be mapped
  std::function<void()> give_up;                             // there is no more memory: whatever can be spared goes
};
// As Device::reserve. Raises std::invalid_argument when the driver cannot map memory.
std::unique_ptr<AddressSpace> reserve(int device, size_t addresses, size_t bytes, Neighbours neighbours);
// Let kernels and copies of `peer` reach what is reserved on `device`, now and later. Memory that is mapped is open to
// nobody but its own device, whatever CUDA's peer access says.
void open_to(int device, int peer);
// Whether an address is in one of the ranges that are reserved.
bool is_reserved(const void* address);

}  // namespace memfit::cuda
