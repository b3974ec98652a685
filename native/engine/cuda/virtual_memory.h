// The arena's memory on a GPU: a range of addresses, and pages of the driver's that are put behind it as they are needed.
#pragma once

#include <memory>

#include "../device.h"

namespace memfit::cuda {

// The driver's page of device memory (bytes): what it gives and takes back at a time.
size_t page_bytes(int device);
// Raises std::invalid_argument when the driver cannot map memory.
std::unique_ptr<AddressSpace> reserve(int device, size_t bytes);

}  // namespace memfit::cuda
