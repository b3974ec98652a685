#include "packer/greedy.h"

#include <algorithm>
#include <numeric>

#include "packer/occupancy.h"

namespace memfit::packing {
namespace {

// Peak pressure over the sections of each item: an item that lives at the peak has the least freedom.
std::vector<double> peak_pressure(const Problem& problem) {
  std::vector<std::vector<Quanta>> levels{problem.pressure};
  for (std::size_t width = 1; 2 * width <= problem.pressure.size(); width *= 2) {
    const auto& below = levels.back();
    std::vector<Quanta> level(below.size() - width);
    for (std::size_t i = 0; i < level.size(); ++i) level[i] = std::max(below[i], below[i + width]);
    levels.push_back(std::move(level));
  }
  std::vector<double> peaks;
  for (const Item& item : problem.items) {
    Quanta peak = 0;
    for (const Span& span : item.spans) {
      if (span.empty()) continue;
      std::size_t level = 0;
      while ((std::int64_t{2} << level) <= span.end - span.begin) ++level;
      peak = std::max({peak, levels[level][span.begin], levels[level][span.end - (std::int64_t{1} << level)]});
    }
    peaks.push_back(static_cast<double>(peak));
  }
  return peaks;
}

// The number of other items that each one conflicts with, by counting births and deaths; O(n + sections).
std::vector<double> degrees(const Problem& problem) {
  std::vector<std::int64_t> born(problem.sections + 1, 0), died(problem.sections + 1, 0);
  for (const Item& item : problem.items)
    for (const Span& span : item.spans)
      if (!span.empty()) ++born[span.begin + 1], ++died[span.end];
  std::partial_sum(born.begin(), born.end(), born.begin());
  std::partial_sum(died.begin(), died.end(), died.begin());
  std::vector<double> result;
  for (const Item& item : problem.items) {
    std::int64_t met = 0;
    for (const Span& span : item.spans)
      if (!span.empty()) met += born[span.end] - died[span.begin];
    result.push_back(static_cast<double>(met));
  }
  return result;
}

std::vector<double> total_pressure(const Problem& problem) {
  std::vector<double> sum(problem.pressure.size() + 1, 0.0);
  std::partial_sum(problem.pressure.begin(), problem.pressure.end(), sum.begin() + 1);
  std::vector<double> result;
  for (const Item& item : problem.items) {
    double total = 0;
    for (const Span& span : item.spans) total += sum[span.end] - sum[span.begin];
    result.push_back(total);
  }
  return result;
}

std::vector<double> values(const Problem& problem, Key key) {
  if (key == Key::kPressure) return peak_pressure(problem);
  if (key == Key::kTotalPressure) return total_pressure(problem);
  if (key == Key::kDegree) return degrees(problem);
  std::vector<double> result;
  for (const Item& item : problem.items) {
    const double size = static_cast<double>(item.size), ticks = static_cast<double>(length(item));
    result.push_back(key == Key::kSize     ? size
                     : key == Key::kLength ? ticks
                     : key == Key::kArea   ? size * ticks
                                           : -static_cast<double>(item.spans[0].begin));
  }
  return result;
}

}  // namespace

std::vector<std::int32_t> order_by(const Problem& problem, const std::vector<Key>& keys) {
  std::vector<std::int32_t> order;
  for (std::size_t i = 0; i < problem.size(); ++i)
    if (problem.items[i].fixed == kFree) order.push_back(static_cast<std::int32_t>(i));
  std::vector<std::vector<double>> columns;
  for (Key key : keys) columns.push_back(values(problem, key));
  std::sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    for (const auto& column : columns)
      if (column[a] != column[b]) return column[a] > column[b];
    return a < b;
  });
  return order;
}

Offsets place(const Problem& problem, const std::vector<std::int32_t>& order, Fit fit, std::int64_t& work,
              Offsets offsets) {
  Occupancy taken(problem.sections);
  offsets.resize(problem.size(), kFree);
  for (std::size_t i = 0; i < problem.size(); ++i) {
    if (problem.items[i].fixed != kFree) offsets[i] = problem.items[i].fixed;
    if (offsets[i] != kFree) taken.add(problem.items[i], offsets[i]);
  }
  for (std::int32_t i : order) {
    const Item& item = problem.items[i];
    offsets[i] = fit == Fit::kFirst ? taken.first_fit(item) : taken.best_fit(item);
    taken.add(item, offsets[i]);
  }
  work -= taken.work();
  return offsets;
}

}  // namespace memfit::packing
