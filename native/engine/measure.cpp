// The speed of copies between memory and a tier, by size: one way at a time, and both ways at once.
#include "measure.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

namespace memfit {

namespace {

using Clock = std::chrono::steady_clock;

// Of the median copy.
template <typename Copy>
double median_seconds(size_t repeats, const Copy& copy) {
  std::vector<double> seconds;
  for (size_t i = 0; i < repeats; ++i) {
    auto began = Clock::now();
    copy();
    seconds.push_back(std::chrono::duration<double>(Clock::now() - began).count());
  }
  std::nth_element(seconds.begin(), seconds.begin() + static_cast<long>(seconds.size() / 2), seconds.end());
  return seconds[seconds.size() / 2];
}

}  // namespace

LinkTimes measure_link(Tier& tier, size_t size, size_t repeats) {
  std::vector<char> outgoing(size, 1), incoming(size, 2);
  Extent out_extent = tier.put(outgoing.data(), size), in_extent = tier.put(incoming.data(), size);
  auto out = [&] { tier.write(out_extent, outgoing.data(), size); };
  auto in = [&] { tier.get(in_extent, incoming.data(), size); };
  LinkTimes times;
  times.out = median_seconds(repeats, out);
  times.in = median_seconds(repeats, in);
  std::thread other([&] { times.out_beside = median_seconds(repeats, out); });
  times.in_beside = median_seconds(repeats, in);
  other.join();
  tier.release(out_extent);
  tier.release(in_extent);
  return times;
}

}  // namespace memfit
