#include "split_sizes.h"

#include <algorithm>

#include "strip.h"
#include "telling.h"
#include "tier.h"

namespace memfit {

namespace {

constexpr int64_t kParts[] = {8, 64};

size_t step_bytes(const OutputLayout& output, int64_t dim) {
  return Strip::of(output.sizes, output.strides, c10::elementSize(output.dtype), dim, 0).inner;
}

// The fewest steps whose bytes are a multiple of a line's in every tensor that is cut, as far as that can be had.
int64_t granule(const Way& way, Inputs inputs, const std::vector<OutputLayout>& outputs, size_t line) {
  for (int64_t steps = 1; steps <= static_cast<int64_t>(line); steps *= 2) {
    bool is_even = true;
    for (const Cut& cut : way.cuts) is_even &= Strip::of(tensor_at(inputs, cut.argument, cut.item), cut.dim).inner * steps % line == 0;
    for (size_t i = 0; i < outputs.size(); ++i) is_even &= step_bytes(outputs[i], way.outputs[i]) * steps % line == 0;
    if (is_even) return steps;
  }
  return 1;
}

}  // namespace

std::vector<int64_t> slice_lengths(const Way& way, Inputs inputs, const std::vector<OutputLayout>& outputs) {
  if (way.gathers || way.mask >= 0) return {way.length};
  std::vector<int64_t> found;
  const size_t least = way.bits == Bits::kVectors ? 4 * kLine : kLine;  // vectors stay whole
  const int64_t page = granule(way, inputs, outputs, Tier::kAlignment), line = granule(way, inputs, outputs, least);
  bool is_cut_up = false;
  for (size_t i = 0; i < outputs.size(); ++i)
    is_cut_up |= Strip::of(outputs[i].sizes, outputs[i].strides, c10::elementSize(outputs[i].dtype), way.outputs[i], 0).outer > 1;
  for (int64_t parts : kParts) {
    int64_t steps = (way.length + parts - 1) / parts;
    const auto rounded = [steps](int64_t grain) { return (steps + grain - 1) / grain * grain; };
    // (Slices that begin unevenly are copied, and an output of many chunks is written away by pages.)
    steps = (steps >= page || is_cut_up) && rounded(page) < way.length ? rounded(page) : rounded(line) < way.length ? rounded(line) : steps;
    if (!could_tell(way, inputs, outputs, steps)) continue;
    if (steps < way.length && std::find(found.begin(), found.end(), steps) == found.end()) found.push_back(steps);
  }
  return found;
}

size_t slice_bytes(const Way& way, Inputs inputs, const std::vector<OutputLayout>& outputs, int64_t steps) {
  if (way.gathers) return static_cast<size_t>(steps) * 2 * sizeof(int64_t);
  size_t bytes = 0;
  for (const Cut& cut : way.cuts) bytes += round_up(Strip::of(tensor_at(inputs, cut.argument, cut.item), cut.dim).bytes(steps), kLine);
  for (size_t i = 0; i < outputs.size(); ++i) {
    const OutputLayout& output = outputs[i];
    bytes += round_up(Strip::of(output.sizes, output.strides, c10::elementSize(output.dtype), way.outputs[i], 0).bytes(steps), kLine);
  }
  return bytes;
}

bool reads_pages(const Way& way, Inputs inputs, int64_t steps) {
  return std::all_of(way.cuts.begin(), way.cuts.end(), [&](const Cut& cut) {
    const Strip strip = Strip::of(tensor_at(inputs, cut.argument, cut.item), cut.dim);
    return !cut.is_read || strip.outer == 1 || strip.inner * steps >= Tier::kAlignment;
  });
}

bool is_in_pages(const SplitCall& call, size_t output, int64_t steps) {
  const OutputLayout& layout = call.outputs[output];
  const Strip strip = Strip::of(layout.sizes, layout.strides, c10::elementSize(layout.dtype), call.way.outputs[output], 0);
  return strip.outer == 1 || (strip.inner * steps % Tier::kAlignment == 0 && strip.inner * strip.length % Tier::kAlignment == 0);
}

}  // namespace memfit
