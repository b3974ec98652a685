// Split sizes: how long a call's slices are, and the bytes that they take.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "split_call.h"

namespace memfit {

// The lengths of slices to be tried.
std::vector<int64_t> slice_lengths(const Way& way, Inputs inputs, const std::vector<OutputLayout>& outputs);
// Bytes that slices of the call take: what is read into temporary storages, and what each slice's call returns.
size_t slice_bytes(const Way& way, Inputs inputs, const std::vector<OutputLayout>& outputs, int64_t steps);
// What is cut is read in chunks of pages, not of less, of which each page would be read several times.
bool reads_pages(const Way& way, Inputs inputs, int64_t steps);
// All chunks of such slices of the call's output begin with pages, so that they can be written to the tier.
bool is_in_pages(const SplitCall& call, size_t output, int64_t steps);

}  // namespace memfit
