#include "packer/problem.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace memfit::packing {
namespace {

// A stretch of time of one item, before sections are known.
struct Piece {
  std::int64_t lower, upper;
  std::int32_t item;
  std::int8_t span;
};

void check(const Lifetimes& in, std::size_t i, std::int64_t alignment, std::int64_t period) {
  constexpr std::int64_t kLargest = std::int64_t{1} << 60;
  if (in.lower[i] >= in.upper[i]) throw std::invalid_argument("a lifetime ends before it begins");
  if (in.size_bytes[i] < 0 || in.size_bytes[i] > kLargest) throw std::invalid_argument("a size is out of range");
  if (period > 0 && (in.lower[i] < 0 || in.lower[i] >= period))
    throw std::invalid_argument("a lifetime begins outside the period");
  const std::int64_t offset = in.offset_bytes[i];
  if (offset != kFree && (offset < 0 || offset % alignment != 0 || offset > kLargest))
    throw std::invalid_argument("a fixed offset is negative or not aligned");
}

std::int32_t slots_of(const Lifetimes& in, std::size_t i, std::int64_t period) {
  const std::int64_t ticks = in.upper[i] - in.lower[i];
  if (period == 0 || ticks <= period) return 1;
  const std::int64_t slots = (ticks + period - 1) / period;
  if (slots > (1 << 20)) throw std::invalid_argument("a lifetime spans too many periods");
  return static_cast<std::int32_t>(slots);
}

// Every sum of sizes and offsets has to be a number, and so has any offset in the search.
void check_total(const Problem& problem) {
  const Quanta kLargest = std::numeric_limits<Quanta>::max() / 4 / problem.quantum_bytes;  // in bytes too
  Quanta total = 0;
  for (const Item& item : problem.items) {
    const Quanta more = item.size + std::max<Quanta>(0, item.fixed);
    if (more > kLargest - total) throw std::invalid_argument("the sizes add up to more than can be counted");
    total += more;
  }
}

void add_pieces(std::vector<Piece>& pieces, std::int64_t lower, std::int64_t upper, std::int64_t period,
                std::int32_t item) {
  if (period > 0 && upper - lower >= period) {
    pieces.push_back({0, period, item, 0});
  } else if (period > 0 && upper > period) {
    pieces.push_back({lower, period, item, 0});
    pieces.push_back({0, upper - period, item, 1});
  } else {
    pieces.push_back({lower, upper, item, 0});
  }
}

// Walks births and deaths in order of time, deaths first: a section begins at a birth that follows a death.
void assign_sections(Problem& problem, const std::vector<Piece>& pieces) {
  struct Event {
    std::int64_t time;
    bool birth;
    std::int32_t piece;
  };
  std::vector<Event> events;
  events.reserve(2 * pieces.size());
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    events.push_back({pieces[i].lower, true, static_cast<std::int32_t>(i)});
    events.push_back({pieces[i].upper, false, static_cast<std::int32_t>(i)});
  }
  std::sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    return std::pair(a.time, a.birth) < std::pair(b.time, b.birth);
  });
  std::int32_t section = -1;
  bool after_death = true;
  for (const Event& event : events) {
    const Piece& piece = pieces[event.piece];
    Span& span = problem.items[piece.item].spans[piece.span];
    if (event.birth) {
      section += after_death;
      span.begin = section;
    } else {
      span.end = section + 1;
    }
    after_death = !event.birth;
  }
  problem.sections = section + 1;
}

// Offsets that are sums of sizes suffice, so one quantum is the greatest divisor of all there is.
void reduce(Problem& problem) {
  Quanta divisor = 0;
  for (const Item& item : problem.items)
    divisor = std::gcd(std::gcd(divisor, item.size), item.fixed == kFree ? 0 : item.fixed);
  if (divisor <= 1) return;
  problem.quantum_bytes *= divisor;
  for (Item& item : problem.items) {
    item.size /= divisor;
    if (item.fixed != kFree) item.fixed /= divisor;
  }
}

void find_lower_bound(Problem& problem) {
  std::vector<Quanta> change(static_cast<std::size_t>(problem.sections) + 1, 0);
  for (const Item& item : problem.items) {
    if (item.fixed != kFree) problem.lower_bound = std::max(problem.lower_bound, item.fixed + item.size);
    for (const Span& span : item.spans) {
      if (span.empty()) continue;
      change[span.begin] += item.size;
      change[span.end] -= item.size;
    }
  }
  problem.pressure.assign(problem.sections, 0);
  std::partial_sum(change.begin(), change.end() - 1, problem.pressure.begin());
  for (Quanta live : problem.pressure) problem.lower_bound = std::max(problem.lower_bound, live);
}

}  // namespace

Table build(const Lifetimes& in, std::int64_t alignment, std::int64_t period) {
  if (alignment < 1) throw std::invalid_argument("the alignment must be positive");
  if (period < 0) throw std::invalid_argument("the period must be positive");
  Table table;
  table.problem.quantum_bytes = alignment;
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < in.count; ++i) {
    check(in, i, alignment, period);
    const std::int32_t slots = slots_of(in, i, period);
    if (slots > 1 && in.offset_bytes[i] != kFree)
      throw std::invalid_argument("a lifetime that outlives the period has several slots and cannot be fixed");
    table.slots.push_back(slots);
    for (std::int32_t slot = 0; slot < slots && in.size_bytes[i] > 0; ++slot) {
      Item item;
      item.size = (in.size_bytes[i] + alignment - 1) / alignment;
      item.fixed = in.offset_bytes[i] == kFree ? kFree : in.offset_bytes[i] / alignment;
      add_pieces(pieces, in.lower[i], in.upper[i], period, static_cast<std::int32_t>(table.problem.size()));
      table.problem.items.push_back(item);
    }
  }
  check_total(table.problem);
  assign_sections(table.problem, pieces);
  reduce(table.problem);
  find_lower_bound(table.problem);
  return table;
}

Quanta footprint(const Problem& problem, const Offsets& offsets) {
  Quanta top = 0;
  for (std::size_t i = 0; i < problem.size(); ++i) top = std::max(top, offsets[i] + problem.items[i].size);
  return top;
}

}  // namespace memfit::packing
